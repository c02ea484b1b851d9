"""What accelerate makes of a module before it is compiled: Trainer's loop.

Under mixed precision its forward runs in a region of autocast of its own, and returns float32; so
both lie within what is compiled. An evaluation between steps calls the module that was prepared,
and not what torch.compile returned: it runs eagerly, and looks whether rows are padded or packed.

Source: accelerate/accelerator.py (prepare_model), 1.15; transformers/trainer.py (evaluation_loop,
_wrap_model), masking_utils.py and utils/import_utils.py (is_tracing), 5.17.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from unittest.mock import patch

import torch

from vrambudget.compiled.config import REHEARSE
from vrambudget.compiled.fake_storages import GpuMode
from vrambudget.compiled.private import enable_python_dispatcher
from vrambudget.config.job import Job
from vrambudget.errors import NotModelledError

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def prepare(module: torch.nn.Module, job: Job) -> None:
    """Give a module the forward that accelerate gives it.

    Raises NotModelledError where accelerate is not installed, whose own code is compiled, too; and
    for an evaluation of rows that are not full.
    """
    if job.eval_batches and job.rows != "full":
        raise NotModelledError(
            f"an evaluation of {job.rows} rows between steps of a compiled model is not modelled",
            hint=REHEARSE,
        )
    if job.autocast_dtype is None:
        return
    try:
        from accelerate.utils import convert_outputs_to_fp32  # noqa: PLC0415 - only this loop's
    except ImportError as error:
        raise NotModelledError(
            f"loop {job.loop!r} is compiled with accelerate's own code, which is not installed",
            hint=f"pip install accelerate; {REHEARSE}",
        ) from error
    region = torch.autocast(device_type="cuda", dtype=_DTYPES[job.autocast_dtype])
    module.forward = MethodType(region(type(module).forward), module)
    module.forward = MethodType(convert_outputs_to_fp32(module.forward.__func__), module)


@contextmanager
def eagerly(mode: GpuMode) -> Iterator[None]:
    """Let transformers look at its masks, as it does where nothing is traced: rows are full."""
    looks = patch("transformers.utils.import_utils.is_fake_tensor", lambda _x: False)
    python = enable_python_dispatcher()  # what stands in for C++ as well
    with looks, mode.saying(truth=True), python:
        yield
