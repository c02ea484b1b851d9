"""What the API is handed in by mistake: one error, which names the argument and the value."""

import pytest

import vrambudget
from vrambudget import VramBudgetError
from vrambudget.planning.fit import margin_bytes

TINY = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50}


@pytest.mark.parametrize("gpu", [12, 1.5, b"12GB", ["12GB"], {}, object(), True])
@pytest.mark.parametrize("function", ["estimate", "advise", "max_batch", "max_block", "find_gpu"])
def test_a_card_that_is_no_text_is_named(function, gpu):
    call = getattr(vrambudget, function)
    with pytest.raises(VramBudgetError, match=r"gpu is .*; it should be text"):
        call(gpu) if function == "find_gpu" else call(TINY, block=4, gpu=gpu)


@pytest.mark.parametrize("gpu", [1, 1.5, [1], ("12GB", 3), object()])
def test_so_are_those_of_a_sweep(gpu):
    with pytest.raises(VramBudgetError, match=r"gpu is .*; it should be text"):
        vrambudget.sweep(TINY, block=4, gpu=gpu)


@pytest.mark.parametrize("path", [3, None, b"x.html", ["x.html"]])
def test_a_picture_s_path_is_text(path):
    with pytest.raises(VramBudgetError, match="a picture's path is text"):
        vrambudget.draw(path, TINY, block=4)


@pytest.mark.parametrize("margin", [b"x", 1.5, [1], "1", "much"])
def test_a_margin_is_bytes_or_a_size(margin):
    with pytest.raises(VramBudgetError, match=r"margin is|is not a size"):
        margin_bytes(margin)


@pytest.mark.parametrize("model", [3, None, b"gpt2", ["gpt2"], {}, {1: 2}, {"model_type": []}])
@pytest.mark.parametrize("function", ["estimate", "sweep", "advise", "max_batch"])
def test_what_is_no_model_is_named(function, model):
    with pytest.raises(VramBudgetError):
        getattr(vrambudget, function)(model, gpu="12GB")
