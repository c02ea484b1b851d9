"""What PyTorch 2.8's compiler lacks of the later ones that this package is written for.

    example_inputs    Dynamo hands a model's own tensors to the compiler, which takes fake ones of
                      no mode but the one that it compiles in; so they are made fake in that one,
                      as AOTAutograd makes real ones

Source: torch/_dynamo/output_graph.py (OutputGraph.example_inputs), torch/_functorch/aot_autograd.py
(process_inputs); torch/_guards.py (detect_fake_mode), which since 2.9 does not compare modes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from vrambudget.compiled.private import FakeTensor, OutputGraph
from vrambudget.config.versions import as_numbers, plain_version

_SINCE = (2, 9)


@contextmanager
def as_later() -> Iterator[None]:
    """Let an old compiler do what later ones do."""
    if as_numbers(plain_version(torch.__version__) or "2.8") >= _SINCE:
        yield
        return
    with patch.object(OutputGraph, "example_inputs", _fake_inputs):
        yield


def _fake_inputs(graph: Any) -> list[Any]:
    tracing = graph.tracing_context

    def fake(x: Any) -> Any:
        if not isinstance(x, FakeTensor):
            return x
        known = tracing.tensor_to_context.get(x)
        source = None if known is None else known.tensor_source
        return tracing.fake_mode.from_tensor(
            x, symbolic_context=known, source=source, trace=known is None
        )

    return [fake(given.example) for given in graph.graphargs]
