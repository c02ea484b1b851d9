"""The loop: its precision and its optimizer."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from vrambudget.config.settings import Field, Settings, Size
from vrambudget.declared import Before

Mode = Literal["train", "eval", "generate", "forward"]
LoopName = Literal["plain", "accelerate", "lightning", "trainer", "sft", "dpo", "nanogpt"]
Precision = Literal["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"]
WeightsDtype = Literal["fp32", "bf16", "fp16"]
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

_REHEARSE = "`vrambudget rehearse --gpu GPU -- python train.py` runs the script as it is"
NOT_MODELLED_LOOPS: Mapping[str, str] = {
    "grpo": "TRL's GRPOTrainer, which generates between steps, is not modelled",
    "rloo": "TRL's RLOOTrainer, which generates between steps, is not modelled",
    "kto": "TRL's KTOTrainer, whose batches hold unpaired answers, is not modelled",
    "reward": "TRL's RewardTrainer, whose head returns one number for a row, is not modelled",
}
"""Loops that people have and that are refused by name."""


def modelled_loop(value: Any) -> Any:
    """Return the name of a loop. Raises ValueError for one that is refused by name."""
    if isinstance(value, str) and value in NOT_MODELLED_LOOPS:
        raise ValueError(f"{NOT_MODELLED_LOOPS[value]}; {_REHEARSE}")
    return value


BITSANDBYTES = ("lion", "lion-8bit", "adamw-8bit", "paged-adamw-8bit")


class Training(Settings, heading="loop and optimizer"):
    """The loop, its precision and its optimizer."""

    mode: Mode = Field(
        "train",
        description="train, evaluate under no_grad, generate, or forward:"
        " a forward pass without labels",
    )
    loop: Annotated[LoopName, Before(modelled_loop)] = Field(
        "plain",
        description="whose training loop: one written by hand, one with accelerate, Lightning's or"
        " transformers' Trainer, TRL's SFTTrainer or DPOTrainer, or nanoGPT's train.py",
    )
    precision: Precision = Field(
        "amp-bf16", description="autocast (amp-...), or the dtype of the weights themselves"
    )
    weights: WeightsDtype | None = Field(
        None,
        description="dtype of the weights where not the precision's own, as from_pretrained has it",
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
    steps: Annotated[Size, Field(le=100)] = Field(
        3,
        description="optimizer steps to simulate (default: three; where the GPU has less than a"
        " fifth to spare, on until memory settles)",
    )

    def problems(self) -> Iterable[str]:
        """Yield the combinations of optimizers and precisions that do not exist."""
        if self.optimizer == "adafactor" and self.optimizer_impl == "fused":
            yield "optimizer_impl is 'fused', which torch.optim.Adafactor does not have"
        if self.optimizer in BITSANDBYTES and self.optimizer_impl is not None:
            yield f"optimizer_impl is {self.optimizer_impl!r}; bitsandbytes has one implementation"
        if self.precision == "amp-fp16" and self.clip is not None and self.optimizer == "none":
            yield "clip needs an optimizer under amp-fp16: GradScaler unscales through it"
        if self.autocast_dtype is None and self.weights not in {None, self.precision}:
            yield (
                f"weights is {self.weights!r} and precision {self.precision!r}: weights of another"
                " dtype need autocast (amp-bf16, amp-fp16)"
            )

    @property
    def autocast_dtype(self) -> Literal["bf16", "fp16"] | None:
        """The dtype that autocast uses, or None without autocast."""
        return {"amp-bf16": "bf16", "amp-fp16": "fp16"}.get(self.precision)  # type: ignore[return-value]
