"""How weights come to the GPU, and what that leaves in the allocator's cache.

    device-map  from_pretrained(device_map="cuda"): one block as large as the model, allocated and
                freed, a segment to load into; weights in the alphabetical order of their names;
                buffers after all weights
    to          from_pretrained(...).to("cuda"): tensors one by one, as the modules stand
    to-half     from_pretrained(dtype=float32).to("cuda").half() or .bfloat16(): that in float32,
                then each tensor's 16-bit copy beside it, one by one

Source: transformers core_model_loading.py (convert_and_load_state_dict_in_model, dot_natural_key),
modeling_utils.py (caching_allocator_warmup, get_total_byte_count); torch/nn/modules/module.py
(Module._apply: a module's children before its own parameters and buffers).
Not modelled: mixtures of experts with a device map, whose experts are stacked on the GPU; a GPU on
which the block does not fit (it is made smaller).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from vrambudget.config.fields.modules import Load
from vrambudget.config.model_config import ModelConfig
from vrambudget.dtypes import DType, float32
from vrambudget.engine.context import context, made_for, on_meta
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty, empty_bytes
from vrambudget.errors import NotModelledError
from vrambudget.tape.events import Purpose


def load(config: ModelConfig, build: Callable[[], Module], how: Load) -> Module:
    """Return the model that `build` makes, its weights loaded in this way."""
    if how == "device-map" and config.has_experts:
        raise NotModelledError(
            f"load 'device-map' of {config.model_type} is not modelled: its experts are stacked",
            hint="`vrambudget rehearse --gpu GPU -- python script.py` runs the script as it is",
        )
    options = context.options
    if how == "to-half":
        context.options = replace(options, dtype=float32)
    with on_meta():
        model = build()
    context.options = options
    with made_for(Purpose.WEIGHTS):
        if how == "device-map":
            _through_a_device_map(model)
            return model
        for tensor in as_they_stand(model):
            _placed(tensor, tensor.dtype)
        if how == "to-half":
            for tensor in as_they_stand(model):
                if tensor.dtype.is_floating_point:
                    _placed(tensor, options.dtype)
    return model


def warm_up(nbytes: int) -> None:
    """caching_allocator_warmup: the block is freed at once, for nobody holds it."""
    context.operation = "caching_allocator_warmup"
    empty_bytes(nbytes // 2 * 2)


def load_buffers(model: Module) -> None:
    """Make what is no parameter, once all weights are there."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not isinstance(value, Parameter):
                context.operation = "empty_like"
                value.storage = empty(value.shape, value.dtype).storage


def by_name(model: Module) -> list[tuple[str, Parameter]]:
    """Return parameters as they are loaded; shared ones once, by their first name."""
    found: dict[int, tuple[str, Parameter]] = {}
    for name, parameter in _named(model, ""):
        found.setdefault(id(parameter), (name, parameter))
    return sorted(found.values(), key=lambda named: _natural(named[0]))


def _through_a_device_map(model: Module) -> None:
    named = by_name(model)
    warm_up(sum(p.numel * p.dtype.itemsize for _, p in named))
    for _, parameter in named:
        context.operation = "load"
        parameter.storage = empty(parameter.shape, parameter.dtype).storage
    load_buffers(model)


def _placed(tensor: Tensor, dtype: DType) -> None:
    """x.data = x.to(...)."""
    context.operation = "to"
    copy = empty(tensor.shape, dtype)
    tensor.storage, tensor.dtype = copy.storage, dtype


def as_they_stand(module: Module) -> Iterator[Tensor]:
    """Yield parameters and buffers in the order of Module._apply, each once."""
    yield from {id(tensor): tensor for tensor in _applied(module)}.values()


def _applied(module: Module) -> Iterator[Tensor]:
    for child in module.children():
        yield from _applied(child)
    own = [value for value in vars(module).values() if isinstance(value, Tensor)]
    yield from sorted(own, key=lambda x: not isinstance(x, Parameter))


def _named(module: Module, prefix: str) -> Iterator[tuple[str, Parameter]]:
    for name, value in vars(module).items():
        if isinstance(value, Parameter):
            yield prefix + name, value
        elif isinstance(value, Module):
            yield from _named(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, Module):
                    yield from _named(item, f"{prefix}{name}.{i}.")


def _natural(name: str) -> list[tuple[int, int, str, int]]:
    """dot_natural_key: parts that are numbers come first, and count as numbers; so do endings."""
    key = []
    for part in name.split("."):
        if part.isdigit():
            key.append((0, int(part), "", 0))
        else:
            text = part.rstrip("0123456789")
            key.append((1, 0, text, int(part[len(text) :] or -1)))
    return key
