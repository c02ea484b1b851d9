"""A recipe in a tool's own words: `TOOLS["axolotl"].write(scenario, job, head)` is a file for it.

    trainer         a script with transformers' Trainer, PEFT and bitsandbytes
    trl             YAML for `trl sft --config`
    axolotl         YAML for `axolotl train`
    llamafactory    YAML for `llamafactory-cli train`
    accelerate      YAML for `accelerate launch --config_file`: how GPUs share any script's work
    torchtitan      TOML for `python -m torchtitan.train`

Where a data set is named, it is that of the tool's documentation: replace it. `suits` says whether
the tool has words for a job. The tests read each file back, and parse it with the tool's own code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vrambudget.config.job import Job
from vrambudget.planning.recipes import Trained
from vrambudget.report.tools import distributed, files, script, titan, words
from vrambudget.scenario import Scenario

ToolName = Literal["trainer", "trl", "axolotl", "llamafactory", "accelerate", "torchtitan"]
_ADAPTERS: frozenset[Trained] = frozenset(("lora", "qlora"))
_TRAINER = {"loop": "trainer"}
_TITAN = {
    "forward_returns": "loss",
    "optimizer_impl": "fused",
    "clip": 1.0,
}


@dataclass(frozen=True, slots=True)
class Tool:
    """How a tool's recipes are looked for, written and started.

    `autocast`: what it trains under autocast where the weights are in 16 bits. `job`: its loop and
    what else it sets, `multi_gpu_job` on several GPUs. `launch`: the command that starts the file,
    on `each` GPUs of a machine.
    """

    write: Callable[[Scenario, Job, str], str]
    suits: Callable[[Job], bool]
    launch: str
    autocast: frozenset[Trained] = frozenset()
    job: Mapping[str, Any] = field(default_factory=lambda: _TRAINER)
    multi_gpu_job: Mapping[str, Any] = field(default_factory=lambda: _TRAINER)


TOOLS: Mapping[ToolName, Tool] = {
    "trainer": Tool(
        script.script, words.can_be_said, "torchrun --nproc-per-node {each} FILE DATASET"
    ),
    "trl": Tool(
        files.trl,
        files.suits_trl,
        "trl sft --config FILE --num_processes {each}",
        job={"loop": "sft"},
    ),
    "axolotl": Tool(
        files.axolotl,
        files.suits_axolotl,
        "axolotl train FILE --launcher accelerate -- --num_processes={each}",
        _ADAPTERS | {"full"},
    ),
    "llamafactory": Tool(
        files.llama_factory,
        files.suits_llama_factory,
        "FORCE_TORCHRUN=1 NPROC_PER_NODE={each} llamafactory-cli train FILE",
        _ADAPTERS,
    ),
    "accelerate": Tool(
        files.accelerate,
        distributed.mesh_can_be_written,
        "accelerate launch --config_file FILE train.py",
        job={"loop": "accelerate"},
        multi_gpu_job={"loop": "accelerate"},
    ),
    "torchtitan": Tool(
        titan.torchtitan,
        titan.suits_torchtitan,
        "torchrun --nproc-per-node {each} -m torchtitan.train --job.config_file FILE",
        job=_TITAN,
        multi_gpu_job=_TITAN,
    ),
}
