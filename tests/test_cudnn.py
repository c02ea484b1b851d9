"""What cuDNN is asked of convolutions, and what a report says of its answers."""

import os
from ctypes.util import find_library
from functools import cache
from threading import Event

import pytest
from virtual import VIRTUAL_GPU, run

from vrambudget import estimate
from vrambudget.cudnn import answers, apart, asking, library, remarks
from vrambudget.cudnn.question import Convolution, Direction
from vrambudget.cudnn.remarks import remark_on_convolutions
from vrambudget.dtypes import bfloat16, float16, float32
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import Platform, context, recording
from vrambudget.engine.tensor import empty
from vrambudget.ops.channels_last import is_like_channels_last, is_packed, packed_strides
from vrambudget.ops.convolution import convolution
from vrambudget.ops.convolution_kernels import Geometry, select_kernel

A100 = (8, 0), 108
PATCHES = Convolution(
    Direction.FORWARD,
    "float32",
    (8, 3, 224, 224),
    (768, 3, 16, 16),
    (8, 768, 14, 14),
    stride=(16, 16),
    padding=(0, 0),
    dilation=(1, 1),
    channels_last=False,
)


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(library, "installed", lambda: None)


@pytest.mark.usefixtures("nothing_installed")
def test_answers_for_known_patches_are_kept():
    assert answers.workspace_bytes(PATCHES, *A100) == 14_385_168
    assert answers.version() == "9.19.0"


def test_a_cudnn_that_is_installed_says_what_is_kept():
    if library.installed() is None:
        pytest.skip("cuDNN is not installed: pip install nvidia-cudnn-cu13")
    assert asking.ask(library.installed(), PATCHES, *A100) == 14_385_168


@pytest.mark.usefixtures("nothing_installed")
def test_a_report_says_whose_workspaces_are_counted_or_how_large_they_may_be():
    job = {"gpu": "a100-80gb", "task": "image-cls"}
    asked = estimate({"model_type": "vit"}, batch=8, **job).warnings
    warnings = estimate({"model_type": "vit"}, batch=7, **job).warnings
    assert any("cuDNN 9.19.0 names" in warning for warning in asked)
    # three times x [7, 3, 224, 224], the weight [768, 3, 16, 16] and y [7, 768, 14, 14] in 16 bit
    assert any("mostly 0 to 15.43 MiB" in warning for warning in warnings)


@pytest.fixture
def fresh_process(monkeypatch):
    if library.installed() is None:
        pytest.skip("cuDNN is not installed: pip install nvidia-cudnn-cu13")
    asked_without_driver = Event()
    for module in (answers, remarks):
        monkeypatch.setattr(module, "asked_without_driver", asked_without_driver)
    monkeypatch.setattr(apart, "_started", cache(apart._started.__wrapped__))  # noqa: SLF001
    yield
    connection, process = apart._started(os.getpid())  # noqa: SLF001
    connection.close()
    process.wait(timeout=60)  # it ends with the connection


WEIGHTS = Convolution(
    Direction.WEIGHT,
    "float32",
    (48, 32, 15, 15),
    (64, 32, 3, 3),
    (48, 64, 13, 13),
    stride=(1, 1),
    padding=(0, 0),
    dilation=(1, 1),
    channels_last=False,
)
WEIGHTS_IN_TORCH = """
import sys, torch
x, weight, dy = (torch.empty(eval(shape), device="cuda") for shape in sys.argv[2:])
before = torch.cuda.memory_stats()["requested_bytes.all.current"]
moves = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
wanted = [False, True, False]
_, dw, _ = torch.ops.aten.convolution_backward(dy, x, weight, None, *moves, wanted)
peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
open(sys.argv[1], "w").write(str(peak - before - dw.nbytes))
"""


@pytest.mark.usefixtures("fresh_process")
@pytest.mark.virtual_gpu
@VIRTUAL_GPU[1]
def test_cudnn_names_an_engine_that_uses_cublaslt_as_in_a_rehearsal(tmp_path):
    script, told = tmp_path / "weights.py", tmp_path / "told"
    script.write_text(WEIGHTS_IN_TORCH)
    run(script, told, *map(str, (WEIGHTS.x, WEIGHTS.weight, WEIGHTS.y)), steps=100)
    assert answers.workspace_bytes(WEIGHTS, *A100) == int(told.read_text())
    assert "without a driver" not in remark_on_convolutions(0)


@pytest.mark.usefixtures("fresh_process")
@pytest.mark.skipif(find_library("cuda") is not None, reason="there is a driver")
def test_a_report_says_where_cudnn_was_asked_without_a_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")  # no C compiler builds stubs
    assert answers.workspace_bytes(WEIGHTS, *A100) > 0
    assert "without a driver" in remark_on_convolutions(0)


