"""One stage of a pipeline: a piece of the model and what it keeps of each microbatch.

    receive buffers   for all microbatches, made in the first step and kept for ever: the inputs of
                      all stages but the first, the outputs' gradients of all but the last
    fwd_cache         a microbatch's outputs and inputs, from its forward to its backward
    bwd_cache         its input's gradient, until it is sent
    output_chunks     the last stage's outputs, until the next step

Source: torch/distributed/pipelining/stage.py (_PipelineStageBase, PipelineStage), _backward.py
(stage_backward).
Not modelled: shapes that are inferred at runtime, several inputs, a stage in DDP or FSDP.
"""

from dataclasses import dataclass, field

from vrambudget.dtypes import DType, float32
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Shape, Tensor
from vrambudget.ops.creation import made
from vrambudget.tape.events import Purpose


@dataclass(slots=True)
class Stage:
    """PipelineStage; `shape` and `dtype` are those of what goes between stages."""

    module: Module
    index: int
    is_first: bool
    is_last: bool
    shape: Shape
    dtype: DType
    received: list[Tensor] = field(default_factory=list)
    received_grads: list[Tensor] = field(default_factory=list)
    fwd_cache: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    bwd_cache: dict[int, Tensor | None] = field(default_factory=dict)
    output_chunks: list[Tensor] = field(default_factory=list)

    def prepare_forward(self, microbatches: int) -> None:
        """Make the buffers that inputs are received in."""
        if not self.is_first:
            self.received = [self._buffer() for _ in range(microbatches)]
            for buffer in self.received:
                buffer.requires_grad = True

    def prepare_backward(self, microbatches: int) -> None:
        """Make the buffers that gradients are received in."""
        if not self.is_last:
            self.received_grads = [self._buffer() for _ in range(microbatches)]

    def _buffer(self) -> Tensor:
        with made_for(Purpose.COMMUNICATION):
            return made("recv_buffer", self.shape, self.dtype)

    def clear(self) -> None:
        """Forget the step before (clear_runtime_states)."""
        self.fwd_cache.clear()
        self.output_chunks.clear()

    def forward(self, number: int, x: Tensor) -> Tensor:
        """Run a microbatch forward; `x` is read by the first stage alone."""
        x = x if self.is_first else self.received[number]
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
            run_backward(output, self.received_grads[number])
        self.bwd_cache[number], x.grad = x.grad, None

    def sent(self, number: int) -> list[Tensor]:
        """Return what is sent to the stage before, which lives as long as the caller holds it."""
        gradient = None if self.is_first else self.bwd_cache.pop(number)
        return [] if gradient is None else [gradient]


def first_neighbours() -> list[Tensor]:
    """Make what a stage sends to, and receives from, its neighbours once at the beginning."""
    return [made(name, (), float32) for name in ("zeros", "tensor")]
