"""What of DeepSpeed's JSON decides memory: `zero_optimization`, its defaults.

Source: deepspeed/runtime/zero/config.py (DeepSpeedZeroConfig), offload_config.py,
runtime/precision_config.py, 0.18.9 and 0.19.8. Not modelled: NVMe, a ratio of states that are
offloaded, SuperOffload, ZenFlow.
"""

from dataclasses import dataclass

from vrambudget.config.job import Job
from vrambudget.config.versions import as_numbers
from vrambudget.dtypes import BY_NAME, DType, bfloat16, float16
from vrambudget.parallel.group import Group

STAGES = {"deepspeed1": 1, "deepspeed2": 2, "deepspeed3": 3}
_WEIGHTS = 3  # the stage that shares them, too
_0_19 = (0, 19)


@dataclass(frozen=True, slots=True)
class ZeroConfig:
    """One rank's part of it; sizes are elements."""

    stage: int
    group: Group
    dtype: DType  # of the model, and of what is sent
    reduce_bucket_size: int
    overlap_comm: bool
    contiguous_gradients: bool
    reduce_scatter: bool
    clips: bool
    grad_accum: int
    sub_group_size: int
    prefetch_bucket_size: int
    param_persistence_threshold: int
    model_persistence_threshold: int
    max_live_parameters: int
    max_reuse_distance: int
    offload_optimizer: bool
    offload_param: bool
    pin_memory: bool
    version: tuple[int, int]

    @property
    def looks_for_overflow(self) -> bool:
        """Whether gradients are looked at before they are used (check_grad_overflow)."""
        return self.dtype is float16 or (self.dtype is bfloat16 and self.is_0_19)

    @property
    def is_0_19(self) -> bool:
        """Whether these are 0.19's rules.

        It looks at bf16's gradients too, by their largest and smallest elements, where 0.18 copies
        all as float32; it screens norms before it uses them.
        """
        return self.version >= _0_19


def zero_config(job: Job) -> ZeroConfig:
    """Return the settings of a job's rank; `Job.resolve` has put numbers for "auto"."""
    stage = STAGES[job.mesh.data or ""]
    return ZeroConfig(
        **job.values_of(ZeroConfig)
        | {
            "stage": stage,
            "group": Group(job.mesh.ranks, job.rank or 0),
            "dtype": BY_NAME[job.precision],
            "overlap_comm": stage == _WEIGHTS if job.overlap_comm is None else job.overlap_comm,
            "clips": job.clip is not None or as_numbers(job.deepspeed) >= _0_19,  # 1.0 since
            "version": as_numbers(job.deepspeed),
        }
    )
