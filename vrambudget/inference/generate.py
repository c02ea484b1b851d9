"""A script that calls `generate` once: tokens to the device, the call, its result.

    inputs = tokenizer(prompts, return_tensors="pt").to("cuda")
    out = model.generate(**inputs, max_new_tokens=...)

Source: generation/utils.py of transformers 5.17 (generate).
"""

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.autocast import autocast
from vrambudget.engine.context import context, made_for, no_grad
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.inference.sampling import Sampling, positions_of
from vrambudget.inference.settings import GenerateSettings
from vrambudget.ops.creation import made
from vrambudget.tape.events import Purpose
from vrambudget.tape.marks import Phase


def run(model: Module, settings: GenerateSettings) -> Tensor:
    """Generate, and return what the script is left with."""
    model.eval()
    shape = settings.batch, settings.prompt
    with made_for(Purpose.INPUTS):
        input_ids, attention_mask = (made("to_device", shape, int64) for _ in range(2))
    with no_grad(), autocast(settings.autocast):
        out = generate(model, settings, input_ids, attention_mask)
    context.tape.mark(_step(settings), Phase.STEP_END)
    return out


def _step(settings: GenerateSettings) -> int:
    return 1 if settings.new > 1 else 0


def generate(
    model: Module, settings: GenerateSettings, input_ids: Tensor, attention_mask: Tensor
) -> Tensor:
    """GenerationMixin.generate, whose variables hold the prompt's masks to its end."""
    tape = context.tape
    tokens = [made("to_device", (), int64) for _ in range(1 + settings.begins_with_token)]
    if settings.batch > 1:
        _look_for_right_padding(settings.batch)
    position_ids = positions_of(attention_mask) if settings.takes_positions else None
    if settings.answers > 1:
        input_ids = _repeated(input_ids, settings.answers)
        attention_mask = _repeated(attention_mask, settings.answers)
        position_ids = position_ids and _repeated(position_ids, settings.answers)
    loop = Sampling(model, settings, input_ids, attention_mask, position_ids)
    loop.prefill(lambda phase: tape.mark(0, phase))
    if settings.new > 1:
        tape.mark(0, Phase.STEP_END)
    for step in range(1, settings.new):
        loop.decode(lambda phase: tape.mark(1, phase), f"decode {step}")
    del tokens
    return loop.input_ids


def _look_for_right_padding(batch: int) -> None:
    """torch.any(attention_mask[:, -1] == 0), read back."""
    is_padding = made("eq", (batch,), bool_)
    found = made("any", (), bool_)
    del found, is_padding


def _repeated(x: Tensor, times: int) -> Tensor:
    """x.repeat_interleave(times, dim=0)."""
    return made("repeat_interleave", (x.shape[0] * times, *x.shape[1:]), x.dtype)
