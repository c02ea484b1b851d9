"""The suites of `vrambudget measure --suite`: jobs that are sized for the GPU that they run on.

    quick   about 25: families, precisions, optimizers, LoRA, checkpointing, evaluation,
            generation, loops, and one that is too large
    full    those, and every family with every method

A row is a job without its size. Of its sizes, from the largest, it takes the first whose estimate
leaves a tenth of the GPU; a row that no size of fits is left out. "amp" and "half" are bfloat16
where the GPU has it, and float16 where it does not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vrambudget.config.gpus import Gpu
from vrambudget.config.versions import CHECKED, plain_version
from vrambudget.estimator import estimate_scenario
from vrambudget.measure.record import record_of
from vrambudget.scenario import Scenario, resolve

SuiteName = Literal["quick", "full"]
Fields = Mapping[str, Any]

_HAS_BF16 = (8, 0)  # compute capability
_LEFT = 0.9
_TOO_LARGE = 1.1
_DOUBLINGS = 16
_MODERATE, _SHORT = 512, 128  # tokens


@dataclass(frozen=True, slots=True)
class Row:
    """A job without its size; `needs`: packages besides PyTorch and transformers."""

    name: str
    models: tuple[str, ...]  # from the largest
    fields: Fields
    batches: tuple[int, ...] = (16, 4, 1)  # from the largest
    needs: tuple[str, ...] = ()
    is_too_large: bool = False  # the smallest power of two that is

    @property
    def id(self) -> str:
        """What it is called where no size of it is measured."""
        return f"{self.name} {self.models[0]}"


_LORA: Fields = {"lora_rank": 16, "checkpointing": "full"}
_QLORA: Fields = {**_LORA, "quant": "nf4", "optimizer": "paged-adamw-8bit"}
_GENERATES: Fields = {"mode": "generate", "precision": "half", "new": 64}
_WITH_PEFT, _WITH_4BIT = ("peft",), ("peft", "bitsandbytes")


def _row(name: str, models: str, *batches: int, needs: tuple[str, ...] = (), **fields: Any) -> Row:
    return Row(name, tuple(models.split()), fields, batches or (16, 4, 1), needs)


QUICK: tuple[Row, ...] = (
    _row("amp", "gpt2", 16, 8, 4, 1, precision="amp", block=1024),
    _row("amp, clipped", "nanogpt", 12, 4, 1, precision="amp", block=1024),
    _row("fp32, momentum", "gpt2-medium gpt2", 8, 4, 1, precision="fp32", optimizer="sgd-momentum"),
    _row("padded rows", "bert-base-uncased", 64, 16, 4, precision="amp", rows="padded"),
    _row(
        "classes, one by one",
        "roberta-base",
        32,
        8,
        2,
        task="seq-cls",
        precision="amp",
        optimizer_impl="for-loop",
    ),
    _row("half", "distilbert-base-uncased", 64, 16, 4, precision="half", optimizer="sgd"),
    _row("adafactor", "t5-base", 16, 4, 1, precision="amp", optimizer="adafactor"),
    _row("images", "vit-base-patch16-224", 64, 16, 4, precision="amp"),
    _row("eager", "opt-350m opt-125m", 8, 4, 1, precision="amp", attention="eager", block=1024),
    _row(
        "accumulated", "pythia-410m pythia-70m", 4, 2, 1, precision="amp", grad_accum=4, block=1024
    ),
    _row(
        "checkpointed",
        "qwen2.5-0.5b smollm2-135m",
        8,
        4,
        1,
        precision="half",
        checkpointing="full",
        block=1024,
    ),
    _row(
        "late zeros",
        "smollm2-360m smollm2-135m",
        8,
        4,
        1,
        precision="amp",
        zero_grad="late",
        block=1024,
    ),
    _row(
        "lion in 8 bits",
        "qwen3-0.6b",
        4,
        1,
        needs=("bitsandbytes",),
        precision="amp",
        optimizer="lion-8bit",
        block=512,
    ),
    _row("muon", "olmo-2-1b", 2, 1, precision="half", optimizer="muon", block=512),
    _row(
        "LoRA",
        "llama-3.2-1b smollm2-360m",
        8,
        4,
        1,
        needs=_WITH_PEFT,
        precision="half",
        block=1024,
        **_LORA,
    ),
    _row(
        "LoRA",
        "gemma-2-2b qwen2.5-0.5b",
        4,
        2,
        1,
        needs=_WITH_PEFT,
        precision="half",
        block=512,
        **_LORA,
    ),
    _row(
        "QLoRA", "qwen2.5-1.5b", 4, 2, 1, needs=_WITH_4BIT, precision="half", block=1024, **_QLORA
    ),
    _row(
        "evaluation", "phi-3-mini-4k smollm2-1.7b", 4, 1, precision="half", mode="eval", block=1024
    ),
    _row(
        "trains, evaluates",
        "distilgpt2",
        16,
        4,
        1,
        precision="amp",
        eval_batches=3,
        eval_gather=True,
        block=512,
    ),
    _row(
        "embeddings",
        "bert-large-uncased",
        64,
        16,
        mode="forward",
        task="embed",
        pool="mean",
        precision="half",
    ),
    _row("generation", "gpt2-large", 16, 4, sample=True, prompt=512, **_GENERATES),
    _row("beams", "llama-3.2-1b", 4, 1, num_beams=4, prompt=512, **_GENERATES),
    _row("generation", "mistral-7b-v0.1 gemma-2b tinyllama-1.1b", 4, 1, prompt=1024, **_GENERATES),
    _row(
        "Trainer",
        "gpt2",
        16,
        4,
        1,
        needs=("accelerate",),
        loop="trainer",
        precision="amp",
        block=512,
    ),
    _row(
        "accelerate",
        "tinyllama-1.1b smollm2-135m",
        2,
        1,
        needs=("accelerate",),
        loop="accelerate",
        precision="amp",
        optimizer="sgd",
        grad_accum=2,
        block=512,
    ),
    Row("too large", ("gpt2",), {"precision": "fp32", "block": 1024}, is_too_large=True),
)
"""About 25 jobs; the last has to run out of memory."""

_METHODS: tuple[tuple[str, Fields, tuple[str, ...]], ...] = (
    ("amp", {"precision": "amp"}, ()),
    ("fp32, sgd", {"precision": "fp32", "optimizer": "sgd"}, ()),
    (
        "half, adafactor",
        {"precision": "half", "optimizer": "adafactor", "checkpointing": "full"},
        (),
    ),
    ("fused, clipped", {"precision": "amp", "optimizer_impl": "fused", "clip": 1.0}, ()),
    ("accumulated", {"precision": "amp", "grad_accum": 4, "forward_returns": "loss"}, ()),
    ("evaluation", {"precision": "half", "mode": "eval"}, ()),
    ("8 bits", {"precision": "half", "optimizer": "adamw-8bit"}, ("bitsandbytes",)),
    ("LoRA", {"precision": "half", **_LORA}, _WITH_PEFT),
    ("QLoRA", {"precision": "half", **_QLORA}, _WITH_4BIT),
    ("Trainer", {"precision": "amp", "loop": "trainer"}, ("accelerate",)),
    ("generation", {**_GENERATES, "prompt": 512}, ()),
)
_MODELS = (
    *("gpt2", "gpt2-large", "nanogpt", "pythia-410m", "opt-1.3b", "qwen2.5-0.5b", "qwen3-0.6b"),
    *("llama-3.2-1b", "gemma-2-2b", "gemma-2b", "phi-3-mini-4k", "olmo-2-1b", "mistral-7b-v0.1"),
    *("bert-base-uncased", "roberta-large", "distilbert-base-uncased", "t5-base"),
    "vit-base-patch16-224",
)


def rows_of(suite: SuiteName) -> Iterator[Row]:
    """Yield a suite's rows; rows that no model of a kind has are left out when they are sized."""
    yield from QUICK
    if suite == "full":
        for model in _MODELS:
            for name, fields, needs in _METHODS:
                yield _row(f"full: {name}", model, 16, 4, 1, needs=needs, **_short(fields))


