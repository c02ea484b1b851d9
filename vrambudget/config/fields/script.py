"""How the loop is written: what happens to gradients and outputs, and the model's mode."""

from typing import Literal

from vrambudget.config.settings import Field, Probability, Settings

ZeroGrad = Literal["none", "zeros", "late"]
ModelMode = Literal["train", "eval"]
ForwardReturns = Literal["outputs", "loss"]
KeepLosses = Literal["none", "list", "graphs"]


class Script(Settings, heading="how the loop is written"):
    """What scripts of one kind of loop differ in."""

    label_smoothing: Probability = Field(
        0.0,
        description="label smoothing of the loss: Trainer's label_smoothing_factor; in loop plain,"
        " that of torch's cross_entropy on the logits",
    )
    zero_grad: ZeroGrad = Field(
        "none",
        description="gradients after a step: set to none; kept and zeroed (set_to_none=False);"
        " or set to none late, between forward and backward",
    )
    forward_returns: ForwardReturns = Field(
        "outputs",
        description="what the loop gets of a forward pass: the model's outputs, or, from a function"
        " that returns it, the loss alone",
    )
    keep_outputs: bool = Field(
        default=True,
        description="the loop's variables hold the last outputs while the next forward runs",
    )
    drop_before_step: bool = Field(
        default=False,
        description="the loop drops output and loss between backward and step: `del outputs, loss`",
    )
    shared_labels: bool = Field(
        default=False,
        description="the labels are the input_ids themselves, and no copy: `model(x, labels=x)`",
    )
    empty_cache: bool = Field(
        default=False,
        description="torch.cuda.empty_cache() before every step; in Trainer, when training begins",
    )
    keep_losses: KeepLosses = Field(
        "none",
        description="what the loop keeps of every loss: nothing; the loss itself, in a list; or its"
        " graph with it (backward(retain_graph=True)), which is a leak",
    )
    model_mode: ModelMode = Field(
        "train",
        description="the mode that the model trains in: eval has no dropout and no checkpointing",
    )
