"""What a model returns (transformers' ModelOutput)."""

from dataclasses import dataclass

from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.cache import Cache


@dataclass(slots=True)
class Outputs:
    """A loss (without labels none) and the logits that it is made of; who holds them keeps both."""

    loss: Tensor | None
    logits: Tensor
    others: tuple[object, ...] = ()
    """What else the model returns and so keeps alive: an encoder's states, caches in a list."""
    past_key_values: Cache | None = None
