"""What cuDNN is asked: one convolution, in one direction."""

from dataclasses import dataclass
from enum import Enum


class Direction(Enum):
    """What is computed: y, or the gradient of x or of the weight."""

    FORWARD = "forward"
    INPUT = "input"
    WEIGHT = "weight"


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution: x [N, C, *image], weight [O, C / groups, *kernel], y [N, O, *image]."""

    direction: Direction
    dtype: str
    x: tuple[int, ...]
    weight: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    channels_last: bool
