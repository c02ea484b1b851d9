"""What a model returns (transformers' ModelOutput)."""

from dataclasses import dataclass

from vrambudget.engine.tensor import Tensor


@dataclass(slots=True)
class Outputs:
    """A loss and the logits that it was made of; whoever holds them keeps both alive."""

    loss: Tensor
    logits: Tensor
    others: tuple[object, ...] = ()
    """What else the model returns and so keeps alive: an encoder's states, a cache."""
