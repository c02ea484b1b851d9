"""Which scripts of TRL's trainers fail on a GPU, and which do otherwise than is modelled here.

    bfloat16 before Ampere   TRL turns bf16 on unless fp16 is set, and is_bf16_supported counts
                             emulation; but the backward pass of its loss adds bfloat16 factors to
                             a float32 matrix, which PyTorch refuses there
    fp16, 4-bit weights      adapters are cast to bfloat16, whose gradients no GradScaler unscales

Source: trl/trainer/base_config.py (__post_init__), sft_trainer.py and dpo_trainer.py
(_is_quantized_model), 1.16; aten/src/ATen/cuda/CUDABlas.cpp (gemm<BFloat16, float>: "only supported
for CUDA devices with compute capability 8.0 or higher"); native/cuda/AmpKernels.cu
(_amp_foreach_non_finite_check_and_unscale_cuda: "not implemented for 'BFloat16'").
"""

from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig
from vrambudget.config.versions import as_numbers
from vrambudget.engine.context import context
from vrambudget.errors import NotModelledError, VramBudgetError

_AMPERE = 8  # major compute capability


def check_trl(config: ModelConfig, job: Job) -> None:
    """Raise VramBudgetError for a script that fails, NotModelledError for what has no rules."""
    if job.mode == "train":
        _check_products(job)
        _check_scaler(job)
    what = None
    if config.has_experts:
        what = "experts, whose routers' loss is added,"
    elif as_numbers(job.torch) < (2, 8):
        what = f"torch {job.torch}, whose products come back as 16 bit,"
    if what is not None:
        raise NotModelledError(
            f"{what} in loop {job.loop!r}: not modelled",
            hint="`vrambudget rehearse --gpu GPU -- python train.py` runs the script as it is",
        )


def _check_products(job: Job) -> None:
    major, minor = context.platform.compute_capability
    if major < _AMPERE and (job.autocast_dtype or job.weight_dtype) == "bf16":
        raise VramBudgetError(
            f"loop {job.loop!r} cannot train in bfloat16 on a GPU of compute capability"
            f" {major}.{minor}: PyTorch refuses a product in its loss's backward pass below 8.0",
            hint=f"{_without_bfloat16(job)} runs",
        )


def _check_scaler(job: Job) -> None:
    if job.quant is not None and job.precision == "amp-fp16":
        raise VramBudgetError(
            f"loop {job.loop!r} cannot train {job.quant} weights under float16: TRL casts their"
            " adapters to bfloat16, and PyTorch's GradScaler refuses gradients of that type",
            hint=f"{_without_bfloat16(job)} runs, and amp-bf16 from compute capability 8.0 on",
        )


def _without_bfloat16(job: Job) -> str:
    if job.quant is not None:
        return "--precision fp32, which is bf16=False in the script,"
    return "--precision amp-fp16, which is fp16=True in the script,"
