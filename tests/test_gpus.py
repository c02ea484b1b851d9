"""A card is found by any spelling; what was assumed is said; nothing else passes."""

import os
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import ANY

import pytest

import vrambudget
from vrambudget.config.gpus import all_gpus, find_gpu
from vrambudget.errors import VramBudgetError


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("RTX 3060", "rtx-3060"),
        ("rtx3060", "rtx-3060"),
        ("rtx-3060", "rtx-3060"),
        ("geforce rtx 3060", "rtx-3060"),
        ("3060 12GB", "rtx-3060"),
        ("a100-40gb", "a100-40gb"),
        ("A100 80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("h100", "h100-80gb"),
        ("Tesla T4", "t4"),
        ("v100", "v100-16gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("h100 sxm5", "h100-80gb"),
        ("H100-NVL", "h100-nvl"),
        ("A10", "a10"),
        ("a10g", "a10g"),
        ("L40S", "l40s"),
        ("l40", "l40"),
        ("4060ti 16GB", "rtx-4060-ti-16gb"),
        ("RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("4070TiSuper", "rtx-4070-ti-super"),
        ("titan rtx", "titan-rtx"),
        ("rtx6000ada", "rtx-6000-ada"),
        ("RTX A6000", "rtx-a6000"),
        ("rtx 4060 laptop", "rtx-4060-laptop"),
        ("gtx1080ti", "gtx-1080-ti"),
        ("GTX 1650", "gtx-1650"),
        ("1660 super", "gtx-1660-super"),
        ("rtx 3060 laptop", "rtx-3060-laptop"),
        ("RTX 3050 laptop", "rtx-3050-laptop-4gb"),
        ("A800", "a800-80gb"),
        ("H800", "h800"),
        ("RTX 3050", "rtx-3050"),
        ("H20", "h20-96gb"),
    ],
)
def test_any_common_spelling_finds_the_card(text, key):
    assert find_gpu(text).key == key


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.key)
def test_a_card_is_found_by_its_key_and_by_what_the_driver_calls_it(gpu):
    assert find_gpu(gpu.key) == gpu
    found = find_gpu(gpu.name)
    assert found.name == gpu.name
    assert found.sold_gb <= gpu.sold_gb


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.key)
def test_a_row_is_plausible_and_says_where_it_is_from(gpu):
    sold = gpu.sold_gb * 2**30
    assert 0.90 * sold < gpu.capacity_bytes < 1.002 * sold
    assert 50 * 2**20 < gpu.context_bytes < 2**30
    assert gpu.source
    assert gpu.context_source
    assert gpu.assumed is None


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.key)
def test_a_context_says_whose_figure_it_is_and_lies_in_the_published_range(gpu):
    least, most = gpu.context_range
    assert least <= gpu.context_bytes <= most
    assert gpu.context_kind in {"measured", "published", "borrowed", "virtual"}
    assert "measured" not in gpu.context_source.replace("not measured", "")
    assert gpu.context_source.startswith("of a sibling: ") == (gpu.context_kind == "borrowed")


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.key)
def test_a_capacity_says_whose_figure_it_is_and_none_was_measured_here(gpu):
    assert gpu.capacity_kind in {"published", "borrowed"}
    assert "measured" not in gpu.source
    assert gpu.source.startswith("of a sibling: ") == (gpu.capacity_kind == "borrowed")
    assert ("public" in gpu.source) or gpu.capacity_kind == "borrowed"


def test_a_capacity_that_somebody_gave_is_nobody_s_figure():
    assert find_gpu("11.69GiB").capacity_kind == "given"
    assert find_gpu("12GB").capacity_kind == "published"


@pytest.mark.parametrize(("text", "sibling"), [("H800", "h100-80gb"), ("RTX 3050 8GB", "rtx-3070")])
def test_a_capacity_that_nobody_published_is_a_sibling_s_and_says_so(text, sibling):
    gpu = find_gpu(text)
    assert gpu.capacity_bytes == find_gpu(sibling).capacity_bytes
    assert (gpu.capacity_kind, gpu.source[:12]) == ("borrowed", "of a sibling")


