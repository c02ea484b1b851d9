"""What a server takes of a GPU beside PyTorch's allocator: measured, and no code says it.

Kernels that libraries load with the first product, and NCCL's buffers. A rehearsal takes the
`usual`; an estimate shows the range.

A range is that of published starts: on H100s of the version whose rules are followed, on other GPUs
of any version since 0.6.6, whose log has the figure ("non_torch_memory takes").

Sources: vLLM 0.19.0 (PyTorch 2.10) on H100s, 32 starts with logs of llm-d's planner
(tests/records/serving): 0.24 to 0.27 GiB on one GPU (Granite 3.1 alone 0.46), 2.06 to 2.21 GiB with
tensor parallelism, of which 1.02 are the first communicator's, read when a worker begins.
vLLM 0.11.0 (PyTorch 2.8) on an H100: 0.13 GiB. Others, one GPU: a T4 0.05 GiB, a GPU of 47.5 GiB
0.08, an A100 of 80 GB 0.26. Two RTX 4090 0.25 (vllm-project/vllm#13061), sixteen RTX 3090 0.20
(#14447), eight A100 of 40 GB over NVLink 2.10.
"""

from collections.abc import Mapping

from vrambudget.config.gpus import Gpu
from vrambudget.serving.vllm_versions import VllmRules

_MIB = 2**20
_GIB = 2**30
KERNELS_BYTES = 256 * _MIB
_OLD_KERNELS_BYTES = 133 * _MIB  # PyTorch up to 2.9
_LAST_OLD = (2, 9)
NVLINK_NCCL = (round(1.02 * _GIB), round(1.81 * _GIB))  # of the first communicator, and the second
# 94 MiB in all on four 24 GB GPUs without a link: the first alone.
PCIE_NCCL = (94 * _MIB, 0)
GRAPH_NODE_BYTES = 17_000  # of the driver, for each captured kernel: 14 to 18 KB
_HOPPER = (9, 0)
_GRAPH_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
# Published: 9 dense models on H100s 0.67 to 1.61 GiB (llm-d's planner), 28 layers on an RTX 4090
# 0.53 (vLLM 0.24); mixtures of experts and latent attention on H100s 1.1 to 1.57. The second
# runner's, rehearsed: 0.39 and on an H100 0.94.
_OF_LAYERS, _OF_EXPERTS = (160_000, 190_000), (240_000, 480_000)
_POOL_HOPPER, _POOLS = (246 * _MIB, 410 * _MIB), ((80 * _MIB, 160 * _MIB), (0, 80 * _MIB))
_LINKED = ("sxm", "hbm3", "b200", "gb200", "gh200", "h200", "h800", "h20")


_Range = tuple[tuple[int, int], str]
"""Hundredths of a GiB, least and most, and of which GPUs they were published."""
_ON_H100: Mapping[int, _Range] = {
    1: ((24, 27), "H100s"),
    2: ((206, 211), "linked H100s"),
    4: ((213, 221), "linked H100s"),
}
_ON_H100_IN_GROUPS: _Range = (7, 7), "H100s"
_ON_ANY: _Range = (5, 27), "T4, A100 and H100"
_UNLINKED: _Range = (20, 36), "RTX 3090 and 4090"
_LINKED_OTHERS: _Range = (20, 221), "A100s and H100s"


def range_of(gpu: Gpu, tp: int, pp: int) -> tuple[tuple[int, int], str]:
    """Return bytes taken between vLLM's two readings, on each of `tp` x `pp` GPUs, and of which."""
    (least, most), of = _range_of(gpu, tp, pp)
    return (least * _GIB // 100, most * _GIB // 100), of


def _range_of(gpu: Gpu, tp: int, pp: int) -> _Range:
    is_h100 = is_linked(gpu) and gpu.compute_capability == _HOPPER
    if tp == 1 and pp > 1:
        return _ON_H100_IN_GROUPS if is_h100 else _ON_ANY
    if tp > 1 and not is_linked(gpu):
        return _UNLINKED
    if is_h100:
        return _ON_H100[max(known for known in _ON_H100 if known <= tp)]
    return _LINKED_OTHERS if tp > 1 else _ON_ANY


def expected_graphs(gpu: Gpu, layers: int, seqs: int, rules: VllmRules) -> tuple[int, int]:
    """Return what vLLM expects CUDA graphs to take: of each layer and graph, and of their pool.

    A graph of pieces for each of 51 sizes up to 512 tokens, and one of whole steps for each size up
    to `seqs` (vllm/config/vllm.py, _set_cudagraph_sizes). A layer's kernels are kept by the driver.
    """
    sizes = [n for n in _GRAPH_SIZES if n <= min(2 * seqs, 512)]
    graphs = len(sizes) + sum(n <= seqs for n in sizes)
    least, most = _OF_LAYERS if rules.is_dense else _OF_EXPERTS
    pool = _POOL_HOPPER if gpu.compute_capability == _HOPPER else _POOLS[rules.is_second]
    return graphs * layers * least + pool[0], graphs * layers * most + pool[1]


def is_linked(gpu: Gpu) -> bool:
    """Return whether several of these GPUs are sold linked over NVLink, as in NVIDIA's HGX."""
    name = gpu.name.lower()
    return any(word in name for word in _LINKED) and "nvl" not in name.split()


def environment(gpu: Gpu, torch: str, devices: int) -> Mapping[str, str]:
    """Return the variables that say it to the virtual GPU (rehearse/native/outside.c)."""
    version = tuple(int(part) for part in torch.split("+", maxsplit=1)[0].split(".")[:2])
    kernels = _OLD_KERNELS_BYTES if version <= _LAST_OLD else KERNELS_BYTES
    found = {
        "VRAMBUDGET_KERNELS": str(kernels),
        "VRAMBUDGET_GRAPH_NODE": str(GRAPH_NODE_BYTES),
    }
    if devices > 1:
        linked = is_linked(gpu)
        first, further = NVLINK_NCCL if linked else PCIE_NCCL
        found["VRAMBUDGET_NCCL"] = f"{first},{further}"
        if linked:
            found["VRAMBUDGET_LINKED"] = "1"
    return found
