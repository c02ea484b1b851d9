"""A model's configuration: the base class of every family's, and how a `config.json` becomes one.

A family declares its fields with transformers' defaults, so that `{"model_type": "gpt2"}` is
complete, other spellings of their names, and the rules between them:

    class GPT2Config(ModelConfig):
        model_type: Literal["gpt2"] = "gpt2"
        vocab_size: Size = 50257
        max_position_embeddings: Size = 1024
        hidden_size: Size = 768
        num_attention_heads: Size = 12
        resid_pdrop: Probability = 0.1

        aliases = {"n_embd": "hidden_size", "n_head": "num_attention_heads", ...}
        ignored_keys = frozenset({"summary_type"})

        def problems(self):
            yield from divides(self, "num_attention_heads", into="hidden_size")

A key of the file is one of four things: known; ignored, because it does not affect memory; almost a
known one, which is an error, because a slip would silently mean the default; or none of these, and
then listed in `unknown_keys` for the report.

Not modelled: models that hold other models (`text_config`, `vision_config`).
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self

from vrambudget.auto_classes import DROPOUT_FIELDS
from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.said_by_config import ATTENTION_KEYS, MODELLED_ATTENTION
from vrambudget.config.settings import Field, Settings, Size, show
from vrambudget.errors import NotModelledError, VramBudgetError, did_you_mean

IGNORED_KEYS = frozenset(
    {
        # who made the file, with what, for which class
        *("_name_or_path", "_commit_hash", "architectures", "auto_map", "transformers_version"),
        *("tokenizer_class", "finetuning_task", "is_encoder_decoder"),
        # a job decides these
        *("dtype", "torch_dtype", "use_cache", "_attn_implementation_autoset"),
        *("gradient_checkpointing", "experts_implementation"),
        # the values of numbers, not how many there are
        *("initializer_range", "initializer_factor", "init_std", "layer_norm_eps"),
        *("layer_norm_epsilon", "rms_norm_eps"),
        # tokens, and the labels whose number is num_labels
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id"),
        *("mask_token_id", "unk_token_id", "decoder_start_token_id", "forced_bos_token_id"),
        *("forced_eos_token_id", "prefix", "id2label", "label2id", "task_specific_params"),
        "pretraining_tp",
        # what forward returns: the loop asks for loss and logits
        *("output_past", "return_dict", "torchscript", "use_bfloat16"),
        # generation
        *("max_length", "min_length", "do_sample", "early_stopping", "num_beams"),
        *("num_beam_groups", "temperature", "top_k", "top_p", "typical_p", "diversity_penalty"),
        *("repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
        *("encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences"),
        *("remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens"),
        *("begin_suppress_tokens", "output_scores"),
    }
)
"""Keys of Hugging Face's files that do not affect memory in the job's loop."""

HARMLESS_VALUES: Mapping[str, object] = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "is_decoder": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "pruned_heads": {},
    "quantization_config": None,
    "reorder_and_upcast_attn": False,
    "tie_encoder_decoder": False,
}
"""Keys that affect memory unless they have this value, which files usually state."""

_DEPTHS = ("num_hidden_layers", "num_decoder_layers")
_USUAL_BLOCK = 4096
_MOST_LAYERS = 2**11  # followed in seconds; the deepest that was published has 1,000
_NEAR = 0.85  # difflib's ratio: one slip in a word of seven letters


class ModelConfig(Settings):
    """What decides a model's tensors. A family's class declares its `model_type` and its sizes."""

    model_type: str
    num_labels: Size = Field(2, description="classes of a classification head")
    pad_token_id: int | None = Field(None, description="the token that fills rows up")
    unknown_keys: tuple[str, ...] = Field((), description="keys of the file without a rule")

    ignored_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of this family's files that do not affect memory, besides `IGNORED_KEYS`."""

    tasks: ClassVar[tuple[Task, ...]] = ("causal-lm",)
    """The tasks that the family has heads for; the first is the default."""

    reads_channels_last: ClassVar[bool] = False
    reads_attention_mask: ClassVar[bool] = True
    """Whether its forward takes a tokenizer's attention mask."""

    @property
    def reads_position_ids(self) -> bool:
        """Whether it takes positions [B, T]."""
        return self.keeps_cache

    sees_packed_rows: ClassVar[bool] = True
    """Whether it sees by positions where packed sequences begin, and builds a mask for them."""

    loads_in_4bit: ClassVar[bool] = True
    """Whether its causal language model is modelled with bitsandbytes' 4-bit weights."""

    attentions: ClassVar[tuple[str, ...]] = ("sdpa", "eager")
    """The ways of attending that its code has. Where the default is none of them a job gets the
    first, as `from_config` chooses where nobody asks; any other is refused."""

    checkpointing: ClassVar[tuple[str, ...]] = ("none", "full")
    """The ways of checkpointing that its code has."""

    checked_with: ClassVar[tuple[str, ...]]
    """Versions of transformers whose code is followed, the oldest first; () where it is no code of
    transformers. Each family says so itself, and kept records of each version back it."""

    special_tokens: ClassVar[int] = 2
    """Tokens that `generate` puts on the device: pad, and of those that the model's configuration
    names, if a file does not, the first one (bos_token_id) and that of a decoder."""

    forces_last_token: ClassVar[bool] = False
    """Whether `generate` ends with a token that its configuration names (forced_eos_token_id)."""

    depths: ClassVar[tuple[int | None, int | None]] = None, None
    """Layers of an encoder-decoder's decoder, and of a cache that is made like the encoder."""

    has_experts: ClassVar[bool] = False
    """Whether its layers are mixtures of experts."""

    @property
    def default_block(self) -> int | None:
        """Tokens per sequence if a job names none: the model's own limit, at most 4,096.

        Models of 131,072 positions are fine-tuned on far shorter sequences.
        """
        limit: int | None = getattr(self, "max_position_embeddings", None)
        return limit and min(limit, _USUAL_BLOCK)

    @property
    def learned_positions(self) -> int | None:
        """The longest sequence that the model has positions for; None if they are computed."""
        return None

    @property
    def job_defaults(self) -> Mapping[str, Any]:
        """What a job is that does not say otherwise."""
        return {}

    def own_inputs(self, job: Job) -> Mapping[str, Any] | None:  # noqa: ARG002 - a family's has none
        """Return the tensors that the model is called with, None for those of the job's task."""
        return None

    def not_modelled(self) -> Iterable[str]:
        """Yield what of the model's own operations has no rule, once it was simulated."""
        return ()

    def notes(self) -> Iterable[str]:
        """Yield how the model is estimated, where it is not by a family's own code."""
        return ()

    def named_errors(self) -> AbstractContextManager[None]:
        """Return what it is simulated in: an error of a program is that of its file."""
        return nullcontext()

    def build(self, task: Task) -> Any:
        """Return the model with the head for `task` (one of `tasks`), its weights allocated."""
        raise NotImplementedError

    def body(self) -> Any:
        """Return the model without a head, its weights allocated; None where it is not modelled."""
        return None

    @property
    def keeps_cache(self) -> bool:
        """Whether it is a decoder that keeps keys and values in training, too (use_cache)."""
        return "causal-lm" in self.tasks and self.new_cache() is not None

    @property
    def caches_by_itself(self) -> bool:
        """Whether a language model inside keeps keys and values, whatever the job says.

        `model.config.use_cache = False` does not reach the configuration of a model inside another.
        """
        return False

    def new_cache(self) -> Any:
        """Return an empty cache of keys and values; None for a model that keeps none."""
        return None

    def for_job(self, job: Job) -> Self:
        """Return the configuration as `job` trains it: with its dropout everywhere.

        Raises NotModelledError for checkpointing that only some families have.
        """
        if job.checkpointing not in self.checkpointing:
            raise NotModelledError(
                f"checkpointing {job.checkpointing} is not modelled for {self.model_type}",
                hint=f"it has {', '.join(self.checkpointing)}",
            )
        if job.dropout is None:
            return self
        update = {k: job.dropout for k in DROPOUT_FIELDS if k in type(self).model_fields}
        return self.model_copy(update=update)

    @classmethod
    def parse(cls, values: Mapping[str, object], *, where: str | None = None) -> Self:
        """Return the configuration of a file's keys. Raises VramBudgetError for every mistake."""
        known = cls.known_keys() - {"unknown_keys"}
        others = cls.others(values, known)
        slips = slips_of(others, known)
        used = {k: v for k, v in values.items() if k in known | slips}
        for key, value in used.items():
            is_depth = cls.aliases.get(key, key) in _DEPTHS
            if is_depth and isinstance(value, int) and value > _MOST_LAYERS:
                message = (
                    f"{key} is {show(value)}; more than {_MOST_LAYERS:,} are too many to trace"
                )
                raise VramBudgetError(message, where=where)
        if "num_labels" not in values and isinstance(labels := values.get("id2label"), dict):
            used["num_labels"] = len(labels)
        return super().parse({**used, "unknown_keys": tuple(sorted(others - slips))}, where=where)

    @classmethod
    def others(cls, values: Mapping[str, object], known: Collection[str]) -> set[str]:
        """Return the keys of a file that are not known, and may decide something."""
        return {k for k in values if k not in known and not cls._decides_nothing(k, values[k])}

    @classmethod
    def _decides_nothing(cls, key: str, value: object) -> bool:
        if key in ATTENTION_KEYS:
            return value is None or value in MODELLED_ATTENTION
        if key == "problem_type":  # of a classifier: its loss
            return value in {None, "single_label_classification"}
        ignored = key in IGNORED_KEYS or key in cls.ignored_keys
        return ignored or (key in HARMLESS_VALUES and value == HARMLESS_VALUES[key])


