"""Parts of what follows torch.compile: lifetimes, values that are read, graphs of any size."""

import pickle
import subprocess
import sys

import pytest
from test_compiled import needs_a_compiler

from vrambudget.compiled.config import CompiledConfig
from vrambudget.engine.context import Platform, recording
from vrambudget.scenario import resolve

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own


def test_a_loss_lives_no_longer_than_its_loop_holds_it():
    needs_a_compiler()
    import torch  # noqa: PLC0415

    from vrambudget.compiled.fake_storages import GpuMode  # noqa: PLC0415 - it imports torch
    from vrambudget.compiled.model import Graph, on_gpu  # noqa: PLC0415
    from vrambudget.traced.shadows import as_parameter  # noqa: PLC0415

    with recording(Platform()):
        mode = GpuMode()
        with on_gpu(mode):
            weight = torch.nn.Parameter(torch.empty(4, device="cuda"))
            loss = weight.sum()
        index = mode.storage_of(loss).index
        dy = mode.tensor_of(loss)  # of a loss that the loop divided by its micro-batches
        own = as_parameter(mode.tensor_of(weight))
        graph = Graph(mode, loss, [(weight, own)])
        assert index in mode.alive_since(0)
        del loss
        assert index not in mode.alive_since(0)
        graph.run([dy], ())
        assert own.grad is not None
        assert own.grad.shape == (4,)


def test_a_model_that_draws_until_nothing_lies_outside_draws_once():
    needs_a_compiler()
    import torch  # noqa: PLC0415

    from vrambudget.compiled.fake_storages import GpuMode  # noqa: PLC0415 - it imports torch
    from vrambudget.compiled.model import on_gpu  # noqa: PLC0415

    with recording(Platform()):
        mode = GpuMode()
        with on_gpu(mode), mode.saying(truth=False):
            assert not (torch.empty(8, device="cuda").normal_() > 1).any()  # torch.nn.init, 2.15
        with on_gpu(mode), pytest.raises(RuntimeError):
            bool((torch.empty(8, device="cuda") > 1).any())


def test_attention_takes_the_size_of_this_call_where_a_graph_is_for_any():
    needs_a_compiler()
    import torch  # noqa: PLC0415
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415
    from torch.fx.experimental import symbolic_shapes as symbolic  # noqa: PLC0415

    from vrambudget.compiled.attention import _described  # noqa: PLC0415

    any_batch = [symbolic.DimDynamic.DYNAMIC, *[symbolic.DimDynamic.STATIC] * 3]
    context = symbolic.StatelessSymbolicContext(dynamic_sizes=any_batch)
    mode = FakeTensorMode(shape_env=symbolic.ShapeEnv())
    x = mode.from_tensor(torch.empty(10, 5, 192, 64), symbolic_context=context)
    assert not isinstance(x.shape[0], int)
    assert _described(x).shape == (10, 5, 192, 64)
    assert {*map(type, _described(x).shape)} == {int}


def test_a_model_without_rules_of_its_own_is_compiled_from_its_keys():
    needs_a_compiler()
    keys = {"model_type": "swin", "image_size": 64, "embed_dim": 24, "depths": [1, 1]}
    scenario = resolve(keys, task="image-cls", gpu="A100", compile=True)
    assert isinstance(scenario.config, CompiledConfig)
    assert scenario.config.keys["embed_dim"] == 24
    code = "import pickle, sys; print(*pickle.load(sys.stdin.buffer).checked_with)"
    sent = pickle.dumps(scenario.config)  # to the process that compiles
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert done.stdout.decode().split() == [*scenario.config.checked_with]
