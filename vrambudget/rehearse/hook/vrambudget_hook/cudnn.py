"""The user's own cuDNN under a rehearsal: asked for engines and workspaces, or switched off.

Runs in the user's Python, 3.9 or later.
"""

# ruff: noqa: FBT003, SLF001 - PyTorch's switch has no public name that asks nothing of cuDNN

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class CudnnStub:
    """What this process knows of cuDNN; `version` is that of one that answers ("9.19.0")."""

    def __init__(self, torch: Any, libraries: Sequence[str]) -> None:
        self.torch = torch
        stub = next((path for path in libraries if path.endswith("_cudnn.so")), None)
        self.library = ctypes.CDLL(stub) if stub else None
        self.version: str | None = None
        self._keep_recurrence_native()

    def ask(self) -> None:
        """Ask it for its version; switch it off if it is older than 9.8 or does not know the GPU.

        It must be there: PyTorch loads it.
        """
        number = 0
        if self.library is not None:
            self.library.virtual_cudnn_version.restype = ctypes.c_size_t
            number = self.library.virtual_cudnn_version()
        if number:
            major, rest = divmod(number, 10_000)  # CUDNN_VERSION since 9.0
            self.version = f"{major}.{rest // 100}.{rest % 100}"
        else:
            self.torch.backends.cudnn.enabled = False

    def unknown(self) -> list[str]:
        """Return what a real GPU may do otherwise: "benchmark", "batch norm"."""
        if self.version is None or self.library is None:
            return []
        found = ["benchmark"] if self.torch._C._get_cudnn_benchmark() else []
        return [*found, "batch norm"] if self.library.virtual_cudnn_guessed() else found

    def _keep_recurrence_native(self) -> None:
        """Let recurrent layers take PyTorch's own kernels: cuDNN sizes theirs on real GPUs only.

        Source: aten/src/ATen/native/RNN.cpp (lstm, gru: cudnn_is_acceptable), and
        torch/nn/modules/rnn.py (RNNBase.flatten_parameters).
        """
        functions = self.torch._VF
        for name in _RECURRENT:
            setattr(functions, name, self._without(getattr(functions, name)))
        self.torch.nn.RNNBase.flatten_parameters = lambda _: None

    def _without(self, function: Any) -> Any:
        torch = self.torch

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            enabled = torch._C._get_cudnn_enabled()
            torch._C._set_cudnn_enabled(False)
            try:
                return function(*args, **kwargs)
            finally:
                torch._C._set_cudnn_enabled(enabled)

        return run
