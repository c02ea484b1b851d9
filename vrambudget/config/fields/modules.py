"""How the model's own code runs: attention, experts, checkpointing, dropout."""

from typing import Literal

from vrambudget.config.settings import Field, Probability, Settings

Attention = Literal["sdpa", "eager"]
ExpertsImplementation = Literal["grouped_mm", "eager"]
Routing = Literal["uniform", "collapsed", "worst"]
ROUTINGS = ("uniform", "collapsed")
"""How tokens can spread over experts, from one extreme to the other."""
Checkpointing = Literal["none", "full", "selective-2", "selective-op"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
Load = Literal["device-map", "to", "to-half"]


class ModuleFields(Settings, heading="model"):
    """How the modules run."""

    attention: Attention = Field("sdpa", description="attention implementation")
    experts: ExpertsImplementation = Field(
        "grouped_mm", description="how transformers runs a mixture of experts"
    )
    routing: Routing = Field(
        "uniform",
        description="how tokens spread over experts, if that decides memory (--experts eager):"
        " uniform, collapsed (all tokens to the same few), or the worse of both",
    )
    checkpointing: Checkpointing = Field(
        "none",
        description="full: keep only each layer's input, and run the layer again in backward;"
        " selective-2: every second layer; selective-op: keep attention's outputs and every second"
        " product's (torchtitan)",
    )
    use_cache: bool = Field(
        default=False,
        description="a decoder caches keys and values in training, too (default: as its"
        " configuration says, which is on unless it says no; Trainer and TRL turn it off)",
    )
    dropout: Probability | None = Field(
        None, description="dropout probability everywhere (default: the model's own)"
    )
    load: Load | None = Field(
        None,
        description="how weights come to the GPU: from_pretrained with device_map='cuda';"
        " .to('cuda'); .to('cuda').half() (default: made there, and what is cached is given back)",
    )
    compile: bool = Field(
        default=False,
        description="the model runs under torch.compile: PyTorch's own compiler traces it, which"
        " needs torch (pip install 'vrambudget[torch]')",
    )
    compile_mode: CompileMode = Field(
        "default",
        description="the mode of torch.compile: the default is modelled, the others run in"
        " `rehearse` and `measure` only",
    )
