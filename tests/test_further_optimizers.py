"""Muon and bitsandbytes' optimizers against what PyTorch 2.11 and bitsandbytes 0.50.2 recorded."""

import pytest
from sequences import CARDS, normal, trace

from vrambudget.dtypes import bfloat16, float32
from vrambudget.engine.context import recording
from vrambudget.engine.tensor import Parameter, empty
from vrambudget.models.parts.layers import Embedding, LayerNorm, Linear, Module
from vrambudget.ops.workspaces import cublas_workspace
from vrambudget.tape.events import Purpose
from vrambudget.training.bitsandbytes import paged_bytes
from vrambudget.training.muon import embeddings_and_head
from vrambudget.training.optimizers import make_optimizer

# Elements: 32,768 in 128 blocks; 64, too few for 8 bits; 120,000 in 469 blocks, enough to be paged;
# 4,225 in 17 blocks.
SPEC = [((512, 64), float32), ((64,), float32), ((400, 300), bfloat16), ((65, 65), bfloat16)]
MATRICES = [((512, 64), float32), ((64, 192), bfloat16), ((1000, 64), float32), ((64,), float32)]


def parameters_with_gradients(spec):
    parameters = [Parameter(shape, dtype) for shape, dtype in spec]
    for parameter in parameters:
        parameter.grad = empty(parameter.shape, parameter.dtype)
    return parameters


def two_steps(name, spec, outer=()):
    with recording(CARDS["a100-80gb"]) as tape:
        cublas_workspace()  # a model's forward has made it
        parameters = parameters_with_gradients(spec)
        optimizer = make_optimizer(name, None, parameters, [parameters[i] for i in outer])
        with trace(tape) as first:
            optimizer.step()
        with trace(tape) as second:
            optimizer.step()
    return first.text, second.text


@pytest.mark.parametrize(
    ("name", "first"),
    [
        pytest.param("lion", "+131072 +256 +480000 +16900", id="lion"),
        pytest.param("lion-8bit", "+1024 +32768 +512 +256 +120000 +1876 +4225 +68", id="lion-8bit"),
        pytest.param(
            "adamw-8bit",
            "+1024 +1024 +32768 +32768 +512 +512 +256 +256 +120000 +120000 +1876 +1876 "
            "+4225 +4225 +68 +68",
            id="adamw-8bit",
        ),
        pytest.param(
            "paged-adamw-8bit",
            "+1024 +1024 +32768 +32768 +512 +512 +256 +256 +1876 +1876 +4225 +4225 +68 +68",
            id="paged-adamw-8bit",
        ),
    ],
)
def test_states_are_made_once_as_bitsandbytes_recorded(name, first):
    assert two_steps(name, SPEC) == (first, "")


def test_muon_then_adamw_is_what_pytorch_recorded():
    # [512, 64] and [64, 192]: grams of 64 x 64 x 2 = 8192 bytes; the embedding goes to AdamW.
    # Recorded: five rounds of gram, polynomial and the next iterate; each frees the one before.
    rounds = (
        "+8192 +8192 +65536 -3 +8192 -6 +8192 -7 +65536 -8 +8192 -9 +8192 -10 +65536 -11 "
        "+8192 -12 +8192 -13 +65536 -14 +8192 -15 +8192 -16 +65536 -17 -18 -19 -2"
    )
    first = (
        f"+131072 +24576 +131072 +65536 +2 +2 -4 -5 {rounds} "
        "+24576 -20 +2 +2 -22 -23 +8192 +8192 +24576 +8192 -24 +8192 -25 +24576 -26 "
        "+8192 -27 +8192 -28 +24576 -29 +8192 -30 +8192 -31 +24576 -32 +8192 -33 +8192 -34 "
        "+24576 -21 -35 -36 -37 -38 +256000 +256000 +256 +256 +256000 +256 -43 -44"
    )
    second = (
        "+131072 +65536 +2 +2 -2 -3 +8192 +8192 +65536 -1 +8192 -4 +8192 -5 +65536 -6 +8192 -7 "
        "+8192 -8 +65536 -9 +8192 -10 +8192 -11 +65536 -12 +8192 -13 +8192 -14 +65536 -0 -15 -16 "
        "-17 +24576 -18 +2 +2 -20 -21 +8192 +8192 +24576 +8192 -22 +8192 -23 +24576 -24 +8192 -25 "
        "+8192 -26 +24576 -27 +8192 -28 +8192 -29 +24576 -30 +8192 -31 +8192 -32 +24576 -19 -33 "
        "-34 -35 -36 +256000 +256 -37 -38"
    )
    assert two_steps("muon", MATRICES, outer=[2]) == (normal(first), normal(second))


def test_paged_states_are_counted_apart():
    with recording(CARDS["a100-80gb"]):
        parameters = [Parameter(shape, dtype) for shape, dtype in SPEC]
        assert paged_bytes("paged-adamw-8bit", parameters) == 2 * 120_000
        assert paged_bytes("adamw-8bit", parameters) == 0
        assert paged_bytes("adamw", parameters) == 0


def test_all_states_are_optimizer_states():
    with recording(CARDS["a100-80gb"]) as tape:
        optimizer = make_optimizer("adamw-8bit", None, parameters_with_gradients(SPEC))
        made = len(tape.purposes)
        optimizer.step()
        assert set(tape.purposes[made:]) == {Purpose.OPTIMIZER_STATES}


class Tiny(Module):
    def __init__(self):
        self.wte = Embedding(10, 4)
        self.hidden = Linear(4, 4)
        self.norm = LayerNorm(4)
        self.lm_head = Linear(4, 10, bias=False)


def test_muon_leaves_embeddings_and_the_head_to_adamw():
    with recording(CARDS["a100-80gb"]):
        model = Tiny()
        outer = embeddings_and_head(model)

        optimizer = make_optimizer("muon", None, model.parameters(), outer)

        assert outer == [model.wte.weight, model.lm_head.weight]
        assert optimizer.muon.parameters == [model.hidden.weight]
