"""Some of PyTorch's own samples (opinfo_exam.py), by what a real H200 allocated for them."""

import pytest

torch = pytest.importorskip("torch")

import opinfo_exam  # noqa: E402 - it needs torch

MASK = [True, True, False, True, False]
LENGTHS = [24, 29, 27, 23, 13, 20, 19, 22, 28, 19, 21, 25, 12, 13, 12, 28]


def leaf(*shape):
    return torch.zeros(shape).requires_grad_()


def put(*, mask, accumulate):
    args = leaf(5, 5), (torch.tensor(mask),), leaf(5), accumulate
    return torch.index_put, args


def ctc():
    lengths = torch.full((16,), 50), torch.tensor(LENGTHS)
    return torch.nn.functional.ctc_loss, (leaf(50, 16, 20), torch.ones(16, 30).long(), *lengths)


# torch 2.11.0+cu130, driver 580.159.04: forward's peak, what stays, backward's peak, what stays.
MEASURED = {
    "combinations 0": ((torch.combinations, (leaf(1), 1)), [1036, 5, 1300, 8]),
    "cumprod 4": ((torch.cumprod, (leaf(1), 0)), [1027, 4, 12, 8]),
    "cumsum 2": ((torch.cumsum, (leaf(), 0)), [4, 4, 12, 8]),
    "index_put 1": (put(mask=MASK, accumulate=False), [1151, 100, 1371, 220]),
    "index_put 3": (put(mask=5 * [False], accumulate=True), [1127, 100, 1227, 220]),
    "masked_select 4": (
        (torch.masked_select, (leaf(), torch.tensor(data=True))),
        [1035, 4, 1299, 8],
    ),
    "multinomial 0": ((torch.multinomial, (torch.ones(3), 3)), [50, 24, 24, 24]),
    "multinomial 2": ((torch.multinomial, (torch.ones(3, 10), 3)), [230, 72, 72, 72]),
    "multinomial 4": (
        (torch.multinomial, (torch.ones(3), 3, True)),
        [1083, 24, 24, 24],
    ),
    "nonzero 0": ((torch.nonzero, (torch.zeros(()),)), [5, 0, 0, 0]),
    "nn.functional.ctc_loss 6": (ctc(), [189248, 188932, 442120, 64004]),
}


@pytest.mark.parametrize("name", MEASURED)
def test_bytes_are_those_of_an_h200(name):
    (op, args), row = MEASURED[name]
    token_counts = opinfo_exam.counted_side(log=False)(op, args, {})
    assert token_counts[:4] == row
