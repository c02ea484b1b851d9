"""A torch module on the tape, as the engine's loops run one of its own.

`Live` has a shadow of each module, with the parameters as the engine's: what visits a tree of the
engine's modules (paths on the tape, freezing, counting) finds the same names as torch's.
"""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch

from vrambudget.config.job import Job
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.errors import NotModelledError, TooLargeError
from vrambudget.models.parts.outputs import Outputs
from vrambudget.traced.mode import TracingMode
from vrambudget.traced.patches import running
from vrambudget.traced.shadows import as_parameter, shadow
from vrambudget.traced.tensor import REHEARSE, TracedTensor, traced_tensor
from vrambudget.training.freeze import freeze

T = TypeVar("T")
Loss = Callable[[Any, Any], Any]
"""From a module's outputs and its inputs (`as_given`) to the loss."""


class TorchModule(Module):
    """A module of torch, and what Trainer asks of it.

    Source: transformers/trainer.py (Trainer.__init__), trainer_utils.py (unwrap_peft_model), 5.17.
    """

    _module: Any

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether Trainer gives the module the number of labels, `num_items_in_batch`."""
        base = self._without_adapters()
        if hasattr(base, "accepts_loss_kwargs"):
            return bool(base.accepts_loss_kwargs)
        given = inspect.signature(type(base).forward).parameters.values()
        return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given)

    @property
    def is_named_for_causal_lm(self) -> bool:
        """Whether Trainer counts labels without the first."""
        return type(self._without_adapters()).__name__.endswith("ForCausalLM")

    def _without_adapters(self) -> Any:
        """Return the module that PEFT wrapped, or the module itself."""
        return getattr(self._module, "get_base_model", lambda: self._module)()


class Live(TorchModule):
    """A live module; `forward` runs its own code on traced tensors."""

    def __init__(
        self, module: torch.nn.Module, mode: TracingMode, values: Mapping[str, Any], loss: Loss
    ) -> None:
        self._module, self._mode, self._values, self._loss = module, mode, values, loss
        self._attach()

    def _attach(self) -> None:
        """Make the shadows of the module as it is now."""
        self._mode.shadows = shadow(self, self._module, self._parameter_of)
        head = getattr(self._module, "get_output_embeddings", lambda: None)()
        self._mode.head = id(head) if head is not None else 0

    def _parameter_of(self, weight: torch.Tensor) -> Parameter | None:
        """Return a traced parameter's tensor, from now on one that the engine knows as such."""
        traced = self._mode.traced_of(weight)
        if traced is None:
            return None
        traced.v = as_parameter(traced.v)
        return traced.v

    def adapt(self, job: Job) -> None:
        """Freeze parameters and let PEFT put its adapters in, as the job says."""
        freeze(self, job.freeze)
        if job.lora_rank is None:
            return
        from vrambudget.traced.adapters import with_lora  # noqa: PLC0415 - few jobs need PEFT

        with running(self._mode):
            self._module = with_lora(self._module, job)
        for name in [name for name, value in vars(self).items() if isinstance(value, Module)]:
            delattr(self, name)
        self._attach()

    def forward(self, **batch: Tensor) -> Any:
        """Call the module as a loop does; its outputs' tensors are the engine's."""
        if self._module.training != self.training:  # the loop changed the shadows' mode
            self._module.train(self.training)
        given = {name: traced_tensor(x, self._values.get(name)) for name, x in batch.items()}
        with running(self._mode), _same_draws():
            before = context.purpose
            outputs, loss = self._called(given)
            context.purpose = before
        del given
        tensors = tensors_in(outputs, TracedTensor)
        logits = next((x for x in tensors if x is not loss), loss)
        cached = tensors_in(getattr(outputs, "past_key_values", None), TracedTensor)
        own = {id(x) for x in (loss, logits, *cached)}
        others: tuple[object, ...] = tuple(x.v for x in tensors if id(x) not in own)
        others += ([x.v for x in cached],) if cached else ()
        if logits is None:
            raise NotModelledError(f"{type(self._module).__name__} returns no tensor")
        return Outputs((logits if loss is None else loss).v, logits.v, others)

    def _called(self, given: Mapping[str, TracedTensor]) -> tuple[Any, Any]:
        """Return outputs and loss. Raises NotModelledError where the code itself fails."""
        try:
            inputs = as_given(given)
            outputs = outputs_of(self._module, inputs)
            loss_of = self._loss if context.grad_enabled else loss_in
            return outputs, loss_of(outputs, inputs)
        except (NotModelledError, TooLargeError):
            raise
        except Exception as error:
            raise NotModelledError(
                f"{type(self._module).__name__} fails when it is called:"
                f" {type(error).__name__}: {error}",
                hint="inputs= are what it is called with; " + REHEARSE,
            ) from error


@contextlib.contextmanager
def _same_draws() -> Iterator[None]:
    """Let NumPy draw the same at each pass and in each estimate, as wav2vec 2.0 draws its masks."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        yield
        return
    state = numpy.random.get_state()
    numpy.random.seed(0)
    try:
        yield
    finally:
        numpy.random.set_state(state)


def as_given(batch: Mapping[str, T]) -> Mapping[str, T] | tuple[T, ...]:
    """Return a batch as `inputs=` had it: by name, or in order, where its names are numbers."""
    return tuple(batch.values()) if all(name.isdigit() for name in batch) else batch


def outputs_of(module: Callable[..., Any], inputs: Mapping[str, Any] | tuple[Any, ...]) -> Any:
    """Return what a module makes of its inputs, by name or in order."""
    return module(*inputs) if isinstance(inputs, tuple) else module(**inputs)


def tensors_in(value: Any, kind: type[T]) -> list[T]:
    """Return the tensors of a kind in a module's outputs, each once."""
    found: dict[int, T] = {}
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, kind):
            found.setdefault(id(item), item)
        elif isinstance(item, Mapping):
            stack += reversed([*item.values()])
        elif isinstance(item, list | tuple | set):
            stack += reversed([*item])
        elif hasattr(item, "__dict__"):
            stack += reversed([*vars(item).values()])
    return list(found.values())


def loss_in(outputs: Any, _inputs: Any = None) -> Any:
    """Return the loss among a module's outputs, None where there is none."""
    return outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)


def loss_of_outputs(outputs: Any, _inputs: Any) -> Any:
    """Return the loss that a model of transformers returns. Raises NotModelledError without one."""
    loss = loss_in(outputs)
    if loss is None:
        raise NotModelledError(
            "the module's outputs have no loss to train with",
            hint="pass loss=, a function of the outputs and the inputs; or mode='eval'",
        )
    return loss
