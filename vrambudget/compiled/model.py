"""A compiled module, as the engine's loops call it.

To the engine it is one operation: its forward makes what PyTorch's compiled code makes on the fake
GPU, keeps what autograd keeps, and its backward is PyTorch's own.
"""

import gc
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch

from vrambudget.compiled.config import REHEARSE
from vrambudget.compiled.dispatch import devices_for_cpp
from vrambudget.compiled.fake_storages import GpuMode
from vrambudget.compiled.findings import findings
from vrambudget.compiled.gpu import named
from vrambudget.compiled.inductor import without_kernels
from vrambudget.compiled.prepared import eagerly, prepare
from vrambudget.compiled.private import enable_python_dispatcher, graph_break_reasons
from vrambudget.compiled.python_ops import in_python
from vrambudget.config.job import Job
from vrambudget.engine.autograd import Node
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.outputs import Outputs
from vrambudget.tape.events import Purpose
from vrambudget.traced.live import Loss, TorchModule, as_given, loss_in, outputs_of, tensors_in
from vrambudget.traced.shadows import as_parameter, shadow
from vrambudget.traced.tensor import TORCH_DTYPE
from vrambudget.training.freeze import freeze

_LOG = logging.getLogger("vrambudget")


@contextmanager
def on_gpu(
    mode: GpuMode, functions: Mapping[Any, Callable[..., Any]] = MappingProxyType({})
) -> Iterator[None]:
    """Run PyTorch's code inside as on the job's GPU, compiled or not.

    `functions`: of aten's operations, those that run in Python besides those of python_ops.
    """
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about fake tensors
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)
        stack.enter_context(devices_for_cpp())
        stack.enter_context(named(context.platform))
        stack.enter_context(in_python(functions))
        stack.enter_context(mode)
        yield


@contextmanager
def _new_parameters() -> Iterator[None]:
    """Let `Module.to` give a module new parameters: fake tensors cannot be swapped.

    Source: torch/nn/modules/module.py (_apply).
    """

    def apply(module: Any, moved: Callable[[Any], Any], *, recurse: bool = True) -> Any:
        for child in module.children() if recurse else ():
            apply(child, moved)
        for name, weight in module._parameters.items():
            if weight is not None:
                made = torch.nn.Parameter(moved(weight.detach()), weight.requires_grad)
                module._parameters[name] = made
        for name, x in module._buffers.items():
            module._buffers[name] = None if x is None else moved(x)
        return module

    with patch.object(torch.nn.Module, "_apply", apply):
        yield


