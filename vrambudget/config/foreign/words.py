"""The words of command lines: those of every tool whose options people know by heart.

A preset stands for several options; `--dtype` is nanoGPT's where the model is one of nanoGPT's,
and image sizes are ultralytics' where it is a YOLO.
How several GPUs share a job is said by --ranks and --parallel, and by files.
"""

from vrambudget.config.foreign.axolotl import AXOLOTL
from vrambudget.config.foreign.hugging_face import LORA_RANK
from vrambudget.config.foreign.llama_factory import LLAMA_FACTORY
from vrambudget.config.foreign.meanings import (
    Meaning,
    Model,
    MultiGpuOnly,
    OnlyRanks,
    Same,
    Switch,
    Table,
    Uncounted,
)
from vrambudget.config.foreign.nanogpt import NANOGPT
from vrambudget.config.foreign.trl import TRL
from vrambudget.config.foreign.ultralytics import ULTRALYTICS

_EXPERTS = "expert parallelism (--parallel ep=8 is transformers')"

_PRESETS: dict[str, Meaning] = {
    "lora": Switch({}, {"lora_rank": LORA_RANK}),
    "qlora": Switch({}, {"quant": "nf4", "lora_rank": LORA_RANK, "precision": "amp-bf16"}),
    "max_seq_len": Same("block"),
    "block_size": Same("block"),
    "lora_alpha": TRL["lora_alpha"],
    "torch_compile": Switch({"compile": True}),
    "torch_compile_mode": Same("compile_mode"),
    "fsdp": Uncounted("FSDP (--parallel fsdp2)", flag=False),
    "deepspeed": Uncounted("DeepSpeed (--parallel zero3)", flag=False),
    "enable_expert_parallel": Uncounted(_EXPERTS),
    "expert_parallel_size": Uncounted(_EXPERTS, flag=False),
    "expert_model_parallel_size": Uncounted(_EXPERTS, flag=False),
}


def words_of(model: str) -> Table:
    """Return what each word means beside this model."""
    tools = {"nanogpt": NANOGPT, "yolo": ULTRALYTICS}
    own = next((table for name, table in tools.items() if model.lower().startswith(name)), {})
    table = {**LLAMA_FACTORY, **AXOLOTL, **NANOGPT, **TRL, **_PRESETS, **own}
    return {
        name: OnlyRanks() if isinstance(meaning, MultiGpuOnly) else meaning
        for name, meaning in table.items()
        if not isinstance(meaning, Model)
    }
