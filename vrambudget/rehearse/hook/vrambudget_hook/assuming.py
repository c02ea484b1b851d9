"""What is assumed of numbers on the GPU that nobody knows, as the rehearsal's options say.

They are finite, and valid parameters of a distribution, whatever else they are. With `--values`
ones or random they can be read back as such, and what is decided by them follows: comparisons,
casts, the order of scores, sampled tokens. Random numbers are uniform in [0, 1), drawn anew for
each read from a generator of our own, so that the same script gets the same ones each time. Zeros,
the default, are what the stub reads by itself; what is decided by them reads as zero, too,
but for tokens, of which 0 ends the generation of some models.

Rows of scores [..., E] of which a router chooses the k best spread as `routing` says: see `_route`.
By its name, or that of its function, it is one.

Runs in the user's Python, 3.9 or later.

Not modelled: one number read twice is two random ones; routers by another name or in compiled code.
"""

# ruff: noqa: SLF001 - operations' own names

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .frames import own_frames, place
from .operations import Operation, flat
from .values import Arguments, UnknownValue

_FINITE = {"isfinite": 1, "isnan": 0, "isinf": 0}  # and what finite numbers answer
_CHECKED = ("normal.Tensor_Tensor", "normal.float_Tensor")  # they read whether std >= 0
_WRITING = ("bincount", "unfold_backward")  # their kernels write into zeros that they made before
_DIFFERENT = ("_unique", "_unique2", "unique_consecutive", "unique_dim")
_ROUTES = {"aten::topk": 1, "aten::max": 1, "aten::argmax": None}  # which result has the places
_COMPARING = ("gt", "ge", "lt", "le", "eq", "ne")
_DECIDING = (
    *(f"{name}.{kind}" for name in _COMPARING for kind in ("Scalar", "Tensor")),
    *("argmax", "argmin", "max.dim", "min.dim", "topk", "sort", "sort.stable", "multinomial"),
    *("bucketize.Tensor", "searchsorted.Tensor", "nonzero"),
)
_SAMPLING = ("argmax", "multinomial")
_VOCABULARY = 256  # scores of a row, at least; the first and the last of so many tokens are special
_FOUND = "_amp_foreach_non_finite_check_and_unscale_"  # GradScaler's: whether one is not finite
_NUMBER = "_local_scalar_dense"
_COPY = "copy_"

_ROUTERS = re.compile(r"Rout(er|ing)|Gate|Gating|[Mm]o[Ee]|MOE|Expert|Switch|Mixture|Mixtral")
_ROUTING = re.compile(r"(^|_)(rout(e|er|ing)|gate|gating|moe|experts?)(_|$)")
_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: a function's variables
_FRAMES = 3  # of the script, the innermost, in which a router is looked for
_NUMBERS = 1 << 25  # of a tensor, at most: more are not known

ZEROS, ONES, RANDOM = "zeros", "ones", "random"
COLLAPSED = "collapsed"  # of the two ways to route


