"""One of several ranks, alone in its process: PyTorch's own fake process group.

The script runs as rank 0 of W, with the environment that torchrun would give it. Whatever group it
asks for is "fake": a collective's buffers are made as PyTorch makes them, and nothing is sent. So
sharded parameters, gathered ones, gradient buckets and reduced shards take what they take on each
of W cards.

Runs in the user's Python, 3.9 or later.

Not modelled: NCCL's own buffers, which lie outside PyTorch's allocator; ranks that differ from the
first (pipelines, shards of uneven size).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_KEPT = ("timeout", "group_name", "use_local_synchronization", "group_desc")


def pretend(world_size: int, remember: Callable[[int], object]) -> None:
    """Let torch.distributed make fake groups only, the first of them with so many ranks.

    `remember(1)` lets what is sent to the device be read back, until `remember(0)`.
    """
    distributed: Any = importlib.import_module("torch.distributed")
    if not distributed.is_available():
        return
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    begin, new_group = c10d.init_process_group, c10d.new_group

    def init_process_group(*_args: Any, **_kwargs: Any) -> None:
        fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
        begin("fake", store=fake.FakeStore(), rank=0, world_size=world_size)

    def new_fake_group(ranks: Any = None, *_args: Any, **kwargs: Any) -> Any:
        return new_group(ranks, **{k: v for k, v in kwargs.items() if k in _KEPT})

    for module in (c10d, distributed):
        module.init_process_group = init_process_group
        module.new_group = new_fake_group
    # DDP compares its parameters' sizes over all ranks: values, which are zero here.
    distributed._verify_params_across_processes = lambda *_: None  # noqa: SLF001 - what DDP calls
    _answer_ddp()
    _keep_order(distributed.Reducer, remember)


def _keep_order(reducer: Any, remember: Callable[[int], object]) -> None:
    """Let DDP read back its buckets, which the first rank tells all through the GPU."""
    rebuild = reducer._rebuild_buckets  # noqa: SLF001 - what DDP calls

    def rebuild_buckets(self: Any) -> Any:
        remember(1)
        try:
            return rebuild(self)
        finally:
            remember(0)

    reducer._rebuild_buckets = rebuild_buckets  # noqa: SLF001


def _answer_ddp() -> None:
    """Give DDP back the bucket that it sent: the fake group's answer is empty."""
    torch: Any = importlib.import_module("torch")
    ddp = torch.nn.parallel.DistributedDataParallel
    run = ddp.forward

    def reduced(bucket: Any) -> Any:
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not self._comm_hooks:  # else the script has its own
            # DDP looks at the names and annotations of a hook's arguments; a lambda has none.
            self.register_comm_hook(None, lambda state, bucket: reduced(bucket))  # noqa: ARG005
        return run(self, *inputs, **kwargs)

    ddp.forward = forward
