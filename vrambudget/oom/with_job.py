"""An out-of-memory message explained with its job: which tensor, when, what would have avoided it.

The job is simulated on an unlimited GPU. Of its requests of the size in question, the one is taken
before which about as much was allocated as the message says: that distinguishes the first iteration
from the second, and two tensors of one size. What would have avoided the crash is what makes the
job fit into the available that this process had: the free memory and what it already held.

Not modelled: torch.compile, which makes fewer temporaries than the simulated job.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vrambudget.estimator import trace_job
from vrambudget.oom.explain import Explanation, explain
from vrambudget.oom.gpu_ledger import GpuLedger
from vrambudget.oom.message import OomMessage
from vrambudget.oom.request_match import Request, match_request
from vrambudget.oom.scene import Finding, finding
from vrambudget.planning.advice import advise_on
from vrambudget.planning.advised import Advice
from vrambudget.planning.tensors import describe, held
from vrambudget.planning.variants import variant
from vrambudget.scenario import Scenario
from vrambudget.simulate import simulate
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.replay import replay
from vrambudget.units import format_bytes

_LASTING = {Purpose.WEIGHTS, Purpose.OPTIMIZER_STATES, Purpose.WORKSPACES}
_PRODUCTS = {"mm", "addmm", "bmm"}
_NEAR = 64  # a moment is met if at most this part is missing: blocks are rounded up
_ITERATIONS = ("first iteration", "second iteration", "a later iteration")


@dataclass(frozen=True, slots=True)
class _Asking:
    """One request of the tape: when, and how much was alive before it."""

    event: int
    storage: int
    step: int
    alive_bytes: int
    operation: str
    request: Request


def explain_with_job(messages: Sequence[OomMessage], scenario: Scenario) -> Explanation:
    """Return what the messages mean for this job. Raises VramBudgetError where there is none."""
    message = next((m for m in messages if m.has_numbers), None)
    if message is None:
        return explain(messages)
    tape = simulate(scenario.config, scenario.job, scenario.platform).tape
    askings = list(_askings(tape, scenario))
    requests = list(dict.fromkeys(each.request for each in askings))
    asking = _most_likely(askings, requests, message)
    resident_bytes: int | None = None
    findings: list[Finding | None] = []
    if asking is not None:
        resident_bytes = _resident_bytes(tape, asking, scenario)
        findings.append(_unlike(asking, message))
        when = _ITERATIONS[min(asking.step, len(_ITERATIONS) - 1)]
        named = replace(asking.request, phase=f"{asking.request.phase}, {when}")
        requests = [named, *(each for each in requests if each != asking.request)]
    explanation = explain(messages, requests, resident_bytes=resident_bytes)
    findings += [_avoiding(message, scenario), _training(scenario)]
    more = tuple(finding for finding in findings if finding is not None)
    return replace(explanation, findings=(*explanation.findings, *more))


def _askings(tape: Tape, scenario: Scenario) -> Iterator[_Asking]:
    """Yield every request of the loop, in order."""
    does = "evaluation" if scenario.job.mode == "eval" else "training"
    marks = iter(tape.marks)
    following = next(marks, None)
    step, phase, alive = 0, "build", 0
    for position, event in enumerate(tape.read()):
        while following is not None and following.position <= position:
            step, phase = following.step, following.phase.replace("_", " ")
            following = next(marks, None)
        size = tape.sizes[event.storage]
        if event.change > 0:
            request = Request(size, describe(tape, event.storage, scenario.job), f"{does} {phase}")
            operation = tape.operations[event.storage]
            yield _Asking(position, event.storage, step, alive, operation, request)
        alive += event.change * size


def _most_likely(
    askings: Sequence[_Asking], requests: Sequence[Request], message: OomMessage
) -> _Asking | None:
    """Return the request that the message is most likely about.

    If none matches what the message says was allocated, the job that ran is not quite this one:
    then matrix products come first, because torch.compile fuses other operations away.
    """
    assert message.asked is not None  # noqa: S101 - the message has numbers
    how = {match.request: match.how for match in match_request(message.asked, requests)}

    def distance(each: _Asking) -> tuple[str, bool, int]:
        off = _off(each, message)
        is_near = off * _NEAR <= each.alive_bytes
        return how[each.request], not is_near and each.operation not in _PRODUCTS, off

    return min((each for each in askings if each.request in how), key=distance, default=None)


def _off(asking: _Asking, message: OomMessage) -> int:
    """Return how much what is alive before a request differs from what the message says."""
    return abs(asking.alive_bytes - message.allocated.bytes) if message.allocated else 0


def _unlike(asking: _Asking, message: OomMessage) -> Finding | None:
    """Report that the job that ran held more or less than the one described."""
    if message.allocated is None or _off(asking, message) * _NEAR <= asking.alive_bytes:
        return None
    alive = asking.alive_bytes
    return finding("unlike", alive, alive=alive, allocated=message.allocated.text)


def _resident_bytes(tape: Tape, asking: _Asking, scenario: Scenario) -> int:
    """Return what is always held: everything but what an earlier iteration left behind.

    If something is left behind in evaluation, only what lasts counts: without gradients, forward
    keeps nothing else, compiled or not.
    """
    begin = min(mark.position for mark in tape.marks if mark.step == asking.step)
    alive = tape.alive_at(asking.event - 1)
    born_before = {event.storage for event in tape.read(0, begin)}
    lasting: int = sum(tape.sizes[i] for i in alive if tape.purposes[i] in _LASTING)
    left: int = sum(
        tape.sizes[i] for i in alive if i in born_before and tape.purposes[i] not in _LASTING
    )
    if left and scenario.job.mode == "eval":
        return lasting
    return asking.alive_bytes - left


def _avoiding(message: OomMessage, scenario: Scenario) -> Finding | None:
    """Report what would have made the job fit into the memory that this process had."""
    ledger = GpuLedger.of(message)
    mine = ledger.reserved or ledger.allocated
    if scenario.gpu is None or mine is None or ledger.free is None:
        return None
    available = mine + ledger.free
    gpu = replace(scenario.gpu, capacity_bytes=available + scenario.gpu.context_bytes)
    advice = advise_on(trace_job(replace(scenario, gpu=gpu)))
    peak = advice.device_peak_bytes - scenario.gpu.context_bytes
    if advice.fits:
        return finding("would_have_fit", peak, peak=peak, available=available)
    had = f"{format_bytes(peak)} at its peak; this process could use {format_bytes(available)}"
    return Finding("What would have avoided it", *_ways(advice, f"The job takes {had}."))


def _training(scenario: Scenario) -> Finding | None:
    """Report what training at an evaluation's batch and block would take."""
    if scenario.job.mode != "eval":
        return None
    training = variant(scenario, mode="train")
    tape = simulate(training.config, training.job, training.platform).tape
    replayed = replay(tape)
    largest = held(tape, tape.alive_at(replayed.peak_event), training.job)[0]
    peak = replayed.peak.reserved_bytes
    return finding("training", peak, peak=peak, tensor=largest.description, largest=largest.bytes)


def _ways(advice: Advice, had: str) -> tuple[str, int, str]:
    enough = [option for option in advice.options if option.fits]
    if not enough:
        further = f" `{advice.plan}` looks further." if advice.plan else ""
        return f"{had} No change that was tried is enough.{further}", advice.device_peak_bytes, ""
    ways = "; ".join(f"{option.options} (costs {option.cost})" for option in enough)
    return (
        f"{had} What fits: {ways}.",
        advice.device_peak_bytes,
        f"the cheapest change that fits: {enough[0].options} ({enough[0].words[-1]})",
    )
