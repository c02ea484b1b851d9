"""Two lists of allocations are traced to where they differ; a rehearsal and an estimate do not.

The rehearsals use the PyTorch of VRAMBUDGET_PYTHON, or of the Python that runs the tests.
"""

import json

import pytest
from virtual import VIRTUAL_GPU

from vrambudget.cli import compare as command
from vrambudget.cli import main
from vrambudget.compare import Allocation, after_first_step, first_difference, of_events, of_tape
from vrambudget.config.versions import CHECKED
from vrambudget.measure.record import record_of
from vrambudget.rehearse.events import AllocatorEvent, JobRehearsal, rehearse_job
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import replay

TINY = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 500}
FIELDS = {"batch": 2, "block": 32, "precision": "amp-bf16", "steps": 2}


def row(size, *freed):
    """Return an allocation, before which these sizes were freed."""
    return Allocation(size, f"made {size}", sum(freed), tuple(map(str, freed)))


ROWS = [row(10), row(20), row(30, 10), row(5, 20, 30)]


def test_equal_lists_do_not_part():
    assert first_difference(ROWS, ROWS) is None


def test_what_follows_the_end_of_the_estimate_does_not_count():
    assert first_difference(ROWS[:2], ROWS) is None


@pytest.mark.parametrize(
    ("actual", "index", "alive"),
    [
        pytest.param([row(11), *ROWS[1:]], 0, (0, 0), id="the first size"),
        pytest.param([*ROWS[:3], row(6, 20, 30)], 3, (0, 0), id="the last size"),
        pytest.param([*ROWS[:2], row(30), ROWS[3]], 2, (20, 30), id="freed later"),
        pytest.param([*ROWS[:3], row(5, 20)], 3, (0, 30), id="one of two freed later"),
        pytest.param(ROWS[:3], 3, (0, 50), id="no more actual ones"),
        pytest.param([ROWS[0], row(7), *ROWS[1:]], 1, (10, 10), id="one more actual one"),
    ],
)
def test_lists_part_where_size_or_what_is_alive_differs(actual, index, alive):
    found = first_difference(ROWS, actual)
    assert found.index == index
    assert (found.expected_alive_bytes, found.actual_alive_bytes) == alive
    assert found.expected == ROWS[index]
    assert found.actual == (actual[index] if index < len(actual) else None)


def test_the_order_of_frees_does_not_matter():
    actual = [*ROWS[:3], row(5, 30, 20)]
    assert first_difference(ROWS, actual) is None


def event(action, size, block, phase="0:forward", operation="mm"):
    return AllocatorEvent(action, size, block, 0, 0, phase, operation, "", "model.py:7 forward")


def test_a_compiled_job_s_first_step_counts_by_what_it_leaves():
    first = Allocation(8, "1:forward mm", 4, ("4 B 0:forward add",))
    rows = [Allocation(6, "build empty", 0, ()), Allocation(4, "0:forward add", 0, ()), first]
    left = Allocation(10, "what lives after step 0", 0, ())
    assert after_first_step([*rows, row(3)]) == [left, first, row(3)]


def test_events_are_grouped_by_allocation_and_carry_where_they_come_from():
    found = of_events(
        [
            event("segment_alloc", 2**21, 0),
            event("alloc", 100, 1),
            event("alloc", 0, 2),  # nothing was asked for
            event("free_requested", 100, 1),
            event("free_completed", 100, 1),
            event("alloc", 50, 3, "0:backward"),
        ]
    )
    assert [(a.bytes, a.freed_bytes) for a in found] == [(100, 0), (50, 100)]
    assert found[0].label == "0:forward mm model.py:7 forward"
    assert found[1].freed == ("100 B 0:forward mm model.py:7 forward",)


def tape_of(**fields):
    scenario = resolve(TINY, gpu="a100-80gb", **{**FIELDS, **fields})
    return simulate(scenario.config, scenario.job, scenario.platform).tape


def test_a_tape_s_allocations_begin_with_its_build_and_end_with_its_last_step():
    allocations = of_tape(tape_of())
    phases = list(dict.fromkeys(a.label.split()[0] for a in allocations))
    assert phases[:2] == ["build", "0:forward"]
    assert phases[-1] == "1:optimizer_step"
    longer = of_tape(tape_of(steps=3))
    assert first_difference(allocations, longer) is None
    assert len(longer) > len(allocations)


# ---- the command --------------------------------------------------------------------------------


