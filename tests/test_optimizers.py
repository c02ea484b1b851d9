"""Optimizers, clipping and gradient scaling against what PyTorch 2.11's allocator recorded."""

import pytest
from sequences import CARDS, normal, trace

from vrambudget.dtypes import bfloat16, float16, float32
from vrambudget.engine.context import recording
from vrambudget.engine.tensor import Parameter, empty
from vrambudget.errors import VramBudgetError
from vrambudget.ops.workspaces import cublas_workspace
from vrambudget.tape.events import Purpose
from vrambudget.training.clip import clip_grad_norm
from vrambudget.training.optimizers import make_optimizer
from vrambudget.training.scaler import GradScaler

# Bytes of a parameter, float32 / its share in bfloat16:
#   [512, 64] 131072    [64] 256 / 128    [192, 64] 49152 / 24576
ONE_TYPE = [((512, 64), float32), ((64,), float32), ((192, 64), float32)]
TWO_TYPES = [((512, 64), float32), ((64,), bfloat16), ((192, 64), bfloat16)]


def parameters_with_gradients(spec):
    parameters = [Parameter(shape, dtype) for shape, dtype in spec]
    for parameter in parameters:
        parameter.grad = empty(parameter.shape, parameter.dtype)
    return parameters


def two_steps(name, implementation, spec):
    with recording(CARDS["a100-80gb"]) as tape:
        cublas_workspace()  # a model's forward has made it
        optimizer = make_optimizer(name, implementation, parameters_with_gradients(spec))
        with trace(tape) as first:
            optimizer.step()
        with trace(tape) as second:
            optimizer.step()
    return first.text, second.text


# (optimizer, implementation, parameters, first step, second step)
RECORDED = [
    (
        "adamw",
        None,
        ONE_TYPE,
        "+131072 +131072 +256 +256 +49152 +49152 +131072 +256 +49152 -6 -7 -8",
        "+131072 +256 +49152 -0 -1 -2",
    ),
    ("adamw", "fused", ONE_TYPE, "+4 +131072 +131072 +4 +256 +256 +4 +49152 +49152", ""),
    (
        "adamw",
        "for-loop",
        ONE_TYPE,
        (
            "+131072 +131072 +256 +256 +49152 +49152 "
            "+131072 +131072 -6 +256 +256 -7 -8 +49152 +49152 -10 -11 -9"
        ),
        "+131072 +131072 -0 +256 +256 -1 -2 +49152 +49152 -3 -4 -5",
    ),
    (
        "adam",
        "foreach",  # the square roots of the type seen last come first
        TWO_TYPES,
        "+131072 +131072 +128 +128 +24576 +24576 +128 +24576 +131072 -6 -7 -8",
        "+128 +24576 +131072 -0 -1 -2",
    ),
    ("sgd", None, ONE_TYPE, "", ""),
    ("sgd-momentum", None, TWO_TYPES, "+128 +24576 +131072", ""),
    ("sgd-momentum", "fused", TWO_TYPES, "+131072 +128 +24576", ""),
    ("sgd-momentum", "for-loop", TWO_TYPES, "+131072 +128 +24576", ""),
    (
        "adafactor",  # row and column [512, 1], [1, 64]: 2048 and 256
        None,
        ONE_TYPE,
        (
            "+2048 +256 +256 +768 +256 +4 -5 +2048 +256 +131072 +4 -9 +4 -10 +4 -11 +256 +256 -8 "
            "+4 -14 +4 -15 +768 -6 +256 -7 +49152 +4 -13 -19 +4 -12 -16 -17 -18 -20"
        ),
        (
            "+4 -0 +2048 +256 +131072 +4 -4 +4 -5 +4 -6 +256 +256 -3 +4 -9 +4 -10 +768 -1 +256 -2 "
            "+49152 +4 -14 -8 +4 -11 -12 -13 -15 -7"
        ),
    ),
    (
        "adafactor",
        "foreach",
        TWO_TYPES,
        (
            "+2048 +256 +128 +384 +128 +2 -5 +128 -6 +128 +2 -8 +2 -9 +384 -10 +128 -11 +24576 +2 "
            "-13 -7 +2 -14 +4 -15 +2048 -16 +256 -17 +131072 +4 -12 -19 +4 -18 -20"
        ),
        (
            "+2 -0 +128 -1 +128 +2 -3 +2 -4 +384 -5 +128 -6 +24576 +2 -2 -8 +2 -9 +4 -10 +2048 -11 "
            "+256 -12 +131072 +4 -14 -7 +4 -13 -15"
        ),
    ),
]


@pytest.mark.parametrize(
    ("name", "implementation", "spec", "recorded"),
    [
        pytest.param(name, implementation, spec, steps, id=f"{name} {implementation or 'default'}")
        for name, implementation, spec, *steps in RECORDED
    ],
)
def test_steps_are_what_pytorch_recorded(name, implementation, spec, recorded):
    assert two_steps(name, implementation, spec) == tuple(normal(text) for text in recorded)


# 15 gradients of nanoGPT with two layers: the largest, [50304, 768], has 590 chunks of 65,536, and
# 15 x 590 x 4 = 35400.
def test_clipping_nanogpt_is_what_pytorch_recorded():
    shapes = [(50304, 768), (1024, 768), (768,)]
    shapes += 2 * [(2304, 768), (768, 768), (768,), (3072, 768), (768, 3072), (768,)]
    norms = " ".join(["+4"] * 15)
    recorded = (
        f"+35400 {norms} -0 +60 +4 -16 {' '.join(f'-{i}' for i in range(1, 16))} "
        "+4 +4 +4 -18 -19 +4 -20 -21"
    )
    with recording(CARDS["a100-80gb"]) as tape:
        parameters = parameters_with_gradients((shape, float32) for shape in shapes)
        with trace(tape) as part:
            total_norm = clip_grad_norm(parameters)
        with trace(tape) as after:
            del total_norm
    assert part.text == normal(recorded)
    assert after.text == "-?4"  # the norm is the caller's