class Compiled(TorchModule):
    """A torch module on the fake GPU; `forward` calls it compiled."""

    def __init__(self, module: torch.nn.Module, mode: GpuMode, loss: Loss, *, pads: bool) -> None:
        self._module, self._mode, self._loss, self._pads = module, mode, loss, pads
        self._engine_parameters: dict[int, Parameter] = {}
        shadow(self, self._module, self._parameter_of)
        self._compiled: Callable[..., Any] | None = None
        self._evaluates_eagerly = False

    def _parameter_of(self, weight: torch.Tensor) -> Parameter:
        """Return the engine's parameter of a fake one, the same each time."""
        found = self._engine_parameters.get(id(weight))
        if found is None:
            v = self._mode.tensor_of(weight)
            v.requires_grad = weight.requires_grad
            found = self._engine_parameters[id(weight)] = as_parameter(v)
        return found

    def adapt(self, job: Job) -> None:
        """Freeze parameters and let PEFT put its adapters in, as the job says."""
        freeze(self, job.freeze)
        for weight in self._module.parameters():
            weight.requires_grad_(self._parameter_of(weight).requires_grad)
        if job.lora_rank is not None:
            self._put_adapters_in(job)
        if job.loop == "trainer":
            with on_gpu(self._mode):
                prepare(self._module, job)
            self._evaluates_eagerly = job.mode == "train"

    def _put_adapters_in(self, job: Job) -> None:
        from vrambudget.traced.adapters import with_lora  # noqa: PLC0415 - few jobs need PEFT

        with on_gpu(self._mode), made_for(Purpose.WEIGHTS), _new_parameters():
            self._module = with_lora(self._module, job)
        for name in [name for name, value in vars(self).items() if isinstance(value, Module)]:
            delattr(self, name)
        self._engine_parameters.clear()
        shadow(self, self._module, self._parameter_of)

    def forward(self, **batch: Tensor) -> Outputs:
        """Call the module as a loop does; its outputs' tensors are the engine's."""
        if self._compiled is None:
            _LOG.info("compiling %s with PyTorch's own compiler ...", type(self._module).__name__)
        self._module.train(self.training)
        weights = list(self._module.parameters())
        first = len(context.tape.sizes)
        with on_gpu(self._mode), without_kernels(self._mode, pads=self._pads), self._under_way():
            outputs, loss = self._called(batch)
        tensors = tensors_in(outputs, torch.Tensor)
        logits = next((x for x in tensors if x is not loss), loss)
        if logits is None:
            raise NotModelledError(f"{type(self._module).__name__} returns no tensor")
        others = tuple(
            self._mode.tensor_of(x) for x in tensors if x is not loss and x is not logits
        )
        self._say_purposes(first, logits)
        engine_logits = self._mode.tensor_of(logits)
        if not context.grad_enabled:
            return Outputs(
                engine_logits if loss is None else self._mode.tensor_of(loss), engine_logits, others
            )
        trained = [(w, self._parameter_of(w)) for w in weights if w.requires_grad]
        result = self._mode.tensor_of(loss)
        if trained:
            result.requires_grad = True
            result.node = Node("compiled", context.sequence, (), (), None)
            result.node.part = Graph(self._mode, loss, trained)
            context.sequence += 1
        return Outputs(result, engine_logits, others)

    def _called(self, batch: Mapping[str, Tensor]) -> tuple[Any, Any]:
        """Return outputs and loss. Raises NotModelledError where PyTorch's code itself fails."""
        if self._compiled is None:
            torch.compiler.reset()
            self._compiled = torch.compile(self._module)
        inputs = as_given({name: self._mode.fake_of(v) for name, v in batch.items()})
        try:
            if self._evaluates_eagerly and not self.training:
                with eagerly(self._mode):
                    outputs = outputs_of(self._module, inputs)
            else:
                outputs = outputs_of(self._compiled, inputs)
            findings.breaks = list(_breaks())
            loss_of = self._loss if context.grad_enabled else loss_in
            return outputs, loss_of(outputs, inputs)
        except NotModelledError:
            raise
        except Exception as error:
            reason = " ".join(
                str(error).split("\n\n")[0].split()
            )  # "backend='inductor' raised:", then why
            raise NotModelledError(
                f"{type(self._module).__name__} does not compile: {reason or type(error).__name__}",
                hint=REHEARSE,
            ) from error

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """Let torch be under the engine's autocast and no_grad inside."""
        region = context.autocast
        cast: Any = nullcontext()
        if region is not None:
            cast = torch.autocast("cuda", TORCH_DTYPE[region.dtype], cache_enabled=region.caches)
        with torch.set_grad_enabled(context.grad_enabled), cast, enable_python_dispatcher():
            yield

    def _say_purposes(self, first: int, logits: torch.Tensor) -> None:
        """Name what the forward pass left: saved tensors, and the logits."""
        purposes = context.tape.purposes
        for index in self._mode.alive_since(first):
            if purposes[index] is Purpose.TEMPORARIES:
                purposes[index] = Purpose.ACTIVATIONS
        self._mode.storage_of(logits).purpose = Purpose.LOGITS_AND_LOSS


def _breaks() -> Iterator[str]:
    """Yield where the model's code leaves the compiled graph, and why, each line once."""
    seen = set()
    for found in graph_break_reasons:
        frames = found.user_stack
        at = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
        line = at + found.reason.splitlines()[0]
        if line not in seen:
            seen.add(line)
            yield line


class Graph:
    """What PyTorch's autograd keeps of a forward pass, until its backward ran.

    It fills .grad as soon as a gradient is there, before it runs the nodes of earlier layers. The
    loss itself lives as long as the loop that called the module holds it.
    """

    def __init__(
        self,
        mode: GpuMode,
        loss: torch.Tensor,
        weights: Sequence[tuple[torch.Tensor, Parameter]],
    ) -> None:
        self._mode, self._weights = mode, weights
        with on_gpu(mode):
            self._loss = [mode.apart(loss)]

    def run(self, gradients: list[Tensor | None], nodes: Collection[Node]) -> None:  # noqa: ARG002
        """Fill .grad of the weights; `gradients`: the loss' own.

        PyTorch's engine lets go of that when the node that reads it ran, so nothing here holds it:
        it comes in by a hook, in the place of one that is not on the tape.

        What the compiler left in reference cycles is given back: Dynamo holds a batch in one if it
        went through a generator (PEFT's). Python's collector finds it while PyTorch compiles the
        backward pass; here it is paused.
        """
        kernels = without_kernels(self._mode, pads=False)
        with on_gpu(self._mode), kernels, enable_python_dispatcher():
            given = [self._mode.fake_of(v) for v in gradients if v is not None]
            gradients.clear()
            for weight, own in self._weights:
                weight.grad = None if own.grad is None else self._mode.fake_of(own.grad)
            loss = self._loss.pop()
            loss.register_hook(lambda _: given.pop())
            torch.autograd.backward([loss], [self._mode.unseen_like(loss)])
            del loss
            for weight, own in self._weights:
                if own.grad is None and weight.grad is not None:
                    own.grad = self._mode.tensor_of(weight.grad)
                    own.grad.storage.purpose = Purpose.GRADIENTS
                weight.grad = None
            gc.collect()
