"""Training steps that lean on PyTorch's own autograd: graphs of gradients, hooks, transforms.

As in step_cases.py; `python eager_cases.py NAME FILE` runs one on the card, as a rehearsal does.
"""

import functools
import sys

import torch
from step_cases import language_model, rehearsed, tokens
from torch import nn
from torch.ao import quantization
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    ctc_loss,
    leaky_relu,
    linear,
    scaled_dot_product_attention,
)
from torch.utils import checkpoint as checkpoints


def training(optimizer, loss_of):
    def step(*given):
        loss = loss_of(*given)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def loss_of_tokens(model, x):
    return cross_entropy(model(x).flatten(0, 1), x.flatten())


def on_tokens(device, make=torch.optim.AdamW, loss_of=loss_of_tokens, **options):
    model = language_model(device)
    optimizer = make(model.parameters(), **options)
    return training(optimizer, lambda x: loss_of(model, x)), (tokens(device),)


class Gate(torch.autograd.Function):
    """Keeps one tensor for backward, and another as an attribute of its context."""

    @staticmethod
    def forward(ctx, x):
        ctx.gate = torch.sigmoid(x)
        ctx.save_for_backward(x)
        return x * ctx.gate

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * (ctx.gate * (1 + x * (1 - ctx.gate)))


class Gated(nn.Module):
    def forward(self, x):
        return Gate.apply(x)


def context(device):
    layers = [nn.Sequential(nn.Linear(512, 512), Gated()) for _ in range(4)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return training(optimizer, lambda x: model(x).mean()), (torch.ones(256, 512, device=device),)


def encoder(device):
    """The fast path of a transformer in eval mode."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 3).to(device).eval()

    def step(x):
        with torch.no_grad():
            return model(x)

    return step, (torch.ones(8, 128, 256, device=device),)


def selective(device):
    """Checkpoints that keep the results of products."""
    kept = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]

    def policy(_context, operation, *_, **__):
        policies = checkpoints.CheckpointPolicy
        return policies.MUST_SAVE if operation in kept else policies.PREFER_RECOMPUTE

    contexts = functools.partial(checkpoints.create_selective_checkpoint_contexts, policy)
    again = functools.partial(checkpoints.checkpoint, use_reentrant=False, context_fn=contexts)

    def loss_of(model, x):
        hidden = model[0](x)
        for block in list(model)[1:-1]:
            hidden = again(block, hidden)
        return cross_entropy(model[-1](hidden).flatten(0, 1), x.flatten())

    return on_tokens(device, loss_of=loss_of)


def weighted(device):
    model, weight = nn.Linear(512, 512).to(device), torch.ones(512, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(x):
        wanted = torch.ones_like(x)
        return binary_cross_entropy_with_logits(model(x), wanted, pos_weight=weight)

    return training(optimizer, loss_of), (torch.ones(4096, 512, device=device),)


def masters(device):
    """Weights in bfloat16 beside copies in float32 that are trained."""
    model = language_model(device).bfloat16()
    weights = list(model.parameters())
    copies = [p.detach().clone().float().requires_grad_() for p in weights]
    optimizer = torch.optim.AdamW(copies)

    def step(x):
        cross_entropy(model(x).flatten(0, 1).float(), x.flatten()).backward()
        for p, copy in zip(weights, copies, strict=True):
            copy.grad = p.grad.float()
            p.grad = None
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, copy in zip(weights, copies, strict=True):
                p.copy_(copy)

    return step, (tokens(device),)


def outside(device):
    """A scaler and a region of autocast that were made before the step."""
    model = language_model(device)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler, region = torch.amp.GradScaler("cuda"), torch.autocast("cuda", dtype=torch.float16)

    def step(x):
        with region:
            loss = loss_of_tokens(model, x)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step, (tokens(device),)


def penalty(device):
    """A critic's gradient penalty."""
    first, last = nn.Linear(512, 512).to(device), nn.Linear(512, 1).to(device)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()])

    def loss_of(x):
        real = x.detach().requires_grad_()
        score = last(leaky_relu(first(real), 0.2))
        (gradient,) = torch.autograd.grad(score.sum(), real, create_graph=True)
        return score.mean() + 10 * ((gradient.norm(2, dim=1) - 1) ** 2).mean()

    return training(optimizer, loss_of), (torch.ones(256, 512, device=device),)


