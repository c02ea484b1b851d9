"""What tensors answer without an operation: shapes, flags, gradients; and values read back."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from vrambudget.engine.context import context
from vrambudget.engine.tensor import empty_like
from vrambudget.errors import NotModelledError
from vrambudget.traced import hooks, known
from vrambudget.traced.rules.table import getter
from vrambudget.traced.tensor import GPU, REHEARSE, TracedTensor, traced_tensor

Answer = Callable[..., Any]
ATTRIBUTES: dict[Any, Answer] = {}
"""By what is called: answer(mode, x, *args)."""

_torch = torch.Tensor


def _native(function: Any) -> Answer:
    return lambda _mode, x, *args, **options: function(x, *args, **options)


for _name in (
    *("shape", "dtype", "ndim", "layout", "itemsize", "nbytes", "is_sparse", "is_quantized"),
    *("is_nested", "is_mkldnn", "is_mps", "is_xpu", "is_xla", "names", "is_cpu", "is_meta"),
    *("is_sparse_csr", "is_ipu", "is_vulkan", "is_maia", "is_mtia", "output_nr"),
):
    if hasattr(_torch, _name):
        ATTRIBUTES[getter(_name)] = _native(getter(_name))
for _name in (
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "__len__"),
    *("is_floating_point", "is_complex", "element_size", "storage_offset", "__hash__", "is_signed"),
    *("__repr__", "is_conj", "is_neg", "is_inference", "get_device", "__str__"),
):
    if hasattr(_torch, _name):
        ATTRIBUTES[getattr(_torch, _name)] = _native(getattr(_torch, _name))
for _name in ("is_floating_point", "is_complex", "numel", "is_conj", "is_neg"):
    ATTRIBUTES[getattr(torch, _name)] = _native(getattr(torch, _name))


def answers(*functions: Any) -> Callable[[Answer], Answer]:
    """Make a function the answer to calls of `functions`."""

    def registered(answer: Answer) -> Answer:
        for function in functions:
            ATTRIBUTES[function] = answer
        return answer

    return registered


ATTRIBUTES |= {
    getter("device"): lambda _mode, _x: GPU,  # where modelling code finds it
    getter("is_cuda"): lambda _mode, _x: True,
    getter("requires_grad"): lambda _mode, x: x.v.requires_grad,
    getter("is_leaf"): lambda _mode, x: x.v.node is None,
    getter("grad_fn"): lambda mode, x: None if x.v.node is None else hooks.GradFn(mode, x.v.node),
    getter("grad"): lambda _mode, x: None if x.v.grad is None else traced_tensor(x.v.grad),
    getter("_version"): lambda _mode, _x: 0,  # writes into it: nobody compares their number here
    getter("_base"): lambda _mode, x: x.base,
    _torch.register_hook: hooks.register_hook,
}


@answers(torch.Tensor.requires_grad.__set__)  # type: ignore[attr-defined]
def set_flag(_mode: Any, x: TracedTensor, value: bool) -> None:  # noqa: FBT001 - torch's signature
    """Let it want a gradient, or none; torch never frees what a setter returns."""
    x.v.requires_grad = value


@answers(torch.Tensor.requires_grad_)
def set_requires_grad(_mode: Any, x: TracedTensor, value: bool = True) -> TracedTensor:  # noqa: FBT001, FBT002
    """Let it want a gradient, or none."""
    x.v.requires_grad = value
    return x


@answers(_torch.register_post_accumulate_grad_hook)
def register_post_accumulate_grad_hook(mode: Any, x: TracedTensor, hook: Any) -> Any:
    """Call a hook each time that the leaf's gradient is there."""
    return hooks.added(mode.leaf_hooks.of(x, x.v)[1], hook)


@answers(torch.Tensor.grad.__set__)  # type: ignore[union-attr]
def set_grad(mode: Any, x: TracedTensor, value: Any) -> None:
    """Replace its gradient."""
    gradient = mode.traced_of(value)
    x.v.grad = None if gradient is None else gradient.v


@answers(getter("data"), torch.Tensor.detach, torch.detach)
def detach(_mode: Any, x: TracedTensor) -> TracedTensor:
    """Return the same storage, unknown to autograd; of integers, whose values count, a view."""
    if x.v.dtype.is_floating_point:
        return traced_tensor(x.v.detach(), x.known)
    base = x if x.base is None else x.base
    return traced_tensor(x.v.detach(), x.known, base, x.remake or (lambda value: value))


@answers(torch.Tensor.data.__set__)  # type: ignore[attr-defined]
def set_data(mode: Any, x: TracedTensor, value: Any) -> None:
    """Take another's storage, layout and type."""
    other = mode.traced_of(value)
    if other is None:
        raise NotModelledError("x.data = a tensor on the CPU is not traced")
    x.v.shape, x.v.dtype = other.v.shape, other.v.dtype
    x.v.storage, x.v.strides = other.v.storage, other.v.strides
    _torch.data.__set__(x, traced_tensor(other.v))  # type: ignore[attr-defined]


@answers(torch.Tensor.__deepcopy__)
def deepcopy(_mode: Any, x: TracedTensor, memo: dict[int, Any]) -> TracedTensor:
    """Return a copy with a storage of its own."""
    if id(x) not in memo:
        v = empty_like(x.v)
        v.requires_grad = x.v.requires_grad
        copied = memo[id(x)] = traced_tensor(v, x.known)
        copied._is_param = getattr(x, "_is_param", False)  # noqa: SLF001 - what nn.Parameter is
    twin: TracedTensor = memo[id(x)]
    return twin


def _value(x: TracedTensor, name: str) -> torch.Tensor:
    """Return a tensor's value, if the host knows it."""
    value = known.read_back(x)
    if value is None:
        raise NotModelledError(
            f"{name} reads a value back that depends on weights or data", hint=REHEARSE
        )
    return value


@answers(torch.ctc_loss)
def ctc_loss(mode: Any, scores: TracedTensor, targets: Any, *args: Any) -> Any:
    """Read the lengths back, as PyTorch's own kernels do (native/LossCTC.cpp, ctc_loss)."""
    lengths = [
        _value(x, "ctc_loss").tolist() if isinstance(x, TracedTensor) else x for x in args[:2]
    ]
    return mode.run(torch.ctc_loss, (scores, targets, *lengths, *args[2:]), {})


@answers(_torch.cpu, _torch.numpy)
def to_host(_mode: Any, x: TracedTensor, *_: Any) -> Any:
    """Return the value on the host."""
    return _value(x, "cpu")


@answers(_torch.__format__)
def written(_mode: Any, x: TracedTensor, spec: str) -> str:
    """Return a number as a log shows it."""
    return repr(x) if x.dim() else format(_value(x, "format").item(), spec)


def _finds_padding() -> bool:
    """Return whether transformers 4 asks if a mask hides nothing, in a job that builds it.

    Source: modeling_attn_mask_utils.py (_prepare_4d_attention_mask_for_sdpa), 4.57.
    """
    if context.options.full_rows:
        return False
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - who asks
    while frame is not None:
        if frame.f_globals.get("__name__") == "transformers.modeling_attn_mask_utils":
            return True
        frame = frame.f_back
    return False


for _name in ("__bool__", "__int__", "__float__", "__index__", "item", "tolist"):

    def _read(_mode: Any, x: TracedTensor, _name: str = _name) -> Any:
        if _name == "__bool__" and _finds_padding():
            return False
        return getattr(_value(x, _name), _name)()

    ATTRIBUTES[getattr(_torch, _name)] = _read
