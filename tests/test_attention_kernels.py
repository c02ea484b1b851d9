"""Attention allocates what PyTorch's kernels allocate, in the same order, for as long.

`records/attention_kernels.jsonl` holds calls of F.scaled_dot_product_attention on PyTorch's CUDA
build on a virtual GPU: forward, `|`, backward of `out.transpose(1, 2).contiguous()`. A number is an
allocation of so many bytes, -n frees the nth. Frees in a row have no order. A record that names a
cuDNN was made with its kernel allowed, and with that cuDNN's own answers.
"""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

import vrambudget
from vrambudget import dtypes
from vrambudget.config.record import read_records
from vrambudget.engine.autocast import autocast
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.checkpoint import checkpoint
from vrambudget.engine.context import Platform, context, no_grad, recording
from vrambudget.engine.tensor import ShapeError, Tensor, empty
from vrambudget.ops.attention import scaled_dot_product_attention, select_kernel
from vrambudget.ops.attention.flash import KeySplit
from vrambudget.ops.attention.tiles import Tile, backward_tile
from vrambudget.ops.shape import contiguous, expand, reshape, split, transpose, view
from vrambudget.validate import COUNTERS, validate

RECORDS_FILE = Path(__file__).parent / "records" / "attention_kernels.jsonl"
JOBS = read_records(RECORDS_FILE.parent / "attention" / "cudnn.jsonl")
RECORDS = [json.loads(line) for line in RECORDS_FILE.read_text().splitlines()]
TINY = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 100}
DTYPES = {"bf16": dtypes.bfloat16, "fp16": dtypes.float16, "fp32": dtypes.float32}
CARDS = {
    "a100-80gb": Platform((8, 0), 108),
    "h100-80gb": Platform((9, 0), 132),
    "b200": Platform((10, 0), 148),
    "rtx-3060": Platform((8, 6), 28),
    "rtx-4090": Platform((8, 9), 128),
    "rtx-5090": Platform((12, 0), 170),
    "v100-16gb": Platform((7, 0), 80),
    "t4": Platform((7, 5), 40),
}


def leaf(*shape, dtype, wants=True):
    x = empty(shape, dtype)
    x.requires_grad = wants
    return x


def heads(B, H, S, D, layout, **kwargs):
    """Return [B, H, S, D], from a leaf that lies like that ("bhsd") or as [B, S, H, D]."""
    if layout == "bhsd":
        return leaf(B, H, S, D, **kwargs)
    return transpose(leaf(B, S, H, D, **kwargs), 1, 2)


def inputs(*, B, H, S, D, dtype, layout="bshd", grad="qkv", Hk=None, Sk=None, Dv=None, **_):
    """Return q, k, v in the layouts that models have."""
    dtype, Hk, Sk, Dv = DTYPES[dtype], Hk or H, Sk or S, Dv or D
    if layout == "fused":  # GPT-2
        parts = split(leaf(B, S, 3 * H * D, dtype=dtype), H * D, -1)
        return [transpose(view(x, B, S, H, D), 1, 2) for x in parts]
    if layout == "neox":
        qkv = view(leaf(B, S, 3 * H * D, dtype=dtype), B, S, H, 3 * D)
        return split(transpose(qkv, 1, 2), D, -1)
    layouts = ("bhsd", "bshd", "bhsd") if layout == "mixed" else (layout,) * 3
    shapes = (B, H, S, D), (B, Hk, Sk, D), (B, Hk, Sk, Dv)
    return [
        heads(*shape, lie, dtype=dtype, wants=name in grad)
        for name, shape, lie in zip("qkv", shapes, layouts, strict=True)
    ]


def attention_mask(call):
    """Return the mask that `call` describes: "bool:B1SK", "fp32g:1HSK" (g: wants a gradient)."""
    if not call.get("mask"):
        return None
    kind, letters = call["mask"].split(":")
    sizes = {"B": call["B"], "H": call["H"], "S": call["S"], "K": call.get("Sk", call["S"])}
    shape = tuple(sizes.get(letter, 1) for letter in letters)
    dtype = dtypes.bool_ if kind == "bool" else DTYPES[kind.removesuffix("g")]
    how = call.get("mask_view")
    if how == "slice":
        whole = empty((*shape[:2], shape[2] + 8, shape[3] + call.get("extra", 40)), dtype)
        return Tensor(shape, dtype, whole.storage, whole.actual_strides())
    mask = leaf(*shape, dtype=dtype, wants=kind.endswith("g"))
    if how == "expand":
        return expand(mask, call["B"], 1, sizes["S"], sizes["K"])
    return transpose(mask, -1, -2) if how == "transpose" else mask