@pytest.mark.usefixtures("fresh_process")
def test_a_process_that_does_not_come_up_answers_nothing(monkeypatch):
    monkeypatch.setattr(apart, "_ANSWER", "raise SystemExit(3)")
    assert [answers.workspace_bytes(WEIGHTS, *A100) for _ in range(2)] == [answers.UNKNOWN] * 2


@pytest.mark.usefixtures("fresh_process")
def test_an_interrupted_question_leaves_the_next_one_to_another_process(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(apart.Connection, "recv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            answers.workspace_bytes(WEIGHTS, *A100)
    assert answers.workspace_bytes(WEIGHTS, *A100) > 0


GROUPS = Geometry((1, 1), (1, 1), (1, 1), groups=64)


@pytest.mark.parametrize(
    ("dtype", "width", "channels_last", "kernel"),
    [
        (float32, 28, False, "depthwise"),
        (float32, 28, True, "cudnn"),
        (float16, 28, False, "cudnn"),
        (float16, 6, False, "depthwise"),  # too narrow to be quicker
        (bfloat16, 28, False, "depthwise"),
    ],
)
def test_a_depthwise_convolution_takes_pytorchs_own_kernel(dtype, width, channels_last, kernel):
    with recording(Platform()):
        shapes = (8, 64, width, width), (64, 1, 3, 3)
        assert select_kernel(*shapes, dtype, GROUPS, channels_last=channels_last) == kernel


def test_bfloat16_before_ampere_is_not_cudnns():
    with recording(Platform(compute_capability=(7, 5))):
        shapes = (8, 64, 28, 28), (64, 64, 3, 3)
        plain = Geometry((1, 1), (1, 1), (1, 1))
        assert select_kernel(*shapes, bfloat16, plain, channels_last=False) == "native"
    job = {"gpu": "t4", "task": "image-cls", "batch": 7}
    bf16, fp16 = (estimate({"model_type": "vit"}, precision=p, **job) for p in ("bf16", "fp16"))
    assert not any("cuDNN" in warning for warning in bf16.warnings)
    assert any("cuDNN" in warning for warning in fp16.warnings)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "moves", "recorded"),
    [
        pytest.param(
            (2, 8, 32, 32),
            (16, 8, 3, 3),
            True,
            ((1, 1), (1, 1)),
            "65536 147456 -2 | 65536 32768 147456 32 2304 -5 -3",
            id="columns of one image",
        ),
        pytest.param(
            (2, 8, 32, 32),
            (16, 8, 1, 1),
            False,
            ((1, 1), (0, 0)),
            "65536 | 65536 32768 16384 256 -4 -2",
            id="single pixels",
        ),
        pytest.param(
            (2, 8, 32, 32),
            (16, 8, 1, 1),
            False,
            ((2, 2), (0, 0)),
            "16384 4096 -2 | 16384 32768 4096 256 -5 -3",
            id="every other pixel",
        ),
        pytest.param(
            (2, 80, 300),
            (16, 80, 3),
            True,
            ((1,), (1,)),
            "19200 144000 -2 | 19200 96000 144000 32 7680 -5 -3",
            id="a line",
        ),
    ],
)
def test_bfloat16_before_ampere_goes_by_columns(x, weight, bias, moves, recorded):
    # F.conv2d, then backward of empty_like(y), recorded on a virtual T4: -n frees the nth
    with recording(Platform((7, 5), 40)) as tape:
        for thread in ("main", "autograd"):  # cuBLAS' workspaces are older than the records
            context.workspaces[thread, "cublas"] = None
        shapes = [x, weight, *([weight[:1]] if bias else [])]
        given = [empty(shape, bfloat16) for shape in shapes]
        for tensor in given:
            tensor.requires_grad = True
        start, older = len(tape.events), len(tape.sizes)
        stride, padding = moves
        geometry = Geometry(stride, padding, (1,) * len(stride))
        y = convolution(given[0], given[1], given[2] if bias else None, geometry)
        forward = len(tape.events) - start
        run_backward(y)
        events = [
            str(tape.sizes[e]) if e >= 0 else str(-1 - (~e - older)) for e in tape.events[start:]
        ]
    events.insert(forward, "|")
    assert " ".join(events) == recorded


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 1, 5), (4, 1, 1, 1), (1, 1, 4, 4)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_format_is_what_torch_takes_it_for(shape, transposed):
    torch = pytest.importorskip("torch")
    order = torch.channels_last if transposed else torch.contiguous_format
    x = torch.empty(shape).to(memory_format=order)
    for channels_last, format_ in ((False, torch.contiguous_format), (True, torch.channels_last)):
        packed = is_packed(shape, x.stride(), channels_last=channels_last)
        assert packed == x.is_contiguous(memory_format=format_)
    assert packed_strides(shape) == torch.empty(shape, memory_format=torch.channels_last).stride()
    format_ = torch._prims_common.suggest_memory_format(x)  # noqa: SLF001 - no public one
    assert is_like_channels_last(shape, x.stride()) == (format_ is torch.channels_last)
