"""torchtitan's Llama 3 (pytorch/torchtitan, models/llama3): the same operations, in the same order.

RMSNorm in one kernel, rotary positions by complex products with a table [block, D / 2], keys and
values repeated before torch's attention, an untied head, cross-entropy of the logits in float32.
The loop computes the loss, so it is none of the model's own: what wraps a model wraps `model`.

Source: torchtitan/models/llama3/model/model.py; components/loss.py (cross_entropy_loss).
Not modelled: flex attention, attention masks, float8, MoE layers.
"""

from collections.abc import Iterator
from itertools import count
from typing import Literal, Self

from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Size
from vrambudget.dtypes import complex64, float32
from vrambudget.engine.autocast import to
from vrambudget.engine.checkpoint import Policy, checkpoint
from vrambudget.engine.context import context, made_for
from vrambudget.engine.identical_layers import Layer
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.layers import Embedding, Linear
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.attention import scaled_dot_product_attention
from vrambudget.ops.complex_numbers import rotated_by, view_as_complex, view_as_real
from vrambudget.ops.elementwise import add, mul, silu
from vrambudget.ops.loss import cross_entropy
from vrambudget.ops.norm import rms_norm
from vrambudget.ops.shape import contiguous, expand, reshape, transpose, unsqueeze, view
from vrambudget.tape.events import Purpose

_SAVED = {"flash_attention", "efficient_attention", "cudnn_attention", "reduce_scatter_tensor"}