def repeat(x, count):
    """Repeat heads as transformers' repeat_kv does."""
    B, H, S, D = x.shape
    return reshape(expand(view(x, B, H, 1, S, D), B, H, count, S, D), B, count * H, S, D)


def attend(q, k, v, mask, call):
    options = {
        "mask": mask,
        "dropout": call.get("dropout", 0.0),
        "is_causal": call.get("causal", False),
        "enable_gqa": call.get("gqa", False),
    }
    if call.get("expand"):
        k, v = (repeat(x, call["H"] // call["Hk"]) for x in (k, v))
    kernel = None if call.get("autocast") else select_kernel(q, k, v, **options)
    out = scaled_dot_product_attention(q, k, v, **options)
    return kernel, out.actual_strides(), contiguous(transpose(out, 1, 2))


def replay(card, call, *, cudnn=False):
    """Return kernel, strides of the output, and events in the form of the records."""
    with recording(replace(CARDS[card], cudnn_attention=cudnn)) as tape:
        for thread in ("main", "autograd"):  # cuBLAS' workspaces are older than the records
            context.workspaces[thread, "cublas"] = None
        tensors, mask = inputs(**call), attention_mask(call)
        start, older = len(tape.events), len(tape.sizes)
        region = autocast(DTYPES.get(call.get("autocast")))
        with no_grad() if call.get("no_grad") else nullcontext(), region:
            kernel, strides, y = attend(*tensors, mask, call)
        forward_ends = len(tape.events)
        if y.requires_grad:
            run_backward(y)
        del y
        events = [
            str(tape.sizes[e]) if e >= 0 else str(-1 - (~e - older)) for e in tape.events[start:]
        ]
        events.insert(forward_ends - start, "|")
    return kernel, strides, events


def without_order_of_frees(events):
    """Sort frees that follow each other; the end of forward is no event."""
    result, frees = [], []
    for event in [e for e in events if e != "|"]:
        if event.startswith("-"):
            frees.append(event)
            continue
        result += [*sorted(frees), event]
        frees = []
    return result + sorted(frees)


@pytest.mark.parametrize(
    ("card", "cudnn"),
    [
        *((card, False) for card in ("a100-80gb", "h100-80gb", "rtx-3060", "t4", "v100-16gb")),
        ("h100-80gb", True),
        ("b200", True),
    ],
)
def test_every_allocation_and_free_is_pytorchs(card, cudnn):
    records = [r for r in RECORDS if r["card"] == card and ("cudnn" in r) is cudnn]
    assert len(records) >= 30
    for record in records:
        call = record["call"]
        kernel, strides, events = replay(card, call, cudnn=cudnn)
        assert kernel in {None, record["kernel"]}, call
        assert without_order_of_frees(events) == without_order_of_frees(record["events"].split()), (
            call
        )
        sizes = (call["B"], call["H"], call["S"], call.get("Dv", call["D"]))
        matters = [i for i, size in enumerate(sizes) if size > 1]
        assert [strides[i] for i in matters] == [record["strides"][i] for i in matters], call


@pytest.mark.parametrize("record", JOBS, ids=lambda record: record["id"])
def test_a_whole_job_with_cudnns_attention_is_predicted_to_the_byte(record):
    (found,) = validate([record])
    assert found.problem is None
    assert [found.error(counter) for counter in COUNTERS] == [0, 0, 0, 0]


def test_a_job_of_another_kernel_has_other_peaks():
    chosen, deprioritized = validate([JOBS[0], {**JOBS[0], "cudnn_attention": False}])
    assert chosen.predicted["requested"] != deprioritized.predicted["requested"]


def test_the_records_reach_every_kernel_in_training_and_inference():
    seen = {(r["kernel"], bool(r["call"].get("no_grad"))) for r in RECORDS}
    kernels = ("cudnn", "flash", "efficient", "math")
    assert seen == {(k, g) for k in kernels for g in (False, True)}


def choose(
    card,
    dtype="bf16",
    *,
    D=64,
    cudnn=False,
    H=8,
    Hk=8,
    S=128,
    Sk=128,
    grad=True,
    mask=None,
    **options,
):
    with recording(replace(CARDS[card], cudnn_attention=cudnn)):
        q = leaf(2, H, S, D, dtype=DTYPES[dtype], wants=grad)
        k, v = (leaf(2, Hk, Sk, D, dtype=DTYPES[dtype], wants=grad) for _ in range(2))
        bias = None if mask is None else empty((1, 1, S, Sk), dtypes.bool_)
        return select_kernel(q, k, v, mask=bias, **options)


@pytest.mark.parametrize(
    ("kernel", "card", "dtype", "options"),
    [
        pytest.param("flash", "a100-80gb", "bf16", {}, id="half precision on Ampere"),
        pytest.param("flash", "h100-80gb", "fp16", {}, id="Hopper, cuDNN deprioritized"),
        pytest.param("flash", "a100-80gb", "bf16", {"D": 20}, id="any head size: it is padded"),
        pytest.param("flash", "a100-80gb", "bf16", {"Hk": 2, "enable_gqa": True}, id="few heads"),
        pytest.param("efficient", "a100-80gb", "fp32", {}, id="float32"),
        pytest.param("efficient", "a100-80gb", "bf16", {"mask": 1}, id="a mask"),
        pytest.param("efficient", "a100-80gb", "bf16", {"D": 264}, id="a wide head"),
        pytest.param(
            "efficient", "a100-80gb", "bf16", {"S": 1, "is_causal": True}, id="causal, not square"
        ),
        pytest.param("efficient", "t4", "fp16", {}, id="float16 before Ampere"),
        pytest.param("math", "t4", "bf16", {}, id="bfloat16 before Ampere"),
        pytest.param("math", "a100-80gb", "bf16", {"mask": 1, "D": 20}, id="a mask, odd heads"),
        pytest.param("math", "a100-80gb", "fp32", {"D": 66}, id="float32 not a multiple of 4"),
        pytest.param("efficient", "v100-16gb", "fp32", {"D": 66}, id="which Volta does not mind"),
        pytest.param(
            "math", "a100-80gb", "fp32", {"Hk": 2, "enable_gqa": True}, id="few heads, float32"
        ),
        pytest.param("efficient", "rtx-3060", "bf16", {"D": 200}, id="small cards train to 192"),
        pytest.param("flash", "rtx-3060", "bf16", {"D": 200, "grad": False}, id="but run all"),
        pytest.param("flash", "rtx-4090", "bf16", {"D": 256}, id="and train above 224"),
        pytest.param("efficient", "rtx-5090", "bf16", {"D": 256, "dropout": 0.1}, id="not with it"),
    ],
)
def test_the_kernel_is_the_one_that_pytorch_selects(kernel, card, dtype, options):
    assert choose(card, dtype, **options) == kernel


@pytest.mark.parametrize(
    ("kernel", "card", "options"),
    [
        pytest.param("cudnn", "h100-80gb", {"mask": 1}, id="Hopper, with a mask"),
        pytest.param("cudnn", "h100-80gb", {"D": 256}, id="wide heads"),
        pytest.param("flash", "b200", {"D": 136}, id="too wide on Blackwell"),
        pytest.param("flash", "h100-80gb", {"D": 20}, id="heads no multiple of 8"),
        pytest.param("flash", "h100-80gb", {"S": 8, "Sk": 1}, id="one key"),
        pytest.param("flash", "b200", {"S": 1, "dropout": 0.1}, id="one query, with dropout"),
        pytest.param("cudnn", "b200", {"S": 1, "Hk": 2, "enable_gqa": True}, id="one query"),
        pytest.param("flash", "a100-80gb", {}, id="Ampere"),
        pytest.param("flash", "rtx-5090", {}, id="Blackwell for the desk"),
    ],
)
def test_cudnns_kernel_comes_first_on_hopper_and_data_centre_blackwell(kernel, card, options):
    assert choose(card, cudnn=True, **options) == kernel


@pytest.mark.parametrize(
    ("torch", "gpu", "kernel"),
    [
        ("2.11", "h100", "cudnn"),
        ("2.13", "b200", "cudnn"),
        ("2.11+cu128", "h100", "flash"),  # wheels of CUDA 12 have an older cuDNN
        ("2.8", "h100", "flash"),
        ("2.11", "rtx-5090", "flash"),
    ],
)
def test_a_job_takes_cudnns_kernel_where_its_pytorch_has_a_cudnn_that_is_new_enough(
    torch, gpu, kernel
):
    job = {"batch": 1, "block": 64, "precision": "bf16", "torch": torch, "gpu": gpu}
    budget = vrambudget.estimate(TINY, **job)
    assert budget.job["attention_kernel"] == kernel
    named = {"cudnn": "cuDNN 9.19", "flash": "flash"}[kernel]
    assert f"({named} kernel)" in " ".join(str(budget).split())
    without = vrambudget.estimate(TINY, cudnn_attention=False, **job)
    assert without.job["attention_kernel"] == "flash"


@pytest.mark.parametrize(
    ("card", "head_dim", "dropout", "tile"),
    [
        ("a100-80gb", 64, False, Tile(64, 64)),
        ("a100-80gb", 128, True, Tile(128, 128)),  # needs 148.5 KiB of shared memory
        ("rtx-3060", 96, False, Tile(128, 64)),  # made for them
        ("rtx-3060", 96, True, Tile(64, 64, stages_dkv=True)),
        ("rtx-5090", 96, False, Tile(64, 64, stages_dkv=True)),
        ("t4", 128, False, Tile(128, 64)),
        ("v100-16gb", 256, False, Tile(128, 64, stages_dkv=True, makes_delta=False)),
    ],
)
def test_tiles_follow_card_head_size_and_dropout(card, head_dim, dropout, tile):
    assert backward_tile(CARDS[card], dtypes.float16, head_dim, dropout=dropout) == tile


def test_decoding_splits_the_keys_to_fill_the_card():
    with recording(CARDS["a100-80gb"]):
        # 216 slots, 32 blocks of 128 keys: 11 splits of 16 blocks fill 176 of them
        assert KeySplit(B=2, H=8, Sq=1, Sk=4096, D=128).blocks == 11
        assert KeySplit(B=8, H=32, Sq=1, Sk=4096, D=128).blocks == 1


def test_checkpointing_runs_attention_again_in_backward():
    # torch.utils.checkpoint around split, attention, contiguous: recorded on a virtual A100
    recorded = (
        "102400 3200 16 8 -2 -3 -4 102400 102400 3200 16 8 102400 102400 102400 4096 262144 "
        "-14 -13 -9 -8 -6 -7 307200 -10 -11 -12 -5 -1"
    )
    with recording(CARDS["a100-80gb"]) as tape:
        x = leaf(2, 100, 768, dtype=dtypes.bfloat16)

        def attention(x):
            q, k, v = (transpose(view(y, 2, 100, 4, 64), 1, 2) for y in split(x, 256, -1))
            return contiguous(transpose(scaled_dot_product_attention(q, k, v), 1, 2))

        y = checkpoint(attention, x)
        run_backward(y)
        del y
        events = [str(tape.sizes[e]) if e >= 0 else str(-~e) for e in tape.events[1:]]
    assert without_order_of_frees(events) == without_order_of_frees(recorded.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"Hk": 2}, "enable_gqa"),
        ({"Hk": 3, "enable_gqa": True}, "a multiple"),
    ],
)
def test_heads_that_do_not_fit_are_an_error(options, words):
    with pytest.raises(ShapeError, match=words):
        choose("a100-80gb", **options)


def test_a_mask_of_another_length_is_an_error():
    with recording(CARDS["a100-80gb"]):
        q, k, v = (leaf(2, 4, 128, 64, dtype=dtypes.bfloat16) for _ in range(3))
        mask = empty((2, 1, 128, 127), dtypes.bool_)
        with pytest.raises(ShapeError, match=r"mask \[2, 1, 128, 127\] for scores"):
            scaled_dot_product_attention(q, k, v, mask=mask)