def slips_of(keys: Iterable[str], known: Iterable[str]) -> set[str]:
    """Return the keys that are almost known ones."""
    from difflib import get_close_matches  # noqa: PLC0415 - most files have none to look at

    names = list(known)
    return {key for key in keys if get_close_matches(key, names, n=1, cutoff=_NEAR)}


def divides(config: ModelConfig, divisor: str, *, into: str) -> Iterator[str]:
    """Yield a sentence if the field `divisor` does not divide the field `into`."""
    part, whole = getattr(config, divisor), getattr(config, into)
    if whole % part:
        yield f"{divisor} is {part}, which does not divide {into} = {whole}"


def load_config(
    values: Mapping[str, object], family: Callable[[str], type[ModelConfig]], *, where: str
) -> ModelConfig:
    """Return the configuration of a file's keys; `family` gives a model_type's own class."""
    model_type = values.get("model_type")
    if model_type is None:
        raise VramBudgetError(
            "model_type is missing",
            where=where,
            hint='it names the architecture, for example "model_type": "gpt2"',
        )
    if not isinstance(model_type, str):
        raise VramBudgetError(f"model_type is {show(model_type)}; it should be text", where=where)
    try:
        config_class = family(model_type)
    except NotModelledError as error:
        error.where = where
        raise
    own = config_class.model_fields["model_type"].default  # one that is read as another's
    return config_class.parse({**values, "model_type": own}, where=where)


def _are_kin(name: str, other: str) -> bool:
    """Return whether these are models of one series, gemma2 and gemma3: neither a slip."""
    short, long = sorted((name, other), key=len)
    bare = [re.sub(r"\d", "", word) for word in (short, long)]
    return long.startswith(short) or bare[0] == bare[1]


def unknown_model_type(model_type: str, known: Iterable[str]) -> NotModelledError:
    """Return the error for an architecture without rules, with the nearest ones and all others."""
    names = sorted(known)
    near = did_you_mean(model_type, (name for name in names if not _are_kin(name, model_type)))
    there_is = f"modelled are {', '.join(names)}"
    return NotModelledError(
        f"model_type {show(model_type)} is not modelled",
        hint=f"{near} {there_is}" if near else there_is,
    )
