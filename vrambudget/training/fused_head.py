"""TRL's head for causal language models: log probabilities of labels, and no logits [B, T, V].

    hidden      [N, H]   the states whose next label counts, kept
    mm_buf      [min(N, 4096), 32768]   the tile of logits that a product goes to; comes and goes
    log_z, entropy [N]   float32, kept

Forward multiplies 4,096 tokens at a time by 32,768 rows of the head's weight, each part of both
cast to autocast's type, and folds each tile into running sums by a kernel of Triton's. Backward
multiplies again, and adds to gradients [N, H] and [V, H] that are float32 whatever the types are.

Source: trl/kernels/chunked_logprob.py (ChunkedLogProbFunction), trl/trainer/utils.py
(add_fused_lm_head), 1.16; in 1.15 what is [N] lives until the loss is there.
Not modelled: torch before 2.8, whose products cannot add 16-bit factors to a float32 matrix; a
Python without Triton; experts, whose routers' loss is added; heads in float32, temperatures.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from vrambudget.config.job import Job
from vrambudget.dtypes import DType, bool_, float32, int64
from vrambudget.engine.autograd import Node, keep, record_many
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.layers import Linear
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import div_by_constant, neg
from vrambudget.ops.masked import index_mask, masked_scatter
from vrambudget.ops.reduce import count_true, sum_all, with_partial_sums
from vrambudget.ops.shape import slice_dim
from vrambudget.ops.workspaces import addmm_workspace, cublas_workspace
from vrambudget.tape.events import Purpose
from vrambudget.training.inputs import PACKED
from vrambudget.training.loops.run import Run
from vrambudget.training.lora import LoraLinear

_TOKENS = 4096  # TOKEN_CHUNK_SIZE
_ROWS = 32768  # _CHUNKED_LOGPROB_CHUNK_SIZE


@dataclass(slots=True)
class FusedOutputs:
    """FusedCausalLMOutput: fields [B, T-1], zero where no label counts."""

    loss: Tensor | None
    log_probs: Tensor
    entropy: Tensor | None
    mean_logits: Tensor | None
    is_top1: Tensor | None
    label_mask: Tensor
    backbone_outputs: Tensor | None  # held by the patched forward until the loss is there
    graph: Node | None = None  # the loss's, which nobody runs backward: it goes with the outputs

    def with_loss(self) -> "FusedOutputs":
        """Make the loss once: the trainers do not read it, theirs is of the log probabilities."""
        if self.loss is not None:
            return self
        negative = neg(sum_all(self.log_probs))
        self.loss = div_by_constant(negative, _at_least_one(self.label_mask))
        self.backbone_outputs = None
        return self


@runtime_checkable
class WithHead(Protocol):
    """A language model with a head, whose body can be called alone."""

    lm_head: Module

    def hidden_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]."""


