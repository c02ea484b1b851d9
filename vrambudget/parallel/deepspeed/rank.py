"""One rank of DeepSpeed, as `vrambudget.parallel.distributed` wants a rank."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from vrambudget.config.job import Job
from vrambudget.config.loops import TRAINERS
from vrambudget.dtypes import float32
from vrambudget.engine.context import context, on_meta
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.families.nanogpt import GPT
from vrambudget.parallel.deepspeed.config import zero_config
from vrambudget.parallel.deepspeed.engine import (
    DeepSpeedEngine,
    ZeroOptimizer,
    cast_model,
    cast_parameters,
)
from vrambudget.parallel.deepspeed.parameter_offload import ZeroOffload
from vrambudget.parallel.deepspeed.partition import fullest_rank
from vrambudget.parallel.deepspeed.stage3 import DeepSpeedZeroOptimizerStage3
from vrambudget.parallel.deepspeed.stage_1_and_2 import DeepSpeedZeroOptimizer
from vrambudget.parallel.deepspeed.zero_init import zero_init
from vrambudget.parallel.host import STATES
from vrambudget.parallel.meta import allocated, move
from vrambudget.parallel.rank import Distributed
from vrambudget.training.fused_head import FusedHead
from vrambudget.training.kbit import Linear4bit
from vrambudget.training.loops.run import Run
from vrambudget.training.optimizer_base import Optimizer
from vrambudget.training.optimizers import make_optimizer
from vrambudget.training.param_groups import decay_groups

_CUTS_WEIGHTS = 3  # the stage


class DeepSpeed(Distributed):
    """A model that deepspeed.initialize is given on the GPU, in float32."""

    in_full = True

    def __init__(self, job: Job) -> None:
        self.job, self.config = job, zero_config(job)
        self.is_prepared = job.loop != "plain"  # by accelerate, which wraps no forward
        self.has_region = not self.is_prepared
        self.loop = None if self.is_prepared else self
        self.engine: DeepSpeedEngine | None = None
        self._parameters: list[Parameter] = []

    def building(self) -> AbstractContextManager[None]:
        """Build in float32, for Trainer in main memory; what runs later is of the job's type.

        4-bit weights are loaded onto the GPU.
        """
        if self.job.quant is not None:
            return nullcontext()
        return _in_float32(on_meta() if self.is_prepared else nullcontext())

    def wrap(self, model: Module, called: Module) -> Module:
        """Call deepspeed.initialize."""
        root = getattr(model, "wrapped", model)
        if isinstance(root, GPT):  # on the GPU its head is made, and becomes the embedding
            root.lm_head.weight.storage = allocated(root.lm_head.weight, "parameter")
        cast = cast_parameters if self.config.is_0_19 else cast_model
        is_shared = self.config.stage == _CUTS_WEIGHTS
        is_cut = self.is_prepared and is_shared and self.job.quant is None
        for module in root.modules() if is_shared else ():
            if isinstance(module, Linear4bit):
                module.share_codes()
        converted = zero_init(root, self.config) if is_cut else {}
        on_host = self.is_prepared and self.job.quant is None
        if not is_cut:
            with on_meta() if on_host else nullcontext():
                cast(root, self.config.dtype)
        if on_host and not is_cut:
            move(root)
        self._parameters = [p for p in root.parameters() if p.requires_grad]
        groups: Sequence[Sequence[Parameter]] = [self._parameters]
        if self.job.loop in TRAINERS:
            groups = [group for group in decay_groups(root) if group]
        optimizer: ZeroOptimizer
        if isinstance(root, FusedHead) and self.job.lora_rank is not None:
            called = _Adapted(root)
        if self.config.stage == _CUTS_WEIGHTS:
            optimizer = DeepSpeedZeroOptimizerStage3(
                called, groups, self.config, self._optimizer, converted
            )
            _connect(root, optimizer.offload)
        else:
            optimizer = DeepSpeedZeroOptimizer(groups, self.config, self._optimizer)
        self.engine = DeepSpeedEngine(called, self.config, optimizer)
        return self.engine

    def reference(self, build: Callable[[], Module]) -> Module:
        """Shard it under stage 3, as the model is (prepare_deepspeed of TRL 1.16)."""
        if self.config.stage != _CUTS_WEIGHTS:
            return build()
        with self.building():
            model = build()
        _connect(model, ZeroOffload(model, self.config, zero_init(model, self.config)))
        return model

    def _optimizer(self, parameters: Sequence[Parameter]) -> Optimizer:
        made = make_optimizer(self.job.optimizer, self.job.optimizer_impl, parameters)
        assert made is not None  # noqa: S101 - `refuse` asks for one
        return made

    def train(self, run: Run) -> dict[str, Any]:
        """Run a script's loop: forward, backward and step for every micro-batch."""
        assert self.engine is not None  # noqa: S101 - the model was wrapped
        engine = self.engine
        batches, settings = run.batches(), run.settings
        for _ in run.steps():
            run.model.train(mode=settings.model_mode == "train")
            for number in run.micro_batches():
                run.mark("forward")
                if not settings.keep_outputs:
                    outputs = None
                batch = next(batches)
                outputs = engine(**batch)
                loss = outputs.loss
                if settings.forward_returns == "loss":
                    outputs = None
                run.mark("backward")
                engine.backward(loss)
                if number == settings.grad_accum - 1:
                    run.mark("optimizer_step")
                engine.step()
        return locals()

    def evaluate(self, run: Run) -> dict[str, Any]:
        """Refused when the job was checked."""
        raise NotImplementedError

    def host_bytes(self) -> int:
        """Return what this rank has in main memory."""
        assert self.engine is not None  # noqa: S101 - the model was wrapped
        return self.engine.optimizer.host_bytes(STATES[self.job.optimizer])

    def kind(self, rank: int) -> int:
        """Return the rank where its own parameters decide how many gradients it copies."""
        return rank if self.config.stage < _CUTS_WEIGHTS else 0

    def fullest_rank(self) -> int:
        """Return the rank whose own parameters are largest together."""
        return fullest_rank(self._parameters, self.config.group.size)


def _connect(model: Module, offload: ZeroOffload) -> None:
    """Let a head that TRL patched gather its weight, which is another module's."""
    if isinstance(model, FusedHead):

        def accessed(weight: Tensor) -> Tensor:
            offload.accessed(model.patched.lm_head.weight, model)
            return weight

        model.accessed = accessed


class _Adapted(Module):
    """PeftModel, which is called before the model whose head TRL patched, and has nothing itself.

    Source: peft/peft_model.py (forward), which calls LoraModel, whose forward is the model's own.
    """

    def __init__(self, model: Module) -> None:
        self.base_model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.base_model(*args, **kwargs)


@contextmanager
def _in_float32(place: AbstractContextManager[None]) -> Iterator[None]:
    options = context.options
    context.options = replace(options, dtype=float32)
    try:
        with place:
            yield
    finally:
        context.options = options
