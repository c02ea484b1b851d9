"""Options of TRL's trainers: completions and references."""

from vrambudget.config.settings import Field, Settings, Size


class Trl(Settings, heading="TRL's trainers"):
    """What decides the memory of SFTTrainer and DPOTrainer."""

    completion_len: Size | None = Field(
        None,
        description="tokens of each row that sft and dpo train on, at its end: the completion"
        " (default: all but the first)",
    )
    precompute_ref_log_probs: bool = Field(
        default=False,
        description="dpo: compute the reference's log probabilities before training, which then"
        " needs no reference model",
    )
