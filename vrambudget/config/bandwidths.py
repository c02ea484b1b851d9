"""How fast a GPU reads its memory, in GB/s: for an estimate of speed.

Source: `gpu_figures.toml`.
"""

import re

from vrambudget.config.gpus import Gpu
from vrambudget.config.other_gpus import FIGURES

MAIN_MEMORY = (51, 96)
"""Of a desktop's two channels: DDR4-3200, and DDR5-6000."""


def bandwidth(gpu: Gpu) -> int | None:
    """Return a GPU's GB/s, None if not known."""
    words = re.sub(r"^(amd|apple) | of .*", "", gpu.name.lower()).replace(" ", "-")
    known: dict[str, int] = FIGURES["bandwidths"]
    return known.get(gpu.key) or known.get(words)
