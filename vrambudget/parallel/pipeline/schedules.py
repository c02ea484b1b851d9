"""Schedules of a pipeline: the order of a rank's microbatches, and what it holds meanwhile.

    GPipe             all forward, then all backward
    1F1B              as many forward as there are stages from here on, then one back, one forward
    Interleaved1F1B   the same over several stages of a rank, by rounds of microbatches

Variables of PyTorch's own functions linger here as there: the gradients of the last send; until
2.14 the last output, and later, when it is no buffer for ever, what was received last. The last
stage's outputs are joined at the end of a step (return_outputs).

Source: torch/distributed/pipelining/schedules.py (ScheduleGPipe, Schedule1F1B,
ScheduleInterleaved1F1B, _get_1f1b_rank_ops, _get_warmup_ops, _PipelineScheduleRuntime).
Not modelled: zero bubble and V schedules, looped BFS, CSV schedules.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import made_for
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.loss import cross_entropy
from vrambudget.ops.shape import cat, view
from vrambudget.parallel.pipeline.stage import Stage, first_neighbours
from vrambudget.tape.events import Purpose


@dataclass(slots=True)
class Schedule:
    """A schedule of one rank's stages, of which there are several if it is interleaved."""

    name: str  # "GPipe", "1F1B" or "Interleaved1F1B"
    stages: Sequence[Stage]
    microbatches: int
    ranks: int
    rank: int
    losses: list[Tensor] = field(default_factory=list)
    is_prepared: bool = False

    def step(self, inputs: Tensor, targets: Tensor, losses: list[Tensor]) -> None:
        """Run all microbatches of a batch; the joined outputs die at once."""
        for stage in self.stages:
            stage.clear()
        xs, ys = _split(inputs, self.microbatches), _split(targets, self.microbatches)
        self._run(xs, ys, losses)
        for stage in self.stages:
            if stage.is_last:
                cat(stage.output_chunks, 0)

    def _run(self, xs: list[Tensor], ys: list[Tensor], losses: list[Tensor]) -> None:
        self._prepare()
        if self.name == "GPipe":
            self._gpipe(xs, ys)
        elif self.name == "1F1B":
            self._one_forward_one_backward(xs, ys)
        else:
            self._interleaved(xs, ys)
        losses += self.losses
        self.losses.clear()

    def _prepare(self) -> None:
        if self.is_prepared or self.stages[0].lets_go:
            return
        self.is_prepared = True
        all_ops = [x for _ in self.stages for x in first_neighbours()]
        for stage in self.stages:
            for i in range(self.microbatches):
                stage.receive(i)
        del all_ops
        for stage in self.stages:
            for i in range(self.microbatches):
                stage.receive_grad(i)

    def _compute_loss(self, stage: Stage, output: Tensor, target: Tensor) -> Tensor | None:
        """Return what a variable of the schedule still holds of the output: until 2.14, it."""
        if stage.is_last:
            self.losses.append(loss_of(output, target))
        return None if stage.lets_go else output

    def _loss(self, stage: Stage, number: int) -> Tensor | None:
        return self.losses[number] if stage.is_last else None

    def _gpipe(self, xs: list[Tensor], ys: list[Tensor]) -> None:
        (stage,) = self.stages
        pending, output = list[list[Tensor]](), None
        for i in range(self.microbatches):
            ops = stage.receive(i)
            output = stage.forward(i, xs[i])
            ops = stage.sends(i)
            pending.append(ops)
            output = self._compute_loss(stage, output, ys[i])
        for i in range(self.microbatches):
            stage.release(i)
        pending.clear()
        for i in range(self.microbatches):
            ops = stage.receive_grad(i)
            stage.backward(i, self._loss(stage, i))
            ops = stage.sent(i)
        del ops, output

    def _one_forward_one_backward(self, xs: list[Tensor], ys: list[Tensor]) -> None:
        (stage,) = self.stages
        forward = backward = 0
        warmup = min(self.microbatches, self.ranks - stage.index)
        fwd_sends, output = list[Tensor](), None
        for _ in range(warmup):
            fwd_recvs = stage.receive(forward)
            output = stage.forward(forward, xs[forward])
            stage.release(forward - 1)
            fwd_sends = stage.sends(forward)
            output = self._compute_loss(stage, output, ys[forward])
            forward += 1
        while True:
            bwd_recvs = stage.receive_grad(backward)
            stage.release(forward - 1)
            fwd_sends.clear()
            bwd_recvs.clear()
            stage.backward(backward, self._loss(stage, backward))
            bwd_sends = stage.sent(backward)
            backward += 1
            if forward == self.microbatches:
                break
            fwd_recvs = stage.receive(forward)
            output = stage.forward(forward, xs[forward])
            output = self._compute_loss(stage, output, ys[forward])
            fwd_sends = stage.sends(forward)
            forward += 1
        while backward < self.microbatches:
            bwd_recvs = stage.receive_grad(backward)
            stage.backward(backward, self._loss(stage, backward))
            bwd_sends = stage.sent(backward)
            backward += 1
        del output, fwd_recvs, bwd_recvs, bwd_sends

    def _interleaved(self, xs: list[Tensor], ys: list[Tensor]) -> None:
        for is_forward, place, number in interleaved_order(
            len(self.stages), self.ranks, self.rank, self.microbatches
        ):
            stage = self.stages[place]
            if is_forward:
                output = stage.forward(number, xs[number])
                self._compute_loss(stage, output, ys[number])
                del output
            else:
                stage.backward(number, self._loss(stage, number))
                stage.sent(number)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of logits [B, T, V] for targets [B, T]: cross-entropy in float32."""
    with made_for(Purpose.LOGITS_AND_LOSS):
        flat = view(logits, -1, logits.shape[-1])
        return cross_entropy(to(flat, float32), view(targets, -1))


def interleaved_order(
    stages: int, ranks: int, rank: int, microbatches: int
) -> Iterator[tuple[bool, int, int]]:
    """Yield a rank's actions: whether it is forward, which of its stages, which microbatch."""
    rounds = max(1, microbatches // ranks)
    per_round = microbatches // rounds
    total = stages * microbatches
    warmup = min((stages - 1) * per_round + 2 * (ranks - 1 - rank), total)
    done: Counter[tuple[bool, int]] = Counter()

    def action(place: int, *, is_forward: bool) -> tuple[bool, int, int]:
        number = done[is_forward, place]
        done[is_forward, place] += 1
        return is_forward, place, number

    for op in range(total + warmup):
        if op < total:
            yield action(op // per_round % stages, is_forward=True)
        if op >= warmup:
            place = stages - 1 - (op - warmup) // per_round % stages
            yield action(place, is_forward=False)


def _split(x: Tensor, parts: int) -> list[Tensor]:
    """Return views of equal parts of a batch (torch.tensor_split)."""
    shape = (x.shape[0] // parts, *x.shape[1:])
    return [x.viewed(shape, x.strides) for _ in range(parts)]
