"""Whose loop a Trainer runs: its own, or one of TRL's, and what TRL's arguments change in it.

TRL's trainers that are modelled have loops of their own (`sft`, `dpo`): their heads make no logits.
Options that are not modelled are named.

Source: TRL 1.16, trainer/sft_config.py and dpo_config.py.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget.config.loops import TRL_LOOPS
from vrambudget.errors import NotModelledError

_LOOPS = {"SFTTrainer": "sft", "DPOTrainer": "dpo"}
_USUAL: Mapping[str, tuple[Any, ...]] = {
    "activation_offloading": (False,),
    "loss_type": ("nll", ["sigmoid"]),
    "label_smoothing_factor": (0.0,),
    "f_divergence_type": ("reverse_kl",),
    "ld_alpha": (None,),
    "use_weighting": (False,),
    "sync_ref_model": (False,),
}
"""Arguments that decide memory, with the values that are modelled."""


def loop_of(trainer: Any) -> str:
    """Return the loop of a Trainer. Raises NotModelledError for one of TRL's that has none."""
    kind = _kind_of_trl(trainer)
    if kind is None:
        return "trainer"
    if kind.__name__ not in _LOOPS:
        raise NotModelledError(f"TRL's {kind.__name__}, which has a loss of its own")
    return _LOOPS[kind.__name__]


def trl_fields(args: Any, loop: str) -> dict[str, Any]:
    """Return the fields that only a job in one of TRL's loops has.

    Raises NotModelledError for arguments that change what such a loop takes.
    """
    if loop not in TRL_LOOPS:
        return {}
    for name, usual in _USUAL.items():
        value = getattr(args, name, usual[0])
        if value not in usual:
            raise NotModelledError(f"TRL's {name} = {value!r}")
    precomputes = bool(getattr(args, "precompute_ref_log_probs", False))
    return {"precompute_ref_log_probs": True} if precomputes else {}


def overridden(trainer: Any) -> Iterator[str]:
    """Yield the methods that a script's own class of Trainer has instead of its library's."""
    library = _kind_of_trl(trainer) or getattr(sys.modules.get("transformers"), "Trainer", None)
    for method in ("compute_loss", "training_step"):
        own = getattr(type(trainer), method, None)
        if library is not None and own not in (None, getattr(library, method)):
            yield method


def _kind_of_trl(trainer: Any) -> type | None:
    """Return the class of TRL's that a Trainer is, or inherits from."""
    for kind in type(trainer).__mro__:
        if kind.__module__.partition(".")[0] == "trl":
            return kind
    return None
