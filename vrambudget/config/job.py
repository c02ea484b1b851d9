"""A job: what is run, on which batches, and how it is trained. Its fields are the CLI's options.

A job is one process on one GPU, or one for each of several ranks, that runs a loop as users write
it: zero the gradients, forward, loss, backward, clip, step; or, in mode "eval", forward and loss
under `no_grad`. The loop's variables hold the last outputs while the next forward runs, unless
`keep_outputs` is off.

The model (`ModelConfig`) and the GPU also decide memory; they are not part of a job.

Not modelled: data loaders that prefetch onto the GPU.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol, Self

from vrambudget.config.device_mesh import DEEPSPEED
from vrambudget.config.fields.adapters import Adapters
from vrambudget.config.fields.batches import OF_PIXELS, Batches, Task, lengths_of
from vrambudget.config.fields.evaluation import Evaluation
from vrambudget.config.fields.generation import USUAL_PROMPT, Generation
from vrambudget.config.fields.modules import ModuleFields
from vrambudget.config.fields.ranks import AUTO, Ranks
from vrambudget.config.fields.script import Script
from vrambudget.config.fields.software import Software
from vrambudget.config.fields.training import Training, WeightsDtype
from vrambudget.config.fields.trl import Trl
from vrambudget.config.loops import TRL_LOOPS, TRL_MAX_LENGTH, loop_defaults, problems_of_loop
from vrambudget.config.old_torch import problems_of_old_torch
from vrambudget.config.settings import LARGEST, TIP, Settings, canonical
from vrambudget.config.versions import as_numbers
from vrambudget.errors import NotModelledError, VramBudgetError

GROUPS: tuple[type[Settings], ...] = (
    Batches,
    Training,
    Script,
    Evaluation,
    Trl,
    ModuleFields,
    Adapters,
    Generation,
    Ranks,
    Software,
)
"""The groups of a job's fields, in the order in which people read them."""

STEPS_OF_LENGTHS = 32
"""Steps to simulate where lengths change from batch to batch."""

EVALUATED_BEFORE = 3
"""The step that an evaluation comes before."""

SAMPLES_PER_LETTER = 1000
"""Of a waveform of 16 kHz: sixteen letters a second, as English is spoken."""

_MUON_SINCE = (2, 9)


class Limits(Protocol):
    """What a job needs from a model's configuration to be resolved."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that the family has heads for; the first is the default."""

    @property
    def attentions(self) -> tuple[str, ...]:
        """The ways of attending that the model's code has."""

    @property
    def default_block(self) -> int | None:
        """Tokens per sequence if the job names none."""

    @property
    def learned_positions(self) -> int | None:
        """The longest sequence that has positions; None if positions are computed."""

    @property
    def sees_packed_rows(self) -> bool:
        """Whether it builds a mask for packed rows: it sees by positions where they begin."""


