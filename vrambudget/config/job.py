"""A job: what is run, on which batches, and how it is trained. Its fields are the CLI's options.

A job is one process on one GPU that runs a loop as users write it: zero the gradients, forward,
loss, backward, clip, step; or, in mode "eval", forward and loss under `no_grad`. The loop's
variables hold the last outputs while the next forward runs, unless `keep_outputs` is off.

The model (`ModelConfig`) and the GPU also decide memory; they are not part of a job.

Not modelled: more than one GPU, data loaders that prefetch onto the GPU, `torch.compile`.
"""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import BeforeValidator, Field, model_validator

from vrambudget.config.settings import Probability, Settings, Size, canonical
from vrambudget.config.versions import as_numbers, default_version, plain_version
from vrambudget.errors import NotModelledError, VramBudgetError

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
Attention = Literal["sdpa", "eager"]
ExpertsImplementation = Literal["grouped_mm", "eager"]
Routing = Literal["uniform", "worst"]
Checkpointing = Literal["none", "full"]
Task = Literal["causal-lm", "masked-lm", "seq-cls", "seq2seq-lm", "image-cls"]
Quant = Literal["nf4"]
Rows = Literal["full", "padded"]
AttentionMask = Literal["none", "ones", "padding"]
CausalMask = Literal["built", "skipped"]

ALL_LINEAR: Literal["all-linear"] = "all-linear"
BITSANDBYTES = ("lion", "lion-8bit", "adamw-8bit", "paged-adamw-8bit")
_MUON_SINCE = (2, 9)
_MODULE_NAME = re.compile(r"[A-Za-z_][\w.]*")

TASK_OF_CLASS: Mapping[str, Task] = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForSequenceClassification": "seq-cls",
    "ForConditionalGeneration": "seq2seq-lm",
    "ForImageClassification": "image-cls",
}
"""The task of a class of transformers, by what its name ends with."""


class Limits(Protocol):
    """What a job needs from a model's configuration to be resolved."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that the family has heads for; the first is the default."""

    @property
    def default_block(self) -> int | None:
        """Tokens per sequence if the job names none."""

    @property
    def learned_positions(self) -> int | None:
        """The longest sequence that has positions; None if positions are computed."""


def _minor_version(value: Any) -> Any:
    version = plain_version(value) if isinstance(value, str) else None
    if version is None:
        raise ValueError("it should be a version as text, for example '2.11'")
    return version


def _lora_targets(value: Any) -> Any:
    """Return "all-linear" or a tuple of names, from a list or from "q_proj,v_proj"."""
    if value == ALL_LINEAR:
        return value
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(map(_is_module_name, names)):
        raise ValueError(
            f"it should be {ALL_LINEAR!r} or names of modules, for example q_proj,v_proj"
        )
    return tuple(names)


