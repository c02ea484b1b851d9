"""What code for pictures asks of a trace: frozen configurations, group norm, channels last."""

from collections import OrderedDict

import pytest

import vrambudget

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Frozen(OrderedDict):
    """As the configuration of a diffusers model is: nothing may be written into it."""

    def update(self, *_args, **_items):
        raise RuntimeError("frozen")


def eval_step(module):
    def step(x):
        with torch.no_grad():
            return module(x)

    return step


def peak_of(module, *shape, dtype=torch.float16, gpu="a100-80gb"):
    x = torch.empty(shape, dtype=dtype)
    budget = vrambudget.trace(eval_step(module.to(dtype)), x, gpu=gpu, torch="2.11", steps=1)
    return budget.peak.requested_bytes


def test_a_module_with_a_frozen_configuration_is_traced():
    module = torch.nn.Linear(64, 64, bias=False)
    module.config = config = Frozen(sizes=(64, 64))
    workspace = peak_of(torch.nn.Linear(64, 64, bias=False), 8, 64)
    assert peak_of(module, 8, 64) == workspace
    assert module.config is config


def test_group_norm_holds_two_factors_for_each_channel_in_float32():
    norm = torch.nn.GroupNorm(8, 64)
    image, weights, statistics = 2 * 64 * 32 * 32 * 2, 2 * 64 * 2, 2 * 2 * 8 * 2
    factors = 2 * 2 * 64 * 4
    assert peak_of(norm, 2, 64, 32, 32) == weights + 2 * image + statistics + factors


def test_upsampling_copies_an_image_that_attention_left_in_an_order_of_its_own():
    class Upsampled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):  # [1, pixels, C], as attention's result
            image = x.transpose(1, 2).reshape(1, 64, 32, 32)
            return F.interpolate(image, scale_factor=2.0)

    image = 64 * 32 * 32 * 2
    assert peak_of(Upsampled(), 1, 32 * 32, 64) == 2 + image + image + 4 * image


def test_a_convolution_by_a_weight_in_channels_last_copies_the_image(monkeypatch):
    monkeypatch.setattr("vrambudget.ops.convolution_kernels.workspace_bytes", lambda *_: 0)
    conv = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)
    image, weight = 64 * 16 * 16 * 2, 64 * 64 * 9 * 2
    assert peak_of(conv, 1, 64, 16, 16) == weight + 2 * image
    assert peak_of(conv.to(memory_format=torch.channels_last), 1, 64, 16, 16) == weight + 3 * image


def test_a_schedulers_table_on_the_host_is_read_at_a_time_that_lies_on_the_card():
    norm, table = torch.nn.GroupNorm(8, 64), torch.arange(4.0)
    read = []

    def step(x):
        times = torch.arange(3, device="cuda")
        read.append(float(table[times[1]]))
        with torch.no_grad():
            return norm(x)

    vrambudget.trace(step, torch.empty(2, 64, 8, 8), gpu="a100-80gb", steps=1)
    assert read == [1.0]
