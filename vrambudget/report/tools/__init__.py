"""A recipe in a tool's own words: `TOOLS["axolotl"].write(scenario, job, head)` is a file for it.

    trainer         a script with transformers' Trainer, PEFT and bitsandbytes
    trl             YAML for `trl sft --config`
    axolotl         YAML for `axolotl train`
    llamafactory    YAML for `llamafactory-cli train`

Each has a data set of its tool's documentation in it, which is to be replaced. `suits` says whether
the tool has words for a job. The tests read each file back, and hold its keys against the tool's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from vrambudget.config.fields.training import LoopName
from vrambudget.config.job import Job
from vrambudget.planning.recipes import Trained
from vrambudget.report.tools.files import (
    axolotl,
    llama_factory,
    suits_axolotl,
    suits_llama_factory,
    suits_trl,
    trl,
)
from vrambudget.report.tools.script import script, suits_trainer
from vrambudget.scenario import Scenario

ToolName = Literal["trainer", "trl", "axolotl", "llamafactory"]
_ADAPTERS: frozenset[Trained] = frozenset(("lora", "qlora"))


@dataclass(frozen=True, slots=True)
class Tool:
    """How a tool's recipes are looked for, and written.

    `autocast`: what it trains under autocast where the weights are in 16 bits. `loop`: whose loop
    it runs.
    """

    write: Callable[[Scenario, Job, str], str]
    suits: Callable[[Job], bool]
    autocast: frozenset[Trained] = frozenset()
    loop: LoopName = "trainer"


TOOLS: Mapping[ToolName, Tool] = {
    "trainer": Tool(script, suits_trainer),
    "trl": Tool(trl, suits_trl, loop="sft"),
    "axolotl": Tool(axolotl, suits_axolotl, _ADAPTERS | {"full"}),
    "llamafactory": Tool(llama_factory, suits_llama_factory, _ADAPTERS),
}
