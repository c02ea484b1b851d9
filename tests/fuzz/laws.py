"""What has to come of every case: a result that holds together, or an error that names it."""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import vrambudget
from fuzz import cases
from fuzz.checks import CLASS, OF_PYTORCH, strict, told
from fuzz.doors import DOORS
from vrambudget import VramBudgetError
from vrambudget.cli import main
from vrambudget.config.record import read_records
from vrambudget.config.settings import LARGEST
from vrambudget.config.source import find_model
from vrambudget.oom.explain import explain, render_explanation
from vrambudget.oom.message import parse_oom
from vrambudget.validate import summarise, validate

_QUICK = 3  # seconds of CPU time


def estimated(rng: Random) -> str:
    """Hold an estimate against the laws of bytes."""
    model, fields, card = cases.model(rng), cases.fields(rng), cases.card(rng)
    begun = time.process_time()
    try:
        budget = vrambudget.estimate(model, gpu=card, **fields)
    except VramBudgetError as error:
        told(error)
        return "refused"
    budget.check()
    strict(budget.to_json())
    assert str(budget)
    if time.process_time() - begun > _QUICK:
        return "answered, and not asked again"  # a thousand layers take seconds each time
    if rng.random() < 0.3:
        assert vrambudget.estimate(model, gpu=card, **fields) == budget
    # At one token PyTorch's kernels for one row take a few bytes more than those for two.
    if rng.random() < 0.5 and fields["batch"] * (fields.get("block") or 2) > 1:
        more = {**fields, "batch": min(fields["batch"] + rng.randrange(1, 4), LARGEST)}
        larger = vrambudget.estimate(model, gpu=card, **more)
        assert larger.peak.requested_bytes >= budget.peak.requested_bytes
    return "fits" if budget.fits else "does not fit"


def from_a_file(rng: Random) -> str:
    """Hold a configuration's file, whole or not, against its reader."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_bytes(cases.text_of(rng, cases.model(rng)))
        try:
            find_model(file)
        except VramBudgetError as error:
            told(error, str(file))
            return "refused"
    return "read"


def explained(rng: Random) -> str:
    """Hold a log against `explain`."""
    try:
        text = render_explanation(explain(parse_oom(cases.log(rng))))
    except VramBudgetError as error:
        told(error)
        return "refused"
    assert text.startswith("Out of memory")
    return "explained"


def validated(rng: Random) -> str:
    """Hold records against `validate`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.jsonl"
        file.write_bytes(cases.text_of(rng, cases.record(rng)))
        try:
            records = read_records(file)
        except VramBudgetError as error:
            told(error)
            return "refused"
    checks = list(validate(records))
    for check in checks:
        assert check.problem is None or not CLASS.search(check.problem), check.problem
    for summary in summarise(checks):
        assert abs(summary.worst) < float("inf")
    return "compared" if checks[0].problem is None else "not compared"


def called(rng: Random) -> str:
    """Hold the API's functions against arguments of any kind."""
    name = rng.choice(("estimate", "sweep", "max_batch", "find_gpu", "draw", "advise"))
    value = rng.choice((cases.anything(rng), cases.model(rng), object(), b"gpt2", 3))
    function: Callable[..., Any] = getattr(vrambudget, name)
    gpu = cases.anything(rng) if rng.random() < 0.7 else "12GB"
    try:
        if name == "find_gpu":
            function(value)
        elif name == "draw":
            function(cases.anything(rng), value, gpu=gpu)
        elif name == "max_batch":
            function(value, gpu=gpu, margin=cases.anything(rng), block=2)
        else:
            function(value, gpu=gpu, **cases.fields(rng))
    except VramBudgetError as error:
        told(error)
        return "refused"
    return "answered"


def commanded(rng: Random) -> str:
    """Hold the command line against words of any kind."""
    out, err = io.StringIO(), io.StringIO()
    words = cases.words(rng)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit:  # only --help and --version end so
            return "help"
    assert code in {0, 1, 2}, words
    if code == 2:
        assert err.getvalue().startswith("error: "), words
        assert not set(CLASS.findall(err.getvalue())) - OF_PYTORCH, err.getvalue()
    else:
        assert out.getvalue() or "wrote" in err.getvalue(), words
    return f"exit code {code}"


LAWS = {
    "estimate": estimated,
    "configuration files": from_a_file,
    "explain": explained,
    "validate": validated,
    "API": called,
    "command line": commanded,
    **DOORS,
}
"""What is held: the law of a kind of input, which returns what came of a case."""
