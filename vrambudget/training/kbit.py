"""A model in 4 bit, as QLoRA's users load it: from_pretrained with a BitsAndBytesConfig.

    warm-up     one block as large as the loaded model, allocated and freed: a segment to load into
    weights     in the alphabetical order of their names, in 16 bit; that of a linear layer is then
                quantised and its 16-bit form freed. The head and what it shares is not quantised
    buffers     after all weights
    prepared    (where the job trains) what is not in 4 bit is cast to float32: embeddings, norms,
                biases, the head (prepare_model_for_kbit_training)

Adapters are made in the weights' 16-bit type and then cast to float32, as `lora.py` has it.

Source: transformers core_model_loading.py (convert_and_load_state_dict_in_model, dot_natural_key),
modeling_utils.py (caching_allocator_warmup), integrations/bitsandbytes.py (Bnb4bitQuantize); peft
utils/other.py (prepare_model_for_kbit_training), tuners/lora/bnb.py (Linear4bit).
Not modelled: models other than causal language models; mixtures of experts, whose experts are no
linear layers; a checkpoint that is in 4 bit already; a card on which the warm-up does not fit.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context, made_for, on_meta
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty, empty_like
from vrambudget.models.parts.layers import Conv1D, Linear
from vrambudget.ops.four_bit import FourBit, linear_4bit, quantise
from vrambudget.tape.events import Purpose
from vrambudget.training.loading import by_name, load_buffers, warm_up

_HEAD = "lm_head"


class Linear4bit(Linear):
    """bitsandbytes' Linear4bit in place of a linear layer, or of GPT-2's Conv1D."""

    def __init__(self, replaced: Linear | Conv1D) -> None:
        self.weight = replaced.weight  # its storage is the packed one, once it is quantised
        self.bias = replaced.bias
        self.is_transposed = isinstance(replaced, Conv1D)
        if self.is_transposed:
            rows, columns = self.weight.shape
            self.weight.shape = (columns, rows)
        self.quantised: FourBit | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O], computed in the type that the weight was quantised from."""
        assert self.quantised is not None  # noqa: S101 - load did it
        source, computed = x.dtype, self.quantised.dtype
        x = to(x, computed)
        if self.bias is not None and self.bias.dtype is not computed:  # once: bias.data = ...
            _cast(self.bias, lambda bias: empty_like(bias, computed))
        return to(linear_4bit(x, self.quantised, self.bias), source)


def build_quantised(build: Callable[[], Module], *, double: bool, prepared: bool) -> Module:
    """Return the model that `build` makes, its linear layers in 4 bit.

    `prepared`: cast the rest to float32, for a job that trains.
    """
    with on_meta():
        model = build()
    for parent, name, child in [*_linear_layers(model)]:
        setattr(parent, name, Linear4bit(child))
    with made_for(Purpose.WEIGHTS):
        _load(model, double=double)
        if prepared:
            _prepare(model)
    return model


def _linear_layers(model: Module) -> Iterator[tuple[Module, str, Linear | Conv1D]]:
    for module in model.modules():
        for name, child in vars(module).items():
            if isinstance(child, Linear | Conv1D) and not (module is model and name == _HEAD):
                yield module, name, child


def _load(model: Module, *, double: bool) -> None:
    weights = {id(m.weight): m for m in model.modules() if isinstance(m, Linear4bit)}
    named = by_name(model)
    halves = (p.numel * (1 if id(p) in weights else 2 * p.dtype.itemsize) for _, p in named)
    warm_up(sum(halves) // 2)
    tables: list[Tensor] = []
    for _, parameter in named:
        layer = weights.get(id(parameter))
        context.operation = "load"
        loaded = empty(parameter.shape, parameter.dtype)
        if layer is None:
            parameter.storage = loaded.storage
            continue
        transposed = empty_like(loaded) if layer.is_transposed else None
        layer.quantised = quantise(loaded, tables, double=double)
        parameter.storage = layer.quantised.packed.storage
        del transposed, loaded
    load_buffers(model)
    # The table of double quantisation lives as long as the process, held here by every layer.
    for layer in weights.values():
        if layer.quantised is not None and tables:
            layer.quantised = replace(layer.quantised, nested=(*layer.quantised.nested, *tables))


def _prepare(model: Module) -> None:
    """prepare_model_for_kbit_training: float32 for what has 16 bits and is not quantised."""
    quantised = {id(m.weight) for m in model.modules() if isinstance(m, Linear4bit)}
    for parameter in model.parameters():
        if id(parameter) not in quantised and parameter.dtype is not float32:
            _cast(parameter, lambda x: empty_like(x, float32))


def _cast(parameter: Parameter, cast: Callable[[Parameter], Tensor]) -> None:
    context.operation = "to_dtype"
    with made_for(Purpose.WEIGHTS):
        copy = cast(parameter)
    parameter.storage, parameter.dtype = copy.storage, copy.dtype
