"""What a config.json says about the job: honoured where the job says nothing, else told.

    attn_implementation     "eager" and "sdpa" are the job's attention; others are not modelled
    gradient_checkpointing  true, as older files have it: every layer is checkpointed
    use_cache               true is told where the job does not say
    dtype, torch_dtype      what from_pretrained loads weights in; told where the job's are wider

Source: transformers/modeling_utils.py (_backward_compatibility_gradient_checkpointing,
from_pretrained, whose dtype is "auto" since 5.0), configuration_utils.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget.config.job import Job
from vrambudget.config.settings import show
from vrambudget.config.versions import as_numbers

ATTENTION_KEYS = ("attn_implementation", "_attn_implementation")
COUNTED_ATTENTION = ("eager", "sdpa")
_DTYPE_KEYS = ("dtype", "torch_dtype")
_NARROW = {"bfloat16": "bf16", "float16": "fp16"}
_READS_DTYPE_SINCE = (5, 0)


def job_of_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job that a configuration decides."""
    fields: dict[str, Any] = {}
    for key in ATTENTION_KEYS:
        if values.get(key) in COUNTED_ATTENTION:
            fields["attention"] = values[key]
    if values.get("gradient_checkpointing") is True:
        fields["checkpointing"] = "full"
    return fields


def remarks_on_config(values: Mapping[str, Any], job: Job) -> Iterator[str]:
    """Yield what a configuration says that the job does not do."""
    key = next((key for key in _DTYPE_KEYS if values.get(key) in _NARROW), None)
    reads = as_numbers(job.transformers) >= _READS_DTYPE_SINCE
    if key and reads and job.weight_dtype == "fp32" and job.quant is None:
        yield (
            f"the configuration says {key} {show(values[key])}, which from_pretrained loads weights"
            f" in; fp32 is counted: add --weights {_NARROW[values[key]]} if you name no dtype"
        )
    caches = job.use_cache or job.loop == "trainer"
    open_to_it = not caches and job.checkpointing == "none" and job.mode != "generate"
    if values.get("use_cache") is True and open_to_it:
        yield (
            "the configuration turns use_cache on, which is counted as off: add --use-cache unless"
            " the script sets model.config.use_cache = False"
        )
