"""What a loop in torch is handed: the model, batches, marks, and iterators over steps.

A mark reads the allocator's counters as the step's phase begins: into `result`, under the names
that records have for them.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle, islice
from typing import Any

import torch

from vrambudget.auto_classes import CLASSIFYING, own_rows
from vrambudget.measure.optimizers import make_optimizer
from vrambudget.sampled_lengths import sampled_lengths

OnPhase = Callable[[int, str], None]

_EVALUATED_BEFORE = 3  # as config.job has it, which these files do not import
_AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


class MeasuredRun:
    """One run of a loop; its settings are a job as records have it."""

    def __init__(
        self,
        model: Any,
        settings: Mapping[str, Any],
        result: dict[str, Any],
        on_phase: OnPhase,
        build: Callable[[], Any],
    ) -> None:
        self.model, self.settings, self.result, self.on_phase = model, settings, result, on_phase
        self.build = build  # a model like the one that was handed over, before it was prepared
        self._step = 0
        self._is_running = False

    def steps(self) -> Iterator[int]:
        """Yield the numbers of the steps."""
        for step in range(self.settings.get("steps", 3)):
            self._step = step
            yield step
            self.mark("step_end")

    def next_step(self) -> None:
        """Note that a step begins, where a library's loop iterates: the one before it is over."""
        if self._is_running:
            self.mark("step_end")
            self._step += 1
        self._is_running = True
        self.mark("forward")

    def micro_batches(self) -> Iterator[int]:
        """Yield the numbers of a step's micro-batches."""
        yield from range(self.settings.get("grad_accum", 1))

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yield batches, made on the CPU and moved, as a loader's are."""
        job = self.settings
        accumulated = job.get("grad_accum", 1) if job.get("mode", "train") == "train" else 1
        for settings in cycle(at_lengths(job, job.get("steps", 3) * accumulated)):
            yield make_batch(settings, self.model)

    def rows(self, batches: int, size: int) -> list[dict[str, Any]]:
        """Return the rows of so many batches on the CPU, as a dataset has them."""
        rows = list[dict[str, Any]]()
        for settings in islice(cycle(at_lengths(self.settings, batches)), batches):
            row = make_batch({**settings, "batch": 1}, self.model, device="cpu")
            rows += [{name: value[0] for name, value in row.items()}] * size
        return rows

    def eval_steps(self) -> Iterator[int]:
        """Yield the numbers of an evaluation's batches."""
        yield from range(self.settings.get("eval_batches", 0))

    def eval_batches(self) -> Iterator[dict[str, Any]]:
        """Yield batches of an evaluation."""
        count = self.settings.get("eval_batch", self.settings["batch"])
        for settings in cycle(at_lengths(self.settings, self.settings.get("eval_batches", 1))):
            yield make_batch({**settings, "batch": count}, self.model)

    def evaluates_before(self, step: int) -> bool:
        """Whether an evaluation comes before a step: the third; or the first, too."""
        first = step == 0 and bool(self.settings.get("eval_first"))
        return "eval_batches" in self.settings and (first or step == _EVALUATED_BEFORE - 1)

    def given(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return what the model is called with: no labels where the loop makes the loss."""
        if not self.settings.get("label_smoothing"):
            return batch
        return {name: x for name, x in batch.items() if name != "labels"}

    def loss_of(self, outputs: Any, batch: Mapping[str, Any]) -> Any:
        """Return the model's own loss; of one without a head, the mean of its states' squares.

        With label smoothing it is torch's cross_entropy, which has it.
        """
        if self.settings.get("label_smoothing"):
            return self._smoothed(outputs["logits"], batch["labels"])
        if self.settings.get("task") == "embed":
            return outputs["last_hidden_state"].float().pow(2).mean()
        return outputs["loss"]

    def _smoothed(self, logits: Any, labels: Any) -> Any:
        if self.settings.get("task", "causal-lm") == "causal-lm":
            logits, labels = logits[:, :-1], labels[:, 1:]
        return torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            labels.reshape(-1),
            label_smoothing=self.settings["label_smoothing"],
        )

    @property
    def forward_returns(self) -> str:
        """What the loop has of a forward pass; older records say it by `keep_outputs`."""
        older = "outputs" if self.settings.get("keep_outputs", True) else "loss"
        return str(self.settings.get("forward_returns", older))

    def autocast(self) -> Any:
        """Return the region of one forward pass."""
        dtype = _AUTOCAST.get(self.settings.get("precision", "fp32"))
        return torch.autocast("cuda", dtype=dtype) if dtype else contextlib.nullcontext()

    def make_optimizer(self, parameters: list[Any]) -> Any:
        """Return the job's optimizer, None for a job without one."""
        self.result["trainable"] = sum(p.numel() for p in parameters)
        return make_optimizer(self.settings, self.model, parameters)

    def make_grouped_optimizer(self) -> Any:
        """Return the job's optimizer of two groups: matrices, which decay, and the rest."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.result["trainable"] = sum(p.numel() for p in parameters)
        groups = [
            {"params": [p for p in parameters if (p.dim() > 1) is decays], "weight_decay": decay}
            for decays, decay in ((True, 0.1), (False, 0.0))
        ]
        return make_optimizer(self.settings, self.model, groups)

    def make_scaler(self) -> Any:
        """Return a gradient scaler, which does nothing where none is needed."""
        return torch.amp.GradScaler("cuda", enabled=self.settings.get("precision") == "amp-fp16")

    def mark(self, phase: str) -> None:
        """Note that a phase of the current step begins."""
        result, step = self.result, self._step
        self.on_phase(step, phase)
        if phase == "backward":
            result[f"after_forward_{step}"] = torch.cuda.memory_allocated()
        elif phase == "optimizer_step":
            result[f"after_backward_{step}"] = torch.cuda.memory_allocated()
        elif phase == "step_end":
            result[f"peak_allocated_{step}"] = torch.cuda.max_memory_allocated()
            result[f"peak_reserved_{step}"] = torch.cuda.max_memory_reserved()
            result["after_step"] = torch.cuda.memory_allocated()


def at_lengths(job: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    """Return the job at the length of each of so many batches, or once if all are identical."""
    if "shortest" not in job:
        return [job]
    lengths = sampled_lengths(job["shortest"], job["block"], count, job.get("draw", 0))
    target = job.get("target_len") or job.get("target") or job["block"]
    own = {} if target == job["block"] else {"target": target}
    others = {name: value for name, value in job.items() if name not in {"target", "target_len"}}
    return [{**others, "block": length, **own} for length in lengths]


def make_batch(job: Mapping[str, Any], model: Any, device: str = "cuda") -> dict[str, Any]:
    """Return inputs and labels, made on the CPU, on a device."""
    count, task = job["batch"], job.get("task", "causal-lm")
    length = job.get("target_len") or job.get("target") or job["block"]
    read = getattr(model, "main_input_name", "input_ids")
    config = getattr(model, "config", None)
    if rows := own_rows(task, read, config, block=job["block"], target_len=length):
        dtype, batch = next(model.parameters()).dtype, {}
        for name, row in rows.items():
            of_class = name == "labels" and task in CLASSIFYING
            indices = torch.full((count, *row.shape), int(not of_class))
            numbers = torch.zeros(indices.shape) if row.is_float else indices
            batch[name] = numbers.to(device).to(dtype if row.is_float else indices.dtype)
        return batch
    batch = {"input_ids": torch.ones(count, job["block"], dtype=torch.long).to(device)}
    padded = job.get("rows") == "padded" or job.get("attention_mask") == "padding"
    if padded or job.get("attention_mask") == "ones":
        mask = torch.ones(count, job["block"], dtype=torch.long)
        mask[:, -1] = int(not padded)
        batch["attention_mask"] = mask.to(device)
    if job.get("shared_labels"):
        return {**batch, "labels": batch["input_ids"]}
    if task == "embed":
        return batch
    if job.get("rows") == "packed":  # two sequences in a row
        positions = torch.arange(job["block"]) % -(-job["block"] // 2)
        batch["position_ids"] = positions.repeat(count, 1).to(device)
    if task == "qa":
        for name in ("start_positions", "end_positions"):
            batch[name] = torch.ones(count, dtype=torch.long).to(device)
        return batch
    labels = (count,) if task == "seq-cls" else (count, length)
    batch["labels"] = torch.full(labels, int(task not in CLASSIFYING)).to(device)
    return batch
