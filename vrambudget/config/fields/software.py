"""What PyTorch runs with: the allocator's settings and the versions that are followed."""

from functools import partial
from typing import Annotated, Any, Literal

from vrambudget.config.settings import Field, Settings
from vrambudget.config.versions import default_version, plain_version
from vrambudget.declared import Before


def _minor_version(value: Any) -> Any:
    version = plain_version(value) if isinstance(value, str) else None
    if version is None:
        raise ValueError("it should be a version as text, for example '2.11'")
    return version


DriverAddresses = Literal["rising", "linux"]
Version = Annotated[str, Before(_minor_version)]


class Software(Settings, heading="allocator and versions"):
    """What PyTorch runs with, and which versions are followed."""

    expandable_segments: bool = Field(
        default=False,
        description="run PyTorch with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (Linux)",
    )
    cudnn_attention: bool = Field(
        default=True,
        description="let PyTorch take cuDNN's attention kernel, as it does by default on compute"
        " capability 9 and 10 since 2.11; without, it runs with TORCH_CUDNN_SDPA_DEPRIORITIZED=1",
    )
    driver_addresses: DriverAddresses = Field(
        "rising",
        description="where the driver puts PyTorch's segments, which decides between free blocks of"
        " one size: each above the last, as on a virtual GPU; or as NVIDIA's driver for Linux does",
    )
    warm_process: bool = Field(
        default=False,
        description="the process has trained before, as a notebook's has: the workspaces that"
        " cuBLAS keeps lie in memory before the model does",
    )
    torch: Version = Field(
        default_factory=partial(default_version, "torch"),
        description="the version of PyTorch whose rules are mirrored; name the CUDA of a build that"
        " is not PyPI's: 2.11+cu128",
    )
    transformers: Version = Field(
        default_factory=partial(default_version, "transformers"),
        description="the version of transformers whose modelling code is mirrored",
    )
