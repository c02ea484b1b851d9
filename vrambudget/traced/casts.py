"""Autocast for calls by the general rule: which operands are read in which type.

Source: aten/src/ATen/autocast_mode.h (the lists AT_FORALL_*); cast_policy of each list.
"""

from typing import Any

from vrambudget.dtypes import float32
from vrambudget.engine.autocast import full_precision, lower_precision, to
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.traced.meta_fallback import mapped

_LOWER = {
    *("conv1d", "conv2d", "conv3d", "convtbc", "convtranspose1d", "convtranspose2d"),
    *("convtranspose3d", "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "rmatmul"),
    *("einsum", "mm", "mv", "bmm", "linear", "baddbmm", "addbmm", "chainmatmul", "linalgmultidot"),
    *("grumcell", "lstmcell", "rnntanhcell", "rnnrelucell", "scaleddotproductattention"),
}
_FULL = {
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
    *("reciprocal", "rsqrt", "sinh", "tan", "pow", "rpow", "square"),
    *("nlllossnd", "softplus", "layernorm", "groupnorm"),
    *("frobeniusnorm", "nuclearnorm", "cosinesimilarity", "poissonnllloss", "nllloss", "kldiv"),
    *("cosineembeddingloss", "nllloss2d", "hingeembeddingloss", "l1loss", "smoothl1loss"),
    *("huberloss", "mseloss", "marginrankingloss", "multilabelmarginloss", "softmarginloss"),
    *("tripletmarginloss", "multimarginloss", "binarycrossentropywithlogits", "dist", "pdist"),
    *("cdist", "renorm", "logsumexp", "upsamplenearest1d", "upsamplenearest2d", "norm"),
    *("upsamplelinear1d", "upsamplebilinear2d", "upsamplebicubic2d", "upsampletrilinear3d"),
}
_FULL_UNLESS_TYPED = {
    *("prod", "softmax", "logsoftmax", "cumprod", "cumsum", "linalgvectornorm", "linalgmatrixnorm"),
    "sum",
}
_WIDEST = {
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "gridsampler"),
    *("indexput", "tensordot", "scatteradd"),
}


def autocast_arguments(name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return a call's arguments as the operation `name` reads them in the region that is on.

    The last argument is cast first, as the compiler of PyTorch's Linux builds (GCC) orders them.
    """
    if context.autocast is None:
        return args, kwargs
    plain = name.replace("_", "")
    if plain in _LOWER:
        change = lower_precision
    elif plain in _FULL or (plain in _FULL_UNLESS_TYPED and kwargs.get("dtype") is None):
        change = full_precision
    elif plain in _WIDEST:
        change = _widest
    else:
        return args, kwargs
    last_first = [mapped(value, Tensor, change) for value in (*args, *kwargs.values())[::-1]][::-1]
    return tuple(last_first[: len(args)]), dict(zip(kwargs, last_first[len(args) :], strict=True))


def _widest(x: Tensor) -> Tensor:
    return to(x, float32) if x.dtype.is_floating_point else x
