"""A script that calls `generate` once: tokens to the device, the call, its result.

    inputs = tokenizer(prompts, return_tensors="pt").to("cuda")
    out = model.generate(**inputs, max_new_tokens=...)

Source: generation/utils.py of transformers 5.17 (generate).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.autocast import autocast
from vrambudget.engine.context import context, made_for, no_grad
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.inference.beam_search import BeamSearch
from vrambudget.inference.model_inputs import positions_of
from vrambudget.inference.sampling import Sampling
from vrambudget.inference.settings import EncoderDecoder, GenerateSettings
from vrambudget.inference.skipping import StretchFinder, TracedStep, Unsteady, traced_step
from vrambudget.models.parts.anew import Anew
from vrambudget.ops.creation import made
from vrambudget.tape.events import Purpose, Storage
from vrambudget.tape.marks import Mark, Phase
from vrambudget.tape.steps import Steps, Stretch, phase_of

_FEWEST = 8  # decoding steps: fewer are all traced


def run(model: Module, settings: GenerateSettings, *, in_full: bool = False) -> object:
    """Generate, and return what the script is left with."""
    model.eval()
    shape = settings.batch, settings.prompt
    with made_for(Purpose.INPUTS):
        input_ids, attention_mask = (made("to_device", shape, int64) for _ in range(2))
    with no_grad(), autocast(settings.autocast):
        for call in range(settings.calls):
            if call:
                context.tape.mark(2 * call, "setup")
            settings = replace(settings, first_step=2 * call)
            options = context.options  # experts run in another way while tokens are decoded
            made_now = generate(model, settings, input_ids, attention_mask, in_full=in_full)
            context.options = options
            context.tape.mark(settings.first_step + (settings.new > 1), Phase.STEP_END)
            out = made_now  # what the call before left goes here
    return out


def generate(
    model: Module,
    settings: GenerateSettings,
    input_ids: Tensor,
    attention_mask: Tensor,
    *,
    in_full: bool,
) -> object:
    """GenerationMixin.generate, whose variables hold the prompt's masks to its end."""
    tape = context.tape
    tokens = [made("to_device", (), int64) for _ in range(settings.special_tokens)]
    position_ids: Tensor | None = None
    encoded: Tensor | None = None
    if isinstance(model, EncoderDecoder):
        encoded = model.encode(input_ids, attention_mask)
        input_ids = _start(settings.batch)
        settings = replace(settings, prompt=1)
    elif settings.batch > 1:
        _look_for_right_padding(settings.batch)
    if settings.takes_positions and encoded is None:
        position_ids = positions_of(attention_mask)
    if settings.answers > 1:
        before = input_ids
        input_ids = _repeated(input_ids, settings.answers)
        attention_mask = _repeated(attention_mask, settings.answers)
        position_ids = position_ids and _repeated(position_ids, settings.answers)
        encoded = encoded and _repeated(encoded, settings.answers)
        del before  # held until here
    kind = Sampling if settings.num_beams == 1 else BeamSearch
    loop = kind(model, settings, input_ids, attention_mask, position_ids)
    loop.encoder_states = encoded
    del encoded
    loop.prefill(lambda phase: tape.mark(settings.first_step, phase))
    if settings.new > 1:
        tape.mark(settings.first_step, Phase.STEP_END)
    decode(loop, settings, in_full=in_full)
    del tokens
    return loop.returned()


def decode(loop: Sampling, settings: GenerateSettings, *, in_full: bool) -> None:
    """Run all decoding steps: the first, the last and the one to be shown are traced."""
    tape, last, number = context.tape, settings.new - 1, settings.first_step + 1

    def trace(steps: range) -> None:
        for step in steps:
            loop.decode(lambda phase: tape.mark(number, phase), phase_of(step))

    in_full = in_full or (loop.cache is not None and loop.cache.is_traced)
    done = 0
    for shown in sorted({min(1, last), last} | ({settings.shown} if settings.shown else set())):
        if in_full or shown - done < _FEWEST:
            trace(range(done + 1, shown + 1))
        else:
            _skip_to(loop, settings, done, shown, trace)
        done = shown


def _skip_to(
    loop: Sampling,
    settings: GenerateSettings,
    done: int,
    shown: int,
    trace: Callable[[range], None],
) -> None:
    """Trace the step `shown`, when `done` were traced: those between are found, if they can be."""

    def trace_alone(step: int) -> TracedStep:
        there: list[Sampling] = []
        return traced_step(
            carried=lambda: storages_of(there[0].tensors()),
            kept=lambda: storages_of(there[0].kept),
            grow=lambda: there.append(loop.at(step - done - 1)),
            step=lambda: there[0].decode(lambda _: None, ""),
        )

    odd = range(0) if loop.cache is None else loop.cache.odd_steps(done)
    planner = StretchFinder(trace_alone, settings.prompt, aligned=settings.padded, odd=odd)
    try:
        stretches = tuple(planner.stretches(done + 1, shown - 1))
    except Unsteady:
        trace(range(done + 1, shown + 1))
        return
    skip(loop, stretches, f"decode {done + 1} to {shown - 1}", shown - done - 1)
    trace(range(shown, shown + 1))


def skip(loop: Sampling, stretches: tuple[Stretch, ...], phase: str, steps: int) -> None:
    """Put stretches of steps on the tape, and the loop behind them."""
    tape = context.tape
    position, before = len(tape.events), storages_of(loop.tensors())
    numbers = tuple(storage.index for storage in before)
    del before
    loop.grow(steps, Anew(everything=False))
    loop.keep(steps)
    after = tuple(storage.index for storage in storages_of(loop.tensors()))
    number = loop.settings.first_step + 1
    tape.marks.append(
        Mark(position, number, phase, steps=Steps(len(tape.events), stretches, numbers, after))
    )


def storages_of(tensors: Iterable[Tensor]) -> list[Storage]:
    """Return their storages, each once."""
    return list({id(x.storage): x.storage for x in tensors}.values())


def _look_for_right_padding(batch: int) -> None:
    """torch.any(attention_mask[:, -1] == 0), read back."""
    is_padding = made("eq", (batch,), bool_)
    found = made("any", (), bool_)
    del found, is_padding


def _start(batch: int) -> Tensor:
    """_prepare_decoder_input_ids_for_generation: the token that a decoder starts with."""
    ones = made("ones", (batch, 1), int64)
    ids = made("mul", ones.shape, int64)
    del ones
    return ids


def _repeated(x: Tensor, times: int) -> Tensor:
    """x.repeat_interleave(times, dim=0)."""
    return made("repeat_interleave", (x.shape[0] * times, *x.shape[1:]), x.dtype)
