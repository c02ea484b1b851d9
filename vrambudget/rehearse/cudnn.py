"""Answers what `vrambudget.cudnn.apart` asks, with stub libraries where there is no driver."""

import ctypes
import os
from contextlib import suppress
from multiprocessing.connection import Connection

from vrambudget.config.gpus import find_gpu
from vrambudget.cudnn.asking import ask
from vrambudget.cudnn.library import installed
from vrambudget.errors import VramBudgetError
from vrambudget.rehearse.gpu_variables import environment
from vrambudget.rehearse.stub_libraries import CUDNN, stub_libraries
from vrambudget.rehearse.torch_build import find_torch, own_python


def answer() -> None:
    """Answer questions that come by standard input, a socket, until it is closed."""
    drives, cudnn = _load_driver(), installed()
    with Connection(0) as questions, suppress(EOFError):
        while cudnn:
            questions.send((ask(cudnn, *questions.recv()), drives))


def _load_driver() -> bool:
    """Load the driver, else stubs of it and of cuBLASLt. False: there is no PyTorch for those."""
    with suppress(OSError):
        return bool(ctypes.CDLL("libcuda.so.1"))
    with suppress(OSError, VramBudgetError):
        os.environ.update(environment(find_gpu("a100-80gb")))  # each question has its own GPU
        build = find_torch([own_python()])
        for library in stub_libraries(build):
            if library.name != CUDNN:
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        return True
    return False
