"""ZeroRedundancyOptimizer: each rank has the optimizer's states of its own parameters.

Parameters are given out whole, the largest first, each to the rank that has least so far. After its
step each rank sends its parameters to the others, in place. With parameters_as_bucket_view the
parameters of each rank are moved into one flat buffer, rank by rank and type by type.

Source: torch/distributed/optim/zero_redundancy_optimizer.py (_partition_parameters,
_build_param_buckets).
Not modelled: overlap_with_ddp.
"""

from collections.abc import Sequence

from vrambudget.dtypes import DType
from vrambudget.engine.tensor import Parameter
from vrambudget.parallel.group import Group
from vrambudget.tape.events import Purpose, Storage


def partitioned(parameters: Sequence[Parameter], group: Group) -> list[list[Parameter]]:
    """Return each rank's parameters."""
    ranks: list[list[Parameter]] = [[] for _ in range(group.size)]
    sizes = [0] * group.size
    for parameter in sorted(parameters, key=lambda p: p.numel, reverse=True):
        rank = sizes.index(min(sizes))
        ranks[rank].append(parameter)
        sizes[rank] += parameter.numel
    return ranks


def move_into_buckets(ranks: Sequence[Sequence[Parameter]]) -> None:
    """Let parameters be views of their rank's bucket: one for each type."""
    for parameters in ranks:
        types: dict[DType, list[Parameter]] = {}
        for parameter in parameters:
            types.setdefault(parameter.dtype, []).append(parameter)
        for dtype, members in types.items():
            first = members[0].storage
            nbytes = sum(p.numel for p in members) * dtype.itemsize
            bucket = Storage(first.tape, nbytes, Purpose.WEIGHTS, "parameter_bucket")
            for parameter in members:
                parameter.storage = bucket
            del first