def test_a_context_is_the_one_after_the_first_product():
    t4 = find_gpu("t4")
    assert t4.context_bytes == 137_363_456  # 105 MiB at the start, 131 then, 135 after cuDNN
    assert t4.context_range == (110_100_480, 141_426_688)


AT_THE_START = {
    "T4, torch-preflight": (105, 40 * 1024),
    "RTX 3090, InvokeAI, issue 9413": (256, 82 * 1536),
    "RTX 4060 Ti, llama.cpp, pull request 23604": (107, 34 * 1536),
    "RTX 6000 Ada, unsloth-zoo, pull request 1053": (426, 142 * 1536),
    "RTX PRO 6000, llama.cpp, pull request 23604": (555, 188 * 1536),
    "H100, others": (520, 132 * 2048),
    "H200, tests/records/measured": (518, 132 * 2048),
}
"""Contexts before anything was loaded, in MiB, as published; and the threads that a GPU holds."""


@pytest.mark.parametrize(("mib", "threads"), AT_THE_START.values(), ids=AT_THE_START)
def test_a_driver_keeps_two_kib_for_each_resident_thread(mib, threads):
    assert abs(mib - threads * 2 / 1024) <= 25


def test_a_sibling_with_fewer_threads_has_a_smaller_context():
    large, small = find_gpu("rtx-5090"), find_gpu("rtx-5060-ti-16gb")
    less = (170 - 36) * 1536 * 2048
    assert small.context_bytes == large.context_bytes - less
    assert small.context_range == tuple(n - less for n in large.context_range)
    assert small.context_source.endswith("; 402 MiB less for resident threads")
    assert find_gpu("h200").context_bytes == find_gpu("h100-80gb").context_bytes


def test_where_the_context_decides_the_report_says_so():
    def asked(capacity):
        return vrambudget.estimate("gpt2", block=64, gpu=replace(card, capacity_bytes=capacity))

    card = find_gpu("rtx-3060")
    needs = vrambudget.estimate("gpt2", block=64).peak.reserved_bytes
    close = asked(needs + 300 * 2**20)
    assert close.fits
    assert any("the CUDA context decides: 225.00 MiB to 480.00" in w for w in close.warnings)
    assert not any("the CUDA context decides" in w for w in asked(needs + 2**30).warnings)


def test_keys_are_unique():
    keys = [gpu.key for gpu in all_gpus()]
    assert len(keys) == len(set(keys))


# The driver's answer for the cards that the reference records were made on.
def test_known_cards_hold_the_driver_s_numbers():
    a100 = find_gpu("a100-80gb")
    assert (a100.capacity_bytes, a100.context_bytes) == (85097971712, 525336576)
    assert (a100.compute_capability, a100.multiprocessors, a100.l2_bytes) == ((8, 0), 108, 41943040)
    assert find_gpu("rtx-3060").capacity_bytes == 12552044544
    assert find_gpu("rtx-3060").l2_bytes == 2359296


def test_a_shared_name_takes_the_smaller_card_and_says_so():
    gpu = find_gpu("A100")
    assert gpu.key == "a100-40gb"
    assert "a100-80gb" in gpu.assumed
    assert "rtx-3080-12gb" in find_gpu("RTX 3080").assumed
    assert find_gpu("RTX 3080").others == ("rtx-3080-12gb",)


def test_a_name_of_two_gpus_is_told_with_both_verdicts():
    notes = vrambudget.estimate("gpt2", batch=6, block=1024, optimizer="sgd", gpu="3080").warnings
    assert "it fits rtx-3080-12gb" in notes
    notes = vrambudget.estimate("gpt2", batch=1, block=64, gpu="3080").warnings
    assert not [note for note in notes if note.startswith("it ")]


@pytest.mark.parametrize("sold", [4, 6, 8, 10, 11, 12, 16, 24, 32, 40, 48, 80, 94, 96, 141, 180])
def test_a_size_as_sold_stands_for_a_card_of_that_size(sold):
    assert find_gpu(f"{sold}GB").sold_gb == sold
    assert find_gpu(f" {sold} gb ") == replace(find_gpu(f"{sold}GB"), assumed=ANY)


