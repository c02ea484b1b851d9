"""A GPT in plain PyTorch that runs nanoGPT's operations, in nanoGPT's order.

For measuring and rehearsing jobs of the model `nanogpt`: the same tensors live and die as in
nanoGPT's own `model.py`, which is not part of this project. Sizes have nanoGPT's names. Weights
are PyTorch's default random ones, made on the CPU.

Source of the sequence: github.com/karpathy/nanoGPT, model.py.
Not modelled: `torch.compile`, which nanoGPT's train.py uses where it can; generation.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

DEFAULTS: Mapping[str, Any] = {
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "vocab_size": 50304,
    "bias": False,
    "dropout": 0.0,
}


class LayerNorm(nn.Module):
    """nn.LayerNorm always has a bias in older releases; here it may be left out."""

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, T, C], normalised over C."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    """All heads at once; one product makes queries, keys and values."""

    def __init__(self, c: Mapping[str, Any]) -> None:
        super().__init__()
        width = c["n_embd"]
        self.c_attn = nn.Linear(width, 3 * width, bias=c["bias"])
        self.c_proj = nn.Linear(width, width, bias=c["bias"])
        self.resid_dropout = nn.Dropout(c["dropout"])
        self.n_head, self.dropout = c["n_head"], c["dropout"]

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended x [B, T, C]; queries, keys and values are [B, H, T, C/H]."""
        batch, block, width = x.shape
        q, k, v = self.c_attn(x).split(width, dim=2)
        q = q.view(batch, block, self.n_head, width // self.n_head).transpose(1, 2)
        k = k.view(batch, block, self.n_head, width // self.n_head).transpose(1, 2)
        v = v.view(batch, block, self.n_head, width // self.n_head).transpose(1, 2)
        p = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, block, width)
        projected: Tensor = self.resid_dropout(self.c_proj(y))
        return projected


class MLP(nn.Module):
    """Four times as wide inside. `x` is one name: each step frees the one before."""

    def __init__(self, c: Mapping[str, Any]) -> None:
        super().__init__()
        self.c_fc = nn.Linear(c["n_embd"], 4 * c["n_embd"], bias=c["bias"])
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * c["n_embd"], c["n_embd"], bias=c["bias"])
        self.dropout = nn.Dropout(c["dropout"])

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, T, C]; inside it is [B, T, 4C]."""
        x = self.c_fc(x)
        x = self.gelu(x)
        x = self.c_proj(x)
        x = self.dropout(x)
        return x  # noqa: RET504 - the steps are the point


class Block(nn.Module):
    """Attention and MLP, each after a norm and beside a residual."""

    def __init__(self, c: Mapping[str, Any]) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(c["n_embd"], bias=c["bias"])
        self.attn = CausalSelfAttention(c)
        self.ln_2 = LayerNorm(c["n_embd"], bias=c["bias"])
        self.mlp = MLP(c)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, T, C]."""
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x  # noqa: RET504 - both sums are called x, so that the first dies when the second is


class GPT(nn.Module):
    """The model; its token embedding and its head share one weight [V, C]."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        c = {**DEFAULTS, **sizes}
        self.wte = nn.Embedding(c["vocab_size"], c["n_embd"])
        self.wpe = nn.Embedding(c["block_size"], c["n_embd"])
        self.drop = nn.Dropout(c["dropout"])
        self.h = nn.ModuleList(Block(c) for _ in range(c["n_layer"]))
        self.ln_f = LayerNorm(c["n_embd"], bias=c["bias"])
        self.lm_head = nn.Linear(c["n_embd"], c["vocab_size"], bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the logits [B, T, V] and their loss against `labels` [B, T]."""
        positions = torch.arange(input_ids.shape[1], dtype=torch.long, device=input_ids.device)
        tok_emb = self.wte(input_ids)
        pos_emb = self.wpe(positions)
        x = self.drop(tok_emb + pos_emb)
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        logits = self.lm_head(x)
        flat = logits.view(-1, logits.size(-1))
        loss = functional.cross_entropy(flat, labels.view(-1), ignore_index=-1)
        return {"logits": logits, "loss": loss}
