"""nanoGPT's GPT (karpathy/nanoGPT, model.py): the same operations, in the same order.

LayerNorm and linear layers with an optional bias, one fused projection for q, k, v, attention by
torch's scaled_dot_product_attention, the exact GELU in one kernel, and cross-entropy on the logits
as they come (16 bit under autocast). The head shares the embedding's weight.
"""

from collections.abc import Iterator
from typing import Literal, Self

from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Probability, Size
from vrambudget.engine.context import made_for
from vrambudget.engine.identical_layers import Layer
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.layers import Dropout, Embedding, LayerNorm, Linear
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.attention import scaled_dot_product_attention
from vrambudget.ops.creation import arange
from vrambudget.ops.elementwise import add, gelu
from vrambudget.ops.loss import cross_entropy
from vrambudget.ops.shape import contiguous, split, transpose, view
from vrambudget.tape.events import Purpose


class Attention(Module):
    """CausalSelfAttention."""

    def __init__(self, config: "NanoGPTConfig") -> None:
        width = config.hidden_size
        self.heads, self.p = config.num_attention_heads, config.dropout
        self.c_attn = Linear(width, 3 * width, bias=config.bias)
        self.c_proj = Linear(width, width, bias=config.bias)
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        B, T, C = x.shape
        q, k, v = split(self.c_attn(x), C, dim=2)
        # [B, T, C] -> [B, H, T, D]
        q, k, v = (transpose(view(t, B, T, self.heads, C // self.heads), 1, 2) for t in (q, k, v))
        dropout_p = self.p if self.training else 0.0
        y = scaled_dot_product_attention(q, k, v, dropout=dropout_p, is_causal=True)
        y = view(contiguous(transpose(y, 1, 2)), B, T, C)
        projected: Tensor = self.drop(self.c_proj(y))
        return projected


class MLP(Module):
    """MLP."""

    def __init__(self, config: "NanoGPTConfig") -> None:
        width = config.hidden_size
        self.c_fc = Linear(width, 4 * width, bias=config.bias)
        self.c_proj = Linear(4 * width, width, bias=config.bias)
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = self.c_fc(x)
        x = gelu(x)
        x = self.c_proj(x)
        y: Tensor = self.drop(x)
        return y


class Block(Layer):
    """Block."""

    def __init__(self, config: "NanoGPTConfig") -> None:
        self.ln_1 = LayerNorm(config.hidden_size, bias=config.bias)
        self.attn = Attention(config)
        self.ln_2 = LayerNorm(config.hidden_size, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = add(x, self.attn(self.ln_1(x)))
        return add(x, self.mlp(self.ln_2(x)))


class Transformer(Module):
    """GPT.transformer, a ModuleDict."""

    def __init__(self, config: "NanoGPTConfig") -> None:
        self.wte = Embedding(config.vocab_size, config.hidden_size)
        self.wpe = Embedding(config.block_size, config.hidden_size)
        self.drop = Dropout(config.dropout)
        self.h = [Block(config) for _ in range(config.num_hidden_layers)]
        self.ln_f = LayerNorm(config.hidden_size, bias=config.bias)


class GPT(Module):
    """GPT."""

    def __init__(self, config: "NanoGPTConfig") -> None:
        self.transformer = Transformer(config)
        # The head is tied before the model goes to the device: it is never allocated there.
        self.lm_head = Linear.sharing(self.transformer.wte.weight)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V]."""
        pos = arange(input_ids.shape[1])
        tok_emb = self.transformer.wte(input_ids)
        pos_emb = self.transformer.wpe(pos)
        x = self.transformer.drop(add(tok_emb, pos_emb))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.lm_head(x)
            flat = view(logits, -1, logits.shape[-1])
            loss = cross_entropy(flat, view(labels, -1))
        return Outputs(loss, logits)


class NanoGPTConfig(ModelConfig):
    """nanoGPT's GPTConfig, by its own names or Hugging Face's; its defaults are train.py's."""

    model_type: Literal["nanogpt"] = "nanogpt"
    vocab_size: Size = 50304
    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 12
    block_size: Size = 1024
    dropout: Probability = 0.0
    bias: bool = False

    reads_attention_mask = False
    loads_in_4bit = False
    checked_with = ()
    aliases = {  # noqa: RUF012 - declared ClassVar in the base class
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "max_position_embeddings": "block_size",
    }

    @property
    def default_block(self) -> int:
        """Tokens per sequence where a job names none."""
        return self.block_size

    def for_job(self, job: Job) -> Self:
        """Return the configuration that trains `job`: its block is the table of positions.

        Raises NotModelledError for what nanoGPT does not have.
        """
        asked = {
            "attention eager": job.attention == "eager",
            "checkpointing": job.checkpointing != "none",
            "LoRA": job.lora_rank is not None,
        }
        if missing := [name for name, is_asked in asked.items() if is_asked]:
            raise NotModelledError(
                f"nanoGPT has no {' and no '.join(missing)}",
                hint="model gpt2 is the same architecture in transformers, which has",
            )
        config = super().for_job(job)
        return config if job.block is None else config.model_copy(update={"block_size": job.block})

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from divides(self, "num_attention_heads", into="hidden_size")

    def build(self, task: Task) -> GPT:
        """Return the model, its weights allocated."""
        del task  # there is one
        return GPT(self)
