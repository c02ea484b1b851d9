"""A job: what is run, how it is fed and trained. The command line's options are these fields.

A job is one process on one GPU that runs a loop as users write it: zero the gradients, forward,
loss, backward, clip, step; or, in mode "eval", forward and loss under `no_grad`. The loop's
variables hold the last outputs while the next forward runs, unless `keep_outputs` is off.

Two memory-deciding things are not in a job: the model (`ModelConfig`) and the card.

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


class Limits(Protocol):
    """What a job asks of a model's configuration when it is resolved."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What the family has heads for; the first is its own purpose."""

    @property
    def default_block(self) -> int | None:
        """Tokens per sequence where the job names none."""

    @property
    def learned_positions(self) -> int | None:
        """The longest sequence that has positions; None where positions are computed."""


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
        "adamw", description="optimizer, as torch.optim has it, or bitsandbytes (lion, ...-8bit)"
    )
    optimizer_impl: OptimizerImpl | None = Field(
        None, description="the optimizer's implementation (default: what PyTorch takes)"
    )
    attention: Attention = Field("sdpa", description="attention implementation")
    experts: ExpertsImplementation = Field(
        "grouped_mm", description="how transformers runs a mixture's experts"
    )
    routing: Routing = Field(
        "uniform",
        description="how tokens spread over experts, where that decides memory (experts eager):"
        " evenly, or the worse of evenly and all to the same few",
    )
    checkpointing: Checkpointing = Field(
        "none", description="full: keep each layer's input only and run the layer again in backward"
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
        3, description="optimizer steps that are followed; the peak settles by the third"
    )
    task: Task | None = Field(
        None,
        description="what the model is trained for: decides its head (default: the family's own)",
    )
    target_len: Size | None = Field(
        None, description="tokens per target sequence for seq2seq-lm (default: as block)"
    )
    image_size: Size | None = Field(
        None, description="pixels along each side of an image (default: the model's own)"
    )
    lora_rank: Annotated[Size, Field(le=2**16)] | None = Field(
        None, description="train LoRA adapters of this rank instead of the weights, as PEFT does"
    )
    lora_targets: LoraTargets = Field(
        ALL_LINEAR, description="modules that get an adapter: all-linear, or names"
    )
    lora_dropout: Probability = Field(
        0.0, description="dropout probability of the adapters' inputs"
    )
    freeze: ModuleNames = Field(
        (), description="modules or parameters that are not trained, by name: transformer.wte"
    )
    quant: Quant | None = Field(
        None,
        description="linear layers' weights in 4 bit by bitsandbytes (QLoRA: with --lora-rank)",
    )
    double_quant: bool = Field(
        default=True, description="quantise the 4-bit blocks' scales too, as QLoRA does"
    )
    rows: Rows = Field(
        "full",
        description="what a batch's rows hold: one sequence that fills the block, or one with"
        " padding and the tokenizer's mask",
    )
    attention_mask: AttentionMask | None = Field(
        None,
        description="the mask that the model is called with (default: none for full rows;"
        " ones: a tokenizer's, of full rows)",
    )
    causal_mask: CausalMask | None = Field(
        None,
        description="whether transformers materialises the causal mask for sdpa, which it decides"
        " from values read back (default: what a real card answers for these rows)",
    )
    expandable_segments: bool = Field(
        default=False,
        description="PyTorch runs with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (Linux)",
    )
    torch: Version = Field(
        default_factory=partial(default_version, "torch"),
        validate_default=True,
        description="version of PyTorch whose rules are followed; a build that is not PyPI's names"
        " its CUDA: 2.11+cu128",
    )
    transformers: Version = Field(
        default_factory=partial(default_version, "transformers"),
        validate_default=True,
        description="version of transformers whose modelling code is followed",
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
        """Return the job of `values`, taking what they leave open from `defaults` (a card's)."""
        try:
            given = canonical(values, cls.aliases)
        except ValueError:
            given = dict(values)  # parse says what is wrong with them
        return cls.parse({**canonical(defaults, cls.aliases), **given}, where=where)

    @model_validator(mode="before")
    @classmethod
    def _mask_of_rows(cls, values: Any) -> Any:
        """Let a mask with padding say what the rows are, where nothing else does."""
        if isinstance(values, dict) and values.get("attention_mask") == "padding":
            return {"rows": "padded", **values}
        return values

    def problems(self) -> Iterable[str]:
        """Yield what there is not."""
        if self.rows == "padded" and self.attention_mask in {"none", "ones"}:
            yield f"attention_mask is {self.attention_mask!r}; rows with padding need their own"
        if self.rows == "padded" and self.causal_mask == "skipped":
            yield "causal_mask is 'skipped', which rows with padding cannot go without"
        if self.rows == "full" and self.attention_mask == "padding":
            yield "attention_mask is 'padding', which full rows have none of; say --rows padded"
        if self.optimizer == "adafactor" and self.optimizer_impl == "fused":
            yield "optimizer_impl is 'fused', which torch.optim.Adafactor does not have"
        if self.optimizer in BITSANDBYTES and self.optimizer_impl is not None:
            yield f"optimizer_impl is {self.optimizer_impl!r}; bitsandbytes has one implementation"
        if self.optimizer == "muon":
            yield from self._problems_of_muon()
        if self.quant is not None and self.mode == "train" and self.lora_rank is None:
            yield f"quant is {self.quant!r}: 4-bit weights do not train; give adapters a lora_rank"
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
            block = config.default_block  # an image's patches are as many as they are
        if block is None:
            raise VramBudgetError("the model names no limit of its own", hint="say --block")
        if config.learned_positions is not None and block > config.learned_positions:
            raise VramBudgetError(
                f"block is {block}; the model has positions for {config.learned_positions} tokens",
                hint=f"take --block {config.learned_positions} or less",
            )
        target_len = self.target_len
        if task == "seq2seq-lm" and target_len is None:
            target_len = block
        return {"block": block, "target_len": target_len}

    @property
    def autocast_dtype(self) -> Literal["bf16", "fp16"] | None:
        """The dtype that autocast takes, or None without autocast."""
        return {"amp-bf16": "bf16", "amp-fp16": "fp16"}.get(self.precision)  # type: ignore[return-value]

    @property
    def weight_dtype(self) -> Literal["fp32", "bf16", "fp16"]:
        """The dtype of the weights; those that a quantised job loads are in its 16-bit type."""
        if self.quant is not None and self.autocast_dtype is not None:
            return self.autocast_dtype
        return "fp32" if self.autocast_dtype else self.precision  # type: ignore[return-value]
