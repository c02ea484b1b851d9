"""What the driver says of this machine's first GPU, through NVML or the tool that comes with it."""

from vrambudget.errors import VramBudgetError


def ask_driver() -> tuple[str, int, tuple[int, int]]:
    """Return name, free bytes and compute capability of GPU 0, or raise VramBudgetError."""
    try:
        import pynvml  # noqa: PLC0415  # an optional extra, needed by 'auto' alone
    except ImportError:
        return _ask_its_tool()
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = pynvml.nvmlDeviceGetName(handle)
        free_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except pynvml.NVMLError as error:
        raise VramBudgetError(
            f"'auto' found no NVIDIA GPU on this machine ({error})",
            where="gpu",
            hint="name the GPU: `vrambudget gpus` lists them",
        ) from error
    return (name.decode() if isinstance(name, bytes) else str(name)), free_bytes, (major, minor)


def _ask_its_tool() -> tuple[str, int, tuple[int, int]]:
    """Return the same, said by the tool that comes with the driver."""
    import subprocess  # noqa: PLC0415 - needed by 'auto' alone

    asked = ["--id=0", "--query-gpu=name,memory.free,compute_cap", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(  # noqa: S603 - no shell
            ["nvidia-smi", *asked],  # noqa: S607 - wherever the driver has put it
            capture_output=True,
            check=True,
            text=True,
            timeout=20,
        ).stdout
        name, free_mib, capability = said.strip().rsplit(", ", 2)
        major, minor = map(int, capability.split("."))
        return name, int(free_mib) << 20, (major, minor)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise VramBudgetError(
            "'auto' asks the NVIDIA driver through nvidia-smi or nvidia-ml-py; neither answers",
            where="gpu",
            hint="name the GPU: `vrambudget gpus` lists them; `run --gpu none` needs none",
        ) from error
