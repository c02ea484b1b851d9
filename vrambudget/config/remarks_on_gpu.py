"""What a report says of the GPU: what its name left open, and where the CUDA context decides."""

from collections.abc import Iterator

from vrambudget.config.gpus import Gpu, find_gpu
from vrambudget.config.job import Job
from vrambudget.config.loops import TRL_LOOPS
from vrambudget.units import format_bytes

_FIRST_WITH_BFLOAT16 = (8, 0)


def remarks_on_gpu(gpu: Gpu, job: Job, reserved_bytes: int) -> Iterator[str]:
    """Yield what decides the verdict and a user may know better, of a job that reserves so much.

    Source of TRL's type: trl/trainer/base_config.py (__post_init__: bf16 = not fp16), 1.16;
    torch/cuda/__init__.py (is_bf16_supported counts emulation), which TrainingArguments asks.
    """
    emulates = gpu.compute_capability < _FIRST_WITH_BFLOAT16
    if job.loop in TRL_LOOPS and job.autocast_dtype == "bf16" and emulates:
        yield (
            "TRL turns bf16 on unless fp16 is set, here too, where PyTorch emulates bfloat16:"
            " --precision amp-fp16 counts fp16=True"
        )
    least, most = gpu.context_range
    rooms = [gpu.capacity_bytes - context for context in (most, least)]
    if rooms[0] < reserved_bytes <= rooms[1]:
        yield (
            f"the CUDA context decides: {format_bytes(least)} to {format_bytes(most)} were"
            f" published for such a GPU, and {format_bytes(gpu.context_bytes)} are counted"
        )
    fits = {key: reserved_bytes <= find_gpu(key).room_bytes for key in gpu.others}
    if any(each != (reserved_bytes <= gpu.room_bytes) for each in fits.values()):
        yield ", ".join(
            f"it {'fits' if fit else 'does not fit'} {key}" for key, fit in fits.items()
        )