def as_events(tape: Tape):
    """Return a tape as the events of a rehearsal that agrees with it."""
    for item in tape.events:
        storage = item if item >= 0 else ~item
        action = "alloc" if item >= 0 else "free_completed"
        yield event(action, tape.sizes[storage], storage + 1)


@pytest.fixture
def compare(monkeypatch, capsys, tmp_path):
    """Return the command, with a rehearsal that says what the estimate says, more or less."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))

    def call(*words, more=0, oom=False, change=lambda events: events):
        def rehearsed(job, *, gpu, events, **_):
            tape = tape_of()
            peak = replay(tape).peak
            measured = {
                f"peak_{name}": getattr(peak, f"{name}_bytes") + more
                for name in ("requested", "allocated", "reserved")
            }
            found = change(list(as_events(tape))) if events else []
            measured = {"oom": "CUDA out of memory."} if oom else measured
            return JobRehearsal(job, gpu.name, {"torch": "2.11.0+cu130"}, measured, tuple(found))

        monkeypatch.setattr(command, "rehearse_job", rehearsed)
        fields = [w for k, v in FIELDS.items() for w in (f"--{k}", str(v))]
        code = main(["compare", str(tmp_path / "config.json"), *fields, *words])
        return code, *capsys.readouterr()

    return call


def test_equal_to_the_byte_is_exit_code_zero(compare):
    code, out, _ = compare("--events")
    assert code == 0
    assert out.startswith("rehearsed on a virtual NVIDIA A100-SXM4-80GB; torch 2.11.0+cu130")
    assert "are equal, in order" in out


def test_a_difference_is_exit_code_one_and_is_shown_with_what_came_before(compare):
    code, out, _ = compare(
        "--events", more=512, change=lambda events: [*events[:9], event("alloc", 77, 9999)]
    )
    assert code == 1
    assert "differs; before it, equal in both:" in out
    assert "77 B  0:forward mm" in out


def test_a_full_gpu_is_told_of_since_pytorch_returns_its_cache_there(compare):
    assert "larger --gpu" in compare("--gpu", "0.23GiB")[2]
    assert compare("--gpu", "12GB")[2] == ""


def test_the_json_is_json_with_events_too(compare):
    code, out, _ = compare("--events", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert {"gpu", "versions", "peaks", "events"} == set(found)
    assert all(peak["estimate"] == peak["rehearsal"] for peak in found["peaks"])


def test_a_rehearsal_that_ran_out_of_memory_cannot_be_compared(compare):
    code, out, err = compare(oom=True)
    assert (code, out) == (2, "")
    assert "tip: name a larger --gpu" in err


# ---- with a virtual GPU --------------------------------------------------------------------------


@VIRTUAL_GPU[0]
@VIRTUAL_GPU[1]
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"checkpointing": "full", "clip": 1.0}, id="checkpointed"),
        pytest.param({"lora_rank": 4, "precision": "bf16", "optimizer": "sgd"}, id="LoRA"),
        pytest.param({"freeze": ["transformer.h.0"], "mode": "train"}, id="frozen"),
    ],
)
def test_an_estimate_is_a_rehearsal_event_by_event(fields):
    assert_equal_event_by_event(TINY, {**FIELDS, "precision": "amp-fp16", **fields})


@VIRTUAL_GPU[0]
@VIRTUAL_GPU[1]
@pytest.mark.parametrize("routing", ["uniform", "collapsed"])
def test_experts_one_by_one_get_the_tokens_that_both_sides_were_told_of(routing):
    model = {"model_type": "mixtral", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96}
    model |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    fields = {**FIELDS, "precision": "fp32", "experts": "eager", "routing": routing}
    assert_equal_event_by_event(model, fields)


def assert_equal_event_by_event(model, fields):
    """Hold an estimate against a rehearsal with the versions that it ran with."""
    scenario = resolve(model, gpu="t4", **fields)
    found = rehearse_job(record_of(scenario), gpu="t4", routing=scenario.job.routing)
    versions = {name: found.versions[name] for name in CHECKED}
    scenario = resolve(model, gpu="t4", **fields, **versions)
    for name, checked in CHECKED.items():
        if getattr(scenario.job, name) not in checked:
            pytest.skip(f"{name} {versions[name]} was not checked")
    tape = simulate(scenario.config, scenario.job, scenario.platform).tape
    assert first_difference(of_tape(tape), of_events(found.events)) is None
    assert replay(tape).peak.reserved_bytes == found.measured["peak_reserved"]
