"""Training steps as people write them: `vrambudget.follow` counts them, a rehearsal runs them.

Each function makes what a step needs on `device` (None: where torch makes it) and returns the step
and what it is called with. `python step_cases.py NAME` runs one on the card, as a rehearsal does.
"""

import copy
import sys
from pathlib import Path

import torch
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    fold,
    kl_div,
    log_softmax,
    normalize,
    scaled_dot_product_attention,
    softmax,
    unfold,
)
from torch.utils.checkpoint import checkpoint

STEPS = 3
LOG = []


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        up, down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.mlp = torch.nn.Sequential(up, torch.nn.GELU(), down)

    def forward(self, x):
        B, T, C = x.shape
        parts = self.qkv(self.norm_1(x)).chunk(3, -1)
        q, k, v = (part.view(B, T, self.heads, -1).transpose(1, 2) for part in parts)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.norm_2(x))


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return dy * (s * (1 + x * (1 - s)))


class Activation(torch.nn.Module):
    def forward(self, x):
        return Swish.apply(x)


def language_model(device, layers=2):
    blocks = [Block(256, 4) for _ in range(layers)]
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 256), *blocks, torch.nn.Linear(256, 1000))
    return model.to(device)


def tokens(device, rows=8):
    return torch.ones(rows, 96, dtype=torch.long, device=device)


def autocast(device):
    """Autocast, clipping, AdamW; the loss is printed and returned."""
    model = language_model(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = cross_entropy(model(x).view(-1, 1000), x.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        LOG.append(f"{loss.item():.3f}")
        return loss

    return step, (tokens(device),)


def scaler(device):
    """Float16 with a scaler, micro-batches, a schedule."""
    model = language_model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))
    made = {}

    def step(x):
        scaler = made.setdefault("scaler", torch.amp.GradScaler("cuda"))
        total = 0.0
        for half in x.chunk(2):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = cross_entropy(model(half).flatten(0, 1), half.flatten()) / 2
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
        LOG.append(str(total))

    return step, (tokens(device),)


