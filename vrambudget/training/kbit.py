"""A model in 4 or 8 bit, as bitsandbytes' users load it: from_pretrained with a BitsAndBytesConfig.

    warm-up     one block as large as the loaded model, allocated and freed: a segment to load into
    weights     in the alphabetical order of their names, in 16 bit; that of a linear layer is then
                quantised and its 16-bit form freed. The head and what it shares is not quantised.
                For 8 bit it goes back to main memory first, and comes from there in float16
    buffers     after all weights
    prepared    (where the job trains) what is not quantised is cast to float32: embeddings, norms,
                biases, the head (prepare_model_for_kbit_training)

Adapters are made in the weights' 16-bit type and then cast to float32, as `lora.py` has it.

Source: transformers core_model_loading.py (convert_and_load_state_dict_in_model, dot_natural_key),
modeling_utils.py (caching_allocator_warmup), integrations/bitsandbytes.py (Bnb4bitQuantize,
Bnb8bitQuantize); peft utils/other.py (prepare_model_for_kbit_training).
Not modelled: models other than causal language models; mixtures of experts, whose experts are no
linear layers; a checkpoint that is quantised already; a GPU on which the warm-up does not fit;
llm_int8_skip_modules, llm_int8_has_fp16_weight.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from vrambudget.config.fields.adapters import Quant
from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig
from vrambudget.dtypes import DType, float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import Platform, context, made_for, on_meta, recording
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty, empty_like
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.layers import Conv1D, Linear
from vrambudget.ops import eight_bit, four_bit
from vrambudget.ops.eight_bit import EightBit
from vrambudget.ops.four_bit import FourBit
from vrambudget.tape.events import Purpose
from vrambudget.training.loading import by_name, load_buffers, warm_up

_WITHOUT_PLAN = ("falcon", "gpt2", "opt")
_WITH_NORMS = ("exaone4", "gemma3_text", "qwen3")
"""Types whose base_model_tp_plan, of transformers 5.17, is empty; has norms of queries and keys."""


class QuantisedLinear(Linear):
    """bitsandbytes' layer in place of a linear layer, or of GPT-2's Conv1D."""

    bits: int
    quantised: FourBit | EightBit | None = None

    def __init__(self, replaced: Linear | Conv1D) -> None:
        self.weight = replaced.weight  # its storage is the packed one, once it is quantised
        self.bias = replaced.bias
        self.is_transposed = isinstance(replaced, Conv1D)
        if self.is_transposed:
            rows, columns = self.weight.shape
            self.weight.shape = (columns, rows)

    @property
    def codes(self) -> Tensor:
        """What its weight consists of, once it is quantised."""
        held = self.quantised
        assert held is not None  # noqa: S101 - it was loaded
        return held.packed if isinstance(held, FourBit) else held.codes

    def quantise(self, loaded: Tensor, tables: list[Tensor], *, double: bool) -> None:
        """Quantise the weight, `loaded` onto the device; `tables` gets what all layers share."""
        raise NotImplementedError

    def pack(self) -> None:
        """Quantise the weight in main memory."""
        raise NotImplementedError

    def move_scales(self) -> None:
        """Let what belongs to the codes come to the device before them."""
        raise NotImplementedError

    def _cast_bias(self, dtype: DType) -> None:
        """bias.data = bias.data.to(dtype)."""
        if self.bias is not None and self.bias.dtype is not dtype:
            _cast(self.bias, lambda bias: empty_like(bias, dtype))


class Linear4bit(QuantisedLinear):
    """bitsandbytes' Linear4bit."""

    bits = 4
    double = True
    quantised: FourBit | None

    def quantise(self, loaded: Tensor, tables: list[Tensor], *, double: bool) -> None:
        """Quantise the weight, transposed on the device where it is a Conv1D's."""
        transposed = empty_like(loaded) if self.is_transposed else None
        self.quantised = four_bit.quantise(loaded, tables, double=double)
        self.weight.storage = self.quantised.packed.storage
        del transposed

    def pack(self) -> None:
        """Quantise the weight; its codes are elements of its own type (bnb_4bit_quant_storage)."""
        with on_meta():
            self.quantised = four_bit.quantise(self.weight, [], double=self.double)
        self.weight.shape = (self.quantised.packed.numel // self.weight.dtype.itemsize, 1)

    def share_codes(self) -> None:
        """Let the codes be elements of the weight's type, which are cut and gathered as it is."""
        assert self.quantised is not None  # noqa: S101 - it was loaded
        packed = self.quantised.packed
        with on_meta():
            self.quantised = replace(self.quantised, packed=empty(packed.shape, packed.dtype))
        self.weight.shape = (packed.numel // self.weight.dtype.itemsize, 1)

    def move_scales(self) -> None:
        """Move the blocks' scales as they are: no weight shares a table with another."""
        assert self.quantised is not None  # noqa: S101 - pack did it
        with made_for(Purpose.WEIGHTS):
            self.quantised = four_bit.moved(self.quantised)

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O], computed in the type that the weight was quantised from."""
        assert self.quantised is not None  # noqa: S101 - load did it
        source, computed = x.dtype, self.quantised.dtype
        x = to(x, computed)
        self._cast_bias(computed)
        return to(four_bit.linear_4bit(x, self.quantised, self.bias), source)


class Linear8bit(QuantisedLinear):
    """bitsandbytes' Linear8bitLt, with has_fp16_weights=False."""

    bits = 8
    quantised: EightBit | None

    def quantise(self, loaded: Tensor, tables: list[Tensor], *, double: bool) -> None:
        """Quantise the weight; it is transposed in main memory."""
        del loaded, tables, double  # the caller holds it
        self.quantised = eight_bit.quantise(self.weight.shape)
        self.weight.storage = self.quantised.codes.storage

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O], in x's type."""
        assert self.quantised is not None  # noqa: S101 - load did it
        self._cast_bias(x.dtype)
        return eight_bit.linear_8bit(x, self.quantised, self.bias)


