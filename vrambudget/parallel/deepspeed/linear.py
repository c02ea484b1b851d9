"""ZeRO 3's own linear layer, which it puts in place of torch's.

    x       [..., I]   kept
    weight  [O, I]     kept as the parameter that it is: its data go when it is let go, and are
                       there again in backward
    bias    [O]        likewise; it is added in place
    backward           dx, dweight, dbias, then all move on

Of a matrix x with a bias it is one addmm. 0.18 puts it there for models built inside zero.Init.

Source: deepspeed/runtime/zero/linear.py (LinearFunctionForZeroStage3), 0.19.8; partition_parameters
.py (_enable_mem_efficient_linear; memory_efficient_linear is on by default).
"""

from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.ops.creation import made
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.workspaces import cublas_workspace

_MATRIX = 2  # dimensions


def zero3_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias: [..., I], [O, I], [O] -> [..., O]."""
    fused = bias is not None and x.ndim == _MATRIX
    operands = (x, weight) if bias is None else (x, weight, bias)
    needs = [operand.requires_grad for operand in operands]
    kept = tuple(keep(operand, when=any(needs)) for operand in operands)
    context.operation = "addmm" if fused else "mm"
    y = empty((*x.shape[:-1], weight.shape[0]), x.dtype)
    cublas_workspace(epilogue=fused)
    shapes, dtype = [operand.shape for operand in operands], x.dtype

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = []
        for shape, needed in zip(shapes, needs, strict=True):
            if not needed:
                found.append(None)
            elif len(shape) == 1:
                found.append(made("sum", shape, dtype))
                with_partial_sums(dy, tuple(range(dy.ndim - 1)))
            else:
                found.append(empty(shape, dtype))
                cublas_workspace()
        return tuple(found)

    return record("zero3_linear", y, inputs=operands, saved=kept, backward=backward)
