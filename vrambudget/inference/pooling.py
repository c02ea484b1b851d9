"""One embedding [B, C] of each row's hidden states [B, T, C], of length 1, copied to the host.

    mean    the mean of all tokens that are no padding, in float32
    cls     the first token's
    last    the last token's

    mask = inputs["attention_mask"].unsqueeze(-1).expand(hidden.size()).float()
    pooled = torch.sum(hidden * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)
    embeddings = torch.nn.functional.normalize(pooled, p=2, dim=1).cpu()

as model cards of sentence-transformers have it. Variables of the loop hold the hidden states and
the mask of the mean until those of the next batch are there.
"""

from vrambudget.dtypes import float32
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.ops.creation import made
from vrambudget.ops.reduce import sum_dim, with_partial_sums


class Pooling:
    """The lines of a script that make embeddings, and their variables."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.hidden_states: Tensor | None = None
        self.mask: Tensor | None = None

    def pool(self, hidden_states: Tensor) -> None:
        """Make the embeddings of a batch and copy them to the host."""
        if self.how == "none":
            return
        B, _, C = hidden_states.shape
        if self.how == "mean":
            self.hidden_states = hidden_states
            self.mask = made("to_dtype", hidden_states.shape, float32)
            product = made("mul", hidden_states.shape, float32)
            sums = sum_dim(product, 1)
            del product
            counts = sum_dim(self.mask, 1)
            clamped = made("clamp", (B, C), float32)
            del counts
            pooled = made("div", (B, C), float32)
            del sums, clamped
        else:
            pooled = hidden_states.viewed((B, C), None)
        _normalised(pooled)


def _normalised(x: Tensor) -> Tensor:
    """torch.nn.functional.normalize(x, p=2, dim=1)."""
    B = x.shape[0]
    norm = made("linalg_vector_norm", (B, 1), x.dtype)
    with_partial_sums(x, (1,))
    clamped = made("clamp_min", (B, 1), x.dtype)
    del norm
    result = empty(x.shape, x.dtype)
    del clamped
    return result
