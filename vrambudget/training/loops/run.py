"""What a mirrored loop gets: the model, batches, marks, and iterators over steps.

A loop uses it as a script uses its libraries, and need not know what makes it fast: a model that is
traced once (`vrambudget.engine.cached_trace`), and iterators that notice when a step, or a
micro-batch, did what the one before it did.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from vrambudget import dtypes
from vrambudget.config.job import EVALUATED_BEFORE, Job
from vrambudget.config.loops import TRL_LOOPS
from vrambudget.dtypes import DType
from vrambudget.engine.autocast import autocast, to
from vrambudget.engine.cached_trace import CachedTrace
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.elementwise import pow_scalar
from vrambudget.ops.loss import smoothed_cross_entropy
from vrambudget.ops.reduce import mean_all
from vrambudget.ops.shape import reshape, slice_dim
from vrambudget.tape.events import Purpose
from vrambudget.tape.marks import Phase
from vrambudget.tape.repeats import TapePlace, place_of, repeats
from vrambudget.tape.settling import LastStep
from vrambudget.training.clip import clip_grad_norm
from vrambudget.training.inputs import Input, on_device
from vrambudget.training.optimizer_base import Optimizer
from vrambudget.training.optimizers import make_optimizer
from vrambudget.training.param_groups import ParamGroups, decay_groups
from vrambudget.training.scaler import GradScaler

if TYPE_CHECKING:
    from vrambudget.parallel.rank import Distributed, Engine


class LoopSettings(NamedTuple):
    """What decides a loop's memory besides the model: a job, its batches, autocast's type."""

    job: Job
    batches: Sequence[Mapping[str, Input]]  # in order; after the last the first comes again
    eval_batches: Sequence[Mapping[str, Input]]
    autocast: DType | None
    shown: int | None = None  # a decoding step that has to be on the tape itself


class Run:
    """One run of a loop on the current tape."""

    def __init__(
        self,
        model: Module,
        settings: LoopSettings,
        *,
        in_full: bool = False,
        distributed: "Distributed | None" = None,
        build_reference: Callable[[], Module] | None = None,
    ) -> None:
        self._in_full, self._build_reference = in_full, build_reference
        self._cached: list[CachedTrace] = []
        self.settings = settings.job
        self.model = self._cached_model = self._with_cached_trace(model)
        self._batches, self._eval_batches = settings.batches, settings.eval_batches
        self._autocast = settings.autocast
        self._model, self._rank = model, distributed
        if distributed is not None:
            self.model = distributed.wrap(model, self._prepared())
        self._step = 0

    @property
    def has_ranks(self) -> bool:
        """Whether the model is wrapped for several GPUs."""
        return self._rank is not None

    @property
    def engine(self) -> "Engine | None":
        """The engine that a library put around the model, which steps by itself."""
        return self._rank.engine if self._rank else None

    def _prepared(self) -> Module:
        """Return what is wrapped: the model, or one whose forward accelerate replaced before."""
        if self.settings.loop == "plain" or not (self._rank and self._rank.has_region):
            return self._cached_model
        from vrambudget.training.accelerated import PreparedModel  # noqa: PLC0415 - few jobs have ranks

        if self.settings.loop in TRL_LOOPS:
            from vrambudget.training.fused_head import in_region  # noqa: PLC0415 - the same

            return PreparedModel(self, self._cached_model, in_region)
        return PreparedModel(self, self._cached_model)

    def steps(self) -> Iterator[int]:
        """Yield the numbers of the steps."""
        settles, count = settles_by_itself(self.settings), self.settings.steps
        if settles and self.settings.evaluates:
            count = max(count, EVALUATED_BEFORE + 2)  # the last two are identical again
        for step in _noticing(count, settles=settles):
            self._step = step
            yield step
            self.mark("step_end")

    def micro_batches(self) -> Iterator[int]:
        """Yield the numbers of a step's micro-batches."""
        count = self.settings.grad_accum
        for number in _noticing(count):
            if self._rank is not None:
                self._rank.micro_batch(is_last=number == count - 1)
            yield number

    def batches(self, *, without: Collection[str] = ()) -> Iterator[dict[str, Tensor]]:
        """Yield batches on the device, as a data loader hands them over."""
        for inputs in cycle(self._batches):
            yield self._batch(inputs, without)  # which no variable of this frame holds

    def _batch(self, inputs: Mapping[str, Input], without: Collection[str]) -> dict[str, Tensor]:
        if not self.settings.shared_labels:
            return _on_device(inputs, without)
        batch = _on_device(inputs, {*without, "labels"})
        return {**batch, "labels": batch["input_ids"]}

    def eval_steps(self) -> Iterator[int]:
        """Yield the numbers of an evaluation's batches."""
        return _noticing(self.settings.eval_batches or 0)

    def eval_batches(self, *, without: Collection[str] = ()) -> Iterator[dict[str, Tensor]]:
        """Yield batches of an evaluation on the device."""
        for batch in cycle(self._eval_batches):
            yield _on_device(batch, without)

    def given(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return what the model is called with: no labels where the loop makes the loss."""
        if not self.settings.label_smoothing:
            return batch
        return {name: x for name, x in batch.items() if name != "labels"}

    def loss_of(self, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the model's own loss; of one without a head, the mean of its states' squares.

        With label smoothing it is torch's cross_entropy, which has it.
        """
        if self.settings.label_smoothing:
            return self._smoothed(outputs.logits, batch["labels"])
        if self.settings.task == "embed":
            states = to(outputs.logits, dtypes.float32)
            return mean_all(pow_scalar(states))
        assert outputs.loss is not None  # noqa: S101 - batches have labels
        return outputs.loss

    def _smoothed(self, logits: Tensor, labels: Tensor) -> Tensor:
        with made_for(Purpose.LOGITS_AND_LOSS):
            if self.settings.task == "causal-lm":
                B, T = labels.shape
                logits = slice_dim(logits, 1, T - 1)
                labels = labels.viewed((B, T - 1), (T, 1))
            rows = reshape(logits, -1, logits.shape[-1])
            return smoothed_cross_entropy(rows, reshape(labels, -1))

    def evaluates_before(self, step: int) -> bool:
        """Whether an evaluation comes before a step: the third; or the first, too."""
        first = step == 0 and self.settings.eval_first
        return self.settings.evaluates and (first or step == EVALUATED_BEFORE - 1)

    def autocast(self, *, caches: bool = True) -> AbstractContextManager[None]:
        """Return the region of one forward pass."""
        return autocast(self._autocast, caches=caches)

    def region(self, batch: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Return what a layout has around a micro-batch's forward and backward."""
        return nullcontext() if self._rank is None else self._rank.region(batch)

    def make_optimizer(self, parameters: Sequence[Parameter]) -> Optimizer | None:
        """Return the job's optimizer, None for a job without one."""
        name, implementation = self.settings.optimizer, self.settings.optimizer_impl
        outer: Collection[Parameter] = ()
        if name == "muon":
            from vrambudget.training.muon import embeddings_and_head  # noqa: PLC0415 - few have it

            outer = embeddings_and_head(self._model)
        if self._rank is not None:
            own = self._rank.stepped(parameters)
            optimizer = make_optimizer(name, implementation, own, outer)
            if optimizer is not None:
                optimizer.cleared = parameters
            return optimizer
        return make_optimizer(name, implementation, parameters, outer)

    def clip(self, parameters: Sequence[Parameter]) -> object:
        """Clip the gradients by their norm, and return it."""
        clip = (self._rank and self._rank.clips) or clip_grad_norm
        return clip(parameters)

    def make_grouped_optimizer(self) -> Optimizer:
        """Return the job's optimizer of two parameter groups, as Trainer and nanoGPT make it."""
        name, implementation = self.settings.optimizer, self.settings.optimizer_impl
        groups = decay_groups(self._model)
        if name == "adafactor":
            from vrambudget.training.adafactor_of_transformers import (  # noqa: PLC0415 - few have it
                TransformersAdafactor,
            )

            return TransformersAdafactor([*groups[0], *groups[1]])

        def make(parameters: Sequence[Parameter]) -> Optimizer:
            optimizer = make_optimizer(name, implementation, parameters)
            assert optimizer is not None  # noqa: S101 - Trainer has one
            return optimizer

        return ParamGroups(groups, make)

    def make_scaler(self) -> GradScaler:
        """Return a gradient scaler, which does nothing where none is needed."""
        return GradScaler(enabled=self._autocast is dtypes.float16)

    def make_reference(self) -> Module:
        """Return the model that a job's own is held against, its weights allocated."""
        assert self._build_reference is not None  # noqa: S101 - loops with references get one
        build = self._build_reference
        return self._with_cached_trace(self._rank.reference(build) if self._rank else build())

    def _with_cached_trace(self, model: Module) -> Module:
        if self._in_full or self.settings.task == "embed":  # a pooler's graph leads to no loss
            return model
        traced = CachedTrace(model)
        self._cached.append(traced)
        return traced

    def check(self) -> None:
        """Raise CannotRepeatError where the job has to be traced in full."""
        for traced in self._cached:
            traced.check()

    @property
    def counts_items(self) -> bool:
        """Whether the model is given `num_items_in_batch`; those of ours that ignore it are not."""
        if hasattr(self._model, "accepts_loss_kwargs"):
            return bool(self._model.accepts_loss_kwargs)
        return "num_items_in_batch" in signature(self._model.forward).parameters

    @property
    def counts_shifted_labels(self) -> bool:
        """Whether Trainer counts labels without the first: for classes that end in ForCausalLM.

        Source: transformers/modeling_utils.py (loss_type, from the class's name), trainer.py.
        """
        named = getattr(self._model, "is_named_for_causal_lm", True)
        return self.settings.task == "causal-lm" and named

    def train_begins(self) -> None:
        """Begin to count, where a model was wrapped for several GPUs: on_train_begin.

        What sharding from main memory leaves in the cache is there when training begins.
        """
        empties = self.settings.empty_cache
        if self.has_ranks or empties:
            context.tape.mark(0, Phase.FORWARD, resets_allocator=empties)

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache(): free segments go back to the driver."""
        context.tape.mark(self._step, Phase.FORWARD, empties_cache=True)

    def mark(self, phase: str) -> None:
        """Note that a phase of the current step begins."""
        context.tape.mark(self._step, phase)


def settles_by_itself(job: Job) -> bool:
    """Whether steps go on until memory has settled: no count was given, and they are identical."""
    return (
        "steps" not in job.model_fields_set
        and job.keep_losses == "none"
        and not job.compile
        and job.mesh.ranks == 1
    )


def _on_device(inputs: Mapping[str, Input], without: Collection[str]) -> dict[str, Tensor]:
    with made_for(Purpose.INPUTS):
        return {name: on_device(x) for name, x in inputs.items() if name not in without}


def _noticing(count: int, *, settles: bool = False) -> Iterator[int]:
    """Yield numbers; mark each pass of the loop over them that repeats the one before it.

    Its mark is the one that it begins with; without one there is nothing to note. If the loop
    `settles`, the last pass may be replayed again.
    """
    tape = context.tape
    before: TapePlace | None = None
    for number in range(count):
        here = place_of(tape)
        yield number
        end = place_of(tape)
        if before is not None and repeats(tape, before, here, end):
            mark = tape.marks[here.mark] if here.mark < end.mark else None
            if mark is not None and mark.position == here.event < end.event:
                tape.marks[here.mark] = mark._replace(period=end.event - here.event)
                if settles:
                    tape.last_step = LastStep(here.event, here.storage, here.mark, end.event)
        before = here
