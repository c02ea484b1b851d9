"""The least that a job of several GPUs takes, from traces of a few of its layers.

What is alive at any one moment grows by the same bytes with every layer that is like the others. So
the peak of a phase, the highest of its moments, is a convex function of their number: beyond two
numbers it is on or above the line through them.

    3 and 4 layers of 80    seven are traced, not 80: least = peak(3) + 77 (peak(4) - peak(3)), of
                            the phase where that is most

What grows up to a limit is taken off: in ZeRO 3, parameters that are whole (max_live_parameters),
and float32 gradients of a group that is stepped at once (sub_group_size).

Not bounded: models whose layers differ, and layouts that give parameters out whole or by their
place in a flat tensor (ZeRO-1, DeepSpeed's stages 1 and 2), where layers differ for a rank.
"""

from vrambudget.config.job import Job
from vrambudget.engine.context import ModelOptions, on_meta, recording
from vrambudget.engine.layer_kinds import kinds_of
from vrambudget.engine.module import Module
from vrambudget.planning.lower_bound import ITEM_BYTES
from vrambudget.scenario import Scenario
from vrambudget.simulate import simulate

_FEW = 3
_EACH_TRACED, _COPIED = 8, 48  # layers from which on a few take less time than all of them
_STEPS = 2  # from the second on an optimizer's states are there
_DEPTHS = ("num_hidden_layers", "n_layers")
_BOUNDED = ("ddp", "fsdp1", "fsdp2", "deepspeed3", None)


class FewLayers:
    """Lower bounds of the requested bytes of a scenario's jobs."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        fields = type(scenario.config).model_fields
        self.depth = next((name for name in _DEPTHS if name in fields), "")
        self.layers: int = getattr(scenario.config, self.depth) if self.depth else 0
        self.identical = self.layers > 0 and self._are_identical()

    def _are_identical(self) -> bool:
        """Return whether the model has one list of layers, all identical."""
        config, task = self.scenario.config_of_job, self.scenario.job.task
        assert task is not None  # noqa: S101 - resolved
        with recording(self.scenario.platform, ModelOptions()), on_meta():
            lists = [
                value
                for module in config.build(task).modules()
                for value in module.__dict__.values()
                if isinstance(value, list) and len(value) == self.layers
            ]
            layers = [[item for item in value if isinstance(item, Module)] for value in lists]
            return [len(each) for each in layers] == [self.layers] and not any(
                kinds_of(layers[0])[0]
            )

    def least_bytes(self, job: Job, *, pays: bool = False) -> int:
        """Return the least of a job's rank; 0: not known, or (unless it `pays`) no sooner."""
        mesh, stages = job.mesh, job.mesh.pp * job.stages_per_rank
        if not self.identical or mesh.data not in _BOUNDED or self.layers % stages:
            return 0
        few = _FEW * stages
        layers = _EACH_TRACED if pays or mesh.data == "deepspeed3" else _COPIED
        if self.layers < stages * layers:
            return 0
        phases = zip(self._peaks(job, few), self._peaks(job, few + stages), strict=True)
        steps = (self.layers - few) // stages
        least = max(less + steps * (more - less) for less, more in phases)
        return least - _limited_bytes(job)

    def _peaks(self, job: Job, layers: int) -> list[int]:
        """Return the requested bytes of each phase's peak, once the model is there."""
        config = self.scenario.config.model_copy(update={self.depth: layers})
        twice = job.model_copy(update={"steps": min(job.steps, _STEPS)})
        tape = simulate(config, twice, self.scenario.platform).tape
        begins = [mark.position for mark in tape.marks if mark.position >= tape.built()]
        return [*map(tape.peak_requested_bytes, begins, [*begins[1:], None])]


def _limited_bytes(job: Job) -> int:
    """Return what of a job's bytes may stop growing with its layers."""
    if job.mesh.data != "deepspeed3":
        return 0
    gathered = ITEM_BYTES[job.weight_dtype] * job.max_live_parameters
    return gathered + ITEM_BYTES["fp32"] * job.sub_group_size
