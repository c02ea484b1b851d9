"""The loop of a script with context_parallel, as torchtitan's: around forward and backward.

    with context_parallel(mesh, buffers=[input_ids, labels, freqs_cis], ...):
        with autocast(...): loss = model(...)
        loss.backward()

Labels are cut as the tokens are, so the loss is that of the rank's own tokens. Without DDP or FSDP
around the model a script reduces gradients itself, in place.

Source: torchtitan/train.py (forward_backward_step), distributed/utils.py
(create_context_parallel_ctx).
"""

from collections.abc import Sequence
from typing import Any

from vrambudget.engine.autograd import run_backward
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.parallel.context.region import Buffer, context_parallel
from vrambudget.parallel.context.ring import Ring
from vrambudget.training.loops.run import Run


def train(run: Run, ring: Ring, tables: Sequence[Buffer]) -> dict[str, Any]:
    """Train, and return what the loop's variables hold at the end; `tables`: the model's own."""
    model, settings = run.model, run.settings
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = run.make_optimizer(parameters)
    batches = run.batches()
    for _ in run.steps():
        model.train(mode=settings.model_mode == "train")
        for _ in run.micro_batches():
            run.mark("forward")
            if not settings.keep_outputs:
                outputs = None
            batch = next(batches)
            cut = [Buffer(x, 1) for x in batch.values()]
            with context_parallel(ring, [*cut, *tables]):
                with run.autocast():
                    outputs = model(**batch)
                    loss = outputs.loss
                if settings.grad_accum > 1:
                    loss = mul_scalar(loss)
                if settings.forward_returns == "loss":
                    outputs = None
                run.mark("backward")
                run_backward(loss)
        run.mark("optimizer_step")
        if settings.clip is not None:
            run.clip(parameters)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=settings.zero_grad == "none")
    return locals()
