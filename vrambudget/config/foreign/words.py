"""The words of command lines: those of every tool whose options people know by heart.

A preset stands for several options; `--dtype` is nanoGPT's where the model is one of nanoGPT's,
and image sizes are ultralytics' where it is a YOLO.
How several GPUs share a job is said by --ranks and --parallel, and by files.
"""

from vrambudget.config.foreign.meanings import ModelName, MultiGpuOnly, OnlyRanks, Table
from vrambudget.config.foreign.tables import read_table


def words_of(model: str) -> Table:
    """Return what each word means beside this model."""
    tools = {"nanogpt": "nanogpt", "yolo": "ultralytics"}
    own = (read_table(tool) for name, tool in tools.items() if model.lower().startswith(name))
    table = {**read_table("presets"), **next(own, {})}
    return {
        name: OnlyRanks() if isinstance(meaning, MultiGpuOnly) else meaning
        for name, meaning in table.items()
        if not isinstance(meaning, ModelName)
    }
