"""The math kernel, composed of matrix products and a softmax.

Not modelled yet: asking for it is an error.
"""

from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError


def composed_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Raise NotModelledError."""
    raise NotModelledError(f"attention by PyTorch's math kernel ({q}, {k}, {v}) is not modelled")
