"""GPUs that are not NVIDIA's, by name and memory: for llama.cpp, whose rules are the same there.

    amd      "rx-7900-xtx", "mi300x": as much as is sold; the driver reports a little less
    apple    "m3-max-64gb", "m2:24gb": unified memory, of which macOS gives the GPU two thirds,
             from 36 GB on three quarters; macOS 15 was seen to give up to 78 %

What a driver takes for itself is not known of them. PyTorch on them is not modelled.

Source: `gpu_figures.toml`; ggml_metal_init's recommendedMaxWorkingSetSize in public logs: 11453 MB
of 16 GB, 22906 MB of 32 GB, 51540 MB of 64 GB; of macOS 15 26801 MB of 32 GB.
"""

import re
from collections.abc import Mapping, Sequence

from vrambudget.config.gpus import Gpu
from vrambudget.errors import VramBudgetError
from vrambudget.files import toml_beside

_GIB = 2**30
FIGURES = toml_beside(__file__, "gpu_figures.toml")
AMD: Mapping[str, int] = FIGURES["amd"]
APPLE: Mapping[str, Sequence[int]] = FIGURES["apple"]
"""GB of memory that it is sold with; the least is taken where none is named."""
_THREE_QUARTERS_FROM = 36
_OF_OTHERS = re.compile(r"m\d-|m\d$|rx|mi\d|pro-w|arc-|intel|ryzen|strix|radeon|amd|mac")
_NAME = re.compile(r"(m\d(?:-(?:pro|max|ultra))?)(?:[-:](\d{1,4})(?:gi?b)?)?")


def other_gpu(text: str) -> Gpu | None:
    """Return the GPU of another maker that a text means, None if none."""
    words = re.sub(r"[\s_]+", "-", text.strip().lower())
    words = re.sub(r"^(amd|radeon|apple|instinct|i?mac(book|-mini|-studio)?)-(?!vii)", "", words)
    words = re.sub(r"^(pro|air)-(?=m\d)", "", words)  # a MacBook's
    words = re.sub(r"^(radeon|pro)-(?=rx|w\d)", "", words)
    for key in (words, f"rx-{words}", f"pro-{words}", re.sub(r"^rx-?(\d{4})-?", r"rx-\1-", words)):
        if key.strip("-") in AMD:
            sold = AMD[key.strip("-")]
            return _gpu("amd", f"AMD {key.strip('-').upper()}", sold, sold * _GIB)
    match = _NAME.fullmatch(words)
    if not match or match[1] not in APPLE:
        if _OF_OTHERS.match(words):
            raise VramBudgetError(
                f"{text!r} is not among the GPUs that are known",
                where="gpu",
                hint=f"write its memory, such as 24GiB; there is {', '.join((*APPLE, *AMD))}",
            )
        return None
    sizes = APPLE[match[1]]
    sold = int(match[2] or sizes[0])
    if sold not in sizes:
        named = ", ".join(map(str, sizes))
        raise VramBudgetError(f"{text!r}: {match[1]} is sold with {named} GB", where="gpu")
    given = sold * _GIB * (9 if sold >= _THREE_QUARTERS_FROM else 8) // 12
    chip = match[1].replace("-", " ").title()
    return _gpu("apple", f"Apple {chip} of {sold} GB", sold, given)


def _gpu(maker: str, name: str, sold: int, capacity: int) -> Gpu:
    return Gpu(
        key=maker,
        name=name,
        capacity_bytes=capacity,
        context_bytes=0,
        compute_capability=(0, 0),
        multiprocessors=0,
        l2_bytes=0,
        sold_gb=sold,
        source="its maker's product page",
        capacity_kind="borrowed",
        context_source="not known",
        context_kind="borrowed",
        context_range=(0, 0),
    )
