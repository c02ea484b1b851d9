"""One stage of a pipeline: a piece of the model and what it keeps of each microbatch.

    receive buffers   for all microbatches, made in the first step and kept for ever: the inputs of
                      all stages but the first, the outputs' gradients of all but the last.
                      From 2.15 on: made as each is received, and a microbatch's own
    fwd_cache         a microbatch's outputs and inputs, from its forward to its backward; from 2.15
                      on the graph stands for an output that was sent
    bwd_cache         its input's gradient, until it is sent
    output_chunks     the last stage's outputs, until the next step

Source: torch/distributed/pipelining/stage.py (_PipelineStageBase, PipelineStage), _backward.py
(stage_backward).
Not modelled: what an interleaved schedule receives ahead from 2.15 on, which takes less: as until
2.14; shapes that are inferred at runtime, several inputs, a stage in DDP or FSDP.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vrambudget.dtypes import DType, float32
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Shape, Tensor
from vrambudget.ops.creation import made
from vrambudget.tape.events import Purpose


class GradientEdge(NamedTuple):
    """Where backward of an output begins once it is freed (torch.autograd.graph.GradientEdge)."""

    node: Any
    slot: int


@dataclass(slots=True)
class Stage:
    """PipelineStage; `shape` and `dtype` are those of what goes between stages."""

    module: Module
    index: int
    is_first: bool
    is_last: bool
    shape: Shape
    dtype: DType
    lets_go: bool  # of what was sent, and of what was received: 2.15 and later
    received: dict[int, Tensor] = field(default_factory=dict)
    received_grads: dict[int, Tensor] = field(default_factory=dict)
    fwd_cache: dict[int, tuple[Tensor | GradientEdge, Tensor]] = field(default_factory=dict)
    bwd_cache: dict[int, Tensor | None] = field(default_factory=dict)
    output_chunks: list[Tensor] = field(default_factory=list)

    def receive(self, number: int) -> list[Tensor]:
        """Return the buffer that an input is received in, made where it is not there."""
        return [] if self.is_first else [self._buffer(self.received, number)]

    def receive_grad(self, number: int) -> list[Tensor]:
        """Return the buffer that a gradient is received in, made where it is not there."""
        return [] if self.is_last else [self._buffer(self.received_grads, number)]

    def _buffer(self, buffers: dict[int, Tensor], number: int) -> Tensor:
        if number not in buffers:
            with made_for(Purpose.COMMUNICATION):
                buffers[number] = made("recv_buffer", self.shape, self.dtype)
        return buffers[number]

    def clear(self) -> None:
        """Forget the step before (clear_runtime_states)."""
        self.fwd_cache.clear()
        self.output_chunks.clear()

    def _received(self, buffers: dict[int, Tensor], number: int) -> Tensor:
        return buffers.pop(number) if self.lets_go else buffers[number]

    def forward(self, number: int, x: Tensor) -> Tensor:
        """Run a microbatch forward; `x` is read by the first stage alone."""
        if not self.is_first:
            x = self._received(self.received, number)
            x.requires_grad = True
        output: Tensor = self.module(x)
        if self.is_last:
            self.output_chunks.append(output)
        self.fwd_cache[number] = output, x
        return output

    def backward(self, number: int, loss: Tensor | None) -> None:
        """Run a microbatch backward: from its loss, or from the gradient that was received."""
        output, x = self.fwd_cache.pop(number)
        if loss is not None:
            run_backward(loss)
        else:
            run_backward(output, self._received(self.received_grads, number))
        self.bwd_cache[number], x.grad = x.grad, None

    def sends(self, number: int) -> list[Tensor]:
        """Return what is sent to the stage after."""
        output = self.fwd_cache[number][0]
        return [output] if isinstance(output, Tensor) and not self.is_last else []

    def release(self, number: int) -> None:
        """Let go of an output that was sent (release_fwd_send_outputs)."""
        if self.lets_go and not self.is_last and number in self.fwd_cache:
            output, x = self.fwd_cache[number]
            self.fwd_cache[number] = GradientEdge(output.node, output.slot), x

    def sent(self, number: int) -> list[Tensor]:
        """Return what is sent to the stage before, which lives as long as the caller holds it."""
        gradient = None if self.is_first else self.bwd_cache.pop(number)
        return [] if gradient is None else [gradient]


def first_neighbours() -> list[Tensor]:
    """Make what a stage sends to, and receives from, its neighbours once at the beginning."""
    return [made(name, (), float32) for name in ("zeros", "tensor")]