def test_clipping_gradients_of_two_types_is_what_pytorch_recorded():
    with recording(CARDS["a100-80gb"]) as tape:
        parameters = parameters_with_gradients(TWO_TYPES)
        with trace(tape) as part:
            total_norm = clip_grad_norm(parameters)
    assert total_norm.dtype is float32
    assert part.text == normal("+8 +2 +2 -0 +4 +4 -3 +12 +4 -1 -2 -4 -5 +4 +4 +4 -7 -8 +4 -10 -9")


def test_without_gradients_nothing_is_clipped_or_made():
    with recording(CARDS["a100-80gb"]) as tape:
        parameters = [Parameter((8,), float32)]
        optimizer = make_optimizer("adamw", None, parameters)
        with trace(tape) as part:
            assert clip_grad_norm(parameters) is None
            optimizer.step()
    assert part.text == ""


def scaled_steps(implementation, *, unscale):
    """Return what scale, unscale, step and update of a second step do to the allocator."""
    texts = []
    with recording(CARDS["a100-80gb"]) as tape:
        parameters = parameters_with_gradients([((100,), float32), ((300,), float32)])
        optimizer = make_optimizer("adamw", implementation, parameters)
        scaler, loss = GradScaler(enabled=True), empty((), float32)
        parts = [lambda: scaler.scale(loss), lambda: scaler.step(optimizer), scaler.update]
        if unscale:
            parts.insert(1, lambda: scaler.unscale(optimizer))
        for _ in range(2):
            texts = []
            for part in parts:
                with trace(tape) as events:
                    made = part()
                texts.append(events.text)
                del made
    return texts


def test_unscaling_and_stepping_is_what_pytorch_recorded():
    assert scaled_steps("foreach", unscale=True) == [
        "+4",  # the scaled loss
        normal("+8 +8 -0 +4 -1 +4 +4 +4 -2 -3 -5"),  # float64 reciprocal; found_inf stays
        "+400 +1200 -0 -1",
        "-?4",
    ]


def test_a_step_unscales_if_nobody_did():
    assert scaled_steps("foreach", unscale=False)[1] == normal(
        "+8 +8 -0 +4 -1 +4 +4 +4 -2 -3 -5 +400 +1200 -6 -7"
    )


def test_a_fused_step_gets_the_scale_unless_gradients_are_unscaled():
    assert scaled_steps("fused", unscale=False)[1] == "+4 +4 +4 +4 -0 -1 -3 +4 +4 -4 -5"
    assert scaled_steps("fused", unscale=True)[2] == "+4 -0"


def test_the_first_scaled_loss_makes_the_scale_and_its_tracker():
    with recording(CARDS["a100-80gb"]) as tape:
        loss = empty((), float16)
        loss.requires_grad = True
        with trace(tape) as part:
            scaled = GradScaler(enabled=True).scale(loss)
        dy = empty((), float32)
        gradient = scaled.node.backward(dy)
    assert scaled.dtype is float32
    assert gradient.dtype is float32
    assert part.text == "+4 +4 +4 -0 -1"  # the scaler itself is not kept here


def test_a_scaler_that_is_not_enabled_passes_everything_through():
    with recording(CARDS["a100-80gb"]) as tape:
        parameters = parameters_with_gradients(ONE_TYPE)
        optimizer = make_optimizer("sgd-momentum", None, parameters)
        scaler, loss = GradScaler(enabled=False), empty((), float32)
        with trace(tape) as part:
            assert scaler.scale(loss) is loss
            scaler.unscale(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert part.text == "+131072 +256 +49152"


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        (name, implementation)
        for name in ("adamw", "sgd-momentum", "adafactor")
        for implementation in ("foreach", "fused", "for-loop")
        if (name, implementation) != ("adafactor", "fused")
    ],
)
def test_only_states_survive_a_step_and_they_do_not_grow(name, implementation):
    with recording(CARDS["a100-80gb"]) as tape:
        parameters = parameters_with_gradients(ONE_TYPE)
        optimizer = make_optimizer(name, implementation, parameters)
        alive = []
        for _ in range(2):
            optimizer.step()
            optimizer.zero_grad()
            ids = {e for e in tape.events if e >= 0} - {~e for e in tape.events if e < 0}
            purposes = {tape.purposes[i] for i in ids} - {Purpose.WORKSPACES}
            alive.append(sum(tape.sizes[i] for i in ids))
            for parameter in parameters:
                parameter.grad = empty(parameter.shape, parameter.dtype)
        assert purposes == {Purpose.WEIGHTS, Purpose.OPTIMIZER_STATES}
        assert alive[0] == alive[1]


@pytest.mark.parametrize(
    ("name", "implementation", "message"),
    [
        ("adamv", None, "optimizer 'adamv' is not known"),
        ("adamw", "quick", "optimizer implementation 'quick' is not known"),
        ("adafactor", "fused", "adafactor has no fused implementation"),
    ],
)
def test_what_torch_optim_does_not_have_is_an_error(name, implementation, message):
    with pytest.raises(VramBudgetError, match=message) as error:
        make_optimizer(name, implementation, [])
    assert error.value.hint


def test_none_is_no_optimizer():
    assert make_optimizer("none", None, []) is None
