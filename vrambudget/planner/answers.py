"""What the planner's page asks, and the answers, as JSON; it runs in the browser's worker.

    {"ask": "estimate", "model": ..., "gpu": ..., "fields": {...}}    verdict, ledger, commands
    {"ask": "first", ...}                the same after the first steps, sooner; "is_steady" says
                                         whether "estimate" may say more
    {"ask": "drawing", ...}                                  the timeline of the same job
    {"ask": "advice", ...}                                   what would help
    {"ask": "largest", ...}                                  the largest batch
    {"ask": "plan", ...}                the recipes that fit this GPU, or what it trains with less
    {"ask": "explain", "log": ...}                           what an out-of-memory message means

An answer to what makes no sense is {"error": ..., "hint": ...}. What can be chosen needs no Python:
`choices` is written beside the page. What the first verdict needs is imported at once, the rest
when it is asked for.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from vrambudget.cli.job_options import SWITCHES, kinds_of
from vrambudget.config.cards import card_names, load_card
from vrambudget.config.gpus import all_gpus
from vrambudget.config.job import GROUPS
from vrambudget.errors import VramBudgetError
from vrambudget.escaping import escape
from vrambudget.estimator import Traced, trace_job
from vrambudget.planner.commands import command_line, python_call
from vrambudget.report.html import advice_section, plot_of, sections
from vrambudget.report.ledger import ledger
from vrambudget.report.phrases import verdict
from vrambudget.report.tools.script import training_arguments
from vrambudget.scenario import resolve
from vrambudget.units import format_bytes

Question = Mapping[str, Any]


def answer(question: str) -> str:
    """Return the answer to a question, both as JSON."""
    asked = json.loads(question)
    try:
        return json.dumps(_ANSWERS[asked["ask"]](asked))
    except VramBudgetError as error:
        return json.dumps({"error": error.message, "hint": error.hint})


def choices() -> dict[str, Any]:
    """Return the models, the GPUs, and how each field of a job can be set."""
    cards = map(load_card, card_names())
    return {
        "models": [{"name": card.name, "title": card.title} for card in cards],
        "gpus": [gpu.name for gpu in all_gpus()],
        "groups": [{"title": group.heading, "fields": list(_fields_of(group))} for group in GROUPS],
    }


def _fields_of(group: type[Any]) -> Iterator[dict[str, Any]]:
    """Yield how each field of a group can be set."""
    for name, field in group.model_fields.items():
        kinds = list(kinds_of(field.annotation))
        choices = [choice for kind in kinds if isinstance(kind, tuple) for choice in kind]
        default = field.get_default()
        yield {
            "name": name,
            "kind": "text" if str in kinds else "choice" if choices else _KINDS[kinds[0]],
            "choices": choices,
            "default": ",".join(default) if isinstance(default, tuple) else default,
            "help": SWITCHES.get(name, field.description),
        }


_KINDS = {bool: "switch", int: "whole", float: "number"}


def _estimate(question: Question) -> dict[str, Any]:
    return _answer(question, _traced(question))


def _first(question: Question) -> dict[str, Any]:
    traced = _first_steps(_asked(question))
    answer = _answer(question, traced) | {"is_steady": traced.is_steady}
    if not traced.is_steady:
        steps = len(traced.budget.steps)
        answer["sentence"] += f" after {steps} steps; counting on ..."
    return answer


def _answer(question: Question, traced: Traced) -> dict[str, Any]:
    model, gpu, fields = (question[key] for key in ("model", "gpu", "fields"))
    budget = traced.budget
    word, sentence = verdict(budget, ledger(budget))
    return {
        "fits": budget.fits,
        "word": word,
        "sentence": sentence,
        "peak": asdict(budget.peak),
        "body": sections(budget),
        "commands": {
            "command line": command_line(model, gpu, fields),
            "Python": python_call(model, gpu, fields),
            "TrainingArguments": training_arguments(traced.scenario.job),
        },
    }


def _drawing(question: Question) -> dict[str, Any]:
    plotted, curve = plot_of(_traced(question))
    return {"plotted": plotted, "curve": json.loads(curve)}


def _traced(question: Question) -> Traced:
    return _steady_state(_asked(question))


def _asked(question: Question) -> str:
    return json.dumps([question[key] for key in ("model", "gpu", "fields")])


@lru_cache(maxsize=1)
def _first_steps(asked: str) -> Traced:
    """Return the job after its first steps, once for all questions about it."""
    model, gpu, fields = json.loads(asked)
    return trace_job(resolve(model, gpu=gpu or None, **fields), settles=False)


@lru_cache(maxsize=1)
def _steady_state(asked: str) -> Traced:
    """Return the job in its steady state, likewise."""
    first = _first_steps(asked)
    return first if first.is_steady else trace_job(first.scenario)


def _advice(question: Question) -> dict[str, Any]:
    from vrambudget.planning.advice import advise_on  # noqa: PLC0415 - the first verdict needs none

    return {"body": advice_section(advise_on(_traced(question)))}


def _largest(question: Question) -> dict[str, Any]:
    from vrambudget.planning.fit import largest_batch  # noqa: PLC0415 - likewise
    from vrambudget.planning.variants import as_traced  # noqa: PLC0415 - likewise

    scenario = as_traced(_traced(question))
    spare = scenario.gpu.spare_bytes if scenario.gpu else 0
    return {"batch": largest_batch(scenario, margin_bytes=spare)}


def _plan(question: Question) -> dict[str, Any]:
    from vrambudget.planning.plan import Wish, plan_for  # noqa: PLC0415 - likewise
    from vrambudget.planning.recipes import SEARCHED  # noqa: PLC0415
    from vrambudget.report.plan import filled, headline, row_of  # noqa: PLC0415

    kept = {k: v for k, v in question["fields"].items() if k not in SEARCHED}
    scenario = resolve(question["model"], gpu=question["gpu"] or None, **kept)
    spare = scenario.gpu.spare_bytes if scenario.gpu else 0
    found = plan_for(scenario, Wish(most=1, named=kept.keys(), margin_bytes=spare))
    shown = [*(each.choice for each in found.alternatives), *found.choices]
    rows = [row_of(choice, found) for choice in shown]
    return {
        "sentence": headline(found),
        "notes": filled(shown),
        "recipes": [
            {
                "words": row["layout"],
                "block": row["block"],
                "batch": row["batch"],
                "peak": format_bytes(row["peak_bytes"]),
                "left": format_bytes(row["left_bytes"]),
                "costs": ", ".join(row["costs"]),
                "fields": row["fields"],
            }
            for row in rows
        ],
    }


def _explain(question: Question) -> dict[str, Any]:
    from vrambudget.oom.explain import explain, render_explanation  # noqa: PLC0415 - likewise
    from vrambudget.oom.message import parse_oom  # noqa: PLC0415

    text = render_explanation(explain(parse_oom(question["log"])))
    return {"body": f"<pre>{escape(text)}</pre>"}


_ANSWERS: Mapping[str, Callable[[Question], dict[str, Any]]] = {
    "estimate": _estimate,
    "first": _first,
    "drawing": _drawing,
    "advice": _advice,
    "largest": _largest,
    "plan": _plan,
    "explain": _explain,
}
