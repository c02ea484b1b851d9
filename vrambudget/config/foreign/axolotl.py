"""axolotl's YAML."""

from typing import Any

from vrambudget.config.foreign.hugging_face import LIBRARIES
from vrambudget.config.foreign.tables import read_table

AXOLOTL = read_table("axolotl", LIBRARIES)
DEFAULTS: dict[str, Any] = {"batch": 1, "block": 512, "lora_dropout": 0.0}