def test_a_size_as_sold_names_the_card_that_it_stands_for():
    gpu = find_gpu("12GB")
    assert gpu.capacity_bytes == find_gpu("rtx-3060").capacity_bytes
    assert "RTX 3060" in gpu.assumed
    assert "11.69 GiB" in gpu.assumed


def test_an_exact_size_is_exact():
    gpu = find_gpu("11.69GiB")
    assert gpu.capacity_bytes == 12552041922  # 11.69 * 2**30, rounded down
    assert "RTX 3060" in gpu.assumed
    assert find_gpu("12552044544B").capacity_bytes == 12552044544


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0GB", "more than 0"),
        ("0GiB", "more than 0"),
        ("-12GB", "more than 0"),
        ("nanGiB", "not a size"),
        ("infGiB", "not a size"),
        ("-1GiB", "not a size"),
        ("9" * 400 + "GiB", "not a size"),
        ("13GB", "sold with '13GB'"),
        ("11.69GB", "sold with '11.69GB'"),
        ("", "not a known GPU"),
        ("80", "not a known GPU"),
        ("rtx", "not a known GPU"),
        ("ti 16GB", "not a known GPU"),
        ("radeon", "not a known NVIDIA GPU: PyTorch"),
        ("RX 7900 XTX", "not a known NVIDIA GPU"),
        ("MI300X", "not a known NVIDIA GPU"),
        ("Apple M3 Max", "not a known NVIDIA GPU"),
        ("Intel Arc A770", "not a known NVIDIA GPU"),
    ],
)
def test_what_is_no_gpu_is_named(text, words):
    with pytest.raises(VramBudgetError, match=words):
        find_gpu(text)


def test_a_near_name_is_suggested():
    with pytest.raises(VramBudgetError) as caught:
        find_gpu("rtx 3061")
    assert "did you mean 'rtx-3060'" in caught.value.hint


class _NVMLError(Exception):
    pass


def _driver(name, free, *, broken=False):
    def init():
        if broken:
            raise _NVMLError("Driver Not Loaded")

    return SimpleNamespace(
        NVMLError=_NVMLError,
        nvmlInit=init,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: name,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(free=free),
        nvmlDeviceGetCudaComputeCapability=lambda _: (8, 6),
    )


def test_auto_takes_what_is_free(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", _driver("NVIDIA GeForce RTX 3060", 10 * 2**30))
    gpu = find_gpu("auto")
    assert (gpu.key, gpu.capacity_bytes) == ("rtx-3060", 10 * 2**30)
    assert "10.00 GiB free" in gpu.assumed


def test_auto_knows_the_kernels_of_a_card_outside_the_table(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", _driver(b"NVIDIA Unheard Of", 6 * 2**30))
    gpu = find_gpu("auto")
    assert (gpu.name, gpu.compute_capability) == ("NVIDIA Unheard Of", (8, 6))
    assert gpu.capacity_bytes == 6 * 2**30


@pytest.mark.skipif(os.name == "nt", reason="a script stands for the driver's tool")
def test_auto_asks_nvidia_smi_where_the_library_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA GeForce RTX 4090, 23028, 8.9'\n")
    tool.chmod(0o755)
    gpu = find_gpu("auto")
    assert (gpu.key, gpu.capacity_bytes) == ("rtx-4090", 23028 * 2**20)
    for said in ("exit 6", "echo 'No devices were found'", "echo 'RTX 9, [N/A], 12.0'"):
        tool.write_text(f"#!/bin/sh\n{said}\n")
        with pytest.raises(VramBudgetError, match="neither answers"):
            find_gpu("auto")


def test_auto_without_the_library_or_a_driver_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VramBudgetError, match="nvidia-smi or nvidia-ml-py; neither answers"):
        find_gpu("auto")
    monkeypatch.setitem(sys.modules, "pynvml", _driver("", 0, broken=True))
    with pytest.raises(VramBudgetError, match="Driver Not Loaded"):
        find_gpu("auto")


def test_a_bare_number_is_told_how_a_size_is_written():
    with pytest.raises(VramBudgetError, match="'12' is not a known GPU") as raised:
        find_gpu("12")
    assert "'12GB'" in raised.value.hint
