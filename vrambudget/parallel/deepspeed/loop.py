"""A script's loop over a DeepSpeed engine: forward, backward, step for every micro-batch."""

from typing import Any

from vrambudget.parallel.deepspeed.engine import DeepSpeedEngine
from vrambudget.training.loops.run import Run


def train(run: Run, engine: DeepSpeedEngine) -> dict[str, Any]:
    """Train, and return what the loop's variables hold at the end."""
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
