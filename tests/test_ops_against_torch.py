"""What operations keep for backward, held against autograd's own answer on the CPU.

`torch.autograd.graph.saved_tensors_hooks` tells every tensor that PyTorch saves; distinct storages
of floating-point or mask tensors are compared by their bytes. Rules that are CUDA's own (dropout's
mask, attention kernels) are held against recorded events elsewhere.
"""

from collections.abc import Callable
from typing import Any

import pytest

from vrambudget import dtypes
from vrambudget.engine.autocast import to
from vrambudget.engine.autograd import Node, run_backward
from vrambudget.engine.context import Platform, context, recording
from vrambudget.engine.tensor import Parameter, Tensor, empty
from vrambudget.ops import (
    clamp,
    complex_numbers,
    convolution,
    elementwise,
    linear,
    loss,
    norm,
    ordering,
    reduce,
    shape,
    softmax,
    written,
)
from vrambudget.tape.events import Storage

torch = pytest.importorskip("torch", reason="autograd's own answer needs torch")
F = torch.nn.functional

B, T, C, O = 2, 5, 8, 12


def copied(a: Any, b: Any) -> Any:
    y = a.new_empty(B, T, C)
    y[..., :3].copy_(a)
    y[..., 3:].copy_(b)
    return y


# id: (shapes of the inputs, our operation, torch's)
CASES: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any], Callable[..., Any]]] = {
    "linear": ([(B, T, C), (O, C)], linear.linear, F.linear),
    "linear with bias": ([(B, T, C), (O, C), (O,)], linear.linear, F.linear),
    "addmm": ([(O,), (T, C), (C, O)], linear.addmm, torch.addmm),
    "matmul": ([(B, 3, T, C), (B, 3, C, T)], linear.matmul, torch.matmul),
    "add": ([(B, T, C), (B, T, C)], elementwise.add, torch.add),
    "mul": ([(B, T, C), (B, T, C)], elementwise.mul, torch.mul),
    "mul by a row": ([(B, T, C), (C,)], elementwise.mul, torch.mul),
    "mul by a number": ([(B, T, C)], elementwise.mul_scalar, lambda a: a * 0.5),
    "pow": ([(B, T, C)], elementwise.pow_scalar, lambda a: a.pow(3)),
    "rsqrt": ([(B, T, 1)], elementwise.rsqrt, torch.rsqrt),
    "neg": ([(B, T, C)], elementwise.neg, torch.neg),
    "tanh": ([(B, T, C)], elementwise.tanh, torch.tanh),
    "relu": ([(B, T, C)], elementwise.relu, torch.relu),
    "gelu": ([(B, T, C)], elementwise.gelu, F.gelu),
    "silu": ([(B, T, C)], elementwise.silu, F.silu),
    "mean": ([(B, T, C)], reduce.mean_last, lambda a: a.mean(-1, keepdim=True)),
    "softmax": ([(B, T, C)], softmax.softmax, lambda a: a.softmax(-1)),
    "log-softmax": ([(B, T, C)], softmax.log_softmax, lambda a: a.log_softmax(-1)),
    "layer norm": (
        [(B, T, C), (C,), (C,)],
        norm.layer_norm,
        lambda x, w, b: F.layer_norm(x, (C,), w, b),
    ),
    "rms norm, weight of another type": (
        [(B, T, C), (C,)],
        lambda x, w: norm.rms_norm(to(x, dtypes.bfloat16), w),
        lambda x, w: F.rms_norm(x.bfloat16(), (C,), w),
    ),
    "rms norm, weight of 16 bits": (
        [(B, T, C), (C,)],
        lambda x, w: norm.rms_norm(x, to(w, dtypes.bfloat16)),
        lambda x, w: F.rms_norm(x, (C,), w.bfloat16()),
    ),
    "contiguous": (
        [(B, T, C)],
        lambda a: shape.contiguous(shape.transpose(a, 1, 2)),
        lambda a: a.transpose(1, 2).contiguous(),
    ),
    "cat": (
        [(B, T, C), (B, T, C)],
        lambda a, b: shape.cat((a, b), -1),
        lambda a, b: torch.cat((a, b), -1),
    ),
    "select": ([(B, T, C)], lambda a: shape.select(a, 1), lambda a: a[:, 0]),
    "where": (
        [(B, T, C)],
        lambda a: elementwise.where_scalar(empty((T, C), dtypes.bool_), a),
        lambda a: torch.where(torch.ones(T, C, dtype=torch.bool), a, 0.0),
    ),
    "patch convolution": (
        [(B, 3, 8, 8), (O, 3, 4, 4), (O,)],
        convolution.convolution,
        lambda x, w, b: F.conv2d(x, w, b, stride=4),
    ),
    "slice": ([(B, T, C)], lambda a: shape.slice_last(a, 4), lambda a: a[..., :4]),
    "slice with a step": (
        [(B, T, C)],
        lambda a: elementwise.silu(shape.slice_step(a, 2)),
        lambda a: F.silu(a[..., ::2]),
    ),
    "sub": ([(B, T, C), (B, T, C)], elementwise.sub, torch.sub),
    "split in unequal parts": (
        [(B, T, C)],
        lambda a: elementwise.silu(shape.split_sizes(a, (3, 5), -1)[1]),
        lambda a: F.silu(a.split([3, 5], -1)[1]),
    ),
    "max": ([(B, T, C)], lambda a: ordering.max_last(a)[0], lambda a: a.max(-1).values),
    "clamp to a number": (
        [(B, T, C)],
        lambda a: clamp.clamp_to_numbers(a, both=False),
        lambda a: a.clamp(max=1.0),
    ),
    "clamp between numbers": (
        [(B, T, C)],
        lambda a: clamp.clamp_to_numbers(a, both=True),
        lambda a: a.clamp(-1.0, 1.0),
    ),
    "complex product": (
        [(B, T, C, 2)],
        lambda a: complex_numbers.view_as_real(
            complex_numbers.rotated_by(
                complex_numbers.view_as_complex(a), empty((T, C), dtypes.complex64)
            )
        ),
        lambda a: torch.view_as_real(torch.view_as_complex(a) * torch.ones(T, C).to(torch.cfloat)),
    ),
    "copy into a part": (
        [(B, T, 3), (B, T, 5)],
        lambda a, b: written.copied_into(
            written.copied_into(empty((B, T, C), dtypes.float32), a), b
        ),
        copied,
    ),
}


