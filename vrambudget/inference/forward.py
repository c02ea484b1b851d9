"""A script that calls a model, without labels and without a loss: logits, classes.

    with torch.no_grad():
        inputs = tokenizer(texts, return_tensors="pt").to("cuda")
        outputs = model(**inputs)

The outputs of one batch live until those of the next are there, unless the script drops them.
"""

from contextlib import nullcontext

from vrambudget.dtypes import DType
from vrambudget.engine.autocast import autocast
from vrambudget.engine.context import context, made_for, no_grad
from vrambudget.engine.module import Module
from vrambudget.inference.pooling import Pooling
from vrambudget.models.parts.outputs import Outputs
from vrambudget.tape.events import Purpose
from vrambudget.tape.marks import Phase
from vrambudget.training.inputs import Input, on_device


def run(
    model: Module,
    inputs: dict[str, Input],
    dtype: DType | None,
    *,
    batches: int,
    keep_outputs: bool,
    logits_to_keep: int,
    with_grad: bool,
    pool: str,
) -> object:
    """Call the model on so many batches; return what the script's variables hold."""
    model.eval()
    pooling = Pooling(pool)
    given = {"logits_to_keep": logits_to_keep} if logits_to_keep else {}
    outputs: Outputs | None = None
    with nullcontext() if with_grad else no_grad(), autocast(dtype):
        for step in range(batches):
            context.tape.mark(step, Phase.FORWARD)
            with made_for(Purpose.INPUTS):
                batch = {name: on_device(value) for name, value in inputs.items()}
            outputs = model(**batch, **given)
            pooling.pool(outputs.logits)
            if not keep_outputs:
                outputs = None
            context.tape.mark(step, Phase.STEP_END)
    return batch, outputs, pooling
