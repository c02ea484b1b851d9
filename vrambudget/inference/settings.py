"""What decides the memory of generation besides the model: the part of a job that it reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from vrambudget.dtypes import DType
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.cache import AnyCache
from vrambudget.models.parts.outputs import Outputs


@runtime_checkable
class EncoderDecoder(Protocol):
    """A model whose decoder reads what its encoder made of the prompt."""

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[B, S] -> [B, S, C]."""

    def decode(  # noqa: D102 - as a model's forward pass
        self,
        decoder_input_ids: Tensor,
        hidden_states: Tensor,
        attention_mask: Any,
        *,
        cache: Any,
        use_cache: bool,
    ) -> Outputs: ...


Marker = Callable[[str], None]
"""Note that a phase begins."""


@dataclass(frozen=True, slots=True)
class GenerateSettings:
    """The arguments of `generate`, resolved."""

    batch: int
    prompt: int
    new: int
    new_cache: Callable[[], AnyCache | None]
    windows: tuple[int | None, ...]  # of kinds of layers, None: all tokens
    masks_by_kind: bool = False  # the configuration has layer_types, and the model masks for both
    answers: int = 1  # rows that each prompt is repeated to: num_beams, num_return_sequences
    num_beams: int = 1
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    prefill_chunk: int | None = None
    autocast: DType | None = None
    calls: int = 1  # of generate, one after the other
    first_step: int = 0  # the number of this call's prefill among the job's steps
    return_scores: bool = False
    return_logits: bool = False
    shown: int | None = None  # a decoding step that has to be on the tape
    padded: bool = False  # prompts are: masks are built
    special_tokens: int = 2  # on the device: of padding, and what prompts and decoders begin with
    forces_last_token: bool = False  # the configuration names one: forced_eos_token_id
    takes_positions: bool = True  # the model's forward pass does
