"""A deep model's tape from those of two shallow ones: equal to its own, or refused."""

from dataclasses import replace

import pytest
from test_laws import TINY

from vrambudget.compiled import shallow
from vrambudget.compiled.depths import UnevenError, deeper
from vrambudget.scenario import resolve
from vrambudget.simulate import Recording
from vrambudget.tape.events import Purpose, Storage, Tape
from vrambudget.tape.replay import replay

SEED = 8


def tape_of(layers: int) -> Tape:
    """Return a tape as compiled code makes it: both ends, and every other layer, are their own."""
    tape = Tape()

    def made(size, purpose, operation, path=""):
        if path not in tape.paths:
            tape.paths.append(path)
        tape.module = tape.paths.index(path)
        return Storage(tape, size, purpose, operation)

    weights = [made(4096, Purpose.WEIGHTS, "empty", "embed")]
    for n in range(layers):
        weights += [made(512 * k, Purpose.WEIGHTS, "empty", f"h.{n}.w{k}") for k in (1, 2)]
    for step in range(2):
        tape.mark(step, "forward")
        seeds = made(SEED * layers, Purpose.TEMPORARIES, "seeds")
        saved, held = [], []
        for n in range(layers):
            here = [made(1024, Purpose.ACTIVATIONS, "norm"), made(2048, Purpose.ACTIVATIONS, "mlp")]
            if n % 2:
                here.append(made(640, Purpose.ACTIVATIONS, "odd"))
            if n in (0, layers - 2):  # at the ends
                held.append(made(768, Purpose.TEMPORARIES, "kept to the end"))
            saved.append(here)
        held.clear()
        tape.mark(step, "backward")
        gradients, before = [], made(256, Purpose.TEMPORARIES, "dy")
        for n in reversed(range(layers)):
            after = made(256, Purpose.TEMPORARIES, "dx")
            gradients += [made(512 * k, Purpose.GRADIENTS, "dw", f"h.{n}.w{k}") for k in (1, 2)]
            saved[n].clear()
            before = after
        del seeds, before, after
        tape.mark(step, "optimizer_step")
        gradients.reverse()
        while gradients:
            gradients.pop()
    tape.close()
    del weights
    return tape


@pytest.mark.parametrize("layers", [8, 10, 12, 40])
def test_a_deep_tape_is_that_of_two_shallow_ones(layers):
    whole, laid = tape_of(layers), deeper(tape_of(8), tape_of(10), (layers - 8) // 2)
    for part in ("events", "sizes", "purposes", "operations", "contents", "marks"):
        assert getattr(laid, part) == getattr(whole, part), part
    paths = [[tape.path_of(i) for i in range(len(tape.sizes))] for tape in (laid, whole)]
    assert paths[0] == paths[1]
    assert replay(laid) == replay(whole)


def step_of(layers: int) -> Tape:
    """Return the tape of an optimizer's lists: what GPT-2's embedding and head take, layers do."""
    tape = Tape()
    layer = [4, 4, 3072, 12, 1024, 4, 4, 4, 4096, 16, 4096, 4]
    sizes = [16384, 4096, *layer * layers, 4, 4]
    for step in range(2):
        tape.mark(step, "backward")
        gradients = [Storage(tape, n, Purpose.GRADIENTS, "dw") for n in sizes]
        tape.mark(step, "optimizer_step")
        roots = [Storage(tape, n, Purpose.TEMPORARIES, "sqrt") for n in sizes]
        while roots:
            roots.pop()
        while gradients:
            gradients.pop(0)
    tape.close()
    return tape


def test_a_layer_that_begins_as_its_model_ends_is_found():
    laid, whole = deeper(step_of(12), step_of(14), 17), step_of(46)
    assert (laid.events, laid.sizes) == (whole.events, whole.sizes)


def test_models_of_other_parity_are_laid_down_too():
    assert deeper(tape_of(9), tape_of(11), 12).events == tape_of(33).events


def test_a_middle_that_does_not_repeat_is_no_law():
    first, second = tape_of(8), tape_of(10)
    sizes = [*second.sizes]
    sizes[sizes.index(2048) + 20] += 512
    with pytest.raises(UnevenError):
        deeper(first, replace(second, sizes=sizes), 7)
    with pytest.raises(UnevenError):
        deeper(tape_of(2), tape_of(4), 7)


def test_a_storage_that_would_be_freed_twice_is_no_law():
    first, second = tape_of(8), tape_of(10)
    *events, last = second.events
    other = next(e for e in reversed(events) if e < 0)
    with pytest.raises(UnevenError):
        deeper(first, replace(second, events=[*events, other]), 7)
    with pytest.raises(UnevenError):
        deeper(replace(first, marks=first.marks[1:]), second, 7)
    assert last < 0


def compiled(layers, **fields):
    """Return how many layers were compiled, in order, and the recording that came of it."""
    keys = {"model_type": "gpt2", **TINY["gpt2"], "n_layer": layers}
    fields = {"precision": "bf16", "gpu": "A100", **fields}
    scenario = resolve(keys, batch=2, block=16, compile=True, **fields)
    depths = []

    def simulated(config):
        depths.append(config.keys["n_layer"])
        return Recording(tape_of(depths[-1]), 1000 + 7 * depths[-1], 7 * depths[-1])

    made = shallow.shallowly(scenario.config, scenario.job, scenario.platform, simulated, Recording)
    return depths, made


def test_a_deep_model_is_compiled_in_parts():
    depths, made = compiled(40)
    assert depths == [8, 10]
    assert (made.parameters, made.trainable) == (1280, 280)
    assert made.tape.events == tape_of(40).events
    assert compiled(41)[0] == [9, 11]
    assert compiled(40, precision="amp-bf16")[0] == [12, 14]


@pytest.mark.parametrize(
    ("layers", "fields"),
    [(12, {}), (40, {"freeze": "transformer.h.0"}), (38, {"precision": "amp-bf16"})],
    ids=["few layers", "a layer is named", "few for autocast"],
)
def test_others_are_compiled_whole(layers, fields):
    assert compiled(layers, **fields)[0] == [layers]


def test_where_the_middle_does_not_repeat_all_is_compiled_and_told(monkeypatch, caplog):
    def uneven(*_):
        raise UnevenError

    monkeypatch.setattr(shallow, "deeper", uneven)
    caplog.set_level("INFO", "vrambudget")
    depths, _ = compiled(40)
    assert depths == [8, 10, 40]
    assert caplog.messages == ["its layers do not repeat when compiled: all 40 are compiled"]
