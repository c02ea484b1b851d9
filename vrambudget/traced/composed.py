"""Operations that C++ composes of others on every device: what they make is what those make.

Autograd and modes see one operation (its formula of backward is its own), kernels see many. Which
they are PyTorch's own dispatcher tells: the key CompositeExplicitAutograd.

Source: aten/src/ATen/native/README.md; native_functions.yaml, for those that CUDA composes not.
"""

import functools
from typing import Any

import torch

from vrambudget.traced import kernels

_KEYS = torch._C.DispatchKey  # noqa: SLF001
_NON_FUNCTIONAL = {"_trilinear"}  # Bilinear's: a loop over its output features, and back
_KERNELS = {"isinf", "ldexp", "mvlgamma"}  # kernels, though tagged as pointwise
_OF_CUDA = ("_grouped_mm", "_chunk_cat", "_foreach_", "_fused_", "_pin_memory")


@functools.cache
def is_composed(func: Any) -> bool:
    """Whether an operation is composed, and no table knows what its kernels need."""
    name, packet = func.name(), func.overloadpacket.__name__
    has = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001 - the dispatcher's own
    if packet in _NON_FUNCTIONAL:
        return True
    if has(name, "CPU"):
        return False
    if has(name, "CompositeImplicitAutograd"):  # a part of another one: modes see no other
        return True
    composed = has(name, "CompositeExplicitAutograd")
    writes = func._schema.is_mutable and not func._overloadname.endswith("out")  # noqa: SLF001
    own = packet.startswith(_OF_CUDA) or "resize" in packet or writes
    return composed and not own and (packet in _KERNELS or not kernels.knows(func, packet))


def composed(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operation's parts make; the caller's mode sees them."""
    if func.overloadpacket.__name__ in _NON_FUNCTIONAL:
        key = _KEYS.CompositeExplicitAutogradNonFunctional
    else:
        result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        key = _KEYS.CompositeExplicitAutograd
    return func._op_dk(key, *args, **kwargs)  # noqa: SLF001
