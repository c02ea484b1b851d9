"""What a training loop has to know of one rank; what most layouts do stands here."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from vrambudget.engine.context import on_meta
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.parallel.meta import to_empty
from vrambudget.tape.events import Storage
from vrambudget.training.clip import Clips
from vrambudget.training.loops import TrainingLoop


class Engine(Protocol):
    """What accelerate calls in place of a loss's backward, and of an optimizer's step."""

    def backward(self, loss: Tensor, *, scale_wrt_gas: bool = True) -> Tensor:
        """Run backward."""

    def step(self) -> None:
        """Step, after a step's last micro-batch."""


class Distributed:
    """One rank of a job."""

    has_region: bool = True  # whether autocast is around the model's forward
    in_full: bool = False  # whether every pass has to be traced
    lays_layers: bool = False  # whether identical layers may be replayed
    keeps_cache: bool = False  # whether training begins with what preparing left in the cache
    loop: TrainingLoop | None = None  # the layout's own, in place of the job's
    engine: Engine | None = None  # the library's own, whose backward steps, too
    clips: Clips | None = None  # the library's own, in place of clip_grad_norm_

    def building(self) -> AbstractContextManager[None]:
        """Return where the model is built: on the GPU."""
        return nullcontext()

    def cut(self, model: Module) -> None:
        """Leave a model the rank's part of its parameters, where others have the rest."""

    def wrap(self, model: Module, called: Module) -> Module:
        """Return what the loop calls; `called`: the model, or one that is traced once."""
        raise NotImplementedError

    def reference(self, build: Callable[[], Module]) -> Module:
        """Return what DPOTrainer holds the model against: one that is whole on each rank."""
        return build()

    def micro_batch(self, *, is_last: bool) -> None:
        """Begin one: whether its backward reduces gradients."""

    def region(self, batch: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Return what a plain loop has around a micro-batch's forward and backward: nothing."""
        del batch
        return nullcontext()

    def stepped(self, parameters: Sequence[Parameter]) -> Sequence[Parameter]:
        """Return the parameters that this rank's optimizer steps: all that it has."""
        return parameters

    def host_bytes(self) -> int:
        """Return what this rank has in main memory."""
        return 0

    def kind(self, rank: int) -> Hashable:
        """Return what decides what a rank takes: those of one kind take the same."""
        del rank
        return None

    def fullest_rank(self) -> int:
        """Return the rank that takes most, where that is neither the first nor the last."""
        return 0


class Materialised(Distributed):
    """One rank whose model is built without memory, cut, and then given that of its part."""

    def building(self) -> AbstractContextManager[None]:
        """Return where the model is built: nowhere."""
        return on_meta()

    def wrap(self, model: Module, called: Module) -> Module:
        """Give the model its memory; nothing is wrapped. What was tied is tied again to the first.

        Both lie there until `model.tie_weights()` lets the later one go.
        """
        first: dict[int, Storage] = {}

        def note(module: Module) -> None:
            for value in module.__dict__.values():
                if isinstance(value, Parameter):
                    first.setdefault(id(value), value.storage)

        root = getattr(model, "wrapped", model)
        to_empty(root, note)
        for parameter in root.parameters():
            parameter.storage = first[id(parameter)]
        return called