class Job(
    Software,
    Ranks,
    Generation,
    Adapters,
    ModuleFields,
    Trl,
    Evaluation,
    Script,
    Training,
    Batches,
    heading="job",
):
    """One training or evaluation job; every field is an option of the command line.

    Its fields stand in the order of GROUPS: `Settings` collects those of the last base first.
    """

    aliases: ClassVar[Mapping[str, str]] = {
        "batch_size": "batch",
        "seq_len": "block",
        "sequence_length": "block",
        "gradient_accumulation_steps": "grad_accum",
        "resolution": "image_size",
    }

    @classmethod
    def with_defaults(
        cls,
        values: Mapping[str, object],
        defaults: Mapping[str, object],
        *,
        where: str | None = None,
    ) -> Self:
        """Return the job of `values`; what they leave open comes from their loop's library.

        What that leaves open, too, comes from `defaults` (a model card).
        """
        try:
            given = canonical(values, cls.aliases)
        except ValueError:
            given = dict(values)  # parse reports what is wrong with them
        own = {**canonical(defaults, cls.aliases), **loop_defaults(given)}
        if "shortest" in given or lengths_of(given.get("block")):
            own["steps"] = STEPS_OF_LENGTHS
        usual = own.get("optimizer", "adamw")
        if given.get("optimizer", usual) != usual:
            own.pop("optimizer_impl", None)  # the default's optimizer was implemented so
        return cls.parse({**own, **given}, where=where)

    def problems(self) -> Iterable[str]:
        """Yield the combinations that do not exist: of each group, then between groups."""
        for group in GROUPS:
            yield from group.problems(self)
        if self.optimizer == "muon":
            yield from self._problems_of_muon()
        if self.quant is not None and self.mode == "train" and self.lora_rank is None:
            yield (
                f"quant is {self.quant!r}: such weights cannot be trained; set a lora_rank\n"
                f"{TIP}--lora-rank 16 trains adapters, --qlora those of 4-bit weights; to run the"
                " model: --mode generate"
            )
        if self.quant is not None and self.weights is not None:
            yield f"weights is {self.weights!r}, but quant says how weights are kept"
        if self.load is not None:
            yield from self._problems_of_loading()
        if self.compile_mode != "default" and not self.compile:
            yield f"compile_mode is {self.compile_mode!r}, which needs compile"
        if self.shortest is not None:
            yield from self._problems_of_changing_lengths()
        if self.use_cache and self.mode == "generate":
            yield "use_cache is for training and evaluation; generation has --cache"
        yield from self._problems_of_inference()
        yield from problems_of_loop(self)
        yield from problems_of_old_torch(self)
        yield from self._problems_of_gradients()
        if self.evaluates:
            yield from self._problems_of_evaluation()

    def _problems_of_changing_lengths(self) -> Iterable[str]:
        what = None
        if self.mode not in {"train", "eval"}:
            what = f"mode {self.mode!r}"
        elif self.task in OF_PIXELS:
            what = "images"
        elif self.compile:
            what = "compile, which compiles anew for other lengths; rehearse the script"
        elif self.parallel or (self.ranks or 1) > 1:
            what = "several ranks"
        elif self.routing == "worst":
            what = "routing 'worst'"
        elif self.eval_gather and self.task != "seq-cls":
            what = "eval_gather, whose logits would be padded"
        if what is not None:
            yield f"shortest is {self.shortest}: lengths that change are not modelled for {what}"

    def _problems_of_inference(self) -> Iterable[str]:
        if self.task == "embed" and self.mode not in {"forward", "train"}:
            yield f"task is 'embed': a model without a head has no {self.mode}; use mode forward"
        if self.mode == "forward" and self.loop in TRL_LOOPS:
            yield f"loop {self.loop!r} trains; mode is 'forward', a pass without a loss"
        if self.task == "embed" and self.mode == "train" and self.loop != "plain":
            yield f"task is 'embed', whose loss is a script's own; loop {self.loop!r} has none"
        if self.pool == "mean" and self.attention_mask == "none":
            yield "pool is 'mean', which reads the attention mask, and attention_mask is 'none'"
        if self.pool != "none" and (self.task != "embed" or self.with_grad):
            yield f"pool is {self.pool!r}, which needs task 'embed', and no with_grad"
        if self.with_grad and self.mode != "forward":
            yield f"with_grad is a forward pass's; mode is {self.mode!r}"

    def _problems_of_loading(self) -> Iterable[str]:
        for name in ("quant", "compile", "parallel"):
            if getattr(self, name):
                yield f"load is {self.load!r}, and {name} says how weights are loaded"
        if self.load == "to-half" and self.weight_dtype == "fp32":
            yield "load is 'to-half', and the weights are fp32"

    def _problems_of_gradients(self) -> Iterable[str]:
        if self.zero_grad != "none" and self.optimizer == "none":
            yield f"zero_grad is {self.zero_grad!r}, but without an optimizer nothing zeroes"
        if self.zero_grad == "late" and self.grad_accum > 1:
            yield "zero_grad is 'late', which would drop the gradients of earlier micro-batches"
        if (
            self.precision == "amp-fp16"
            and self.weights in {"bf16", "fp16"}
            and self.lora_rank is None  # PEFT keeps adapters in float32
        ):
            yield (
                f"weights is {self.weights!r}: under amp-fp16 GradScaler unscales float32"
                " gradients only; use amp-bf16, or fp32 weights"
            )

    def _problems_of_evaluation(self) -> Iterable[str]:
        if self.task == "qa":
            yield "eval_batches is not modelled for task 'qa', whose labels are two"
        elif self.mode != "train":
            yield f"eval_batches is for a training that evaluates; mode is {self.mode!r}"
        elif self.steps < EVALUATED_BEFORE:
            yield f"eval_batches needs {EVALUATED_BEFORE} steps: it evaluates after the second"

    def _problems_of_muon(self) -> Iterable[str]:
        if as_numbers(self.torch) < _MUON_SINCE:
            yield f"torch is {self.torch!r}; torch.optim.Muon came with 2.9"
        if self.precision == "amp-fp16":
            yield "muon under amp-fp16 is not modelled: two optimizers would share a GradScaler"

    def resolve(self, config: Limits) -> Self:
        """Return the job with task, block, masks and an attention that the model has set.

        Raises VramBudgetError for a block that is too long, NotModelledError for a task that the
        family has no head for.
        """
        task = self.task or config.tasks[0]
        if task not in config.tasks and task != "embed":
            raise NotModelledError(
                f"task {task!r} is not modelled for this architecture",
                hint=f"it has {', '.join(config.tasks)}",
            )
        padded = self.padding == "left" if self.mode == "generate" else self.rows == "padded"
        # TRL's collators always make a mask; a mean of hidden states divides by its sum.
        full = "ones" if self.loop in TRL_LOOPS or self.pool == "mean" else "none"
        mask, causal = ("padding", "built") if padded else (full, "skipped")
        if self.rows == "packed":  # a card reads that position_ids restart
            mask, causal = "none", "built" if config.sees_packed_rows else "skipped"
        masks = {
            "attention_mask": self.attention_mask or mask,
            "causal_mask": self.causal_mask or causal,
        }
        evaluated = {"eval_batch": self.eval_batch or self.batch} if self.evaluates else {}
        lengths = self._lengths(task, config)
        ways = config.attentions
        if self.attention not in {"sdpa", *ways}:
            raise NotModelledError(
                f"attention {self.attention!r} is not modelled for this architecture",
                hint=f"it has {', '.join(ways)}",
            )
        attends = {"attention": self.attention if self.attention in ways else ways[0]}
        given = {"task": task, **lengths, **masks, **evaluated, **attends, **self._auto(config)}
        if self.mesh.data in DEEPSPEED and self.loop != "plain":  # bf16=True is DeepSpeed's
            given["precision"] = self.precision.removeprefix("amp-")
        return self.model_copy(update=given)

    def _auto(self, config: Limits) -> dict[str, int]:
        """Return DeepSpeed's sizes that are "auto": they follow the hidden size."""
        hidden = getattr(config, "hidden_size", None)
        asked = {name for name in AUTO if getattr(self, name) == "auto"}
        if not asked:
            return {}
        if hidden is None:
            raise VramBudgetError(
                f"{min(asked)} is 'auto', and the model has no hidden_size",
                hint="say a number of elements",
            )
        return {name: AUTO[name](hidden) for name in asked}

    def _lengths(self, task: Task, config: Limits) -> dict[str, int | None]:
        if self.mode == "generate":
            return self._prompt(config.learned_positions)
        block = self.block
        if block is None or task in OF_PIXELS:
            block = config.default_block  # the image's size decides how many patches there are
            if block is not None and self.loop in TRL_LOOPS:
                block = min(block, TRL_MAX_LENGTH)
        if block is None:
            raise VramBudgetError("the model has no default sequence length", hint="add --block")
        if config.learned_positions is not None and block > config.learned_positions:
            raise VramBudgetError(
                f"block is {block}; the model has positions for {config.learned_positions} tokens",
                hint=f"use --block {config.learned_positions} or less",
            )
        target_len = self.target_len
        if target_len is None and block is not None:
            target_len = {"seq2seq-lm": block, "ctc": max(1, block // SAMPLES_PER_LETTER)}.get(task)
        return {"block": block, "target_len": target_len}

    def _prompt(self, positions: int | None) -> dict[str, int | None]:
        """Return the lengths of a generation: its block is the prompt and the new tokens."""
        longest = (positions or LARGEST) - self.new
        prompt = min(USUAL_PROMPT, max(1, longest)) if self.prompt is None else self.prompt
        if prompt > longest:
            raise VramBudgetError(
                f"prompt and new tokens together are {prompt + self.new}; the model has positions"
                f" for {positions} tokens",
                hint=f"use --prompt {longest} or less" if longest > 0 else "use a smaller --new",
            )
        return {"prompt": prompt, "block": prompt + self.new}

    @property
    def weight_dtype(self) -> WeightsDtype:
        """The dtype of the weights; a quantised job loads them in its 16-bit type."""
        if self.weights is not None:
            return self.weights
        if self.quant is not None and self.autocast_dtype is not None:
            return self.autocast_dtype
        return "fp32" if self.autocast_dtype else self.precision  # type: ignore[return-value]

    @property
    def prepares_kbit(self) -> bool:
        """Whether what is not quantised becomes float32 (prepare_model_for_kbit_training)."""
        is_whole = self.loop not in TRL_LOOPS and self.mesh.data not in {"fsdp1", "fsdp2"}
        return self.quant is not None and self.mode == "train" and is_whole
