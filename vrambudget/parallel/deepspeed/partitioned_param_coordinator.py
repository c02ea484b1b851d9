"""When ZeRO 3 gathers a parameter and when it lets it go.

The first pass only follows and records the order of modules: each gathers its own parameters and
releases them when it is done. From the second on the next parameters are gathered ahead, up to
prefetch_bucket_size elements for each module that is called, as long as max_live_parameters are not
exceeded; and a parameter stays if the modules that follow, up to max_reuse_distance elements, have
it, or if the way ahead has passed over it.

Source: deepspeed/runtime/zero/partitioned_param_coordinator.py (PartitionedParameterCoordinator).
Not modelled: leaf modules.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from enum import Enum, auto

from vrambudget.engine.context import on_stream
from vrambudget.engine.module import Module
from vrambudget.parallel.deepspeed.config import ZeroConfig
from vrambudget.parallel.deepspeed.partition_parameters import (
    ALL_GATHER_STREAM,
    AllGatherHandle,
    Status,
    ZeroParameter,
    all_gather_coalesced,
)

Parameters = Callable[[Module], Sequence[ZeroParameter]]


class TraceMode(Enum):
    """ZeRoTraceMode."""

    RECORD = auto()
    COMPLETE = auto()
    INVALID = auto()


class Coordinator:
    """PartitionedParameterCoordinator; `parameters_of`: a module's own, by their numbers."""

    def __init__(self, config: ZeroConfig, parameters_of: Parameters) -> None:
        self.config, self.parameters_of = config, parameters_of
        self.inflight: dict[ZeroParameter, AllGatherHandle] = {}
        self._mode = TraceMode.INVALID
        self._order: list[Module] = []
        self._param_order: list[tuple[ZeroParameter, int]] = []
        self._queue: deque[tuple[ZeroParameter, int]] = deque()
        self._fetched_for: dict[ZeroParameter, int] = defaultdict(lambda: -1)
        self._to_release: dict[tuple[int, int], set[ZeroParameter]] = {}  # it is cached there, too
        self._step_id = self._available = 0
        self._in_backward: dict[int, Module] = {}  # those whose backward is not over
        self._stream = ALL_GATHER_STREAM if config.overlap_comm else 0

    def reset_step(self) -> None:
        """Begin a pass."""
        for p in [*self.inflight]:
            self._wait(p)
            self._release(p)
        if self._mode is TraceMode.RECORD:
            self._param_order = [
                (p, step) for step, m in enumerate(self._order) for p in self.parameters_of(m)
            ]
            self._mode = TraceMode.COMPLETE
        elif self._mode is TraceMode.INVALID:
            self._mode = TraceMode.RECORD
        self._queue = deque(self._param_order)
        self._fetched_for.clear()
        self._step_id = self._available = 0

    def fetch_sub_module(self, module: Module, *, forward: bool) -> None:
        """Gather a module's parameters, and wait for them; begin with those that come next."""
        self._record_module(module)
        if not forward:
            self._in_backward[id(module)] = module
        own = self.parameters_of(module)
        self._all_gather([p for p in own if p.status is Status.NOT_AVAILABLE])
        for p in own:
            p.active_sub_modules.add(id(module))
            if p in self.inflight:
                self._wait(p)
        if self._mode is TraceMode.COMPLETE:
            self._prefetch(own)
        self._step_id += 1

    def _record_module(self, module: Module) -> None:
        """Record a module, or hold it against the record (trace_prologue, record_module).

        A pass that goes another way makes the record invalid: of the one after next is the next.
        """
        if self._mode is TraceMode.RECORD:
            self._order.append(module)
        elif self._mode is TraceMode.COMPLETE and self._order[self._step_id :][:1] != [module]:
            self._mode = TraceMode.INVALID
            self._order, self._param_order = [], []
            self._queue.clear()
            self._fetched_for.clear()

    def _prefetch(self, own: Sequence[ZeroParameter]) -> None:
        wanted = {p for p in own if self._fetched_for[p] < self._step_id}
        discarded: set[ZeroParameter] = set()
        while self._queue and len(discarded) < len(wanted):
            p, step = self._queue.popleft()
            self._fetched_for[p] = step
            discarded.add(p)
        config = self.config
        most = min(config.max_live_parameters - self._available, config.prefetch_bucket_size)
        ahead: dict[ZeroParameter, None] = {}
        elements = 0
        while config.prefetch_bucket_size and self._queue and elements < most:
            p, step = self._queue.popleft()
            does = p.status is Status.NOT_AVAILABLE and p not in ahead
            self._fetched_for[p] = max(self._fetched_for[p], step)
            if does:
                ahead[p] = None
                elements += p.numel
        self._all_gather([*ahead])

    def _all_gather(self, parameters: Sequence[ZeroParameter]) -> None:
        if parameters:
            self._available += sum(p.numel for p in parameters)
            with on_stream(self._stream):
                handle = all_gather_coalesced(parameters)
            self.inflight |= dict.fromkeys(parameters, handle)

    def _wait(self, p: ZeroParameter) -> None:
        with on_stream(self._stream):
            self.inflight.pop(p).wait()

    def release_sub_module(self, module: Module, *, forward: bool) -> None:
        """Let go of a module's parameters that are not needed soon."""
        if not forward:
            self._in_backward.pop(id(module), None)
        own = self.parameters_of(module)
        released = self._params_to_release(module) if self._mode is TraceMode.COMPLETE else own
        for p in own:
            p.active_sub_modules.discard(id(module))
            if p in released:
                self._release(p)

    def release_backward_leftovers(self) -> None:
        """Let go of what modules still have whose inputs want no gradient (since 0.19)."""
        while self._in_backward:
            _, module = self._in_backward.popitem()
            for p in self.parameters_of(module):
                p.active_sub_modules.discard(id(module))
                if not p.persists:
                    self._release(p)

    def _params_to_release(self, module: Module) -> set[ZeroParameter]:
        key = id(module), self._step_id
        if key not in self._to_release:
            self._to_release[key] = self._found_to_release(module)
        return self._to_release[key]

    def _found_to_release(self, module: Module) -> set[ZeroParameter]:
        found = {
            p
            for p in self.parameters_of(module)
            if not p.persists and self._fetched_for[p] <= self._step_id
        }
        traversed = 0
        for later in self._order[self._step_id :] if found else ():
            if traversed >= self.config.max_reuse_distance:
                break
            for p in self.parameters_of(later):
                found.discard(p)
                traversed += p.numel
        return found

    def _release(self, p: ZeroParameter) -> None:
        if p.status is Status.AVAILABLE and not p.active_sub_modules:
            p.partition()
            self._available -= p.numel

    def release_and_reset_all(self, parameters: Sequence[ZeroParameter]) -> None:
        """Let all go, before a step."""
        for p in parameters:
            if p in self.inflight:
                self._wait(p)
            p.active_sub_modules.clear()
            self._release(p)