class Assuming:
    """Answers for unknown numbers: `kind` of numbers, drawn from `seed`; `routing` of tokens.

    `routing`: "uniform" or "collapsed", as the user said; None: uniform, and reported as not known.
    """

    def __init__(self, tracer: Any, kind: str, seed: int, routing: str | None) -> None:
        self.tracer, self.kind, self.routing = tracer, kind, routing
        self.torch, self.values = tracer.torch, tracer.values
        self.generator = self.torch.Generator().manual_seed(seed)
        self.router: list[Any] | None = None  # where one was met first

    def kernels(self) -> Iterator[tuple[str, Callable[[Any], Callable[..., Any]]]]:
        """Yield names of operations, and what makes the kernel of one."""
        yield from ((name, self._agreeing) for name in _FINITE)
        yield from ((name, self._trusting) for name in _CHECKED)
        yield from ((name, self._writing) for name in _WRITING)
        yield from ((name, self._one_at_least) for name in _DIFFERENT)
        if self.kind != ZEROS:
            yield from ((name, self._deciding) for name in _DECIDING)
            yield from ((_FOUND, self._finite), (_NUMBER, self._number), (_COPY, self._copied))
        else:
            yield from ((name, self._deciding) for name in ("topk", "max.dim", *_SAMPLING))

    def trust_distributions(self) -> None:
        """Let parameters that are not known be valid ones, which torch.distributions checks."""
        constraints = self.torch.distributions.constraints
        for kind in vars(constraints).values():
            if isinstance(kind, type) and "check" in vars(kind):
                kind.check = self._trusted(kind.check)  # type: ignore[attr-defined]

    def _trusted(self, check: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(check)
        def trusted(constraint: Any, value: Any) -> Any:
            return self.agree(check(constraint, value))

        return trusted

    def agree(self, out: Any, answer: int = 1) -> Any:
        """Assume that booleans which are not known are true, or have another answer."""
        if self.values.eligible(out) and self.values.of(out) is None:
            self.values.hold_all(out, answer)
        return out

    def numbers(self, tensor: Any) -> Any:
        """Return what a floating-point tensor is taken to hold, on the CPU. Raises Unknown."""
        if tensor.numel() > _NUMBERS:
            raise UnknownValue
        shape = list(tensor.shape)
        if self.kind == RANDOM:
            return self.values.uniform(shape, tensor.dtype, self.generator)
        return self.values.constant(shape, float(self.kind == ONES), tensor.dtype)

    def _is_unknown(self, tensor: Any) -> bool:
        """Return whether it is a tensor of numbers on the GPU of which nothing is known."""
        if type(tensor) not in self.values.plain or not self.values.on_gpu(tensor):
            return False
        return tensor.is_floating_point() and self.values.of(tensor) is None

    # ---- kernels

    def _below(self, op: Any, keys: Any, args: Any, kwargs: Any) -> Any:
        """Call what lies below us; only the outer door lets a number in for a tensor."""
        if self.tracer.described(op).has_number(args):
            native = self.torch._C
            with native._ExcludeDispatchKeyGuard(native.DispatchKeySet(self.tracer.brings)):
                return op(*args, **kwargs)
        return op._handle.redispatch_boxed(keys.remove(self.tracer.brings), *args, **kwargs)

    def _agreeing(self, op: Any) -> Callable[..., Any]:
        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            out = self._below(op, keys, args, kwargs)
            return self.agree(out, _FINITE[op._schema.name.partition("::")[2]])

        return kernel

    def _trusting(self, op: Any) -> Callable[..., Any]:
        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            with self.tracer.answering(1, true=True):
                return self._below(op, keys, args, kwargs)

        return kernel

    def _writing(self, op: Any) -> Callable[..., Any]:
        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            out = self._below(op, keys, args, kwargs)
            value = self.values.of(out)
            if value is not None and not keys.has(self.tracer.traced):
                self.values.lose(value)
            return out

        return kernel

    def _one_at_least(self, op: Any) -> Callable[..., Any]:
        """Let unknown elements be all the same: where there are some, one of them differs."""

        def kernel(keys: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            if not (self.values.on_gpu(source) and source.numel()):
                return self._below(op, keys, (source, *args), kwargs)
            with self.tracer.answering(1, true=False):
                return self._below(op, keys, (source, *args), kwargs)

        return kernel

    def _deciding(self, op: Any) -> Callable[..., Any]:
        known = self.tracer.described(op)

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            unknown = any(map(self._is_unknown, flat(args)))
            if not unknown or self.torch._C._functorch.maybe_current_level() is not None:
                return self._below(op, keys, args, kwargs)
            if (k := _routed(known.name, args, kwargs)) and (router := _router()):
                out = self._below(op, keys, args, kwargs)
                of = _ROUTES[known.name]
                self._route(out if of is None else out[of], args[0].shape[-1], k)
                self.router = self.router or router
                return out
            if self.kind != ZEROS:
                return self._decided(known, op, keys, args, kwargs)
            out = self._below(op, keys, args, kwargs)
            if known.name.partition("::")[2] in _SAMPLING:
                self._sampled(args[0], out)
            return out

        return kernel

    def _sampled(self, scores: Any, out: Any) -> None:
        """Let a sampled token be from the middle of the vocabulary, where none ends a text."""
        words = scores.shape[-1] if scores.ndim else 0
        if words >= _VOCABULARY and self.values.is_new(out):
            self._hold(out, self.values.constant(list(out.shape), words // 2, out.dtype))

    def _decided(self, known: Operation, op: Any, keys: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation whose integers follow from what its numbers are assumed to be."""
        try:
            found = Arguments(self.values, args, kwargs, {}, self.numbers)
            if known.unknown:  # sampled
                found.kwargs["generator"] = self.generator
            value = self.tracer.computed(op, found)
        except Exception:  # noqa: BLE001 - not to be computed on the CPU
            return self._below(op, keys, args, kwargs)
        with self.tracer.answering(known.number(found.args, value), true=False):
            out = self._below(op, keys, args, kwargs)
        for tensor, copy in zip(flat(out), flat(value)):  # noqa: B905 - Python 3.9
            if not tensor.is_floating_point():
                self._hold(tensor, copy)
        return out

    def _hold(self, tensor: Any, copy: Any, *, true: bool = False) -> None:
        if self.values.eligible(tensor) and tensor.shape == copy.shape:
            self.values.hold_copy(tensor, copy, true=true)

    def _number(self, op: Any) -> Callable[..., Any]:
        def kernel(keys: Any, tensor: Any) -> Any:
            out = self._below(op, keys, (tensor,), {})
            return float(self.numbers(tensor)) if self._is_unknown(tensor) else out

        return kernel

    def _copied(self, op: Any) -> Callable[..., Any]:
        """Let a copy to the host, and one that becomes integers, bring what is assumed."""

        def kernel(keys: Any, target: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            out = self._below(op, keys, (target, source, *args), kwargs)
            with contextlib.suppress(UnknownValue):
                if not self._is_unknown(source):
                    return out
                if not self.values.on_gpu(target):
                    self.values.put(target, self.numbers(source))
                elif not target.is_floating_point() and self.values.is_new(target):
                    self._hold(target, self.numbers(source).expand(target.shape))
            return out

        return kernel

    def _finite(self, op: Any) -> Callable[..., Any]:
        def kernel(keys: Any, gradients: Any, found: Any, *args: Any) -> Any:
            out = self._below(op, keys, (gradients, found, *args), {})
            if self.values.eligible(found) and self.values.storages.is_whole(found):
                self.values.hold_all(found, 0)
            return out

        return kernel

    # ---- routers

    def _route(self, chosen: Any, experts: int, k: int) -> None:
        """Let a router's choice [..., k] spread tokens over experts as it was asked for.

        uniform: the N k choices go to the experts in turn; collapsed: all tokens go to the first k.
        """
        self.values.widen()
        choices = self.torch.arange(chosen.numel(), device="cpu").view(chosen.shape)
        choices %= k if self.routing == COLLAPSED else experts
        self._hold(chosen, choices, true=self.routing is not None)


def _routed(name: str, args: Any, kwargs: Any) -> int:
    """Return how many experts a row is sent to, 0 where it is no router that asks.

    The highest of a vocabulary's scores is a token.
    """
    scores, *rest = args
    k, last = (rest.pop(0), -1) if name == "aten::topk" else (1, None)
    if name not in _ROUTES or (last is None and scores.shape[-1:] >= (_VOCABULARY,)):
        return 0
    dim = rest[0] if rest else kwargs.get("dim", last)
    is_last = dim in (-1, scores.ndim - 1)
    return k if scores.ndim > 1 and is_last and k <= scores.shape[-1] else 0


def _router() -> list[Any] | None:
    """Return the line that is running, if it is a router's."""
    frames = own_frames(sys._getframe())[-_FRAMES:]
    for frame in frames:
        if _ROUTERS.search(_class_of(frame)) or _ROUTING.search(frame.f_code.co_name):
            return place(frames[-1])
    return None


def _class_of(frame: Any) -> str:
    """Return the name of the class whose method runs.

    Up to Python 3.12 f_locals is a copy that stays with the frame, and would keep alive what its
    variables held: it is emptied again.
    """
    if not frame.f_code.co_flags & _OPTIMIZED:
        return ""  # a module's frame: what it returns are the variables themselves
    names = frame.f_locals
    name = type(names.get("self")).__name__
    if sys.version_info < (3, 13):
        names.clear()
    return name