def kept_bytes(output: Tensor) -> list[int]:
    """Return the sizes of the storages that the graph of `output` keeps, each once."""
    tape = context.tape
    kept: dict[int, int] = {}
    seen: set[Node] = set()
    nodes = [output.node]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for saved in node.saved:
            if isinstance(saved, Storage):
                kept[saved.index] = tape.sizes[saved.index]
        nodes += [edge[0] for edge in node.edges if edge is not None]
    return sorted(kept.values())


def torch_saved_bytes(run: Callable[[], Any]) -> list[int]:
    """Return the sizes of the storages that autograd saves while `run` runs, each once."""
    saved: dict[int, int] = {}

    def pack(x: Any) -> Any:
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output = run()
    del output
    return sorted(saved.values())


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("case", CASES)
def test_an_operation_keeps_what_autograd_keeps(case: str) -> None:
    shapes, ours, theirs = CASES[case]
    with recording(Platform()):
        leaves = [Parameter(s, dtypes.float32) for s in shapes]
        kept = kept_bytes(ours(*leaves))
    inputs = [torch.ones(s, requires_grad=True) for s in shapes]

    assert kept == torch_saved_bytes(lambda: theirs(*inputs))


@pytest.mark.parametrize("frozen", [0, 1], ids=["frozen input", "frozen weight"])
def test_a_frozen_operand_spares_the_other_from_being_kept(frozen: int) -> None:
    shapes = [(B * T, C), (O, C)]
    with recording(Platform()):
        leaves = [Parameter(s, dtypes.float32) for s in shapes]
        leaves[frozen].requires_grad = False
        kept = kept_bytes(linear.linear(*leaves))
    inputs = [torch.ones(s, requires_grad=i != frozen) for i, s in enumerate(shapes)]

    assert kept == torch_saved_bytes(lambda: F.linear(*inputs))


def test_cross_entropy_keeps_log_probabilities_and_targets() -> None:
    # log-probabilities 10 x 12 x 4 bytes, targets 10 x 8, total_weight 4
    with recording(Platform()):
        logits = Parameter((B * T, O), dtypes.float32)
        kept = kept_bytes(loss.cross_entropy(logits, empty((B * T,), dtypes.int64)))
    x = torch.ones(B * T, O, requires_grad=True)
    target = torch.zeros(B * T, dtype=torch.long)

    assert kept == [4, 80, 480]
    assert kept == torch_saved_bytes(lambda: F.cross_entropy(x, target))


@pytest.mark.parametrize("case", CASES)
def test_gradients_have_their_inputs_shape(case: str) -> None:
    from vrambudget.engine.autograd import run_backward  # noqa: PLC0415

    shapes, ours, _ = CASES[case]
    with recording(Platform()):
        leaves = [Parameter(s, dtypes.float32) for s in shapes]
        run_backward(ours(*leaves))

        assert [leaf.grad.shape for leaf in leaves if leaf.grad is not None] == shapes


def test_a_copy_into_a_part_makes_its_gradients_as_copy_slices_does() -> None:
    """The whole gradient, the part's clone; and zeros where what was overwritten wants one."""
    with recording(Platform()) as tape:
        first, second = (Parameter((B, T, n), dtypes.float32) for n in (3, 5))
        y = written.copied_into(empty((B, T, C), dtypes.float32), first)
        y = written.copied_into(y, second)
        start = len(tape.sizes)
        run_backward(reduce.mean_all(y))
        sizes = [tape.sizes[i] // 4 for i in range(start, len(tape.sizes))]

    whole, ends = B * T * C, [B * T * 5, B * T * 3]
    made = [n for n in sizes if n > 1]
    assert made == [whole, whole, ends[0], ends[0], whole, ends[1]]