def meta_learning(device):
    """A step of gradient descent within the loss (MAML)."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def loss_of(x, y):
        weights = dict(model.named_parameters())
        inner = cross_entropy(functional_call(model, weights, (x,)), y)
        gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        moved = {k: p - 0.1 * g for (k, p), g in zip(weights.items(), gradients, strict=True)}
        return cross_entropy(functional_call(model, moved, (x,)), y)

    classes = torch.ones(128, dtype=torch.long, device=device)
    return training(optimizer, loss_of), (torch.ones(128, 64, device=device), classes)


def fused(device):
    return on_tokens(device, torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)


def recurrent(device):
    parts = nn.Embedding(1000, 128), nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 1000)
    model = nn.ModuleList(parts).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def loss_of(x):
        hidden, _ = model[1](model[0](x))
        return cross_entropy(model[2](hidden).flatten(0, 1), x.flatten())

    return training(optimizer, loss_of), (tokens(device),)


def transforms(device):
    """One row at a time."""
    model = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def loss_of(x):
        return vmap(lambda row: (model(row) * row).sum())(x).mean()

    return training(optimizer, loss_of), (torch.ones(128, 64, device=device),)


def offloaded(device):
    """Saved tensors in main memory."""

    def loss_of(model, x):
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            logits = model(x)
        return cross_entropy(logits.flatten(0, 1), x.flatten())

    return on_tokens(device, loss_of=loss_of)


def categorical(device):
    """A policy's actions, drawn from a distribution that checks its arguments."""
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 16)).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def loss_of(x):
        said = torch.distributions.Categorical(logits=model(x))
        return -said.log_prob(said.sample()).mean() - 0.01 * said.entropy().mean()

    return training(optimizer, loss_of), (torch.ones(512, 64, device=device),)


def reentrant(device):
    again = functools.partial(checkpoints.checkpoint, use_reentrant=True)

    def loss_of(model, x):
        hidden = model[0](x)
        for block in list(model)[1:-1]:
            hidden = again(block, hidden)
        return cross_entropy(model[-1](hidden).flatten(0, 1), x.flatten())

    return on_tokens(device, loss_of=loss_of)


