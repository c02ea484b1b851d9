"""Parameters that are not trained, by name: `requires_grad_(False)` on modules of a model.

A frozen weight keeps none of its layer's inputs; if nothing before a layer is trained, the layer
keeps nothing at all and its backward does not run. Under autocast its copy is made at every use.

With checkpointing, freezing the first layers saves nothing: the embeddings' output requires a
gradient all the same (not in transformers 4).

Source: transformers/modeling_utils.py (gradient_checkpointing_enable, enable_input_require_grads).
"""

from collections.abc import Iterable, Sequence

from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.versions import transformers_since
from vrambudget.errors import VramBudgetError, did_you_mean
from vrambudget.training.lora import make_inputs_require_grads


def freeze(model: Module, names: Sequence[str]) -> None:
    """Freeze the modules and parameters of these names. Raises VramBudgetError for unknown ones."""
    if not names:
        return
    parameters = model.named_parameters()
    for name in names:
        found = [p for own, p in parameters.items() if own == name or own.startswith(f"{name}.")]
        if not found:
            raise VramBudgetError(
                f"freeze names {name!r}, but the model has no such module or parameter",
                hint=did_you_mean(name, _prefixes(parameters)),
            )
        for p in found:
            p.requires_grad = False
    if not any(p.requires_grad for p in parameters.values()):
        raise VramBudgetError("freeze leaves nothing to train", hint="to evaluate, use --mode eval")
    if context.options.checkpointing and transformers_since(5, 0):
        make_inputs_require_grads(model)


def shortest(frozen: Iterable[str], trained: Iterable[str]) -> tuple[str, ...]:
    """Return the fewest names that freeze all of `frozen` and none of `trained`."""
    kept = set(_prefixes(trained))
    found: dict[str, None] = {}
    for name in frozen:
        found[next(prefix for prefix in _above(name) if prefix not in kept)] = None
    return tuple(found)


def _prefixes(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(prefix for name in names for prefix in _above(name)))


def _above(name: str) -> list[str]:
    """Return the modules that contain a parameter, outermost first, and the parameter."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
