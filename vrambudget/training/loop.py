"""The loop, written as users write it: what its variables hold is part of the answer.

    for step in range(steps):
        for micro_batch in range(grad_accum):
            batch = next_batch()                 # the old batch lives until the new one is made
            with autocast: outputs = model(**batch)   # so do the old outputs
            loss = outputs.loss / grad_accum
            loss.backward()
        clip_grad_norm_; optimizer.step(); optimizer.zero_grad(set_to_none=True)

The first step differs from the second: the optimizer makes its states at its end, and there are no
outputs of an earlier step. From the third on nothing changes but how the allocator lays it out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vrambudget import dtypes
from vrambudget.dtypes import DType
from vrambudget.engine.autocast import autocast
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import context, made_for, no_grad
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.tape.events import Phase, Purpose
from vrambudget.training.clip import clip_grad_norm
from vrambudget.training.first_pass import FirstPass
from vrambudget.training.inputs import Input, on_device
from vrambudget.training.muon import embeddings_and_head
from vrambudget.training.optimizer_base import Optimizer
from vrambudget.training.optimizers import make_optimizer
from vrambudget.training.scaler import GradScaler

_STEADY = 2  # the first step, or micro-batch of a step, that can be a copy of the one before it


@dataclass(frozen=True, slots=True)
class Loop:
    """What decides the loop's memory besides the model: a job, reduced to what the loop reads."""

    inputs: Mapping[str, Input]
    steps: int
    autocast: DType | None
    optimizer: str
    optimizer_impl: str | None
    clip: float | None
    grad_accum: int
    keep_outputs: bool

    def batch(self) -> dict[str, Tensor]:
        """Return a batch on the device, as the data loader hands it over."""
        with made_for(Purpose.INPUTS):
            return {name: on_device(value) for name, value in self.inputs.items()}


def train(model: Module, loop: Loop) -> None:
    """Run the training steps on the current tape."""
    model.train()
    tape = context.tape
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(
        loop.optimizer, loop.optimizer_impl, parameters, embeddings_and_head(model)
    )
    scaler = GradScaler(enabled=loop.autocast is dtypes.float16)
    first = FirstPass(tape)
    batch = outputs = loss = held = None
    for step in range(loop.steps):
        if step >= _STEADY and tape.repeat_step(step):
            continue
        if first.can_be_copied:
            first.lay_batch(step)
            batch = None
            first.lay_outputs(step)
            outputs = loss = held = None
            held = first.lay_rest(step)
        else:
            since = 0  # the mark with which the last micro-batch began
            for turn in range(loop.grad_accum):
                last, since = since, len(tape.marks)
                if turn >= _STEADY and tape.repeat(last, step):
                    continue
                tape.mark(step, Phase.FORWARD)
                batch = loop.batch()
                first.has_batch()
                with autocast(loop.autocast):
                    outputs = model(**batch)
                    first.has_outputs()
                loss = outputs.loss
                if loop.grad_accum > 1:
                    loss = mul_scalar(loss)
                if not loop.keep_outputs:
                    outputs = None
                held = None
                tape.mark(step, Phase.BACKWARD)
                run_backward(scaler.scale(loss))
        tape.mark(step, Phase.OPTIMIZER_STEP)
        if step == 0:
            first.is_over(parameters, scaler)
        _update(parameters, optimizer, scaler, clips=loop.clip is not None)
        tape.mark(step, Phase.STEP_END)
    tape.close()  # what the loop's variables hold now dies after the job
    del batch, held


def _update(
    parameters: list[Parameter], optimizer: Optimizer | None, scaler: GradScaler, *, clips: bool
) -> None:
    """Clip, step, and drop the gradients."""
    with no_grad():
        if clips:
            scaler.unscale(optimizer)
            clip_grad_norm(parameters)
        if optimizer is not None:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def evaluate(model: Module, loop: Loop) -> None:
    """Run forward passes under no_grad on the current tape."""
    model.eval()
    tape = context.tape
    outputs = None
    with no_grad():
        for step in range(loop.steps):
            if step >= _STEADY and tape.repeat_step(step):
                continue
            tape.mark(step, Phase.FORWARD)
            batch = loop.batch()
            with autocast(loop.autocast):
                outputs = model(**batch)
            if not loop.keep_outputs:
                outputs = None
            tape.mark(step, Phase.STEP_END)
        tape.close()
    del outputs
