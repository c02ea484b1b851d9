"""An optimizer of two parameter groups, as Trainer makes it: with weight decay, and without.

`step` takes the groups one after another: each makes its states, then updates. So the groups decide
in which order states lie in memory, and how large a foreach optimizer's temporaries get at once.

Source: transformers/trainer.py (create_optimizer, get_decay_parameter_names), trainer_pt_utils.py
(get_parameter_names), 5.17; torch/optim/adam.py (step).
"""

import re
from collections.abc import Callable, Sequence

from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter
from vrambudget.models.parts.layers import LayerNorm
from vrambudget.training.optimizer_base import Optimizer

_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


class ParamGroups(Optimizer):
    """One optimizer, stepped group by group."""

    def __init__(
        self,
        groups: Sequence[Sequence[Parameter]],
        make: Callable[[Sequence[Parameter]], Optimizer],
    ) -> None:
        self.groups = [make(group) for group in groups if group]
        super().__init__([p for group in groups for p in group], self.groups[0].implementation)

    def step(self) -> None:
        """Update all parameters that have a gradient."""
        for group in self.groups:
            group.step()


def decay_groups(model: Module) -> tuple[list[Parameter], list[Parameter]]:
    """Return the trained parameters that Trainer's weight decay applies to, and the others."""
    norms = tuple(name for name, module in model.named_modules() if isinstance(module, LayerNorm))
    groups: tuple[list[Parameter], list[Parameter]] = ([], [])
    for name, parameter in model.named_parameters().items():
        if parameter.requires_grad:
            without = _NO_DECAY.search(name.lower()) or name.startswith(norms or ("\0",))
            groups[1 if without else 0].append(parameter)
    return groups
