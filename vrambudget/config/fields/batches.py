"""What goes through the model: how many sequences, how long, and what their rows hold."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from vrambudget.config.settings import Field, Settings, Size
from vrambudget.units import whole_number

Task = Literal[
    "causal-lm",
    "masked-lm",
    "seq-cls",
    "token-cls",
    "qa",
    "seq2seq-lm",
    "image-cls",
    "video-cls",
    "image-seg",
    "audio-cls",
    "ctc",
    "contrastive",
    "embed",
]
OF_PIXELS = ("image-cls", "video-cls", "image-seg")
"""The tasks whose models read images alone: their size decides how long a sequence is."""
TASK_OF_CLASS: Mapping[str, Task] = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForSequenceClassification": "seq-cls",
    "ForTokenClassification": "token-cls",
    "ForQuestionAnswering": "qa",
    "ForConditionalGeneration": "seq2seq-lm",
    "ForImageClassification": "image-cls",
    "ForVideoClassification": "video-cls",
    "ForSemanticSegmentation": "image-seg",
    "ForAudioClassification": "audio-cls",
    "ForCTC": "ctc",
    "CLIPModel": "contrastive",
    "SiglipModel": "contrastive",
    "MetaClip2Model": "contrastive",
    "AlignModel": "contrastive",
}
"""The task of a class of transformers, by what its name ends with."""

Rows = Literal["full", "padded", "packed"]
AttentionMask = Literal["none", "ones", "padding"]
CausalMask = Literal["built", "skipped"]


def lengths_of(block: Any) -> dict[str, int] | None:
    """Return what "128:1024" says as fields: the shortest batch and the longest; None for one."""
    shortest, _, longest = str(block).partition(":")
    if whole_number(shortest) is None or whole_number(longest) is None:
        return None
    return {"shortest": int(shortest), "block": int(longest)}


class Batches(Settings, heading="batches"):
    """What goes through the model in one forward pass."""

    batch: Size = Field(1, description="sequences per forward pass on this GPU")
    block: Size | None = Field(
        None,
        description="tokens per sequence (default: the model's own limit, at most 4096);"
        " 128:1024 for lengths that change from batch to batch",
    )
    shortest: Size | None = Field(
        None,
        description="tokens of the shortest batch: lengths are sampled between it and the block"
        " (default: all batches are as long as the block)",
    )
    draw: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="which draw of those lengths: a seed (default: of five, the one that reserves"
        " most)",
    )
    task: Task | None = Field(
        None,
        description="what the model is for, which decides its head (default: the family's own);"
        " embed: without a head, for --mode forward, or trained on the mean of its states' squares",
    )
    target_len: Size | None = Field(
        None, description="tokens per target sequence for seq2seq-lm (default: the block)"
    )
    image_size: Size | None = Field(
        None, description="pixels along each side of an image (default: the model's own)"
    )
    channels_last: bool = Field(
        default=False, description="weights and images are channels-last in memory"
    )
    rows: Rows = Field(
        "full",
        description="what the rows of a batch hold: one sequence that fills the block; one with"
        " padding and the tokenizer's mask; or several, packed, with position_ids that restart",
    )
    attention_mask: AttentionMask | None = Field(
        None,
        description="the mask that the model is called with (default: none for full rows;"
        " ones: a tokenizer's)",
    )
    causal_mask: CausalMask | None = Field(
        None,
        description="whether transformers builds the causal mask for sdpa, which it decides from"
        " values that it reads back (default: what a real GPU answers for these rows)",
    )

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take a block of two lengths for the shortest and the longest; rows as their mask says."""
        values = super().completed(values)
        if lengths := lengths_of(values.get("block")):
            values = {**values, **lengths}
        if values.get("attention_mask") == "padding":
            values = {"rows": "padded", **values}
        return values

    def problems(self) -> Iterable[str]:
        """Yield what rows and masks say against each other."""
        yield from self._problems_of_lengths()
        if self.rows == "padded" and self.attention_mask in {"none", "ones"}:
            yield f"attention_mask is {self.attention_mask!r}; rows with padding need their mask"
        if self.rows == "padded" and self.causal_mask == "skipped":
            yield "causal_mask is 'skipped', but rows with padding need the mask"
        if self.rows == "packed":
            yield from self._problems_of_packed()
        if self.rows == "full" and self.attention_mask == "padding":
            yield "attention_mask is 'padding', but full rows have none; use --rows padded"

    def _problems_of_lengths(self) -> Iterable[str]:
        if self.shortest is None:
            if self.draw is not None:
                yield f"draw is {self.draw}, but all batches have one length; say --block 128:1024"
        elif self.block is None:
            yield f"shortest is {self.shortest}, and no block says how long the longest batch is"
        elif self.shortest > self.block:
            yield f"shortest is {self.shortest}, which is more than the block, {self.block}"

    def _problems_of_packed(self) -> Iterable[str]:
        if self.attention_mask not in {None, "none"}:
            yield f"attention_mask is {self.attention_mask!r}; packed rows have none"
        if self.task not in {None, "causal-lm"}:
            yield f"task is {self.task!r}; packed rows are modelled for causal-lm"