class RMSNorm(Module):
    """torch.nn.RMSNorm."""

    def __init__(self, width: int) -> None:
        self.weight = Parameter((width,), context.options.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        return rms_norm(x, self.weight)


def rotate(q: Tensor, k: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """apply_rotary_emb: [B, T, H, D] and [B, T, Hkv, D] by a table [block, D / 2]."""
    q_ = view_as_complex(view(to(q, float32), *q.shape[:-1], -1, 2))
    k_ = view_as_complex(view(to(k, float32), *k.shape[:-1], -1, 2))
    T, half = q_.shape[1], q_.shape[-1]
    t = table.viewed((1, T, 1, half), None)
    q_out = to(view(view_as_real(rotated_by(q_, t)), *q.shape), q.dtype)
    k_out = to(view(view_as_real(rotated_by(k_, t)), *k.shape), k.dtype)
    return q_out, k_out


def repeat_kv(x: Tensor, times: int) -> Tensor:
    """[B, T, Hkv, D] -> [B, T, H, D]."""
    if times == 1:
        return x
    B, T, heads, D = x.shape
    return reshape(expand(unsqueeze(x, 3), B, T, heads, times, D), B, T, heads * times, D)


class Attention(Module):
    """Attention."""

    def __init__(self, config: "TitanConfig") -> None:
        width, heads, kv_heads = config.dim, config.n_heads, config.kv_heads
        self.head_dim, self.repeats = width // heads, heads // kv_heads
        self.wq = Linear(width, heads * self.head_dim, bias=False)
        self.wk = Linear(width, kv_heads * self.head_dim, bias=False)
        self.wv = Linear(width, kv_heads * self.head_dim, bias=False)
        self.wo = Linear(heads * self.head_dim, width, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        B, T, _ = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = (view(t, B, T, -1, self.head_dim) for t in (q, k, v))
        q, k = rotate(q, k, table)
        k, v = repeat_kv(k, self.repeats), repeat_kv(v, self.repeats)
        q, k, v = (transpose(t, 1, 2) for t in (q, k, v))
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.wo(view(contiguous(transpose(y, 1, 2)), B, T, -1))
        return out


class FeedForward(Module):
    """FeedForward: w2(silu(w1(x)) * w3(x))."""

    def __init__(self, config: "TitanConfig") -> None:
        self.w1 = Linear(config.dim, config.hidden, bias=False)
        self.w2 = Linear(config.hidden, config.dim, bias=False)
        self.w3 = Linear(config.dim, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        y: Tensor = self.w2(mul(silu(self.w1(x)), self.w3(x)))
        return y


def saved_operations() -> Policy:
    """Return which outputs op-level checkpointing saves: every second product's, attention's, ...

    Source: torchtitan/distributed/activation_checkpoint.py (_apply_op_sac).
    """
    products = count()

    def saves(operation: str) -> bool:
        return next(products) % 2 == 0 if operation == "mm" else operation in _SAVED

    return saves


class Block(Layer):
    """TransformerBlock; checkpoint_wrapper is inside what wraps a block."""

    recomputes = False

    def __init__(self, config: "TitanConfig") -> None:
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = RMSNorm(config.dim)
        self.ffn_norm = RMSNorm(config.dim)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        if self.recomputes and self.training:
            policy = saved_operations if context.options.checkpoint_operations else None
            y: Tensor = checkpoint(self.compute, x, table, policy=policy)
            return y
        return self.compute(x, table)

    def compute(self, x: Tensor, table: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        h = add(x, self.attention(self.attention_norm(x), table))
        return add(h, self.feed_forward(self.ffn_norm(h)))


class Transformer(Module):
    """Transformer."""

    def __init__(self, config: "TitanConfig") -> None:
        self.tok_embeddings = Embedding(config.vocab_size, config.dim)
        with made_for(Purpose.WEIGHTS):
            context.operation = "freqs_cis"
            length = config.max_seq_len or config.block
            self.freqs_cis = empty((length, config.dim // config.n_heads // 2), complex64)
        self.layers = [Block(config) for _ in range(config.n_layers)]
        for index, layer in enumerate(self.layers):
            every = context.options.checkpoint_every
            layer.recomputes = context.options.checkpointing and index % every == 0
        self.norm = RMSNorm(config.dim)
        self.output = Linear(config.dim, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> logits [B, T, V]."""
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, self.freqs_cis)
        h = self.norm(h)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits: Tensor = self.output(h)
        return logits


class Trained(Module):
    """The model, and the loss that the loop computes of its logits."""

    cross_entropy = staticmethod(cross_entropy)  # with loss_parallel another

    def __init__(self, config: "TitanConfig") -> None:
        self.model = Transformer(config)

    @property
    def wrapped(self) -> Module:
        """What FSDP and others wrap: the model without its loss."""
        return self.model

    def forward(self, input_ids: Tensor, labels: Tensor) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V]."""
        logits = self.model(input_ids)
        with made_for(Purpose.LOGITS_AND_LOSS):
            flat = view(logits, -1, logits.shape[-1])
            loss = self.cross_entropy(to(flat, float32), view(labels, -1))
        return Outputs(loss, logits)


class TitanConfig(ModelConfig):
    """torchtitan's TransformerModelArgs, with the width of the feed-forward written out."""

    model_type: Literal["titan"] = "titan"
    dim: Size = 4096
    n_layers: Size = 32
    n_heads: Size = 32
    n_kv_heads: Size | None = 8
    hidden: Size = 14336
    vocab_size: Size = 128256
    max_seq_len: Size | None = None
    block: Size = 8192

    checkpointing = ("none", "full", "selective-2", "selective-op")
    reads_attention_mask = False
    loads_in_4bit = False
    checked_with = ()
    aliases = {  # noqa: RUF012 - declared ClassVar in the base class
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "intermediate_size": "hidden",
    }

    @property
    def kv_heads(self) -> int:
        """Heads of key and value."""
        return self.n_kv_heads or self.n_heads

    @property
    def default_block(self) -> int:
        """Tokens per sequence where a job names none."""
        return self.max_seq_len or self.block

    def for_job(self, job: Job) -> Self:
        """Return the configuration that trains `job`: its block is the table of positions.

        Raises NotModelledError for what torchtitan's model does not have.
        """
        if job.attention == "eager" or job.lora_rank is not None:
            missing = "attention eager" if job.attention == "eager" else "LoRA"
            raise NotModelledError(
                f"torchtitan's model has no {missing}",
                hint="model_type llama is the same architecture in transformers, which has",
            )
        config = super().for_job(job)
        return config if job.block is None else config.model_copy(update={"block": job.block})

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from divides(self, "n_heads", into="dim")
        if self.n_heads % self.kv_heads:
            yield from divides(self, "n_kv_heads", into="n_heads")

    def build(self, task: Task) -> Trained:
        """Return the model, its weights allocated."""
        del task  # there is one
        return Trained(self)
