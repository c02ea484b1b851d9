"""Which elements of a group of parameters a rank has, in stages 1 and 2.

A group's parameters lie one after another in one flat tensor, padded to a multiple of twice the
ranks (a start that NCCL likes: 4 bytes); each rank has an equal part. A parameter that begins in a
rank's part, or reaches into it, is one of its parameters, whole.

Source: deepspeed/runtime/zero/stage_1_and_2.py (get_partition_info, initialize_gradient_partition,
average_tensor, IPGBucket).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.parallel.group import Group

_ALIGNMENT = 2  # elements of 16 bits, nccl_start_alignment_factor


Slice = tuple[int, int]  # a rank, and how many elements it has
Entry = tuple[int, Parameter]  # a group's number, and one of its parameters


@dataclass(frozen=True, slots=True)
class Partition:
    """One group's parameters: where each begins, and how many elements a rank has."""

    parameters: Sequence[Parameter]
    begins: Mapping[int, int]  # by the parameter's id
    padding: int
    size: int  # of each rank's part
    own: Sequence[Parameter]  # params_in_partition
    own_begin: int  # the first element of the rank's part

    def own_elements(self) -> list[int]:
        """Return how many elements of each of its parameters are the rank's."""
        end = self.own_begin + self.size
        begins = [self.begins[id(p)] for p in self.own]
        return [
            min(begin + p.numel, end) - max(begin, self.own_begin)
            for p, begin in zip(self.own, begins, strict=True)
        ]

    def slices_of(self, p: Parameter) -> list[Slice]:
        """Return which ranks have how many elements of a parameter, in order."""
        begin = self.begins[id(p)]
        end = begin + p.numel
        ranks = range(begin // self.size, (end - 1) // self.size + 1)
        return [
            (rank, min(end, (rank + 1) * self.size) - max(begin, rank * self.size))
            for rank in ranks
        ]


def partition(parameters: Sequence[Parameter], group: Group) -> Partition:
    """Cut a group of parameters among the ranks."""
    begins, end = dict[int, int](), 0
    for p in parameters:
        begins[id(p)] = end
        end += p.numel
    padding = -end % (_ALIGNMENT * group.size)
    size = (end + padding) // group.size
    first, last = group.rank * size, (group.rank + 1) * size
    own = [p for p in parameters if first - p.numel < begins[id(p)] < last]
    return Partition(parameters, begins, padding, size, own, first)


def joined(slices: Iterable[Slice]) -> list[Slice]:
    """Join slices of one rank that lie one after another in a bucket, of whatever group."""
    found: list[Slice] = []
    for rank, elements in slices:
        before = found.pop()[1] if found and found[-1][0] == rank else 0
        found.append((rank, before + elements))
    return found


def fullest_rank(parameters: Sequence[Parameter], ranks: int) -> int:
    """Return the rank whose parameters have most elements: their gradients are copied whole."""
    sizes = [
        sum(p.numel for p in partition(parameters, Group(ranks, rank)).own) for rank in range(ranks)
    ]
    return sizes.index(max(sizes))


@dataclass(slots=True)
class Bucket:
    """IPGBucket: gradients that wait to be reduced together."""

    buffers: list[Tensor] = field(default_factory=list)
    index: int = 0
    entries: list[Entry] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    elements: int = 0
    extra_large: bool = False

    def clear(self) -> None:
        """Forget what was reduced."""
        self.entries.clear()
        self.grads.clear()
        self.elements, self.extra_large = 0, False
