"""The loop: its precision, its optimizer and what its variables hold."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from vrambudget.config.settings import Settings, Size

Mode = Literal["train", "eval"]
LoopName = Literal["plain"]
Precision = Literal["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"]
Optimizer = Literal[
    "adamw",
    "adam",
    "sgd",
    "sgd-momentum",
    "adafactor",
    "muon",
    "lion",
    "lion-8bit",
    "adamw-8bit",
    "paged-adamw-8bit",
    "none",
]
OptimizerImpl = Literal["foreach", "fused", "for-loop"]

BITSANDBYTES = ("lion", "lion-8bit", "adamw-8bit", "paged-adamw-8bit")


class Training(Settings, defer_build=True, title="loop and optimizer"):
    """The loop, its precision and its optimizer."""

    mode: Mode = Field("train", description="train, or evaluate under no_grad")
    loop: LoopName = Field("plain", description="whose training loop: one written by hand")
    precision: Precision = Field(
        "amp-bf16", description="autocast (amp-...), or the dtype of the weights themselves"
    )
    optimizer: Optimizer = Field(
        "adamw", description="optimizer of torch.optim, or of bitsandbytes (lion, ...-8bit)"
    )
    optimizer_impl: OptimizerImpl | None = Field(
        None, description="the optimizer's implementation (default: PyTorch's default)"
    )
    clip: Annotated[float, Field(gt=0)] | None = Field(
        None, description="clip the gradients' norm at this value (default: no clipping)"
    )
    grad_accum: Annotated[Size, Field(le=2**16)] = Field(
        1, description="forward and backward passes for each optimizer step"
    )
    keep_outputs: bool = Field(
        default=True,
        description="the loop's variables hold the last outputs while the next forward runs",
    )
    steps: Annotated[Size, Field(le=100)] = Field(
        3, description="optimizer steps to simulate; the peak settles by the third"
    )

    def problems(self) -> Iterable[str]:
        """Yield the combinations of optimizers and precisions that do not exist."""
        if self.optimizer == "adafactor" and self.optimizer_impl == "fused":
            yield "optimizer_impl is 'fused', which torch.optim.Adafactor does not have"
        if self.optimizer in BITSANDBYTES and self.optimizer_impl is not None:
            yield f"optimizer_impl is {self.optimizer_impl!r}; bitsandbytes has one implementation"
        if self.precision == "amp-fp16" and self.clip is not None and self.optimizer == "none":
            yield "clip needs an optimizer under amp-fp16: GradScaler unscales through it"

    @property
    def autocast_dtype(self) -> Literal["bf16", "fp16"] | None:
        """The dtype that autocast uses, or None without autocast."""
        return {"amp-bf16": "bf16", "amp-fp16": "fp16"}.get(self.precision)  # type: ignore[return-value]
