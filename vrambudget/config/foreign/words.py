"""The words of command lines: those of every tool whose options people know by heart.

A preset stands for several options; `--dtype` is nanoGPT's where the model is one of nanoGPT's,
and image sizes are ultralytics' where it is a YOLO.
How several GPUs share a job is said by --ranks and --parallel, and by files.
"""

from vrambudget.config.foreign.axolotl import AXOLOTL
from vrambudget.config.foreign.llama_factory import LLAMA_FACTORY
from vrambudget.config.foreign.meanings import Model, MultiGpuOnly, OnlyRanks, Table
from vrambudget.config.foreign.tables import read_table
from vrambudget.config.foreign.trl import TRL


def words_of(model: str) -> Table:
    """Return what each word means beside this model."""
    nanogpt = read_table("nanogpt")
    table = read_table("presets", {**LLAMA_FACTORY, **AXOLOTL, **nanogpt, **TRL})
    plain = model.lower()
    table |= nanogpt if plain.startswith("nanogpt") else {}
    table |= read_table("ultralytics") if plain.startswith("yolo") else {}
    return {
        name: OnlyRanks() if isinstance(meaning, MultiGpuOnly) else meaning
        for name, meaning in table.items()
        if not isinstance(meaning, Model)
    }
