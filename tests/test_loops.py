"""Training loops: the mirrored one is the real one, and what makes it fast changes nothing."""

import ast
import json
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from test_laws import KINDS, tape_of, tiny
from virtual import why_not

from vrambudget import simulate as simulate_module
from vrambudget.cli import main
from vrambudget.config.fields.training import NOT_MODELLED_LOOPS, LoopName
from vrambudget.config.loops import TRAINER_OPTIMIZERS
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.cached_trace import CachedTrace
from vrambudget.engine.context import no_grad
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.estimator import estimate
from vrambudget.measure.record import record_of, runnable
from vrambudget.models.parts.causal_lm import CausalLM
from vrambudget.ops.elementwise import add, mul_scalar
from vrambudget.rehearse.events import rehearse_job
from vrambudget.report.phrases import job_text
from vrambudget.sampled_lengths import sampled_lengths
from vrambudget.scenario import Scenario, resolve
from vrambudget.simulate import simulate
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import replay
from vrambudget.training.loops import plain
from vrambudget.training.loops.run import Run
from vrambudget.units import format_bytes

PACKAGE = Path(simulate_module.__file__).parent
WRITTEN_BY_HAND = ["plain", "nanogpt"]  # the others' twins run a library
MIRRORED, REAL = PACKAGE / "training" / "loops", PACKAGE / "measure" / "loops"


# ---- the registry, and pairs --------------------------------------------------------------------


