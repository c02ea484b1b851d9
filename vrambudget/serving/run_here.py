"""Which file runs on these GPUs, how long a context it has, and what stays in main memory.

    best_split(...)     everything on GPUs where it fits; else as few experts as possible in main
                        memory, or of a model without any as few layers
    longest_context(..) of a split, in steps of 256 tokens

A token reads every weight once, of experts those that it takes, so a split is the faster the fewer
bytes it reads from main memory, whatever the bandwidths are: `read_bytes` says both.

Source: llama.cpp 0c1e570 of October 2026: common/fit.cpp fills GPUs in the same order (layers,
then experts of the last layers), with 1 GiB left free on each.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vrambudget.config.gpus import Gpu
from vrambudget.serving.beside import of_draft, of_projector
from vrambudget.serving.gguf import GgufTensor
from vrambudget.serving.gguf_model import GgufModel
from vrambudget.serving.llama_cpp import LlamaCppServing, cached_bytes, serve
from vrambudget.serving.llama_cpp_place import TensorPlacement, nbytes, place
from vrambudget.serving.options import LlamaCppOptions

KINDS = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M")
LOWER = ("Q2_K", "IQ2_M", "IQ2_XXS", "IQ1_M", "IQ1_S")
"""What a table has a row of, the best first; lower ones where no other fits, until one does."""
SHORTEST = 4096
"""Tokens that a context should have, if it can: what --fit keeps, too."""
USUAL = 8192
_STEP = 256
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class RunChoice:
    """A file with its split: what it holds, and the longest context that this split has."""

    model: GgufModel
    options: LlamaCppOptions
    found: LlamaCppServing
    longest: int  # tokens, with this split; 0: none
    weights_bytes: int
    is_whole_with_q8_0: (
        bool  # a cache of 8 bits leaves nothing in main memory that could be on GPUs
    )

    @property
    def fits(self) -> bool:
        """Whether it fits with its context."""
        return self.found.fits and self.longest > 0

    @property
    def is_whole(self) -> bool:
        """Whether all that can be is on GPUs."""
        return self.found.read_bytes[1] == 0


class Machine:
    """GPUs, and main memory where somebody said how much."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        ram_bytes: int | None,
        draft: GgufModel | None = None,
        projector: tuple[GgufTensor, ...] = (),
    ) -> None:
        self.gpus, self.ram_bytes, self.draft, self.projector = gpus, ram_bytes, draft, projector
        self._placed: dict[tuple[object, ...], TensorPlacement] = {}

    def serve(self, model: GgufModel, options: LlamaCppOptions) -> LlamaCppServing:
        """Return what this machine holds."""
        placed = self._where(model, options)
        found = serve(model, self.gpus, options, self.ram_bytes, placed)
        if self.projector:
            found = replace(found, beside=(of_projector(self.projector, found),))
        if self.draft:
            beside = (*found.beside, of_draft(self.draft, self.gpus, found, options))
            found = replace(found, beside=beside)
        return found

    def _where(self, model: GgufModel, options: LlamaCppOptions) -> TensorPlacement:
        key = (model.name, *(getattr(options, name) for name in sorted(_SPLITS)))
        if key not in self._placed:
            self._placed[key] = place(model, self.gpus, options)
        return self._placed[key]

    def choice(self, model: GgufModel, options: LlamaCppOptions, context: int | None) -> RunChoice:
        """Return the fastest split with this context, or with the longest that there is.

        Without `context` all is on GPUs if SHORTEST tokens fit so; else the split is that of USUAL.
        """
        length = context or min(USUAL, model.positions)
        if context is None and not options.model_fields_set & _SPLITS:
            short = min(SHORTEST, model.positions)
            if 0 < self._longest(model, _with(options, ctx_size=short)) < length:
                length = short
        chosen = _with(options, ctx_size=length)
        if not options.model_fields_set & _SPLITS:
            chosen = self.best_split(model, chosen)
        longest = self._longest(model, chosen, context or 0)
        if context is None and longest:
            chosen = _with(chosen, ctx_size=longest)
        weights = sum(nbytes(tensor) for tensor in model.tensors)
        eight = _with(options, ctx_size=chosen.ctx_size, cache_type_k="q8_0", cache_type_v="q8_0")
        found = self.serve(model, chosen)
        chooses_split = (
            bool(found.read_bytes[1] and self.gpus) and not options.model_fields_set & _SPLITS
        )
        helps = chooses_split and self._has_left(model, eight)
        return RunChoice(model, chosen, found, longest, weights, helps)

    def best_split(self, model: GgufModel, options: LlamaCppOptions) -> LlamaCppOptions:
        """Return the options with as little in main memory as fits on the GPUs."""
        if not self.gpus:
            return _with(options, n_gpu_layers=0)
        if self._has_left(model, options):
            return options
        if model.experts:
            found = self._least(model, options, "n_cpu_moe")
            if self._has_left(model, found):
                return found
            options = _with(options, cpu_moe=True)
        return self._least(model, options, "n_gpu_layers")

    def _least(self, model: GgufModel, options: LlamaCppOptions, name: str) -> LlamaCppOptions:
        """Return the options with the fewest layers, or experts, in main memory; else with all.

        Several GPUs share the other layers so that each has as much left as can be.
        """
        most = model.layers + (name == "n_gpu_layers")

        def of(n: int) -> LlamaCppOptions:
            if name == "n_cpu_moe":
                return _with(options, n_cpu_moe=n)
            return _with(options, n_gpu_layers=most - n)

        whole = self.serve(model, options).layer_bytes
        some = self.serve(model, of(most if name == "n_cpu_moe" else 1))

        def shared(n: int) -> LlamaCppOptions:
            chosen = of(n) if n else options
            sizes = whole[n:]
            if name == "n_cpu_moe":
                sizes = some.layer_bytes[:n] + sizes
            if len(self.gpus) == 1 or not sizes or options.split_mode == "none":
                return chosen
            return _with(chosen, tensor_split=",".join(map(str, _shares(sizes, some))))

        least = bisect_left(range(most), 1, key=lambda n: self._has_left(model, shared(n)))
        return shared(least)

    def _has_left(
        self, model: GgufModel, options: LlamaCppOptions, *, in_ram: bool = False
    ) -> bool:
        """Return whether it fits on the GPUs, with the most that the driver was seen to take.

        `in_ram`: and in main memory.
        """
        placed = self._where(model, options)
        caches, _ = cached_bytes(model, options, placed)
        held = (placed.model_bytes[n] + caches[n] for n in range(len(self.gpus)))
        if any(least > gpu.capacity_bytes for least, gpu in zip(held, self.gpus, strict=True)):
            return False  # whatever its compute buffer is, which takes longest to count
        found = self.serve(model, options)
        most = max((high - low for low, high in found.context_bytes), default=0)
        free = options.fit_target * _MIB if options.fit == "on" else 0
        return found.left_bytes >= max(most, free) and (found.fits or not in_ram)

    def _longest(self, model: GgufModel, options: LlamaCppOptions, asked: int = 0) -> int:
        """Return the longest context that a split has, 0 if none; of the model, or as asked."""
        most = max(model.positions, asked)

        def holds(steps: int) -> bool:
            chosen = _with(options, ctx_size=min(steps * _STEP, most))
            return self._has_left(model, chosen, in_ram=True)

        steps = -(-most // _STEP)
        if holds(steps):
            return most
        return _STEP * bisect_left(range(1, steps), 1, key=lambda n: not holds(n))


_SPLITS = frozenset({"n_gpu_layers", "override_tensor", "cpu_moe", "n_cpu_moe", "tensor_split"}) | {
    *("split_mode", "no_kv_offload", "main_gpu", "n_cpu_ffn")
}


def best_of(rows: list[RunChoice]) -> RunChoice:
    """Return the row to start with: the best that is on GPUs alone, else Q4_K_M, else any."""
    usual = [row for row in rows if row.fits and row.is_whole and row.longest >= USUAL]
    whole = usual or [row for row in rows if row.fits and row.is_whole]
    fitting = [row for row in rows if row.fits]
    named = [row for row in fitting if row.model.name.endswith(":Q4_K_M")]
    return (whole or named or fitting or rows[-1:])[0]


def _shares(sizes: Sequence[int], found: LlamaCppServing) -> list[int]:
    """Return how many layers in a row each GPU has, for the GPU with the least left to have most.

    `found`: a start with about the same buffers.
    """
    available = [
        capacity - context[1] - held.compute_bytes
        for capacity, context, held in zip(
            found.capacity_bytes, found.context_bytes, found.gpus, strict=True
        )
    ]

    def counts(left: int) -> list[int]:
        """Return what each has with so much left; the last has the rest."""
        many, used = [0], 0
        for size in sizes:
            while used + size > available[len(many) - 1] - left and len(many) < len(available):
                many, used = [*many, 0], 0
            many[-1] += 1
            used += size
        rest = [0] * (len(available) - len(many))
        return many + rest if used <= available[len(many) - 1] - left else []

    left = range(-sum(sizes) - max(map(abs, available)), max(available))
    return counts(left[bisect_left(left, 1, key=lambda n: not counts(n)) - 1])


def _with(options: LlamaCppOptions, **changed: int | bool | str) -> LlamaCppOptions:
    return options.model_copy(update=changed)