class Attention(nn.Module):
    """Looks at all tokens: no mask, no dropout."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 64)).permute(2, 0, 3, 1, 4)
        return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def attention(device):
    model = nn.Sequential(*(Attention() for _ in range(3))).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 96, 256, dtype=torch.bfloat16, device=device)
    return training(optimizer, lambda x: model(x).float().square().mean()), (x,)


def recast(device):
    """A frozen encoder that computes in float32 and waits in float16."""
    encoder = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
    encoder.requires_grad_(False).to(device, torch.float16)
    head = nn.Linear(512, 16).to(device)
    optimizer = torch.optim.AdamW(head.parameters())

    def loss_of(x):
        encoder.float()
        with torch.no_grad():
            z = encoder(x)
        encoder.half()
        return head(z).square().mean()

    return training(optimizer, loss_of), (torch.ones(64, 512, device=device),)


def picked(device):
    """Rows that are normalised by BatchNorm1d, of which two indices of different shapes pick."""
    model = nn.Sequential(nn.Linear(64, 512), nn.BatchNorm1d(512)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.arange(32, device=device)[:, None]
    columns = torch.arange(400, device=device)[None]
    x = torch.ones(32, 64, device=device)
    return training(optimizer, lambda x, *at: model(x)[at].square().mean()), (x, rows, columns)


def averaged(device):
    """Gated and attended rows, whose classes lie in the second dimension; a mean of the weights."""
    parts = nn.GRU(128, 128, batch_first=True), nn.MultiheadAttention(128, 4, batch_first=True)
    model = nn.ModuleList([nn.Embedding(1000, 128), *parts, nn.Linear(128, 1000)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    means = {name: x.detach().clone() for name, x in model.state_dict().items()}

    def step(x):
        hidden, _ = model[1](model[0](x))
        hidden = hidden + model[2](hidden, hidden, hidden, need_weights=False)[0]
        loss = cross_entropy(model[3](hidden.transpose(0, 1)).permute(1, 2, 0), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for name, weight in model.state_dict().items():
            means[name].lerp_(weight, 0.01)
        return loss

    return step, (tokens(device, rows=4)[:, :24].contiguous(),)


def bags(device):
    """Words added up to bags, more and fewer of them than are sorted, and a form of two vectors."""
    words = nn.EmbeddingBag(5000, 64), nn.EmbeddingBag(10, 48, mode="sum")
    model = nn.ModuleList([*words, nn.Bilinear(64, 48, 6)]).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def loss_of(many, few):
        return model[2](model[0](many), model[1](few)).square().mean()

    ids = torch.zeros(64, 100, dtype=torch.long, device=device)
    return training(optimizer, loss_of), (ids, ids[:, :40].contiguous())


def tangents(device):
    """Forward mode AD: of an input, and of weights without a gradient; tangents that are zero."""
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = {name: x.detach() for name, x in model.named_parameters()}

    def loss_of(x):
        with forward_ad.dual_level():
            y, slope = forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x))))
            loss = y.square().mean() + slope.square().mean()
        ways = {name: torch.randn_like(w) for name, w in weights.items()}
        _, along = jvp(lambda w: functional_call(model, w, (x,)).mean(), (weights,), (ways,))
        return loss + along

    return training(optimizer, loss_of), (torch.ones(128, 256, device=device),)


def ensemble(device):
    """Five models at once, by the code of one on meta, on batches in a dictionary of lists."""
    base = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to("meta")
    shapes = {name: (5, *x.shape) for name, x in base.named_parameters()}
    weights = {name: nn.Parameter(torch.ones(s, device=device)) for name, s in shapes.items()}
    optimizer = torch.optim.Adam(weights.values())

    def loss_of(first, batch, last):
        calls = [lambda w, x=x: functional_call(base, w, (x,)) for x in batch["views"]]
        return sum(vmap(f)(weights).square().mean() for f in calls) + first.mean() + last.mean()

    ones = (torch.ones(size, device=device) for size in ((900, 700), (96, 256), (700, 700)))
    first, x, last = ones
    views = [x, torch.ones(33, 256, device=device)]
    return training(optimizer, loss_of), (first, {"views": views, "id": 3}, last)


def masked(device):
    """Rows by masks: one that the host made, labels', one of scores; read and written."""
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def loss_of(x, labels, few):
        y, z = model(x), model(x[few])
        loss = cross_entropy(y[labels != -100], labels[labels != -100])
        copy = y.clone()
        copy[few], copy[labels == -100] = z, 0
        picked = torch.masked_select(y, y > 0).mean() + y[few.nonzero().squeeze(1)].mean()
        return loss + picked + copy.mean()

    few = torch.arange(640) % 3 == 0
    labels = torch.where(few, 5, -100).to(device)
    given = torch.ones(640, 128, device=device), labels, few.to(device)
    return training(optimizer, loss_of), given


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(128, 4)
        self.experts = nn.ModuleList(nn.Linear(128, 128) for _ in range(4))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            y.index_add_(0, rows, expert(x[rows]) * weights[rows, places, None])
        return y


def experts(device):
    """Tokens that a loop sends to experts, two each."""
    model = nn.Sequential(nn.Linear(128, 128), Experts()).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(500, 128, device=device)
    return training(optimizer, lambda x: model(x).square().mean()), (x,)


