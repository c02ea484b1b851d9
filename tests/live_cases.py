"""Live models that no family knows: `vrambudget.preflight` follows them, a rehearsal runs them.

Each function returns a model on the CPU and what preflight is told of it. As a script, this trains
one on the card with the plain loop: `python live_cases.py NAME FILE`, which a rehearsal runs.
"""

import sys
from pathlib import Path

import torch
import transformers
from torch.nn.functional import cross_entropy, mse_loss, scaled_dot_product_attention, silu

STEPS = 3
SIZES = {"vocab_size": 500, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
TOKENS, SHORT = {"batch": 4, "block": 96}, {"batch": 3, "block": 77}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def adapted(**options):
    import peft  # noqa: PLC0415

    kind = getattr(peft, options.pop("kind"))
    return peft.get_peft_model(llama(), kind(task_type="CAUSAL_LM", **options))


def dora():
    return adapted(kind="LoraConfig", r=8, use_dora=True, target_modules="all-linear"), TOKENS


def ia3():
    modules = ["k_proj", "v_proj", "down_proj"]
    return adapted(
        kind="IA3Config", target_modules=modules, feedforward_modules=["down_proj"]
    ), TOKENS


def prompts():
    return adapted(kind="PromptTuningConfig", num_virtual_tokens=16), TOKENS


class Gated(torch.nn.Module):
    """An MLP that is put in the place of Llama's."""

    def __init__(self, width):
        super().__init__()
        self.up = torch.nn.Linear(width, 3 * width, bias=False)
        self.down = torch.nn.Linear(width, width)

    def forward(self, x):
        a, b, gate = self.up(x).chunk(3, dim=-1)
        return self.down(silu(gate) * (a + b))


def patched_llama():
    model = llama()
    for layer in model.model.layers:
        layer.mlp = Gated(SIZES["hidden_size"])
    model.model.embed_tokens.requires_grad_(False)
    return model, TOKENS


class Judged(torch.nn.Module):
    """A body in a module of one's own, with a head that scores each token."""

    def __init__(self, body):
        super().__init__()
        self.body = body
        self.score = torch.nn.Linear(SIZES["hidden_size"], 1)

    def forward(self, input_ids, values):
        hidden = self.body(input_ids=input_ids).last_hidden_state
        scores = self.score(hidden).squeeze(-1)
        return {"loss": mse_loss(scores, values), "scores": scores}


def wrapped_llama():
    ids = torch.ones(4, 96, dtype=torch.long)
    return Judged(llama().model), {"inputs": {"input_ids": ids, "values": torch.zeros(4, 96)}}


class Layer(torch.nn.Module):
    """Attention over all tokens and an MLP, side by side."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.RMSNorm(width)
        self.inner = torch.nn.Linear(width, 7 * width)
        self.outer = torch.nn.Linear(5 * width, width)

    def forward(self, x):
        C = x.shape[-1]
        q, k, v, mlp = self.inner(self.norm(x)).split([C, C, C, 4 * C], dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        attended = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.outer(torch.cat([attended, torch.nn.functional.gelu(mlp)], dim=-1))


class Forecaster(torch.nn.Module):
    """A hand-written transformer over numbers."""

    def __init__(self, width=192, layers=3):
        super().__init__()
        self.enter = torch.nn.Linear(12, width)
        self.places = torch.nn.Parameter(torch.zeros(1, 64, width))
        self.layers = torch.nn.ModuleList(Layer(width, 6) for _ in range(layers))
        self.leave = torch.nn.Linear(width, 12)

    def forward(self, series):
        x = self.enter(series) + self.places[:, : series.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.leave(x)


def loss_of_series(outputs, inputs):
    (series,) = inputs
    return mse_loss(outputs[:, :-1], series[:, 1:])


def hand_written():
    return Forecaster(), {"inputs": [torch.zeros(16, 48, 12)], "loss": loss_of_series}


def loss_of_classes(outputs, inputs):
    classes = inputs[0][:, 0].long().clamp(0, 9)
    return cross_entropy(outputs, classes)


def sequential():
    layers = torch.nn.Linear(64, 512), torch.nn.BatchNorm1d(512), torch.nn.ReLU()
    layers += torch.nn.Dropout(0.2), torch.nn.Linear(512, 10)
    return torch.nn.Sequential(*layers), {"inputs": [torch.zeros(256, 64)], "loss": loss_of_classes}


def torch_encoder():
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, {
        "inputs": [torch.zeros(8, 64, 128)],
        "loss": lambda y, _: y.float().pow(2).mean(),
    }


def falcon_with_a_cache():
    sizes = {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "vocab_size": 500,
        "num_attention_heads": 4,
    }
    return transformers.FalconForCausalLM(transformers.FalconConfig(**sizes)), TOKENS


def own_attention():
    model = llama()

    def forward(x, _rotary=None, **_):
        return x + silu(model.model.layers[0].self_attn.q_proj(x)), None

    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: forward(hidden_states)
    return model, TOKENS


def mean_square(outputs, _):
    """Return a loss of what any of these models returns."""
    y = outputs[0] if isinstance(outputs, tuple) else getattr(outputs, "sample", outputs)
    return y.float().pow(2).mean()


def prefix():
    return adapted(kind="PrefixTuningConfig", num_virtual_tokens=16), TOKENS


def vera():
    return adapted(kind="VeraConfig", r=16, target_modules=["q_proj", "o_proj"]), SHORT


class Gates(torch.nn.Module):
    """A gated recurrence, gate by gate."""

    def __init__(self, words=700, width=96):
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.of_word = torch.nn.Linear(width, 3 * width)
        self.of_state = torch.nn.Linear(width, 3 * width)
        self.head = torch.nn.Linear(width, words)

    def forward(self, ids):
        words = self.words(ids)
        state, states = words.new_zeros(words.shape[0], words.shape[2]), []
        for t in range(ids.shape[1]):
            reset, update, new = self.of_word(words[:, t]).chunk(3, -1)
            last_reset, last_update, last_new = self.of_state(state).chunk(3, -1)
            r, z = torch.sigmoid(reset + last_reset), torch.sigmoid(update + last_update)
            n = torch.tanh(new + r * last_new)
            state = (1 - z) * n + z * state
            states.append(state)
        return self.head(torch.stack(states, 1))


def gated_recurrence():
    def loss(logits, inputs):
        return cross_entropy(logits[:, :-1].flatten(0, 1), inputs[0][:, 1:].flatten())

    return Gates(), {"inputs": [torch.ones(6, 20, dtype=torch.long)], "loss": loss}


CASES = {
    case.__name__: case
    for case in (
        *(dora, ia3, prompts, patched_llama, wrapped_llama, hand_written, sequential),
        *(torch_encoder, falcon_with_a_cache, own_attention, prefix, vera, gated_recurrence),
    )
}


def batch_of(told):
    """Return a batch on the card, by name or in order, as preflight thinks of it."""
    if "inputs" in told:
        inputs = told["inputs"]
        if not isinstance(inputs, dict):
            return tuple(x.to("cuda") for x in inputs)
        return {name: x.to("cuda") for name, x in inputs.items()}
    shape = told["batch"], told["block"]
    return {
        name: torch.ones(shape, dtype=torch.long).to("cuda") for name in ("input_ids", "labels")
    }


def train(model, told):
    model.to("cuda")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    loss_of = told.get("loss", lambda outputs, _: outputs["loss"])
    for _ in range(STEPS):
        batch = batch_of(told)
        outputs = model(*batch) if isinstance(batch, tuple) else model(**batch)
        loss = loss_of(outputs, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return outputs, loss


def main(cases):
    """Train the case that the command names; write its peaks to the file that it names."""
    held = train(*cases[sys.argv[1]]())
    stats = torch.cuda.memory_stats()
    peaks = [stats[f"{kind}_bytes.all.peak"] for kind in ("requested", "allocated", "reserved")]
    Path(sys.argv[2]).write_text(" ".join(map(str, peaks)))
    del held


if __name__ == "__main__":
    main(CASES)
