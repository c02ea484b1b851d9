"""ZeRO 3's parameters: one rank's part of each, and the whole of it while it is gathered.

    ds_tensor   [ceil(numel / W)], for ever
    whole       alone: [W * ceil(numel / W)], the buffer itself. Of several that are gathered at
                once: into one flat buffer, from which each is copied once the first is waited for;
                the flat one lives until the last was waited for
    offloaded   ds_tensor is in main memory; a copy of it on the GPU is what is gathered
    released    the parameter's data are replaced by nothing; what autograd saved lives on: views of
                a weight (nn.Linear transposes it), but not what it saved as it is, whose data went

Source: deepspeed/runtime/zero/partition_parameters.py (Init, _all_gather_sequential,
_all_gather_dtype, AllGatherCoalescedHandle, _partition_param).
Not modelled: use_all_reduce_for_fetch_params, allgather_sequential, hpZ, MiCS, quantised weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from enum import Enum, auto

from vrambudget.engine.context import context, made_for, on_meta
from vrambudget.engine.tensor import Parameter, SwappedParameter, Tensor
from vrambudget.ops.creation import made
from vrambudget.parallel.group import Group
from vrambudget.tape.events import Purpose, Storage, Tape

ALL_GATHER_STREAM, REDUCE_STREAM = 1, 2


class Status(Enum):
    """ZeroParamStatus."""

    NOT_AVAILABLE = auto()
    INFLIGHT = auto()
    AVAILABLE = auto()


class ZeroParameter:
    """A parameter as Init converts it: its part is kept, the whole goes."""

    def __init__(
        self, parameter: Parameter, number: int, group: Group, *, on_host: bool = False
    ) -> None:
        self.parameter, self.ds_id, self.group, self.on_host = parameter, number, group, on_host
        self.numel: int = parameter.numel
        self.partition_numel = group.padded(self.numel)
        self.persists = False
        self.active_sub_modules: set[int] = set()
        with made_for(Purpose.WEIGHTS), on_meta() if on_host else nullcontext():
            self.ds_tensor: Tensor | None = made(
                "ds_tensor", (self.partition_numel,), parameter.dtype
            )
        parameter.__class__ = SwappedParameter
        self.partition()

    def partition(self) -> None:
        """Replace the parameter's data by nothing, which work on this stream may still read."""
        self.parameter.storage.record_stream(context.stream)
        self.parameter.storage = Storage(Tape(), 0, Purpose.GATHERED, "partitioned")
        self.status = Status.NOT_AVAILABLE

    def make_whole(self, elements: int) -> None:
        """Give the parameter new data, on the stream that is current."""
        context.operation = "all_gather"
        nbytes = elements * self.parameter.dtype.itemsize
        self.parameter.storage = Storage(context.tape, nbytes, Purpose.GATHERED, "all_gather")

    def own_numel(self) -> int:
        """Return how many of its elements are this rank's."""
        begins = self.group.rank * self.partition_numel
        return max(0, min(self.partition_numel, self.numel - begins))

    def on_gpu(self) -> Tensor | None:
        """Return a copy of its part on the GPU, None where it is there."""
        if not self.on_host:
            return None
        with made_for(Purpose.GATHERED):
            return made("to_device", (self.partition_numel,), self.parameter.dtype)

    def all_gather(self) -> None:
        """Gather it at once, on the current stream (_allgather_params_sequential)."""
        if self.status is Status.NOT_AVAILABLE:
            self.make_whole(self.partition_numel * self.group.size)
            copy = self.on_gpu()
            del copy
            self.status = Status.AVAILABLE


class AllGatherHandle:
    """A gather that is under way: of one parameter, or of several into one flat buffer."""

    def __init__(self, parameters: Sequence[ZeroParameter]) -> None:
        first, elements = parameters[0], sum(p.partition_numel for p in parameters)
        elements *= first.group.size
        self.parameters = list(parameters)
        self.flat: Tensor | None = None
        for p in parameters:
            p.status = Status.INFLIGHT
        if len(parameters) == 1:
            first.make_whole(elements)
            copy = first.on_gpu()
            del copy
            return
        with made_for(Purpose.GATHERED):
            self.flat = made("all_gather_flat", (elements,), first.parameter.dtype)
        copies = [p.on_gpu() for p in parameters]
        del copies

    def wait(self) -> None:
        """Copy the parameters out of the flat buffer, all of them the first time."""
        for p in self.parameters:
            if self.flat is not None:
                p.make_whole(p.numel)
            p.status = Status.AVAILABLE
        self.parameters.clear()


def all_gather_coalesced(parameters: Sequence[ZeroParameter]) -> AllGatherHandle:
    """Begin to gather parameters, on the current stream."""
    return AllGatherHandle(sorted(parameters, key=lambda p: p.ds_id))