def checkpoints(device):
    """Checkpoints by hand, an autograd.Function, a fused optimizer, bfloat16."""
    model = language_model(device, layers=3)
    for block in list(model)[1:-1]:
        block.mlp[1] = Activation()
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(x):
        hidden = model[0](x)
        for block in list(model)[1:-1]:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        loss = cross_entropy(model[-1](hidden).view(-1, 1000).float(), x.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, (tokens(device, rows=4),)


def hooks(device):
    """An optimizer that steps in backward, and hooks on modules and tensors."""
    model = language_model(device)
    optimizers = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    norms = []
    model[1].register_full_backward_hook(lambda _m, _in, out: norms.append(out[0].norm()))
    model[2].register_forward_hook(lambda _m, _in, out: out * 1.0)

    def step(x):
        logits = model(x)
        logits.register_hook(lambda gradient: gradient * 0.5)
        loss = cross_entropy(logits.view(-1, 1000), x.view(-1))
        loss.backward()
        norms.clear()

    return step, (tokens(device),)


class Trainer:
    """A trainer's method, its data on the host, an evaluation at its end."""

    def __init__(self, device):
        self.model = language_model(device)
        wide = [p for p in self.model.parameters() if p.ndim > 1]
        narrow = [p for p in self.model.parameters() if p.ndim < 2]
        groups = [{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, amsgrad=True)
        self.data = torch.randint(0, 1000, (1000,))

    def loss(self, x):
        return cross_entropy(self.model(x).view(-1, 1000), x.view(-1), label_smoothing=0.1)

    def training_step(self):
        self.model.train()
        x = torch.stack([self.data[i : i + 64] for i in range(4)]).to("cuda")
        loss = self.loss(x)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            self.model.eval()
            LOG.append(f"{self.loss(x).item():.2f}")
        return loss.detach()


def method(device):
    return Trainer(device).training_step, ()


def gan(device):
    """Two models and two optimizers that take turns; noise made on the card."""
    wide = (512, 1024)
    sides = [
        torch.nn.Sequential(
            torch.nn.Linear(*wide), torch.nn.ReLU(), torch.nn.Linear(*reversed(wide))
        ).to(device)
        for _ in range(2)
    ]
    judge, maker = sides
    judges = torch.optim.RMSprop(judge.parameters(), lr=1e-3, momentum=0.5)
    makers = torch.optim.NAdam(maker.parameters())

    def step():
        fake = maker(torch.randn(64, 512, device="cuda"))
        judge(fake.detach()).sigmoid().mean().backward()
        judges.step()
        judges.zero_grad()
        (-judge(fake).mean()).backward()
        torch.nn.utils.clip_grad_value_(maker.parameters(), 0.5)
        makers.step()
        makers.zero_grad()
        judges.zero_grad()

    return step, ()


def adafactor(device):
    """torch's Adafactor, which reads norms back; gradients zeroed where they are."""
    model = language_model(device).to(torch.bfloat16)
    optimizer = torch.optim.Adafactor(model.parameters())

    def step(x):
        loss = cross_entropy(model(x).view(-1, 1000), x.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.item()

    return step, (tokens(device, rows=4),)


def teacher(device):
    """A student beside a teacher that is its running mean; distilled at a temperature."""
    student = language_model(device)
    mean = copy.deepcopy(student).requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(student.parameters(), foreach=False)

    def step(x):
        with torch.no_grad():
            wanted = softmax(mean(x).view(-1, 1000) / 2.0, dim=-1)
        said = log_softmax(student(x).view(-1, 1000) / 2.0, dim=-1)
        loss = kl_div(said, wanted, reduction="batchmean") * 4.0
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, new in zip(mean.parameters(), student.parameters(), strict=True):
                kept.lerp_(new, 0.01)
        return loss.detach()

    return step, (tokens(device),)


def contrastive(device):
    """Two towers, whose rows of a batch have to find each other; a learned temperature."""
    towers = torch.nn.ModuleList([language_model(device)[:-1] for _ in range(2)])
    scale = torch.nn.Parameter(torch.tensor(2.6, device=device))
    optimizer = torch.optim.AdamW([*towers.parameters(), scale], weight_decay=0.2)

    def step(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            left, right = (normalize(tower(x).mean(1), dim=-1) for tower in towers)
            scores = scale.exp() * left @ right.T
            pairs = torch.arange(len(x), device=scores.device)
            loss = (cross_entropy(scores, pairs) + cross_entropy(scores.T, pairs)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scale.clamp_(0, 4.6)
        return loss

    return step, (tokens(device, rows=16),)


def policy(device):
    """Clipped ratios of a policy's old and new probabilities, with an entropy bonus; two epochs."""
    model = language_model(device)
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-5)

    def chosen(x):
        said = model(x).log_softmax(-1)
        return said, said.gather(-1, x.unsqueeze(-1)).squeeze(-1)

    def step(x):
        with torch.no_grad():
            _, before = chosen(x)
        advantage = before - before.mean(1, keepdim=True)
        for _ in range(2):
            said, now = chosen(x)
            ratio = (now - before).exp()
            clipped = torch.clamp(ratio, 0.8, 1.2) * advantage
            entropy = -(said.exp() * said).sum(-1).mean()
            loss = -torch.min(ratio * advantage, clipped).mean() - 0.01 * entropy
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()

    return step, (tokens(device, rows=4),)


def columns(device):
    """Patches by unfold and fold, a loss of weighted classes, scores sorted and ranked, moments."""
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten(2))
    model = model.append(torch.nn.Linear(4096, 96)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = [float("inf")]

    def step(x, wanted, positive):
        shape = x.shape[-2:]
        patches = unfold(x, 5, padding=2)
        made = model(fold(patches * 0.5, shape, 5, padding=2)).flatten(1)
        loss = binary_cross_entropy_with_logits(made, wanted, pos_weight=positive)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scores = x.flatten(1)
        order = scores.argsort()
        ranked = scores.flatten().sort(stable=True).values
        spread = scores.var(), ranked.std(), scores.argmax(1)
        if not torch.isfinite(loss) or loss.item() > best[0]:
            return None
        return order, spread

    images, wanted = torch.ones(4, 3, 64, 64, device=device), torch.ones(4, 288, device=device)
    return step, (images, wanted, torch.ones(288, device=device))


def rehearsed(case, file):
    """Run a case's step on the card, and write the peaks to a file."""
    step, given = case("cuda")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        held = step(*given)
    stats = torch.cuda.memory_stats()
    peaks = [stats[f"{kind}_bytes.all.peak"] for kind in ("requested", "allocated", "reserved")]
    Path(file).write_text(" ".join(map(str, peaks)))
    del held


CASES = {
    case.__name__: case
    for case in (
        autocast,
        scaler,
        checkpoints,
        hooks,
        method,
        gan,
        adafactor,
        teacher,
        contrastive,
        policy,
        columns,
    )
}

if __name__ == "__main__":
    rehearsed(CASES[sys.argv[1]], sys.argv[2])


class Gate(torch.autograd.Function):
    """Two inputs, two results; it saves an input and one of its own."""

    @staticmethod
    def forward(ctx, x, gate):
        opened = torch.sigmoid(gate)
        ctx.save_for_backward(x, opened)
        return x * opened, opened.mean(-1)

    @staticmethod
    def backward(ctx, dy, dmean):
        x, opened = ctx.saved_tensors
        slope = opened * (1 - opened)
        return dy * opened, dy * x * slope + dmean[..., None] * slope / x.shape[-1]


class Gated(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = torch.nn.Linear(width, 2 * width), torch.nn.Linear(width, width)

    def forward(self, x):
        y, mean = Gate.apply(*self.first(x).chunk(2, -1))
        return (self.last(y).sum(-1) * mean).sum()


def gated(batch, inner):
    with torch.device("meta"):
        return Gated(inner), (torch.empty(batch, 7, inner),), lambda loss, _: loss