def _module_names(value: Any) -> Any:
    """Return a tuple of names from a list or from "transformer.wte,transformer.h.0"."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(map(_is_module_name, names)):
        raise ValueError("it should be names of modules, for example transformer.wte")
    return tuple(names)


def _is_module_name(name: object) -> bool:
    return isinstance(name, str) and _MODULE_NAME.fullmatch(name) is not None


Version = Annotated[str, BeforeValidator(_minor_version)]
ModuleNames = Annotated[tuple[str, ...], BeforeValidator(_module_names)]
LoraTargets = Annotated[Literal["all-linear"] | tuple[str, ...], BeforeValidator(_lora_targets)]


class Job(Settings):
    """One training or evaluation job; every field is an option of the command line."""

    batch: Size = Field(1, description="sequences per forward pass on this GPU")
    block: Size | None = Field(
        None, description="tokens per sequence (default: the model's own limit; none for images)"
    )
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
    attention: Attention = Field("sdpa", description="attention implementation")
    experts: ExpertsImplementation = Field(
        "grouped_mm", description="how transformers runs a mixture of experts"
    )
    routing: Routing = Field(
        "uniform",
        description="how tokens spread over experts, if that decides memory (--experts eager):"
        " uniform, or the worse of uniform and all tokens to the same few experts",
    )
    checkpointing: Checkpointing = Field(
        "none",
        description="full: keep only each layer's input, and run the layer again in backward",
    )
    dropout: Probability | None = Field(
        None, description="dropout probability everywhere (default: the model's own)"
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
    task: Task | None = Field(
        None,
        description="what the model is trained for, which decides its head"
        " (default: the family's own)",
    )
    target_len: Size | None = Field(
        None, description="tokens per target sequence for seq2seq-lm (default: the block)"
    )
    image_size: Size | None = Field(
        None, description="pixels along each side of an image (default: the model's own)"
    )
    lora_rank: Annotated[Size, Field(le=2**16)] | None = Field(
        None, description="train LoRA adapters of this rank instead of the weights, as PEFT does"
    )
    lora_targets: LoraTargets = Field(
        ALL_LINEAR,
        description="modules that get an adapter: all-linear, or names, for example q_proj,v_proj",
    )
    lora_dropout: Probability = Field(
        0.0, description="dropout probability of the adapters' inputs"
    )
    freeze: ModuleNames = Field(
        (), description="modules or parameters that are not trained, for example transformer.wte"
    )
    quant: Quant | None = Field(
        None,
        description="4-bit weights in linear layers, by bitsandbytes (with --lora-rank: QLoRA)",
    )
    double_quant: bool = Field(
        default=True, description="quantise the scales of 4-bit blocks too, as QLoRA does"
    )
    rows: Rows = Field(
        "full",
        description="what the rows of a batch hold: one sequence that fills the block, or one"
        " with padding and the tokenizer's mask",
    )
    attention_mask: AttentionMask | None = Field(
        None,
        description="the mask that the model is called with (default: none for full rows;"
        " ones: a tokenizer's mask for full rows)",
    )
    causal_mask: CausalMask | None = Field(
        None,
        description="whether transformers builds the causal mask for sdpa, which it decides from"
        " values that it reads back (default: what a real GPU answers for these rows)",
    )
    expandable_segments: bool = Field(
        default=False,
        description="run PyTorch with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (Linux)",
    )
    torch: Version = Field(
        default_factory=partial(default_version, "torch"),
        validate_default=True,
        description="the version of PyTorch whose rules are followed; name the CUDA of a build that"
        " is not PyPI's: 2.11+cu128",
    )
    transformers: Version = Field(
        default_factory=partial(default_version, "transformers"),
        validate_default=True,
        description="the version of transformers whose modelling code is followed",
    )

    aliases: ClassVar[Mapping[str, str]] = {
        "batch_size": "batch",
        "seq_len": "block",
        "sequence_length": "block",
        "gradient_accumulation_steps": "grad_accum",
    }

    @classmethod
    def with_defaults(
        cls,
        values: Mapping[str, object],
        defaults: Mapping[str, object],
        *,
        where: str | None = None,
    ) -> Self:
        """Return the job of `values`; what they leave open comes from `defaults` (a model card)."""
        try:
            given = canonical(values, cls.aliases)
        except ValueError:
            given = dict(values)  # parse reports what is wrong with them
        return cls.parse({**canonical(defaults, cls.aliases), **given}, where=where)

    @model_validator(mode="before")
    @classmethod
    def _mask_of_rows(cls, values: Any) -> Any:
        """Take rows for padded if only the mask says so."""
        if isinstance(values, dict) and values.get("attention_mask") == "padding":
            return {"rows": "padded", **values}
        return values

    def problems(self) -> Iterable[str]:
        """Yield the combinations that do not exist."""
        if self.rows == "padded" and self.attention_mask in {"none", "ones"}:
            yield f"attention_mask is {self.attention_mask!r}; rows with padding need their mask"
        if self.rows == "padded" and self.causal_mask == "skipped":
            yield "causal_mask is 'skipped', but rows with padding need the mask"
        if self.rows == "full" and self.attention_mask == "padding":
            yield "attention_mask is 'padding', but full rows have none; use --rows padded"
        if self.optimizer == "adafactor" and self.optimizer_impl == "fused":
            yield "optimizer_impl is 'fused', which torch.optim.Adafactor does not have"
        if self.optimizer in BITSANDBYTES and self.optimizer_impl is not None:
            yield f"optimizer_impl is {self.optimizer_impl!r}; bitsandbytes has one implementation"
        if self.optimizer == "muon":
            yield from self._problems_of_muon()
        if self.quant is not None and self.mode == "train" and self.lora_rank is None:
            yield f"quant is {self.quant!r}: 4-bit weights cannot be trained; set a lora_rank"
        if self.precision == "amp-fp16" and self.clip is not None and self.optimizer == "none":
            yield "clip needs an optimizer under amp-fp16: GradScaler unscales through it"

    def _problems_of_muon(self) -> Iterable[str]:
        if as_numbers(self.torch) < _MUON_SINCE:
            yield f"torch is {self.torch!r}; torch.optim.Muon came with 2.9"
        if self.precision == "amp-fp16":
            yield "muon under amp-fp16 is not modelled: two optimizers would share a GradScaler"

    def resolve(self, config: Limits) -> Self:
        """Return the job with task, block and masks set.

        Raises VramBudgetError for a block that is too long, NotModelledError for a task that the
        family has no head for.
        """
        task = self.task or config.tasks[0]
        if task not in config.tasks:
            raise NotModelledError(
                f"task {task!r} is not modelled for this architecture",
                hint=f"it has {', '.join(config.tasks)}",
            )
        mask, causal = ("padding", "built") if self.rows == "padded" else ("none", "skipped")
        masks = {
            "attention_mask": self.attention_mask or mask,
            "causal_mask": self.causal_mask or causal,
        }
        return self.model_copy(update={"task": task, **self._lengths(task, config), **masks})

    def _lengths(self, task: Task, config: Limits) -> dict[str, int | None]:
        block = self.block
        if block is None or task == "image-cls":
            block = config.default_block  # the image's size decides how many patches there are
        if block is None:
            raise VramBudgetError("the model has no default sequence length", hint="add --block")
        if config.learned_positions is not None and block > config.learned_positions:
            raise VramBudgetError(
                f"block is {block}; the model has positions for {config.learned_positions} tokens",
                hint=f"use --block {config.learned_positions} or less",
            )
        target_len = self.target_len
        if task == "seq2seq-lm" and target_len is None:
            target_len = block
        return {"block": block, "target_len": target_len}

    @property
    def autocast_dtype(self) -> Literal["bf16", "fp16"] | None:
        """The dtype that autocast uses, or None without autocast."""
        return {"amp-bf16": "bf16", "amp-fp16": "fp16"}.get(self.precision)  # type: ignore[return-value]

    @property
    def weight_dtype(self) -> Literal["fp32", "bf16", "fp16"]:
        """The dtype of the weights; a quantised job loads them in its 16-bit type."""
        if self.quant is not None and self.autocast_dtype is not None:
            return self.autocast_dtype
        return "fp32" if self.autocast_dtype else self.precision  # type: ignore[return-value]
