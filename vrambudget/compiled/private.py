"""PyTorch's private names that compiling without a GPU takes: all are looked up at once, here.

Any release may move them. First what the other modules of this package call or replace, at the end
what they import from here. The first that is missing is an error that names it. Not here: what only
some of the checked releases have, which is looked for where it is replaced.
"""

import ctypes
import pkgutil
from pathlib import Path
from typing import Any

import torch

from vrambudget.compiled.config import REHEARSE
from vrambudget.errors import NotModelledError

_PRIVATE = (
    # called
    "torch._C.DispatchKey.CompositeImplicitAutograd",
    "torch._C._current_autograd_node",
    "torch._C._DisableTorchDispatch",
    "torch._C._storage_Use_Count",
    "torch._from_functional_tensor",
    "torch.Tensor._use_count",
    "torch._guards.CompileContext.try_get",
    "torch._dynamo.device_interface.CudaInterface",
    "torch._dynamo.device_interface.get_interface_for_device",
    # replaced
    "torch._inductor.codecache.PyCodeCache.load_by_key_path",
    "torch._inductor.compile_fx._compile_fx_inner",
    "torch._inductor.compile_fx.get_input_idxs_to_check",
    "torch._dynamo.device_interface.device_interfaces",
    "torch._subclasses.fake_tensor._DISPATCH_META_HANDLERS",
    "torch._subclasses.fake_tensor.init_gpu_context",
    "torch._inductor.fx_passes.joint_graph.UniformValueConstantFolder",
    "torch._inductor.fx_passes.pad_mm.get_do_bench",
    "torch._inductor.fx_passes.pad_mm.has_triton",
    "torch._inductor.fx_passes.pad_mm.no_dispatch",
    "torch._inductor.scheduler.has_triton",
    "torch._prims.rng_prims.graphsafe_run_with_rng_state.python_key_table",
    "torch.cuda._DeviceGuard",
    "torch.cuda._exchange_device",
    "torch.cuda._maybe_exchange_device",
    "torch.cuda.amp.common.amp_definitely_not_available",
    "torch.ops.aten.linear.default._dispatch_cache",
    "torch.Tensor._make_wrapper_subclass",
    "torch._inductor.runtime.triton_heuristics.cached_autotune",
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner",
)

_REGISTRAR = (
    "_ZN3c104impl24DeviceGuardImplRegistrarC1ENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE",
    "??0DeviceGuardImplRegistrar@impl@c10@@QEAA@W4DeviceType@2@PEBUDeviceGuardImplInterface@12@@Z",
)
_REGISTRY = (
    "_ZN3c104impl26device_guard_impl_registryE",
    "?device_guard_impl_registry@impl@c10@@3V?$array@U?$atomic@PEBUDeviceGuardImplInterface@impl@c10@@@std@@$0BF@@std@@A",
)
_DEVICE_TYPES = 21
_LIBRARIES = ("libc10.so", "libc10.dylib", "c10.dll")
"""C++'s names as GCC and Clang write them, then Microsoft's compiler (torch 2.11 to 2.14)."""


def _guards() -> tuple[Any, Any]:
    """Return what registers the guard of a device type, and the table of those registered."""
    folder = Path(torch.__file__).parent / "lib"
    library = next((folder / x for x in _LIBRARIES if (folder / x).exists()), None)
    if library is None:
        raise NotModelledError(
            f"this build of PyTorch runs on no fake GPU: no libc10 in {folder}", hint=REHEARSE
        )
    c10 = ctypes.CDLL(str(library))
    is_windows = library.suffix == ".dll"
    register = getattr(c10, _REGISTRAR[is_windows])
    register.argtypes = [ctypes.c_void_p, ctypes.c_int8, ctypes.c_void_p]
    register.restype = None
    return register, (ctypes.c_void_p * _DEVICE_TYPES).in_dll(c10, _REGISTRY[is_windows])


try:
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo import device_interface
    from torch._dynamo.exc import SkipFrame
    from torch._dynamo.utils import graph_break_reasons
    from torch._guards import CompileContext
    from torch._inductor import codecache, compile_fx, config, list_mode_options, scheduler
    from torch._inductor.codegen import triton as triton_codegen
    from torch._inductor.constant_folding import ConstantFolder
    from torch._inductor.exc import InductorError
    from torch._inductor.fx_passes import joint_graph, pad_mm
    from torch._inductor.runtime import triton_heuristics
    from torch._inductor.utils import clone_preserve_strides
    from torch._subclasses import fake_tensor
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, get_proxy_slot
    from torch.utils import _triton as triton_package
    from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes

    for name in _PRIVATE:
        pkgutil.resolve_name(name)
    REGISTER_GUARD, REGISTERED_GUARDS = _guards()
except (ImportError, AttributeError, LookupError, ValueError) as error:
    raise NotModelledError(
        f"torch {torch.__version__} lacks what compiling without a GPU takes of it: {error}",
        hint=REHEARSE,
    ) from error
