"""Changes of placement that autograd follows: what forward does, and what backward does to undo it.

    function         forward                        backward
    whole            Replicate, as it is            Partial -> Replicate: all-reduce
    gathered         Shard -> Replicate             Partial -> Shard: reduce-scatter
    gathered_result  Shard -> Replicate             Replicate -> Shard: the rank's own part
    reduced          Partial -> Replicate           as it is: a gradient is not made Partial again
    scattered        Partial -> Shard               Shard -> Replicate: all-gather

Source: torch/distributed/tensor/_redistribute.py (Redistribute), _api.py (_FromTorchTensor,
_ToTorchTensor).
"""

from collections.abc import Callable

from vrambudget.engine.autograd import record
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.parallel.group import Group
from vrambudget.parallel.tensor.collectives import all_gather, all_reduce, own_part, reduce_scatter


def whole(x: Tensor) -> Tensor:
    """Take a tensor that every rank has: DTensor.from_local(x, [Replicate()])."""
    return _placed("from_local", x, x.viewed(x.shape, x.strides), all_reduce)


def gathered(x: Tensor, dim: int, group: Group) -> Tensor:
    """Gather what the module reads whole; each rank's gradient of it is a part of the sum."""
    y = _placed(
        "redistribute", x, all_gather(x, dim, group), lambda dy: reduce_scatter(dy, dim, group)
    )
    if y.node is not None:
        y.node.adds_in_place = False  # they are DTensors (can_accumulate_inplace)
    return y


def gathered_result(x: Tensor, dim: int, group: Group, length: int) -> Tensor:
    """Gather what the module returns; every rank has its whole gradient."""
    return _placed(
        "redistribute", x, all_gather(x, dim, group, length), lambda dy: own_part(dy, dim, group)
    )


def reduced(x: Tensor) -> Tensor:
    """Add up the ranks' parts of a sum."""
    return _placed("redistribute", x, all_reduce(x), lambda dy: dy)


def scattered(x: Tensor, dim: int, group: Group) -> Tensor:
    """Add up the ranks' parts of a sum, and keep the rank's own part along `dim`.

    Raises NotModelledError where parts differ: modules then gather more than there was.
    """
    if x.shape[dim] % group.size:
        raise NotModelledError(
            f"PyTorch cannot train {x.shape[dim]} tokens with sequence_parallel on tp={group.size}"
            " ranks: parts that differ, once gathered, are taken for more tokens (a RuntimeError)",
            hint="choose a block that the ranks divide, or leave sequence_parallel out",
        )
    return _placed(
        "redistribute", x, reduce_scatter(x, dim, group), lambda dy: all_gather(dy, dim, group)
    )


def _placed(name: str, x: Tensor, y: Tensor, backward: Callable[[Tensor], Tensor]) -> Tensor:
    return record(name, y, inputs=(x,), backward=backward)
