"""Which workspace a convolution takes: cuDNN is asked as PyTorch asks it.

PyTorch takes the first engine of the heuristics, in their instant mode, of which a plan can be
made, else of the list to fall back on, and allocates its workspace for the length of the call.

Source: aten/src/ATen/native/cudnn/Conv_v8.cpp (get_generator_sources, filterEngineConfigs,
try_configs, run_conv_plan; getConvDescriptor: 16-bit types are summed in float32).
Not modelled: torch.backends.cudnn.benchmark, which times engines on the GPU, and deterministic;
allow_tf32 = False.
"""

import ctypes
from collections.abc import Iterator, Sequence

from vrambudget.cudnn.gpu import described
from vrambudget.cudnn.library import Cudnn, CudnnError, Of, Type
from vrambudget.cudnn.question import Convolution, Direction
from vrambudget.strides import strides_in

_ALIGNMENT = 16  # of PyTorch's blocks, as far as cuDNN knows
_TRIED = 8  # engines: a plan of the first can nearly always be made
_CROSS_CORRELATION = 1
_MODES = (0, 2)  # of heuristics: instant, and the list to fall back on
_X, _Y, _WEIGHT = 120, 121, 119  # PyTorch's names for the tensors: 'x', 'y', 'w'
_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
_FLOAT64 = _DATA_TYPES["float64"]

# The operation's descriptor, and its attributes: alpha, beta, convolution, weight, x, y.
_OPERATIONS = {
    Direction.FORWARD: (Of.FORWARD, (700, 701, 702, 703, 704, 705)),
    Direction.INPUT: (Of.BACKWARD_DATA, (706, 707, 708, 709, 710, 711)),
    Direction.WEIGHT: (Of.BACKWARD_FILTER, (712, 713, 714, 715, 716, 717)),
}


def ask(
    cudnn: Cudnn, what: Convolution, compute_capability: tuple[int, int], multiprocessors: int
) -> int | None:
    """Return the bytes of its workspace on a GPU, None where there is no engine for it."""
    try:
        json = described(compute_capability, multiprocessors).encode()
        device = cudnn.made(Of.DEVICE_PROPERTIES, [(2702, Type.CHARACTER, json)])
        for config in _configs(cudnn, _graph(cudnn, what), device):
            try:
                plan = [(407, Type.DESCRIPTOR, [device]), (401, Type.DESCRIPTOR, [config])]
                return cudnn.number_of(cudnn.made(Of.PLAN, plan), 402)
            except CudnnError:
                continue
    except CudnnError:
        pass
    finally:
        cudnn.close()
    return None


def _configs(
    cudnn: Cudnn, graph: ctypes.c_void_p, device: ctypes.c_void_p
) -> Iterator[ctypes.c_void_p]:
    for mode in _MODES:
        heuristics = cudnn.made(
            Of.HEURISTICS,
            [
                (201, Type.DESCRIPTOR, [graph]),
                (200, Type.HEURISTICS_MODE, [mode]),
                (204, Type.DESCRIPTOR, [device]),
            ],
        )
        yield from cudnn.descriptors(heuristics, 202, Of.ENGINE_CONFIG, _TRIED)


def _graph(cudnn: Cudnn, what: Convolution) -> ctypes.c_void_p:
    kind, (alpha, beta, convolution, weight, x, y) = _OPERATIONS[what.direction]
    tensors = {x: (_X, what.x), weight: (_WEIGHT, what.weight), y: (_Y, what.y)}
    attributes: list[tuple[int, Type, Sequence[object]]] = [
        (convolution, Type.DESCRIPTOR, [_geometry(cudnn, what)]),
        *(
            (name, Type.DESCRIPTOR, [_tensor(cudnn, what, number, shape)])
            for name, (number, shape) in tensors.items()
        ),
        (alpha, Type.FLOAT, [1.0]),
        (beta, Type.FLOAT, [0.0]),
    ]
    return cudnn.made(Of.GRAPH, [(801, Type.DESCRIPTOR, [cudnn.made(kind, attributes)])])


def _geometry(cudnn: Cudnn, what: Convolution) -> ctypes.c_void_p:
    summed_in = _FLOAT64 if what.dtype == "float64" else _DATA_TYPES["float32"]
    return cudnn.made(
        Of.CONVOLUTION,
        [
            (100, Type.DATA_TYPE, [summed_in]),
            (101, Type.CONVOLUTION_MODE, [_CROSS_CORRELATION]),
            (106, Type.INT64, [len(what.stride)]),
            (102, Type.INT64, what.dilation),
            (103, Type.INT64, what.stride),
            (104, Type.INT64, what.padding),
            (105, Type.INT64, what.padding),
        ],
    )


def _tensor(
    cudnn: Cudnn, what: Convolution, number: int, shape: tuple[int, ...]
) -> ctypes.c_void_p:
    image = range(len(shape) - 1, 1, -1)
    order = (1, *image, 0) if what.channels_last else (*image, 1, 0)
    return cudnn.made(
        Of.TENSOR,
        [
            (901, Type.DATA_TYPE, [_DATA_TYPES[what.dtype]]),
            (902, Type.INT64, shape),
            (903, Type.INT64, strides_in(order, shape)),
            (906, Type.INT64, [number]),
            (900, Type.INT64, [_ALIGNMENT]),
        ],
    )