def _short(fields: Fields) -> Fields:
    """Return a training's or an evaluation's fields with rows of moderate length."""
    return fields if fields.get("mode") == "generate" else {"block": _MODERATE, **fields}


def sized(row: Row, gpu: Gpu, versions: Mapping[str, str]) -> dict[str, Any] | None:
    """Return a row's job as a record has it, None where no size of it fits the GPU.

    Raises VramBudgetError for a row that its model does not have.
    """
    for size in _sizes(row):
        scenario = _scenario(row, size, gpu, versions)
        taken = estimate_scenario(scenario).peak.reserved_bytes + gpu.context_bytes
        share = taken / gpu.capacity_bytes
        if share > _TOO_LARGE if row.is_too_large else share <= _LEFT:
            job = record_of(scenario)
            return {
                **job,
                "id": f"{row.name} {scenario.model} b{scenario.job.batch} t{scenario.job.block}",
            }
    return None


def _sizes(row: Row) -> Iterator[Fields]:
    """Yield sizes from the largest, the last with short rows; too large ones from the smallest."""
    if row.is_too_large:
        yield from ({"model": row.models[0], "batch": 2**n} for n in range(_DOUBLINGS))
        return
    for model in row.models:
        yield from ({"model": model, "batch": batch} for batch in row.batches)
        if "block" in row.fields:
            yield {"model": model, "batch": row.batches[-1], "block": _SHORT}


def _scenario(row: Row, size: Fields, gpu: Gpu, versions: Mapping[str, str]) -> Scenario:
    narrow = "bf16" if gpu.compute_capability >= _HAS_BF16 else "fp16"
    words = {"half": narrow, "amp": f"amp-{narrow}"}
    fields = {
        key: words.get(value, value) if key == "precision" else value
        for key, value in row.fields.items()
    }
    own = {name: version for name in CHECKED if (version := plain_version(versions.get(name, "")))}
    model, size = size["model"], {key: size[key] for key in size if key != "model"}
    return resolve(model, gpu=gpu, **{**own, **fields, **size})