_LAYERS: dict[Quant, type[QuantisedLinear]] = {"nf4": Linear4bit, "int8": Linear8bit}


def build_quantised(build: Callable[[], Module], job: Job, model_type: str) -> Module:
    """Return the model that `build` makes, its linear layers in 4 or 8 bit."""
    quant = job.quant
    assert quant is not None  # noqa: S101 - else it is built
    with on_meta():
        model = build()
    for parent, name, child in [*_linear_layers(model)]:
        setattr(parent, name, _LAYERS[quant](child))
    with made_for(Purpose.WEIGHTS):
        _load(model, job.mesh.ranks, model_type, double=job.double_quant)
        if job.prepares_kbit:
            _prepare(model)
    return model


def build_in_main_memory(build: Callable[[], Module], quant: Quant, *, double: bool) -> Module:
    """Return the model that `build` makes, in main memory: device_map={"": "cpu"}.

    Each weight is quantised there, and comes to the GPU when its layer is sharded (`pack`). Codes
    are elements of the weights' own type (bnb_4bit_quant_storage), which FSDP shards with the rest.
    The model is not prepared for k-bit training: FSDP 1 does not flatten float32 norms with codes.
    """
    if quant != "nf4":
        raise NotModelledError(
            f"{quant} weights in shards are not modelled: FSDP shards floating-point types alone",
            hint="--quant nf4 has rules: its codes are packed in 16-bit elements",
        )
    model = build()
    for parent, name, child in [*_linear_layers(model)]:
        layer = Linear4bit(child)
        layer.double = double
        setattr(parent, name, layer)
    return model


def widest_outputs(config: ModelConfig, task: Task, platform: Platform) -> int:
    """Return the most outputs that a quantised layer has."""
    with recording(platform), on_meta():
        layers = _linear_layers(config.build(task))
        return max(layer.weight.shape[isinstance(layer, Conv1D)] for _, _, layer in layers)


def _linear_layers(model: Module) -> Iterator[tuple[Module, str, Linear | Conv1D]]:
    """Yield linear layers and where they are, but the head, which stands beside the body."""
    for module in model.modules():
        for name, child in vars(module).items():
            if isinstance(child, Linear | Conv1D) and module is not model:
                yield module, name, child


def _load(model: Module, ranks: int, model_type: str, *, double: bool) -> None:
    layers = {id(m.weight): m for m in model.modules() if isinstance(m, QuantisedLinear)}
    named = by_name(model)
    cut = _plan(model, model_type) if ranks > 1 else frozenset()
    bits = (
        p.numel
        * (layers[id(p)].bits if id(p) in layers else 8 * p.dtype.itemsize)
        // (ranks if id(p) in cut else 1)
        for _, p in named
    )
    warm_up(sum(bits) // 8)
    tables: list[Tensor] = []
    for _, parameter in named:
        layer = layers.get(id(parameter))
        context.operation = "load"
        loaded = empty(parameter.shape, parameter.dtype)
        if layer is None:
            parameter.storage = loaded.storage
        else:
            layer.quantise(loaded, tables, double=double)
        del loaded
    load_buffers(model)
    # The table of double quantisation lives as long as the process, held here by every layer.
    for layer in layers.values():
        if isinstance(layer.quantised, FourBit) and tables:
            layer.quantised = replace(layer.quantised, nested=(*layer.quantised.nested, *tables))


def _plan(model: Module, model_type: str) -> frozenset[int]:
    """Return the parameters that transformers' tensor parallelism would cut (get_total_byte_count).

    Where ranks have met, the warm-up counts a rank's part of them, though each loads them whole.
    """
    if model_type in _WITHOUT_PLAN:
        return frozenset()
    norms = ("q_norm", "k_norm") if model_type in _WITH_NORMS else ()
    return frozenset(
        id(p)
        for module in model.modules()
        for name, child in vars(module).items()
        if isinstance(child, Linear) or name in norms
        for p in child.parameters()
    )


def _prepare(model: Module) -> None:
    """prepare_model_for_kbit_training: float32 for what has 16 bits and is not quantised."""
    quantised = {id(m.weight) for m in model.modules() if isinstance(m, QuantisedLinear)}
    for parameter in model.parameters():
        if id(parameter) not in quantised and parameter.dtype is not float32:
            _cast(parameter, lambda x: empty_like(x, float32))


def _cast(parameter: Parameter, cast: Callable[[Parameter], Tensor]) -> None:
    context.operation = "to_dtype"
    with made_for(Purpose.WEIGHTS):
        copy = cast(parameter)
    parameter.storage, parameter.dtype = copy.storage, copy.dtype
