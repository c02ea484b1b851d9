"""The tables of rotary position embeddings, as transformers composes them.

    cos, sin    [P, T, D] for positions [P, T], in the embeddings' dtype; made once per forward
                without autograd; P is 1, or B where each row has positions of its own

Source: modeling_llama.py (LlamaRotaryEmbedding), modeling_rope_utils.py (dynamic_rope_update).
Not modelled: what `dynamic` and `longrope` compute anew, a few hundred bytes, for sequences beyond
the original length.
"""

from collections.abc import Mapping
from typing import Any

from vrambudget.dtypes import DType, bool_, complex64, float32, int64
from vrambudget.engine.context import no_grad
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.frequencies import FREQUENCIES
from vrambudget.ops.creation import made
from vrambudget.ops.workspaces import bmm_workspace

Rotary = tuple[Tensor, Tensor]
"""cos and sin [P, T, D]."""


class RotaryEmbedding(Module):
    """Inverse frequencies [dim / 2] in float32, twice: the buffer and its original.

    What makes more weights after it, and so is not `last`, calls `initialise` when all are there.
    """

    def __init__(self, dim: int, rope_type: str = "default", *, last: bool = True) -> None:
        self.dim = dim
        self.rope_type = rope_type
        if not transformers_since(5, 0):  # one buffer by two names, made once
            self.inv_freq = self.original_inv_freq = self.computed()
            return
        self.inv_freq = self.computed()
        self.original_inv_freq = made("clone", (dim // 2,), float32)
        if last:
            self.initialise()

    def initialise(self) -> None:
        """_init_weights computes the frequencies once more and copies them in."""
        again = self.computed()
        del again

    def computed(self) -> Tensor:
        """Return the frequencies, made anew."""
        return FREQUENCIES[self.rope_type](self.dim)

    def forward(self, position_ids: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
        """Return cos and sin [P, T, D] for positions [P, T]."""
        rows, length = position_ids.shape
        with no_grad():
            self._update()
            # FSDP 1's buffer_dtype made them 16 bit; float() of float32 is no copy
            frequencies = _cast(self.inv_freq, float32)
            positions: Tensor | None = made("to_dtype", (rows, 1, length), float32)
            if transformers_since(5, 19):  # positions * inv_freq, without a product's workspace
                freqs = made("mul", (rows, length, self.dim // 2), float32)
                positions = None
            else:
                freqs = made("bmm", (rows, self.dim // 2, length), float32)
                bmm_workspace(inner=1)
            emb = made("cat", (rows, length, self.dim), float32)
            cos = scaled_table("cos", emb)
            sin = scaled_table("sin", emb)
            result = _cast(cos, dtype), _cast(sin, dtype)
            del positions, freqs, frequencies
            return result

    def _update(self) -> None:
        """dynamic_rope_update: compare the highest position with the original length."""
        if self.rope_type not in {"dynamic", "longrope"}:
            return
        highest = made("max", (), int64)
        sequence_length = made("add", (), int64)
        del highest
        is_longer = made("gt", (), bool_)
        del is_longer
        if self.rope_type == "dynamic":
            is_shorter = made("lt", (), bool_)
            del is_shorter
        else:  # not longer: the buffer is the original from now on
            self.inv_freq = self.original_inv_freq
        del sequence_length


class Float32RotaryEmbedding(RotaryEmbedding):
    """A rotary embedding whose cos and sin stay in float32."""

    def forward(self, position_ids: Tensor, dtype: DType) -> Rotary:
        """Return cos and sin [P, T, D] for positions [P, T]."""
        del dtype
        return super().forward(position_ids, float32)


class HalfRotaryEmbedding(RotaryEmbedding):
    """GptOssRotaryEmbedding: cos and sin [P, T, D / 2], for both halves of a head."""

    def forward(self, position_ids: Tensor, dtype: DType) -> Rotary:
        """Return cos and sin for positions [P, T]."""
        rows, length = position_ids.shape
        with no_grad():
            self._update()
            positions = made("to_dtype", (rows, 1, length), float32)
            freqs = made("bmm", (rows, length, self.dim // 2), float32)
            bmm_workspace(inner=1)
            cos, sin = scaled_table("cos", freqs), scaled_table("sin", freqs)
            result = _cast(cos, dtype), _cast(sin, dtype)
            del positions, freqs
            return result


class ComplexRotaryEmbedding(RotaryEmbedding):
    """DeepseekV2RotaryEmbedding: a table of complex numbers [P, T, D / 2], which have one type."""

    def forward(  # type: ignore[override]  # one table
        self, position_ids: Tensor, dtype: DType
    ) -> tuple[Tensor]:
        """Return the table for positions [P, T]."""
        del dtype
        rows, length = position_ids.shape
        shape = (rows, length, self.dim // 2)
        with no_grad():
            self._update()
            positions = made("to_dtype", (rows, 1, length), float32)
            freqs = made("bmm", (rows, self.dim // 2, length), float32)
            bmm_workspace(inner=1)
            ones = made("ones_like", shape, float32)
            freqs_cis = made("polar", shape, complex64)
            del ones
            freqs_cis = made("mul", shape, complex64)
            del positions, freqs
            return (freqs_cis,)


class RotaryByKind(Module):
    """Gemma3RotaryEmbedding: frequencies for each kind of layer that there is."""

    def __init__(
        self, dim: int, rope_types: Mapping[Any, str], made_of: type[RotaryEmbedding]
    ) -> None:
        self.kinds = {
            kind: made_of(dim, rope_types[kind], last=False) for kind in sorted(rope_types)
        }
        again = None
        for kind, each in self.kinds.items():
            again = each.computed()  # initialised: one's copy is held until the next is there
            setattr(self, f"{kind}_inv_freq", each.inv_freq)  # buffers of this module
            setattr(self, f"{kind}_original_inv_freq", each.original_inv_freq)
        del again

    def forward(self, position_ids: Tensor, dtype: DType) -> dict[str, Rotary]:
        """Return cos and sin [P, T, D] by kind for positions [P, T]."""
        return {kind: each(position_ids, dtype) for kind, each in self.kinds.items()}


class AlphaRotaryEmbedding(RotaryEmbedding):
    """HunYuanDenseV1RotaryEmbedding of `rope_type` dynamic with an `alpha`.

    Its frequencies are made by the default's formula, of another base.
    """

    def computed(self) -> Tensor:
        """Return the frequencies, made anew."""
        return FREQUENCIES["default"](self.dim)

    def initialise(self) -> None:
        """_init_weights computes them twice: as for every model, and for an `alpha`."""
        for _ in range(2):
            again = FREQUENCIES[self.rope_type](self.dim)
            del again


def scaled_table(name: str, x: Tensor) -> Tensor:
    """Return x.cos() or x.sin() times attention's scaling."""
    plain = made(name, x.shape, x.dtype)
    scaled = made("mul", x.shape, x.dtype)
    del plain
    return scaled


def _cast(x: Tensor, dtype: DType) -> Tensor:
    return x if x.dtype is dtype else made("to_dtype", x.shape, dtype)
