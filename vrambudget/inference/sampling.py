"""`model.generate(**inputs)` of transformers, with greedy search or sampling: what it holds when.

    setup      masks and positions of the prompt; rows are repeated for several answers
    prefill    one forward pass over the prompt, or one for each of its chunks
    decode k   one forward pass over the k-th new token; then the next one is chosen

A step's tensors are `State`'s: `Sampling.decode` reads like the body of the loop in `_sample`.

Source: generation/utils.py of transformers 5.17 (generate, _prepare_special_tokens,
_prepare_position_ids_for_generation, _expand_inputs_for_generation, _prefill, _sample,
prepare_inputs_for_generation, _update_model_kwargs_for_generation), stopping_criteria.py.
Not modelled: end tokens (all rows run to their full length), assisted decoding, streamers.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace

from vrambudget.dtypes import bool_, float32, int64
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.inference.model_inputs import ModelInputs, next_positions, with_ones, with_tokens
from vrambudget.inference.processors import (
    Processor,
    forced_token,
    processors_of,
    scores_of_forced_token,
)
from vrambudget.inference.settings import EncoderDecoder, GenerateSettings, Marker
from vrambudget.models.parts.anew import Anew
from vrambudget.models.parts.cache import AnyCache, Cache
from vrambudget.models.parts.masks import PREPARED, Masks, causal_mask, sliding_window_mask
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import made
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.sampling import argmax, multinomial
from vrambudget.ops.shape import clone, narrowed
from vrambudget.ops.softmax import softmax


class Sampling:
    """_sample, step by step; attributes are its local variables.

    `growing` and `constant`: those that are held from step to step, besides the model's inputs.
    """

    growing: tuple[str, ...] = ("input_ids",)
    constant: tuple[str, ...] = (
        *("unfinished_sequences", "next_token_logits", "next_token_scores", "probs"),
        "next_tokens",
    )
    length = 0  # tokens of the longest row, where the loop counts them

    def __init__(
        self,
        model: Module,
        settings: GenerateSettings,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor | None,
    ) -> None:
        self.model, self.settings = model, settings
        self.processors: list[Processor] = processors_of(settings)
        self.input_ids, self.attention_mask = input_ids, attention_mask
        self.position_ids = position_ids
        self.cache: AnyCache | None = settings.new_cache()
        self.encoder_states: Tensor | None = None
        self.model_inputs: ModelInputs | None = None
        self.kept: list[Tensor] = []  # scores and logits of each step, to be returned
        self.last_token = forced_token() if settings.forces_last_token else None
        self.start(settings)

    def start(self, settings: GenerateSettings) -> None:
        """Make what the loop begins with."""
        del settings
        self.unfinished_sequences = made("ones", (self.input_ids.shape[0],), int64)
        self.next_token_logits: Tensor | None = None
        self.next_token_scores: Tensor | None = None
        self.probs: Tensor | None = None
        self.next_tokens: Tensor | None = None

    def prefill(self, mark: Marker) -> None:
        """Run the prompt through the model and choose the first token."""
        outputs = [self._prefill(mark)]
        self.choose(outputs)
        del outputs
        self.after_prefill()

    def after_prefill(self) -> None:
        """Let experts of a mixture run as they do for few tokens."""
        if context.options.experts == "grouped_mm":  # _optimize_model_for_decode
            context.options = replace(context.options, experts="batched_mm")

    def decode(self, mark: Marker, phase: str) -> None:
        """Run the newest token through the model and choose the next one."""
        self.model_inputs = self._inputs(1 if self.cache is not None else None)
        mark(phase)
        outputs = [self._forward(self.model_inputs)]
        self.choose(outputs)

    def tensors(self) -> Iterator[Tensor]:
        """Yield what is held from one step to the next."""
        inputs = self.model_inputs
        held = (
            *(self.attention_mask, self.position_ids),
            *(inputs.tensors() if inputs else ()),
            *(getattr(self, name) for name in (*self.growing, *self.constant)),
        )
        yield from (x for x in held if x is not None)
        if self.cache is not None:
            yield from self.cache.tensors()

    def grow(self, tokens: int, new: Anew) -> None:
        """Become what it will be after so many more steps; `new` makes tensors."""
        further = tokens if self.encoder_states is None else 0  # tokens of the mask
        self.attention_mask = new.longer(self.attention_mask, further)
        self.position_ids = new.longer(self.position_ids, tokens)
        if (inputs := self.model_inputs) is not None:
            alone = 0 if self.cache is not None else tokens
            self.model_inputs = ModelInputs(
                new.longer(inputs.input_ids, alone),
                self._grown(inputs.attention_mask, further, new),
                new.longer(inputs.position_ids, alone),
                self.cache,
            )
        self.length += tokens
        for name in self.growing:
            setattr(self, name, new.longer(getattr(self, name), tokens))
        for name in self.constant:
            setattr(self, name, new.longer(getattr(self, name), 0))
        if self.cache is not None:
            self.cache.grow(tokens, new)

    @staticmethod
    def _grown(mask: Tensor | Masks | None, tokens: int, new: Anew) -> Tensor | Masks | None:
        if isinstance(mask, dict):
            return {kind: new.longer(each, 0) for kind, each in mask.items()}
        is_built = mask is not None and mask.ndim == PREPARED
        return new.longer(mask, 0 if is_built else tokens)

    def at(self, tokens: int) -> Sampling:
        """Return the same loop so many steps later, with tensors on the current tape."""
        other = copy(self)
        other.cache, other.kept = self.cache and self.cache.copy(), []
        other.grow(tokens, Anew(everything=True))
        other.keep_last()
        return other

    def keep_last(self) -> None:
        """Keep what the last step returned, where a variable of the loop is that, too."""
        scores, logits = self.next_token_scores, self.next_token_logits
        if scores is not None and logits is not None:
            self._keep_returned(scores, logits)

    def keep(self, steps: int) -> None:
        """Hold what so many further steps will have returned, as one tensor."""
        returns = self.settings.return_scores, self.settings.return_logits
        if any(returns) and steps:
            rows, vocabulary = self.kept[0].shape
            storages = len({id(x.storage) for x in self.kept[: sum(returns)]})
            self.kept.append(made("scores", (steps * storages, rows, vocabulary), float32))

    def returned(self) -> object:
        """Return what `generate` returns: ids alone, or with all else that was asked for."""
        if self.settings.return_scores or self.settings.return_logits:
            return self.input_ids, self.kept, self.cache
        return self.input_ids

    def _keep_returned(self, scores: Tensor, logits: Tensor) -> None:
        """output_scores and output_logits, with return_dict_in_generate."""
        if self.settings.return_scores:
            self.kept.append(scores)
        if self.settings.return_logits:
            self.kept.append(logits)

    def _prefill(self, mark: Marker) -> Outputs:
        chunk, length = self.settings.prefill_chunk, self.input_ids.shape[1]
        if chunk is None:
            model_inputs = self._inputs(None)
            mark("prefill")
            return self._forward(model_inputs)
        attention_mask, position_ids = self.attention_mask, self.position_ids
        outputs: Outputs
        for number, start in enumerate(range(0, length, chunk)):
            size = min(chunk, length - start)
            model_inputs = ModelInputs(
                clone(narrowed(self.input_ids, 1, size)),
                narrowed(attention_mask, 1, start + size),
                None if position_ids is None else narrowed(position_ids, 1, size),
                self.cache,
            )
            mark(f"prefill chunk {number + 1}")
            outputs = self._forward(model_inputs)
        return outputs

    def _inputs(self, new_tokens: int | None) -> ModelInputs:
        """prepare_inputs_for_generation: the last `new_tokens`, or all of them."""
        ids = self.input_ids if new_tokens is None else narrowed(self.input_ids, 1, new_tokens)
        ids = clone(ids)
        positions = self.position_ids
        if positions is not None and positions.shape[1] != ids.shape[1]:
            positions = clone(narrowed(positions, 1, ids.shape[1]))
        masks: Tensor | Masks | None = self.attention_mask
        if isinstance(self.cache, Cache) and self.cache.is_static:
            masks = self._masks(ids, positions, self.cache)
        return ModelInputs(ids, masks, positions, self.cache)

    def _masks(self, ids: Tensor, positions: Tensor | None, past: Cache) -> Tensor | Masks | None:
        """create_masks_for_generate, ahead of a forward pass that could be compiled."""
        like, padding = empty((*ids.shape, 0), context.options.dtype), self.attention_mask
        masks: Masks = {}
        for window in self.settings.windows:
            if window is None:
                masks["full_attention"] = causal_mask(like, positions, padding, past)
            else:
                masks["sliding_attention"] = sliding_window_mask(
                    like, positions, window, padding, past
                )
        by_kind = self.settings.masks_by_kind or len(masks) > 1
        return masks if by_kind else next(iter(masks.values()))

    def _forward(self, inputs: ModelInputs) -> Outputs:
        outputs: Outputs
        if self.encoder_states is not None and isinstance(self.model, EncoderDecoder):
            outputs = self.model.decode(
                inputs.input_ids,
                self.encoder_states,
                inputs.attention_mask,
                cache=inputs.past_key_values,
                use_cache=self.cache is not None,
            )
            return outputs
        outputs = self.model(
            inputs.input_ids,
            attention_mask=inputs.attention_mask,
            position_ids=inputs.position_ids,
            past_key_values=inputs.past_key_values,
            use_cache=self.cache is not None,
            logits_to_keep=1,
        )
        return outputs

    def choose(self, outputs: list[Outputs]) -> None:
        """Take the step's last logits, choose a token for each row, and lengthen what it needs."""
        self.lengthen_inputs()
        rows, _, vocabulary = outputs[0].logits.shape
        self.next_token_logits = made("to_copy", (rows, vocabulary), float32)
        scores = self.processed(self.next_token_logits, self.input_ids.shape[1])
        self.next_token_scores = scores
        self._keep_returned(scores, self.next_token_logits)
        if self.settings.sample:
            self.probs = softmax(scores)
            self.next_tokens = multinomial(self.probs)
        else:
            self.next_tokens = argmax(scores)
        del scores
        self.input_ids = with_tokens(self.input_ids, self.next_tokens)
        self._stop()

    def processed(self, scores: Tensor, length: int) -> Tensor:
        """Return scores [B, V] as all processors leave them, for rows of so many tokens."""
        if self.last_token is not None and length == self.settings.prompt + self.settings.new - 1:
            scores = scores_of_forced_token(scores)
        for process in self.processors:
            scores = process(scores)
        return scores

    def lengthen_inputs(self) -> None:
        """_update_model_kwargs_for_generation: an encoder's mask stays as it is."""
        if self.encoder_states is not None:
            return
        before = self.position_ids
        if before is not None:
            self.position_ids = next_positions(before)
        self.attention_mask = with_ones(self.attention_mask)
        del before  # held until here

    def _stop(self) -> None:
        """StoppingCriteriaList with MaxLengthCriteria, and StopCheck, which reads back."""
        rows = self.input_ids.shape[:1]
        is_done = made("full", rows, bool_)
        reached = made("full", rows, bool_)
        is_done = made("bitwise_or", rows, bool_)
        del reached
        is_going_on = made("bitwise_not", rows, bool_)
        del is_done
        self.unfinished_sequences = made("bitwise_and", rows, int64)
        del is_going_on
        largest = made("max", (), int64)
        with_partial_sums(self.unfinished_sequences, (0,), accumulator=int64.itemsize)
        is_zero = made("eq", (), bool_)
        del largest, is_zero
