"""The loop around a pipeline's schedule, as a script of torch.distributed.pipelining has it.

    losses = []
    with autocast(...): schedule.step(x, target=y, losses=losses)
    clip_grad_norm_(parameters, ...); optimizer.step(); optimizer.zero_grad()

Every rank has the whole batch on its GPU, of which the first stage reads the tokens and the last
one the targets. The loss is cross-entropy of the logits in float32.
"""

from typing import Any

from vrambudget.engine.tensor import Tensor
from vrambudget.parallel.pipeline.schedules import Schedule
from vrambudget.training.clip import clip_grad_norm
from vrambudget.training.loops.run import Run


def train(run: Run, schedule: Schedule) -> dict[str, Any]:
    """Train, and return what the loop's variables hold at the end."""
    parameters = [p for stage in schedule.stages for p in stage.module.parameters()]
    optimizer = run.make_optimizer(parameters)
    batches = run.batches()
    for _ in run.steps():
        run.mark("forward")
        batch = next(batches)
        losses: list[Tensor] = []
        with run.autocast():
            schedule.step(batch["input_ids"], batch["labels"], losses)
        run.mark("optimizer_step")
        if run.settings.clip is not None:
            clip_grad_norm(parameters)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=run.settings.zero_grad == "none")
    return locals()