def spoken(device):
    """CTC of characters, whose lengths the host has; what was confused, counted; of some steps."""
    model = nn.Sequential(nn.Linear(80, 256), nn.ReLU(), nn.Linear(256, 29)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    steps = torch.linspace(0, 1, 1000, device=device)

    def step(x, labels):
        y = model(x * steps[torch.randint(0, 1000, (8, 1, 1), device=device or "cuda")])
        lengths = torch.full((8,), 400), torch.full((8,), 50)
        loss = ctc_loss(y.log_softmax(-1).transpose(0, 1), labels, *lengths)
        loss = loss + y.logsumexp((1, 2)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return torch.bincount(y.argmax(-1).flatten(), minlength=29), loss

    return step, (torch.ones(8, 400, 80, device=device), torch.ones(8, 50, device=device).long())


def overlap(device):
    """Views that activations write into, classes that overlap, prices that the step clones."""
    norm = nn.InstanceNorm1d(32, affine=True)
    model = nn.Sequential(nn.Linear(256, 512), norm, nn.LeakyReLU(0.1, inplace=True))
    model = model.append(nn.Linear(512, 512)).to(device)
    prices = torch.ones(32, 512, device=device)

    def loss_of(batch):
        y = model(batch["x"]).softmax(1)
        wanted = nn.functional.one_hot(batch["labels"], 32).transpose(1, 2).float()
        both = (y * wanted * prices.clone()).sum(2)
        dice = 1 - 2 * both / (y.sum(2) + wanted.sum(2))
        return dice.mean() + nn.functional.binary_cross_entropy(y, wanted)

    x, labels = torch.ones(16, 32, 256, device=device), torch.ones(16, 512, device=device).long()
    return training(torch.optim.AdamW(model.parameters()), loss_of), ({"x": x, "labels": labels},)


class Rounded(nn.Module):
    """A layer whose weight and result are rounded to eight bits, by channel and as a whole."""

    def __init__(self, columns, rows, *, fused):
        super().__init__()
        make = quantization.FusedMovingAvgObsFakeQuantize if fused else quantization.FakeQuantize
        of_rows = {"dtype": torch.qint8, "qscheme": torch.per_channel_symmetric, "ch_axis": 0}
        by_channel = quantization.MovingAveragePerChannelMinMaxObserver
        self.layer = nn.Linear(columns, rows)
        self.weight = make(by_channel, -128, 127, **of_rows)
        self.result = make(quantization.MovingAverageMinMaxObserver, 0, 255)

    def forward(self, x):
        y = linear(x, self.weight(self.layer.weight), self.layer.bias)
        return self.result(y.relu())


def rounded(device):
    """Training for eight bits: what is rounded keeps a mask for backward."""
    layers = Rounded(256, 512, fused=False), Rounded(512, 384, fused=True), nn.Linear(384, 10)
    model = nn.Sequential(*layers).to(device)
    x = torch.ones(700, 256, device=device)
    optimizer = torch.optim.AdamW(model.parameters())
    return training(optimizer, lambda x: model(x).square().mean()), (x,)


def clipped(device):
    """Gradients of each row, clipped before they are added up."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    weights = dict(model.named_parameters())

    def loss_of(weights, row, label):
        return cross_entropy(functional_call(model, weights, row[None]), label[None])

    def step(x, labels):
        detached = {name: weight.detach() for name, weight in weights.items()}
        of_rows = vmap(grad(loss_of), (None, 0, 0))(detached, x, labels)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in of_rows.values()]).norm(dim=0)
        return {k: torch.einsum("b,b...->...", 1 / norms, g) for k, g in of_rows.items()}

    return step, (torch.ones(64, 64, device=device), torch.ones(64, device=device).long())


def moved(device):
    """A batch that the step moves itself, an average of weights, a number that is read back."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)).to(device)
    mean = torch.optim.swa_utils.AveragedModel(model)
    heat = nn.Parameter(torch.zeros(1, device=device))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch):
        x, labels = (batch[key].to("cuda", non_blocking=True) for key in ("x", "labels"))
        x = (x - x.mean()) / x.std()
        y = model(x)
        temperature = heat.exp().item()
        loss = (temperature * cross_entropy(y, labels, reduction="none")).mean() + y.max()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean.update_parameters(model)

    return step, ({"x": torch.ones(2048, 256), "labels": torch.ones(2048).long()},)


def sparse(device):
    """Sparse gradients of a table that is read twice, in two micro-batches, and of bags."""
    words, bags = nn.Embedding(5000, 128, sparse=True), nn.EmbeddingBag(5000, 128, sparse=True)
    model, last = nn.ModuleList([words, bags]).to(device), nn.Linear(128, 256).to(device)
    optimizers = [
        torch.optim.SparseAdam(words.parameters()),
        torch.optim.SGD([*bags.parameters(), *last.parameters()], lr=0.1),
    ]

    def step(x, y):
        for half in x.chunk(2):
            hidden = model[0](half) * model[0](y[: len(half)]).sigmoid() + model[1](y)[:1]
            last(hidden).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    ids = torch.arange(16 * 64).reshape(16, 64) % 700
    return step, (ids.to(device), (ids + 300).to(device))


def quantised(device):
    """Products with 4-bit weights of bitsandbytes, packed and copied, and adapters."""
    from bitsandbytes.nn import Linear4bit  # noqa: PLC0415 - few have it

    wide, narrow = (
        Linear4bit(*sizes, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
        for sizes in ((512, 2048), (2048, 512))
    )
    frozen = nn.Sequential(wide, nn.SiLU(), narrow).to(device or "cpu")
    adapters = nn.Sequential(nn.Linear(512, 8), nn.Linear(8, 512)).to(device)
    optimizer = torch.optim.AdamW(adapters.parameters())

    def loss_of(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return (frozen(x) + adapters(x)).square().mean()

    x = torch.ones(256, 512, dtype=torch.bfloat16, device=device)
    return training(optimizer, loss_of), (x,)


def pooled(device):
    """Nodes that send to each other, their means and maxima by graph, a norm without weights."""
    first, last = nn.Linear(64, 128).to(device), nn.Linear(256, 4).to(device)
    norm = nn.BatchNorm1d(128, affine=False).to(device)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()])

    def loss_of(x, edges, graph, wanted):
        h = norm(first(x))
        sent = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])
        h = sent.relu()
        place, none = graph[:, None].expand_as(h), h.new_zeros(32, 128)
        ways = [
            none.scatter_reduce(0, place, h, way, include_self=False) for way in ("mean", "amax")
        ]
        return cross_entropy(last(torch.cat(ways, 1)), wanted)

    nodes = torch.arange(4096, device=device)
    edges = torch.stack([nodes, nodes.flip(0)])
    x = torch.ones(4096, 64, device=device)
    return training(optimizer, loss_of), (x, edges, nodes % 32, nodes[:32] % 4)


def hardest(device):
    """The loss of the hardest pixels, and overlap, in float16."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 21)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(x, labels):
        with torch.autocast("cuda", torch.float16):
            scores = model(x).permute(0, 3, 1, 2)
            each = cross_entropy(scores, labels, reduction="none")
            hard = each.flatten().topk(each.numel() // 4, sorted=True)[0].mean()
            wanted = nn.functional.one_hot(labels, 21).movedim(-1, 1)
            return hard - (torch.softmax(scores, 1) * wanted).mean()

    x = torch.ones(4, 96, 96, 16, device=device)
    return training(optimizer, loss_of), (x, torch.ones(4, 96, 96, device=device).long())


CASES = {
    case.__name__: case
    for case in (
        *(context, encoder, selective, weighted, masters, outside, penalty),
        *(meta_learning, fused, recurrent, transforms, offloaded, categorical, reentrant),
        *(attention, recast, picked, averaged, bags, tangents, ensemble),
        *(masked, experts, spoken, overlap, clipped, moved, rounded),
        *(sparse, quantised, pooled, hardest),
    )
}

if __name__ == "__main__":
    rehearsed(CASES[sys.argv[1]], sys.argv[2])
