"""One of several ranks, alone in its process: PyTorch's own fake process group.

The script runs as one rank of W, with the environment that its launcher would give it, or as the
script itself says (torch.multiprocessing). Whatever group of NCCL it asks for is "fake": a
collective's buffers are made as PyTorch makes them, and nothing is sent. So sharded parameters,
gathered ones, gradient buckets and reduced shards take what they take on each of W GPUs. Groups of
other backends are as they are, unless we are to be one of several ranks.

Runs in the user's Python, 3.9 or later.

Not modelled: NCCL's own buffers, which lie outside PyTorch's allocator; what other ranks send that
is not what we send (sending.py).
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from .agreeing import keep_all_ranks
from .sending import SENDING, Sent

_KEPT = ("timeout", "group_name", "use_local_synchronization", "group_desc")


class ProcessGroups:
    """Makes fake groups for torch.distributed; `ranks`: of so many, whatever the script says."""

    def __init__(self, ranks: int | None, rank: int) -> None:
        self.ranks, self.rank = ranks, rank
        self.c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
        self.begin, self.divide = self.c10d.init_process_group, self.c10d.new_group
        self.parameters = inspect.signature(self.begin)

    def replace(self) -> None:
        """Put these in the place of torch's, wherever a module of torch has them."""
        replacements = {"init_process_group": self.init_process_group, "new_group": self.new_group}
        originals = (self.begin, self.divide)
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.") or name == "torch":
                for attribute, function in replacements.items():
                    if any(vars(module).get(attribute) is other for other in originals):
                        setattr(module, attribute, function)

    def init_process_group(self, *args: Any, **kwargs: Any) -> None:
        """Begin with a fake group where NCCL was asked for, or where we are one of several."""
        given = self.parameters.bind(*args, **kwargs).arguments
        size, rank = self._place(given)
        backend = str(given.get("backend") or "nccl").lower()
        if size is None or (self.ranks is None and "nccl" not in backend):
            self.begin(*args, **kwargs)
            return
        fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
        self.begin("fake", store=fake.FakeStore(), rank=rank, world_size=size)

    def _place(self, given: dict[str, Any]) -> tuple[int | None, int]:
        """Return how many ranks there are, None where nobody says it, and which we are."""
        if self.ranks is not None:
            return self.ranks, self.rank
        size, rank = given.get("world_size", -1), given.get("rank", -1)
        if size < 0:
            size = int(os.environ.get("WORLD_SIZE", "-1"))
        if rank < 0:
            rank = int(os.environ.get("RANK", "-1"))
        return (None, 0) if size < 1 or rank < 0 else (size, rank)

    def new_group(self, ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Make a fake group in a fake world."""
        if not self.is_fake():
            return self.divide(ranks, *args, **kwargs)
        return self.divide(ranks, **{k: v for k, v in kwargs.items() if k in _KEPT})

    def is_fake(self, group: Any = None) -> bool:
        """Return whether a group, or the world, is a fake one."""
        return bool(self.c10d.is_initialized() and self.c10d.get_backend(group) == "fake")


def pretend(ranks: int | None, rank: int, tracer: Any) -> None:
    """Let torch.distributed make fake groups: of `ranks`, or where the script asks for NCCL.

    The `follower` knows what values tensors have; None: nobody does.
    """
    distributed: Any = importlib.import_module("torch.distributed")
    if not distributed.is_available():
        return
    groups = ProcessGroups(ranks, rank)
    groups.replace()
    # DDP compares its parameters' sizes over all ranks: values, which are not sent here.
    verify = distributed._verify_params_across_processes  # noqa: SLF001 - what DDP calls

    def verified(group: Any, *args: Any) -> Any:
        return None if groups.is_fake(group) else verify(group, *args)

    distributed._verify_params_across_processes = verified  # noqa: SLF001
    sent = Sent(tracer, groups.is_fake)
    _trace_sending(sent)
    if tracer is not None and ranks is not None:
        keep_all_ranks(tracer.values)
    _answer_ddp(groups)
    _keep_order(distributed.Reducer, sent.copying)


def _trace_sending(sent: Sent) -> None:
    """Put our collectives in the place of torch's, wherever a module of torch has them."""
    torch: Any = importlib.import_module("torch")
    names = [name for name in SENDING if hasattr(torch.distributed, name)]
    originals = {getattr(torch.distributed, name): name for name in names}
    replaced = {name: sent.wrapped(plain) for plain, name in originals.items()}
    for name, module in list(sys.modules.items()):
        if name == "torch" or name.startswith("torch."):
            for attribute in names:
                if vars(module).get(attribute) in originals:
                    setattr(module, attribute, replaced[attribute])


def _keep_order(reducer: Any, copying: Callable[[], Any]) -> None:
    """Let DDP read back its buckets, which the first rank sends to all through the GPU."""
    rebuild = reducer._rebuild_buckets  # noqa: SLF001 - what DDP calls

    def rebuild_buckets(self: Any) -> Any:
        with copying():
            return rebuild(self)

    reducer._rebuild_buckets = rebuild_buckets  # noqa: SLF001


def _answer_ddp(groups: ProcessGroups) -> None:
    """Give DDP back the bucket that it sent: the fake group's answer is empty."""
    torch: Any = importlib.import_module("torch")
    ddp = torch.nn.parallel.DistributedDataParallel
    run = ddp.forward

    def reduced(bucket: Any) -> Any:
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not self._comm_hooks and groups.is_fake(self.process_group):  # else: the script's own
            # DDP looks at the names and annotations of a hook's arguments; a lambda has none.
            self.register_comm_hook(None, lambda state, bucket: reduced(bucket))  # noqa: ARG005
        return run(self, *inputs, **kwargs)

    ddp.forward = forward
