"""What runs around a router and around experts, on a rank that has E / T of E experts.

    RoutesToOwn   ep_router: choices [N, k] of other ranks' experts get the weight 0, and an index
                  past the rank's own; indices count from the rank's first expert
    AddsUp        moe_tp_experts: what the experts return is added up among the ranks in place; so
                  is, in backward, the gradient of the hidden states. Their weights are read as
                  plain tensors (to_local), which is older than all that the experts do: backward
                  comes to it, and to the weights' gradients, last

All reductions are in place: neither makes a tensor.

Source: transformers/distributed/tensor_parallel.py (EpRouterParallel, MoeExpertsParallel,
_use_local_dtensor_params, _AllReduceForward, _AllReduceBackward), 5.17;
torch/distributed/tensor/_api.py (_ToTorchTensor).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.autograd import record
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Shape, Tensor
from vrambudget.models.parts.parametrised import Parametrised
from vrambudget.ops.creation import made
from vrambudget.ops.fill import masked_fill
from vrambudget.ops.shape import contiguous

Kwargs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RoutesToOwn:
    """EpRouterParallel; `own_experts`: how many the rank has of a layer."""

    own_experts: int

    def call(self, module: Module, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        """Return logits [N, E], weights [N, k] and the rank's own indices [N, k]."""
        router_logits, router_scores, router_indices = module.forward(*args, **kwargs)
        scores = _all_reduced_in_backward(router_scores)
        owners = made("floor_divide", router_indices.shape, int64)
        non_local_mask = made("ne", router_indices.shape, bool_)
        del owners
        scores = masked_fill(scores, non_local_mask)
        return router_logits, scores, self._own(router_indices.shape)

    def _own(self, shape: Shape) -> Tensor:
        masked = made("masked_fill", shape, int64)
        own = self._from_first(masked)
        del masked
        is_other = made("eq", shape, bool_)
        indices = made("masked_fill", shape, int64)
        del is_other, own
        return indices

    def _from_first(self, masked: Tensor) -> Tensor:
        """Return indices from the rank's first expert; -1 stays."""
        if self.own_experts > 1:
            return made("fmod", masked.shape, int64)
        above = made("gt", masked.shape, bool_)
        zeroed = made("masked_fill", masked.shape, int64)
        del above
        below = made("lt", masked.shape, bool_)
        indices = made("masked_fill", masked.shape, int64)
        del below, zeroed
        return indices


@dataclass(frozen=True, slots=True)
class AddsUp:
    """MoeExpertsParallel, of experts that are cut among the ranks."""

    def call(self, module: Module, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        """Run the rank's own experts on all rows, and add up what the ranks have."""
        assert isinstance(module, Parametrised)  # noqa: S101 - experts are
        hidden_states, *routing = args
        hidden_states = _all_reduced_in_backward(hidden_states)
        with _local_parameters(module):
            y = module.forward(hidden_states, *routing, **kwargs)
        return _passed("all_reduce", y, _same)


@contextmanager
def _local_parameters(module: Parametrised) -> Iterator[None]:
    """Let the module read its parameters as plain tensors."""
    own = {name: p for name, p in vars(module).items() if isinstance(p, Parameter)}
    module.replacements = dict.fromkeys(own, _to_local)
    module.computed = {name: _to_local(p) for name, p in own.items()}
    try:
        yield
    finally:
        module.replacements, module.computed = {}, {}


def _to_local(parameter: Parameter) -> Tensor:
    return _passed("to_local", parameter, _same)


def _all_reduced_in_backward(x: Tensor) -> Tensor:
    """_AllReduceBackward: x itself; its gradient is made contiguous and added up in place."""
    return _passed("all_reduce_backward", x, contiguous)


def _passed(name: str, x: Tensor, backward: Callable[[Tensor], Tensor]) -> Tensor:
    return record(name, x.viewed(x.shape, x.strides), inputs=(x,), backward=backward)


def _same(dy: Tensor) -> Tensor:
    return dy