class FusedHead(Module):
    """A model that `add_fused_lm_head` patched: called as before, or for its log probabilities."""

    def __init__(self, model: WithHead, metrics: Collection[str] = ()) -> None:
        self.patched: Any = model
        self.metrics = metrics
        self.accessed: Callable[[Tensor], Tensor] = lambda weight: weight  # the head's, of shards
        self.is_named_for_causal_lm = getattr(model, "is_named_for_causal_lm", True)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        valid_labels: int = 0,
        adapters: bool = True,
        **boundaries: Tensor,
    ) -> FusedOutputs | Outputs:
        """[B, T] -> logits [B, T, V] without labels, else the head's of `valid_labels`.

        `adapters`: off for the reference of a model with adapters (TRL's use_adapter).
        `boundaries`: of packed sequences, which sdpa does not read.
        """
        del boundaries
        if labels is None:
            own = {"attention_mask": attention_mask, "position_ids": position_ids}
            read = {name: x for name, x in own.items() if x is not None}
            outputs: Outputs = self.patched(input_ids=input_ids, **read)
            return outputs
        wrapped = () if adapters else [m for m in self.modules() if isinstance(m, LoraLinear)]
        for adapter in wrapped:
            adapter.disable_adapters = True
        try:
            inputs = input_ids, attention_mask, position_ids
            return self._fused_forward(inputs, labels, valid_labels)
        finally:
            for adapter in wrapped:
                adapter.disable_adapters = False

    def _fused_forward(
        self, inputs: tuple[Tensor | None, ...], labels: Tensor, valid_labels: int
    ) -> FusedOutputs:
        backbone_outputs: Tensor = self.patched.hidden_states(*inputs)
        with made_for(Purpose.LOGITS_AND_LOSS):
            hidden_states = slice_dim(backbone_outputs, 1, backbone_outputs.shape[1] - 1)
            B, T = labels.shape
            mask = made("ne", (B, T - 1), bool_)
            head = self.patched.lm_head
            per_token = self._chunked(
                self.accessed(head.weight),
                None if head.bias is None else self.accessed(head.bias),
                index_mask(hidden_states, mask, valid_labels),
                index_mask(labels.viewed((B, T - 1), (T, 1)), mask, valid_labels),
            )
            log_probs, entropy, mean_logits, is_top1 = _scattered(per_token, mask)
            del per_token
            assert log_probs is not None  # noqa: S101 - always computed
            held = backbone_outputs.detach()
        outputs = FusedOutputs(None, log_probs, entropy, mean_logits, is_top1, mask, held)
        if self.hooks is not None:  # FSDP2's, which cast all that is returned: the loss, too
            loss = outputs.with_loss().loss
            assert loss is not None  # noqa: S101 - just made
            outputs.loss, outputs.graph = loss.detach(), loss.node
        return outputs

    def _chunked(
        self, weight: Tensor, bias: Tensor | None, hidden: Tensor, targets: Tensor
    ) -> tuple[Tensor | None, ...]:
        """_ChunkedLogProbFunction: [N, H], [N] -> four of [N]; its gradient is the first's."""
        dtype = hidden.dtype if context.autocast is None else context.autocast.dtype
        inputs = (hidden, weight) if bias is None else (hidden, weight, bias)
        saved = *map(keep, inputs), keep(targets)
        log_z, outputs = self._folded(hidden, weight, bias, dtype)
        entropy = outputs[1]
        kept = (*saved, keep(log_z), keep(entropy))
        wanted = [_Wanted(x.shape, x.dtype, x.requires_grad) for x in inputs]

        def backward(grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
            del grad
            return _head_gradients(wanted, dtype)

        results = [x for x in (outputs[0], entropy) if x is not None]
        record_many("head", results, inputs=inputs, saved=kept, backward=backward)
        return outputs

    def _folded(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, dtype: DType
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        N = hidden.shape[0]
        sums = [made("full", (N,), float32) for _ in range(7)]
        mm_buf = made("empty", (min(N, _TOKENS), _ROWS), dtype)
        hidden_chunk: Tensor | None = None  # of no tokens there is none
        for tokens in _parts(N, _TOKENS):
            hidden_chunk = _cast((tokens, hidden.shape[1]), hidden.dtype, dtype)
            for rows in _parts(weight.shape[0], _ROWS):
                w_chunk = _cast((rows, weight.shape[1]), weight.dtype, dtype)
                cublas_workspace()
                del w_chunk
                if bias is not None:
                    _cast((rows,), bias.dtype, dtype)  # added to the tile, and freed
        vector = partial(made, shape=(N,), dtype=float32)
        logarithm = vector("log")
        log_z = vector("add")
        del logarithm
        logprobs = vector("sub")
        entropy = mean_logits = is_top1 = None
        if "entropy" in self.metrics:
            quotient = vector("div")
            entropy = vector("sub")
            del quotient
        if "mean_logits" in self.metrics:
            mean_logits = vector("div")
        if "is_top1" in self.metrics:
            is_highest, is_first = made("ge", (N,), bool_), made("gt", (N,), bool_)
            is_top1 = made("and", (N,), bool_)
            del is_highest, is_first
        del sums, mm_buf, hidden_chunk
        return log_z, (logprobs, entropy, mean_logits, is_top1)


def patched(model: Module, metrics: Collection[str]) -> FusedHead:
    """Return the model with its head patched. Raises NotModelledError if there is no such head."""
    if not (isinstance(model, WithHead) and isinstance(model.lm_head, Linear)):
        raise NotModelledError(
            "TRL's loops need a language model whose head is a linear layer without adapter",
            hint="`vrambudget rehearse --gpu GPU -- python train.py` runs the script as it is",
        )
    return FusedHead(model, metrics)


def fused(
    run: Run, model: Module, inputs: Mapping[str, Tensor], *, adapters: bool = True
) -> FusedOutputs:
    """Return what a patched model that accelerate prepared says of its labels.

    Its loss is made here: nobody asks for its gradient, so its graph goes with the outputs.
    """
    boundaries = inputs.get("cu_seq_lens_q")
    sequences = 0 if boundaries is None else boundaries.shape[0] - 1
    valid_labels = count_valid_labels(run.settings, *inputs["labels"].shape, sequences=sequences)
    if run.has_ranks and model is run.model:  # what wraps the model wraps the region, too
        prepared: FusedOutputs = model(**inputs, valid_labels=valid_labels, adapters=adapters)
        return prepared.with_loss()
    return in_region(run, model, {**inputs, "valid_labels": valid_labels, "adapters": adapters})


def in_region(run: Run, model: Module, inputs: Mapping[str, Any]) -> FusedOutputs:
    """Run a patched model that accelerate prepared in its region, and make its loss."""
    with run.autocast():
        outputs: FusedOutputs = model(**inputs)
        return outputs.with_loss()


def count_valid_labels(job: Job, rows: int, length: int, *, sequences: int = 0) -> int:
    """Return how many labels of a batch count; where rows are padded, the first is the longest.

    Of packed rows [1, B T] the first label of each of the `sequences` counts for nothing.
    """
    if sequences:
        batch = sequences // PACKED
        return min(batch * (job.completion_len or length), length - sequences)
    completion = min(job.completion_len or length, length - 1)
    return rows * completion - (rows - 1 if job.rows == "padded" else 0)


def _scattered(outputs: tuple[Tensor | None, ...], mask: Tensor) -> list[Tensor | None]:
    return [None if x is None else masked_scatter(x, mask) for x in outputs]


def _at_least_one(mask: Tensor) -> Tensor:
    """mask.sum().clamp(min=1)."""
    count = count_true(mask)
    clamped = made("clamp", (), int64)
    del count
    return clamped


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What decides about the gradient of an input."""

    shape: tuple[int, ...]
    dtype: DType
    is_wanted: bool


def _head_gradients(inputs: Sequence[_Wanted], dtype: DType) -> tuple[Tensor | None, ...]:
    hidden, weight, *biases = inputs
    (N, H), (V, _) = hidden.shape, weight.shape
    gradients = [made("zeros", x.shape, float32) if x.is_wanted else None for x in inputs]
    mm_buf = made("empty", (min(N, _TOKENS), _ROWS), dtype)
    hidden_chunk = w_chunk = None
    for tokens in _parts(N, _TOKENS):
        hidden_chunk = _cast((tokens, H), hidden.dtype, dtype)
        for rows in _parts(V, _ROWS):
            w_chunk = _cast((rows, H), weight.dtype, dtype)
            cublas_workspace()
            for bias in biases:
                _cast((rows,), bias.dtype, dtype)
            if hidden.is_wanted or weight.is_wanted:
                addmm_workspace()
            if any(bias.is_wanted for bias in biases):
                total = made("sum", (rows,), float32)
                with_partial_sums(mm_buf.viewed((tokens, rows), (_ROWS, 1)), (0,))
                del total
    given = [_as(gradient, x.dtype) for gradient, x in zip(gradients, inputs, strict=True)]
    del gradients, mm_buf, hidden_chunk, w_chunk  # held until here
    return tuple(given)


def _as(gradient: Tensor | None, dtype: DType) -> Tensor | None:
    if gradient is None or gradient.dtype is dtype:
        return gradient
    return made("to_copy", gradient.shape, dtype)


def _cast(shape: tuple[int, ...], source: DType, dtype: DType) -> Tensor | None:
    """Return a part in the type that is computed in: a copy, unless it is its own."""
    return None if source is dtype else made("to_copy", shape, dtype)


def _parts(count: int, size: int) -> Iterator[int]:
    """Yield the sizes of the parts of `size` that `count` is divided into."""
    for start in range(0, count, size):
        yield min(size, count - start)
