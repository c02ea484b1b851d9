"""Values through collectives: what other ranks send is assumed to be what this one has.

Every rank runs the same program on rows of the same shape, so the integers that they exchange (row
counts, lengths, pickled objects) are equal. A sum over W ranks is W times this rank's, a gathered
tensor has it W times. Floats stay unknown.

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

REDUCING = ("all_reduce", "reduce")
GATHERING = ("all_gather", "gather")
EXCHANGING = ("reduce_scatter_tensor", "all_to_all_single")
SENDING = (*REDUCING, *GATHERING, *EXCHANGING, "all_gather_into_tensor", "broadcast")

_SOURCES = ("tensor", "input_tensor", "input")
_Known = tuple[Any, bool]  # a tensor on the CPU, None where it is not known, and whether it is true


class Sent:
    """Follows what is sent over fake groups; without a `follower` nothing is known."""

    def __init__(self, tracer: Any, is_fake: Callable[[Any], bool]) -> None:
        self.tracer, self.is_fake = tracer, is_fake
        self.torch: Any = importlib.import_module("torch")

    def copying(self) -> AbstractContextManager[None]:
        """Return a context in which what a copy brings to the GPU can be read back."""
        return nullcontext() if self.tracer is None else self.tracer.copying()

    def wrapped(self, plain: Any) -> Any:
        """Return a collective that writes into views under autograd, as NCCL does, unseen by it."""
        name, parameters = plain.__name__, inspect.signature(plain)

        @functools.wraps(plain)
        def sent(*args: Any, **kwargs: Any) -> Any:
            given = parameters.bind(*args, **kwargs)
            given.apply_defaults()
            if not self.is_fake(given.arguments.get("group")):
                return plain(*args, **kwargs)
            with self.torch.no_grad():
                results = list(self._results(name, given.arguments))
                if name == "all_gather_into_tensor":
                    _flatten(given.arguments, "output_tensor", "input_tensor")
                done = plain(*given.args, **given.kwargs)
                for target, (value, true) in results:
                    self.tracer.values.bring(target, value, true=true)
            return done

        return sent

    def _results(self, name: str, given: dict[str, Any]) -> Iterator[tuple[Any, _Known]]:
        """Yield what is written where; asked before it is sent."""
        if self.tracer is None or name == "broadcast":  # each rank has what the first sends
            return
        distributed = self.torch.distributed
        ranks = distributed.get_world_size(given.get("group"))
        rank = distributed.get_rank(given.get("group"))
        tensor = next(given[source] for source in _SOURCES if source in given)
        own, true = self.tracer.values.copy_of(tensor)
        if name in GATHERING:
            targets = given.get("tensor_list") or given.get("gather_list") or ()
            yield from ((target, (own, true)) for target in targets)
            return
        target = given.get("output_tensor", given.get("output", tensor))
        if name in EXCHANGING:
            is_even = not given.get("output_split_sizes") and not given.get("input_split_sizes")
            own = _part(own, rank, ranks) if is_even else None
        if name in ("all_to_all_single", "all_gather_into_tensor"):
            own = None if own is None else own.reshape(-1).repeat(ranks).reshape(target.shape)
        else:
            own = _reduced(own, given["op"], ranks)
        yield target, (own, true)


def _flatten(given: dict[str, Any], *names: str) -> None:
    """Let NCCL's order of bytes be that of the fake group, which cuts the first dimension in parts.

    SyncBatchNorm gathers [2 C + 1] into [1, W (2 C + 1)] (torch/nn/modules/_functions.py).
    """
    given.update({name: given[name].view(-1) for name in names if given[name].is_contiguous()})


def _part(value: Any, rank: int, ranks: int) -> Any:
    """Return what each rank sends to this one."""
    if value is None or value.ndim == 0 or value.shape[0] % ranks:
        return None
    return value.chunk(ranks)[rank]


def _reduced(own: Any, operation: Any, ranks: int) -> Any:
    """Return what so many equal tensors give."""
    kind = getattr(operation, "name", "")  # a RedOpType; a ReduceOp has no name
    if own is None or kind in ("MAX", "MIN", "AVG", "BAND", "BOR"):
        return own
    return own * ranks if kind == "SUM" else own**ranks if kind == "PRODUCT" else None
