"""What a report says of the GPU: what its name left open, and where the CUDA context decides."""

from collections.abc import Iterator

from vrambudget.config.gpus import Gpu, find_gpu
from vrambudget.config.versions import without_code
from vrambudget.units import format_bytes


def remarks_on_gpu(gpu: Gpu, torch: str, reserved_bytes: int) -> Iterator[str]:
    """Yield what decides the verdict and a user may know better, where so much is reserved."""
    if missing := without_code(torch, gpu.compute_capability):
        yield missing
    least, most = gpu.context_range
    available = [gpu.capacity_bytes - context for context in (most, least)]
    if available[0] < reserved_bytes <= available[1]:
        yield (
            f"the CUDA context decides: {format_bytes(least)} to {format_bytes(most)} were"
            f" published for such a GPU, and {format_bytes(gpu.context_bytes)} are assumed"
        )
    fits = {key: reserved_bytes <= find_gpu(key).available_bytes for key in gpu.others}
    if any(each != (reserved_bytes <= gpu.available_bytes) for each in fits.values()):
        yield ", ".join(
            f"it {'fits' if fit else 'does not fit'} {key}" for key, fit in fits.items()
        )
