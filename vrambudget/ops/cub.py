"""Temporary storage that CUB's device-wide algorithms request: sort, unique, sums, select.

Each requests all its arrays at once, every one rounded up to 256 bytes, plus 255 bytes to align the
first. Tiles (items that one thread block handles) depend on the GPU's architecture. Keys and
values are int64 here, as indices are.

    sort         a pass for 8 bits: 256 digits, 8-byte counts; 256 counters of 4 bytes a tile
    sum, unique  16-byte tile states, 32 more than there are tiles; with CUDA 13 256 bytes more
    select       the same with 8-byte tile states; unique too with CUDA 12.4
    reduce       a partial sum for each thread block

Source: CCCL, cub/device/dispatch/dispatch_radix_sort.cuh (InvokeOnesweep), dispatch_scan.cuh,
dispatch_unique_by_key.cuh, tuning/. CUB comes with the CUDA toolkit that PyTorch is built with, not
with PyTorch: tiles were read off the requests of builds for CUDA 12.4, 12.8, 13.0 and 13.2 for
compute capabilities 7.0 to 12.0.
Not modelled: more than 2**28 items; other key types.
"""

from vrambudget.engine.context import context
from vrambudget.engine.versions import cuda_since

_ALIGNMENT = 256
_SCAN_TILE = 896
_SCAN_TILE_OF_4_BYTES = 1920
_LONG = 8
_MOST_REDUCED_AT_ONCE = 4096  # items: 256 threads of 16
_THREADS = 256  # of a block that reduces
_SUBSCRIPTION = 5  # CUB_SUBSCRIPTION_FACTOR: blocks launched for each that fits
_SCAN_BY_KEY_TILE = 1408  # on 8.0
_MERGE_TILE = 4096
_SINGLE_TILE = 2304  # items: 256 threads of 9 (the same on all six GPUs that were asked)


def sort_pairs_bytes(n: int, *, passes: int = 8) -> int:
    """Return the temporary storage of DeviceRadixSort::SortPairs; it does not hold keys or values.

    A pass sorts by 8 bits of the keys. The sort must not overwrite its input, so if there are more
    than one it has a spare buffer for keys and one for values. Few items are sorted by
    one thread block without any.
    """
    return _sorted_bytes(n, passes, 8, (2816, 3840, 4608))


def sort_floats_bytes(n: int) -> int:
    """Return the temporary storage of DeviceRadixSort::SortPairs: float32 keys, 8-byte values."""
    return _sorted_bytes(n, 4, 4, (2816, 3072, 5376))


def _sorted_bytes(n: int, passes: int, key_bytes: int, tiles: tuple[int, int, int]) -> int:
    """Return a sort's storage; `tiles`: before compute capability 8.0, before 9.0, and since."""
    if n <= _SINGLE_TILE:
        return 1
    tile = tiles[sum(context.platform.compute_capability >= since for since in ((8, 0), (9, 0)))]
    spare = (key_bytes * n, 8 * n) if passes > 1 else ()
    return _storage(passes * 256 * 8, 256 * 4 * _ceil_div(n, tile), *spare, passes * 4)


def segmented_sort_bytes(n: int) -> int:
    """Return the temporary storage of DeviceSegmentedRadixSort for float32 keys, 8-byte values."""
    return _storage(4 * n, 8 * n)


def scan_by_key_bytes(n: int) -> int:
    """Return the temporary storage of DeviceScan::InclusiveSumByKey over 4-byte items."""
    tiles = _ceil_div(n, _SCAN_BY_KEY_TILE)
    return _storage(4 * tiles, 16 * (tiles + 32))


def unique_by_key_bytes(n: int) -> int:
    """Return the temporary storage of DeviceSelect::UniqueByKey."""
    state_bytes = 16 if cuda_since(12, 8) else 8
    return _of_tiles(state_bytes, n, _unique_tile())


def thrust_sort_bytes(n: int) -> int:
    """Return the temporary storage of thrust::sort_by_key with a comparison of its own.

    A merge sort has spare buffers for keys and values, and where each tile begins. Source: CCCL,
    cub/device/dispatch/dispatch_merge_sort.cuh; the tile was read off a build for CUDA 13.0.
    """
    return _storage(8 * n, 8 * n, 8 * (_ceil_div(n, _MERGE_TILE) + 1))


def thrust_unique_by_key_bytes(n: int) -> int:
    """Return the temporary storage of thrust::unique_by_key, and its count.

    Source: CCCL, thrust/system/cuda/detail/unique_by_key.h; tiles were read off a build for CUDA
    13.0, for compute capabilities 7.5, 8.0, 9.0 and 10.0.
    """
    capability = context.platform.compute_capability
    tile = 9856 if capability >= (9, 0) else {(8, 0): 2688}.get(capability, 640)
    return _storage(_storage(16 * (_ceil_div(n, tile) + 32)), 8)


def _unique_tile() -> int:
    capability = context.platform.compute_capability
    if capability == (8, 0):
        return 1344 if cuda_since(13, 2) else 1792
    if capability < (9, 0):
        return 320
    is_cuda_13_0 = cuda_since(13, 0) and not cuda_since(13, 2)
    return 3840 if is_cuda_13_0 and capability >= (10, 0) else 4480


def exclusive_sum_bytes(n: int) -> int:
    """Return the temporary storage of DeviceScan::ExclusiveSum."""
    return _of_tiles(16, n, _SCAN_TILE)


def inclusive_sum_bytes(n: int, itemsize: int) -> int:
    """Return the temporary storage of DeviceScan::InclusiveScan, less for 4-byte items."""
    if itemsize == _LONG:
        return exclusive_sum_bytes(n)
    return _of_tiles(8, n, _SCAN_TILE_OF_4_BYTES)


def reduce_bytes(n: int) -> int:
    """Return the temporary storage of DeviceReduce::Sum: 4-byte partial sums of n items."""
    if n <= _MOST_REDUCED_AT_ONCE:
        return 1
    platform = context.platform
    blocks = platform.multiprocessors * (platform.max_threads_per_multiprocessor // _THREADS)
    return _storage(4 * blocks * _SUBSCRIPTION)


def select_bytes(n: int) -> int:
    """Return the temporary storage of DeviceSelect::Flagged over n items."""
    capability = context.platform.compute_capability
    blackwell = 3520 if cuda_since(13, 0) else 4224
    tile = blackwell if capability >= (10, 0) else {(8, 0): 2304, (9, 0): 4224}.get(capability, 640)
    return _of_tiles(8, n, tile)


def _of_tiles(state_bytes: int, n: int, tile: int) -> int:
    states = state_bytes * (_ceil_div(n, tile) + 32)
    return _storage(states, 1) if cuda_since(13, 0) else _storage(states)


def _storage(*arrays: int) -> int:
    return _ALIGNMENT - 1 + sum(_ceil_div(array, _ALIGNMENT) * _ALIGNMENT for array in arrays)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
