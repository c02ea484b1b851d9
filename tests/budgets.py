"""Budgets made by hand, for the tests of what is made of budgets."""

from dataclasses import replace

from vrambudget.budget import Budget, Device, OutOfMemory, Parameters, Peak, Step

JOB = {
    "batch": 64,
    "block": 1024,
    "mode": "train",
    "precision": "amp-bf16",
    "optimizer": "adamw",
    "optimizer_impl": "fused",
    "attention": "sdpa",
    "checkpointing": "none",
    "dropout": None,
    "clip": 1.0,
    "grad_accum": 1,
    "keep_outputs": True,
    "steps": 2,
    "task": "causal-lm",
    "torch": "2.11",
    "transformers": "5.17",
}
BREAKDOWN = {
    "weights": 498_150_400,
    "autocast copies": 171_130_880,
    "gradients": 0,
    "optimizer states": 996_300_800,
    "activations": 7_516_192_768,
    "logits and loss": 26_373_783_552,
    "temporaries": 2_097_152,
    "workspaces": 17_039_360,
    "inputs": 2_097_152,
    "block rounding": 1_207_808,
}
ALLOCATED = sum(BREAKDOWN.values())
RESERVED = ALLOCATED + 200 * 2**20
CONTEXT = 225 * 2**20


def budget() -> Budget:
    """Return a training job without a card."""
    return Budget(
        model="nanogpt",
        job=JOB,
        parameters=Parameters(124_373_760, 124_373_760),
        peak=Peak(ALLOCATED - 1_207_808, ALLOCATED, RESERVED, 2, "backward", "nll_loss_backward"),
        breakdown=BREAKDOWN,
        steps=(
            Step(30_000_000_000, 2_000_000_000, 33_000_000_000, 34_000_000_000),
            Step(31_000_000_000, 3_000_000_000, ALLOCATED, RESERVED),
        ),
    )


def on_card(capacity: int) -> Budget:
    """Return the same job on a card; it fits where its peak does."""
    peak = RESERVED + CONTEXT
    fits = peak <= capacity
    device = Device("NVIDIA GeForce RTX 3060", capacity, CONTEXT, peak, capacity - peak, fits)
    failure = OutOfMemory(1, "forward", "log_softmax", 6_593_445_888, 7_283_000_000)
    return replace(budget(), device=device, out_of_memory=None if fits else failure)
