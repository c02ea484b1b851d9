"""Training steps as people write them: `vrambudget.follow` counts them, a rehearsal runs them.

Each function makes what a step needs on `device` (None: where torch makes it) and returns the step
and what it is called with. `python step_cases.py NAME` runs one on the card, as a rehearsal does.
"""

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
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


CASES = {
    case.__name__: case for case in (autocast, scaler, checkpoints, hooks, method, gan, adafactor)
}

if __name__ == "__main__":
    step, given = CASES[sys.argv[1]]("cuda")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        held = step(*given)
    stats = torch.cuda.memory_stats()
    peaks = [stats[f"{kind}_bytes.all.peak"] for kind in ("requested", "allocated", "reserved")]
    Path(sys.argv[2]).write_text(" ".join(map(str, peaks)))