def test_every_loop_has_a_name_in_jobs_and_a_twin_in_torch() -> None:
    listed = next(
        ast.literal_eval(node.value)
        for node in ast.parse((REAL / "__init__.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NAMES"
    )
    mirrored = {path.stem for path in MIRRORED.glob("*.py")} - {"__init__", "run"}
    assert mirrored == set(get_args(LoopName)) == set(listed)
    assert all((folder / f"{name}.py").exists() for name in listed for folder in (MIRRORED, REAL))


def test_trainer_has_a_name_for_each_optimizer_that_a_job_of_it_may_have() -> None:
    optim = next(
        ast.literal_eval(node.value)
        for node in ast.parse((REAL / "trainer.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_OPTIM"
    )
    assert set(optim) == set(TRAINER_OPTIMIZERS)


def outline(file: Path) -> dict[str, list[str]]:
    """Return a loop's functions: what is bound, marked, returned and opened, line by line."""
    functions = [x for x in ast.parse(file.read_text()).body if isinstance(x, ast.FunctionDef)]
    return {function.name: list(lines(function)) for function in functions}


def lines(function: ast.FunctionDef) -> Any:
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[target]):
                none = isinstance(node.value, ast.Constant) and node.value.value is None
                yield node.lineno, f"{ast.unparse(target)} = {'None' if none else '...'}"
            case ast.For():
                yield node.lineno, f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
            case ast.With() if "run.region(" in ast.unparse(node.items[0]):
                pass  # of a layout of several GPUs, which a twin has not
            case ast.With() | ast.If() | ast.Delete() | ast.Return():
                yield node.lineno, type(node).__name__
            case ast.Expr(value=ast.Call(func=called)) if ast.unparse(called) == "run.mark":
                yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("name", WRITTEN_BY_HAND)
def test_a_modelled_loop_and_its_twin_bind_and_mark_the_same_in_one_order(name: str) -> None:
    mirrored, real = (outline(folder / f"{name}.py") for folder in (MIRRORED, REAL))
    ours, theirs = (
        {function: [text for _, text in sorted(found)] for function, found in functions.items()}
        for functions in (mirrored, real)
    )
    assert ours == theirs
    assert {"train", "evaluate"} <= set(ours)


def test_a_loop_that_there_is_not_is_an_error_that_lists_those_that_there_are() -> None:
    with pytest.raises(VramBudgetError, match="loop"):
        resolve("gpt2", loop="trainr")
    with pytest.raises(VramBudgetError, match="loop 'trainr' is not known") as error:
        runnable({"id": "x", "model": "gpt2", "loop": "trainr"})
    assert "trainer" in str(error.value.hint)
    with pytest.raises(VramBudgetError, match="loop 'mine' is not known") as error:
        runnable({"id": "x", "model": "gpt2", "loop": "mine"})
    assert "plain" in str(error.value.hint)


@pytest.mark.parametrize("name", NOT_MODELLED_LOOPS)
def test_a_loop_that_is_not_counted_is_refused_by_name_with_the_way_out(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(VramBudgetError, match="vrambudget rehearse --gpu GPU"):
        resolve("gpt2", loop=name)
    assert main(["gpt2", "--loop", name]) == 2
    assert NOT_MODELLED_LOOPS[name] in capsys.readouterr().err


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 500,
}


def test_a_report_says_whose_adafactor_it_is() -> None:
    job = {"block": 32, "optimizer": "adafactor", "gpu": "12GB"}
    assert "adafactor (transformers)" in job_text(estimate(LLAMA, loop="trainer", **job))
    assert "adafactor (PyTorch's default)" in job_text(estimate(LLAMA, **job))


QLORA = {"quant": "nf4", "lora_rank": 4}


@pytest.mark.parametrize(
    ("fields", "why", "runs"),
    [
        pytest.param({}, r"capability 7\.5", {"precision": "amp-fp16"}, id="bf16"),
        pytest.param(QLORA, r"capability 7\.5", {"precision": "fp32"}, id="bf16, 4 bit"),
        pytest.param(
            {**QLORA, "precision": "amp-fp16"}, "GradScaler", {"precision": "fp32"}, id="fp16"
        ),
    ],
)
def test_what_pytorch_refuses_of_trl_is_refused_with_what_runs(
    fields: dict[str, Any], why: str, runs: dict[str, Any]
) -> None:
    job = {"block": 32, "gpu": "t4", "loop": "sft", **fields}
    with pytest.raises(VramBudgetError, match=why) as error:
        estimate(LLAMA, **job)
    assert f"--precision {runs['precision']}" in (error.value.hint or "")
    assert estimate(LLAMA, **{**job, **runs}).fits
    assert estimate(LLAMA, **{**job, "mode": "eval"}).fits


def test_losses_that_keep_their_graphs_are_told_with_what_each_step_adds() -> None:
    peaks = [
        estimate(TINY, batch=2, block=32, gpu="t4", keep_losses="graphs", steps=n).peak
        for n in (3, 4, 5)
    ]
    third, fourth, fifth = (peak.allocated_bytes for peak in peaks)
    assert fifth - fourth == fourth - third > 0
    found = estimate(TINY, batch=2, block=32, gpu="t4", keep_losses="graphs").warnings
    assert any("the GPU is full after about" in warning for warning in found)
    assert estimate(TINY, block=32, keep_losses="list").peak.allocated_bytes < third


# ---- lengths that change -------------------------------------------------------------------------


def test_sampled_lengths_are_the_same_again_and_the_longest_comes_late() -> None:
    for draw in range(20):
        lengths = sampled_lengths(8, 64, count=12, draw=draw)
        assert lengths == sampled_lengths(8, 64, count=12, draw=draw)
        assert 64 in lengths[6:]
        assert min(lengths) >= 8
        assert max(lengths) == 64
    assert sampled_lengths(8, 64, count=1, draw=0) == [64]


def test_lengths_that_change_reserve_the_most_of_five_draws_and_their_spread_is_told() -> None:
    job: dict[str, Any] = {"batch": 4, "block": "64:1024", "steps": 6, "precision": "bf16"}
    budget = estimate("gpt2", **job)
    draws = [estimate("gpt2", **job, draw=draw).peak.reserved_bytes for draw in range(5)]
    assert budget.peak.reserved_bytes == max(draws) > min(draws)
    assert budget.job["draw"] == draws.index(max(draws))
    told = f"{format_bytes(min(draws))} to {format_bytes(max(draws))}"
    assert any(told in warning for warning in budget.warnings)
    longest = estimate("gpt2", **{**job, "block": 1024}).peak
    assert budget.peak.reserved_bytes > longest.reserved_bytes
    assert budget.peak.requested_bytes == longest.requested_bytes  # what the longest takes


def test_packed_rows_are_told_where_a_cache_keeps_their_mask_from_being_built() -> None:
    def said(**fields: Any) -> bool:
        found = estimate(TINY, block=32, rows="packed", **fields)
        return any("tokens see those of other" in warning for warning in found.warnings)

    assert said()
    assert not said(use_cache=False)
    with pytest.raises(NotModelledError, match="packed rows is not modelled"):
        estimate("nanogpt", block=32, rows="packed")


def test_opt_sees_no_packed_rows_which_the_report_says() -> None:
    packed = estimate("opt-125m", block=32, rows="packed", use_cache=False)
    assert packed.job["causal_mask"] == "skipped"
    assert any("opt does not look where packed sequences begin" in w for w in packed.warnings)


def test_packed_rows_of_sft_are_one_row_and_its_mask_may_be_left_out() -> None:
    fields = {"loop": "sft", "rows": "packed", "batch": 4, "block": 32}
    packed = estimate(TINY, **fields)
    (told,) = [w for w in packed.warnings if "packing makes one row" in w]
    assert "--causal-mask skipped" in told
    labels = 4 * (32 - 2)  # two sequences in a row, whose first labels do not count
    one = estimate(TINY, **{**fields, "batch": 1, "block": 128}, completion_len=labels)
    assert abs(packed.peak.requested_bytes - one.peak.requested_bytes) < 2048  # their boundaries
    unmasked = estimate(TINY, **fields, causal_mask="skipped")
    assert unmasked.peak.requested_bytes < packed.peak.requested_bytes


# ---- what makes a loop fast ---------------------------------------------------------------------

OPTIONS = {
    "plain": {},
    "micro-batches": {"grad_accum": 5, "precision": "amp-fp16", "clip": 1.0, "steps": 4},
    "clipping": {"precision": "amp-fp16", "clip": 1.0, "steps": 4},
    "dropped before the step": {"drop_before_step": True, "empty_cache": True, "grad_accum": 2},
    "labels that are the inputs": {"shared_labels": True, "drop_before_step": True},
    "outputs dropped": {"keep_outputs": False, "optimizer": "sgd"},
    "a cache filled": {"use_cache": True, "steps": 4},
    "the loss alone": {"forward_returns": "loss", "zero_grad": "zeros"},
    "smoothing": {"label_smoothing": 0.1, "grad_accum": 2, "precision": "amp-fp16"},
    "losses kept": {"keep_losses": "list", "grad_accum": 2, "steps": 4},
    "graphs kept": {"keep_losses": "graphs", "steps": 4},
    "packed rows": {"rows": "packed", "clip": 1.0},
    "packed rows as one": {"loop": "sft", "rows": "packed", "grad_accum": 2},
    "zeroed late": {"zero_grad": "late", "weights": "bf16", "model_mode": "eval"},
    "evaluating": {"eval_batches": 3, "eval_batch": 3, "eval_first": True, "steps": 5},
    "gathering": {"eval_batches": 2, "eval_gather": True, "keep_outputs": False},
    "checkpointing": {"checkpointing": "full", "precision": "bf16"},
    "accelerate": {"loop": "accelerate", "eval_batches": 2, "eval_gather": True, "steps": 4},
    "lightning": {"loop": "lightning", "grad_accum": 2, "steps": 4, "precision": "amp-fp16"},
    "trainer": {"loop": "trainer", "grad_accum": 2, "steps": 4, "precision": "amp-fp16"},
    "trainer evaluating": {"loop": "trainer", "eval_batches": 2, "eval_gather": True},
    "trainer smoothing": {"loop": "trainer", "label_smoothing": 0.1, "eval_batches": 2},
    "sft": {"loop": "sft", "grad_accum": 2, "steps": 4, "completion_len": 3},
    "sft evaluating": {"loop": "sft", "eval_batches": 2, "eval_gather": True, "lora_rank": 4},
    "dpo": {"loop": "dpo", "eval_batches": 2, "eval_first": True, "checkpointing": "none"},
    "dpo precomputed": {"loop": "dpo", "precompute_ref_log_probs": True, "rows": "padded"},
    "dpo with adapters": {"loop": "dpo", "lora_rank": 4, "lora_dropout": 0.1, "steps": 4},
    "adapters": {"lora_rank": 4, "precision": "bf16", "checkpointing": "full"},
    "no optimizer": {"optimizer": "none", "steps": 4},
    "evaluation": {"mode": "eval"},
}


def story(tape: Tape) -> list[tuple[Any, ...]]:
    """Return every allocation, with the sizes that were freed since the one before."""
    told, freed = list[tuple[Any, ...]](), list[int]()
    for event in tape.events[: tape.marks[-1].position]:
        if event >= 0:
            told.append((tape.sizes[event], tape.operations[event], tape.purposes[event], freed))
            freed = []
        else:
            freed.append(tape.sizes[~event])
            freed.sort()
    return [*told, *((mark.position, mark.step, mark.phase) for mark in tape.marks)]


def in_full(scenario: Scenario) -> Tape:
    """Return the tape of a job whose every pass is traced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate_module, "Run", partial(Run, in_full=True))
        return tape_of(scenario)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "task"), KINDS)
def test_a_pass_that_is_laid_down_again_is_the_pass_that_would_have_run(
    name: str, task: str
) -> None:
    for fields in OPTIONS.values():
        try:
            scenario = tiny(name, task, **fields)
            ours = tape_of(scenario)
        except (NotModelledError, VramBudgetError):
            continue  # a combination that is refused by name
        theirs = in_full(scenario)
        assert story(ours) == story(theirs), fields
        assert replay(ours) == replay(theirs), fields


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the forward passes of GPT-2 that are traced."""
    traced, forward = list[str](), CausalLM.forward

    def mirrored(self: Any, *args: Any, **kwargs: Any) -> Any:
        traced.append("forward")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(CausalLM, "forward", mirrored)
    return traced


def _of(scenario: Scenario) -> tuple[Any, Any]:
    return scenario.config, scenario.job


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        pytest.param({"steps": 9}, 1, id="steps"),
        pytest.param({"steps": 3, "grad_accum": 7}, 2, id="micro-batches"),
        pytest.param({"steps": 9, "mode": "eval"}, 1, id="evaluation"),
        pytest.param({"steps": 9, "lora_rank": 4, "checkpointing": "full"}, 1, id="adapters"),
    ],
)
def test_each_kind_of_pass_is_traced_once(
    traces: list[str], fields: dict[str, Any], count: int
) -> None:
    tape_of(tiny("gpt2", "causal-lm", **fields))
    assert len(traces) == count


# ---- loops of one's own -------------------------------------------------------------------------


def evaluating(run: Run) -> dict[str, Any]:
    """Evaluate after the second step, and hold the outputs of the last batch."""
    model, batches = run.model, run.batches()
    model.train()
    for step in run.steps():
        outputs = model(**next(batches))
        run_backward(outputs.loss)
        for parameter in model.parameters():
            parameter.grad = None
        if step == 1:
            model.eval()
            with no_grad():
                evaluated = [model(**next(batches)).loss for _ in range(2)]
            model.train()
    return locals()


def leaking(run: Run) -> dict[str, Any]:
    """Keep every loss with its graph; let gradients add up."""
    losses = []
    for _ in run.steps():
        with run.autocast():
            outputs = run.model(**next(run.batches()))
        losses.append(outputs.loss)
        run_backward(outputs.loss)
        del outputs
    return locals()


def without_backward(run: Run) -> dict[str, Any]:
    """Drop every second graph before its backward."""
    for step in run.steps():
        outputs = run.model(**next(run.batches()))
        if step % 2:
            run_backward(outputs.loss)
            for parameter in run.model.parameters():
                parameter.grad = None
        del outputs
    return locals()


def zeroing_late(run: Run) -> dict[str, Any]:
    """Zero the gradients between forward and backward; drop the batch before it."""
    batches = run.batches()
    for _ in run.steps():
        batch = next(batches)
        loss = run.model(**batch).loss
        del batch
        for parameter in run.model.parameters():
            parameter.grad = None
        run_backward(mul_scalar(loss))
    return locals()


def changing(run: Run) -> dict[str, Any]:
    """Drop the outputs before backward, but only from the third step on."""
    for step in run.steps():
        outputs = run.model(**next(run.batches()))
        loss = outputs.loss
        if step > 1:
            del outputs
        run_backward(loss)
        for parameter in run.model.parameters():
            parameter.grad = None
    return locals()


def calling_twice(run: Run) -> dict[str, Any]:
    """Add the losses of two calls: the weights' gradients add up before they are theirs."""
    for _ in run.steps():
        batches = run.batches()
        with run.autocast():
            losses = [run.model(**next(batches)).loss for _ in range(2)]
        run_backward(add(*losses))
        for parameter in run.model.parameters():
            parameter.grad = None
    return locals()


def sharing_a_region(run: Run) -> dict[str, Any]:
    """Call twice in one region of autocast: the second call reads the first one's copies."""
    for _ in run.steps():
        batches = run.batches()
        with run.autocast():
            first = run.model(**next(batches)).loss
            second = run.model(**next(batches)).loss
        del second
        run_backward(first)
        for parameter in run.model.parameters():
            parameter.grad = None
    return locals()


def abandoning(run: Run) -> dict[str, Any]:
    """From the third step on, drop the outputs, and later the graph, whose backward never runs."""
    for step in run.steps():
        batch = next(run.batches())
        outputs = run.model(**batch)
        loss = outputs.loss
        if step > 1:
            del outputs
            batch = next(run.batches())
            del loss
            continue
        run_backward(loss)
        for parameter in run.model.parameters():
            parameter.grad = None
    return locals()


@pytest.mark.parametrize(
    "loop",
    [
        evaluating,
        leaking,
        without_backward,
        zeroing_late,
        changing,
        calling_twice,
        sharing_a_region,
        abandoning,
    ],
)
@pytest.mark.parametrize(("name", "task"), [("gpt2", "causal-lm"), ("llama", "seq-cls")])
def test_a_loop_of_one_s_own_is_right_without_a_word_about_speed(
    loop: Any, name: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "train", loop)
    scenario = tiny(name, task, steps=5)
    ours, theirs = tape_of(scenario), in_full(scenario)
    assert story(ours) == story(theirs)
    assert replay(ours) == replay(theirs)


def test_an_evaluation_between_steps_is_traced_once_too(
    traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "train", evaluating)
    tape_of(tiny("gpt2", "causal-lm", steps=6))
    assert len(traces) == 2  # training, evaluation


def test_a_model_that_keeps_something_is_traced_each_time(
    traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    call = CachedTrace.__call__

    def keeping(self: Any, **kwargs: Any) -> Any:
        forward = self.model.forward
        self.model.forward = lambda **inputs: (
            kept.append(mul_scalar(inputs["labels"])) or forward(**inputs)
        )
        try:
            return call(self, **kwargs)
        finally:
            del self.model.forward

    monkeypatch.setattr(CachedTrace, "__call__", keeping)
    tape_of(tiny("gpt2", "causal-lm", steps=4))
    assert len(traces) == 4


# ---- with a virtual GPU -------------------------------------------------------------------------

NOT_EVERYBODYS = {"lightning", "sft", "dpo"}
"""Loops of libraries that tests do not need."""

TINY = {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 500}


@pytest.mark.virtual_gpu
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("loop", sorted(set(get_args(LoopName)) - NOT_EVERYBODYS))
def test_a_modelled_loop_peaks_where_the_real_one_does(loop: str, mode: str) -> None:
    fields = {"loop": loop, "mode": mode, "batch": 2, "block": 32, "grad_accum": 2, "clip": 1.0}
    fields["steps"] = 3  # as many as are rehearsed
    record = json.loads(json.dumps(record_of(resolve(TINY, gpu="t4", **fields))))
    found = rehearse_job(record, gpu="t4")
    versions = {name: found.versions[name] for name in ("torch", "transformers")}
    scenario = resolve(TINY, gpu="t4", **fields, **versions)
    mirrored = replay(simulate(scenario.config, scenario.job, scenario.platform).tape)
    for step, ours in enumerate(mirrored.steps):
        assert ours.peak_allocated_bytes == found.measured[f"peak_allocated_{step}"]
        assert ours.peak_reserved_bytes == found.measured[f"peak_reserved_{step}"]


@pytest.mark.parametrize("options", [{}, {"lora_rank": 4}], ids=["weights", "adapters"])
@pytest.mark.parametrize("loop", get_args(LoopName))
def test_a_sequence_of_one_token_has_a_budget(loop: LoopName, options: dict[str, Any]) -> None:
    tape = tape_of(tiny("llama", "causal-lm", loop=loop, block=1, precision="fp32", **options))
    assert tape.peak_requested_bytes() > 0
