"""LoRA as PEFT does it: the weights are frozen, each target gets two small linear layers.

    y = base(x) + B(A(x)) * scaling        A [r, I], B [O, r], always float32

A 16-bit input is cast to float32 for A at every target, and that copy is kept; a frozen weight
keeps none of its inputs. With checkpointing the embeddings' output must require a gradient, or no
layer would run again (enable_input_require_grads); that gradient stays with it.

A sequence classifier (task_type SEQ_CLS) also trains a copy of its head, if PEFT knows the head's
name (it does not know T5's). Masked language models and images have no task type.

Source: peft/tuners/lora/layer.py (Linear.forward), tuners_utils.py (cast_adapter_dtype,
_maybe_include_all_linear_layers); bnb.py (Linear4bit.forward, Linear8bitLt.forward); peft_model.py
(PeftModelForSequenceClassification), utils/other.py (ModulesToSaveWrapper).
Not modelled: DoRA, rsLoRA's other scaling (values only), other modules_to_save.
"""

from collections.abc import Collection, Iterator
from copy import copy
from dataclasses import replace

from vrambudget.dtypes import DType, float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty_like
from vrambudget.errors import VramBudgetError, did_you_mean
from vrambudget.models.parts.layers import Conv1D, Dropout, Embedding, Linear
from vrambudget.ops.elementwise import add, mul_scalar
from vrambudget.ops.shape import clone
from vrambudget.tape.events import Purpose
from vrambudget.training.kbit import Linear4bit, Linear8bit
from vrambudget.training.lora_parameters import LoraParameter, parameter_targets, wrap_parameters

ALL_LINEAR = "all-linear"
_OUTPUT_EMBEDDINGS = (
    "lm_head",
    "embed_out",
    "decoder",
    "vocab_projector",
    "generator_lm_head",
    "output_projection",
    "proj_out",
)
_HEADS = ("classifier", "score")


class LoraLinear(Module):
    """peft's lora.Linear around a linear layer."""

    disable_adapters = False

    def __init__(self, base: Linear | Conv1D, rank: int, dropout_p: float) -> None:
        out_features, features = base.weight.shape
        if isinstance(base, Conv1D):
            features, out_features = out_features, features
        self.base_layer = base
        self.lora_dropout = Dropout(dropout_p)
        self.lora_A = Linear(features, rank, bias=False)
        self.lora_B = Linear(rank, out_features, bias=False)

    @property
    def weight(self) -> Parameter:
        """The frozen weight: models look at its dtype (peft's BaseTunerLayer.weight)."""
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        result: Tensor = self.base_layer(x)
        if self.disable_adapters:
            return result
        result_dtype = result.dtype
        x = to(x, self.lora_A.weight.dtype)
        result = add(result, mul_scalar(self.lora_B(self.lora_A(self.lora_dropout(x)))))
        return to(result, result_dtype)


class LoraLinear4bit(LoraLinear):
    """peft's lora.Linear4bit: the base's result is cloned; autocast does the casts."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        result = self._base(x)
        if self.disable_adapters:
            return result
        converts = context.autocast is None
        if converts:
            x = to(x, self.lora_A.weight.dtype)
        output = mul_scalar(self.lora_B(self.lora_A(self.lora_dropout(x))))
        if converts:
            output = to(output, result.dtype)
        return add(result, output)

    def _base(self, x: Tensor) -> Tensor:
        y: Tensor = self.base_layer(x)
        return y if self.disable_adapters else clone(y)


class LoraLinear8bit(LoraLinear4bit):
    """peft's lora.Linear8bitLt: nothing is cloned; adapters are made in float32."""

    def __init__(self, base: Linear | Conv1D, rank: int, dropout_p: float) -> None:
        options = context.options
        context.options = replace(options, dtype=float32)  # int8 is no type for them
        super().__init__(base, rank, dropout_p)
        context.options = options

    def _base(self, x: Tensor) -> Tensor:
        y: Tensor = self.base_layer(x)
        return y


_ADAPTERS = {Linear4bit: LoraLinear4bit, Linear8bit: LoraLinear8bit}


class RequiringGradient(Module):
    """Embeddings whose output requires a gradient: in PyTorch a hook, and no module."""

    def __init__(self, embeddings: Module) -> None:
        self.embeddings = embeddings

    def forward(self, indices: Tensor) -> Tensor:
        """[...] -> [..., C]."""
        y: Tensor = self.embeddings(indices)
        y.requires_grad = True
        return y


class TrainedCopy(Module):
    """peft's ModulesToSaveWrapper: a copy of a head is trained; the head itself stays, frozen."""

    def __init__(self, original: Module) -> None:
        self.original_module = original
        self.modules_to_save = _copied(original)

    def forward(self, x: Tensor) -> Tensor:
        """Do what the head does."""
        y: Tensor = self.modules_to_save(x)
        return y


def _copied(module: Module) -> Module:
    """Return a module with parameters of its own (copy.deepcopy)."""
    twin = copy(module)
    for name, value in vars(module).items():
        if isinstance(value, Parameter):
            setattr(twin, name, Parameter(value.shape, value.dtype))
        elif isinstance(value, Module):
            setattr(twin, name, _copied(value))
    return twin


def add_lora(
    model: Module,
    rank: int,
    targets: str | tuple[str, ...],
    *,
    model_type: str,
    dropout_p: float = 0.0,
    trains_head: bool = False,
    casts_to: DType | None = None,
) -> None:
    """Freeze `model` and put adapters of `rank` around its targets (get_peft_model).

    `model_type` decides where PEFT finds experts. `trains_head`: as for task_type SEQ_CLS, where
    a head takes no adapter and a copy of it is trained. `casts_to`: what TRL casts adapters of
    4-bit weights to, after PEFT cast them to float32 (trl/trainer/sft_trainer.py).
    """
    for p in model.parameters():
        p.requires_grad = False
    chosen = parameter_targets(model_type, targets)
    heads = {
        id(inner)
        for _, name, child in _places(model)
        if name in _HEADS and isinstance(child, Module)
        for inner in child.modules()
    }
    if chosen and dropout_p:
        raise VramBudgetError(
            "PEFT has no dropout for adapters of experts' parameters",
            hint="leave out lora_dropout, or name linear layers with lora_targets",
        )
    found = [
        (parent, name)
        for parent, path, child in _paths(model)
        if isinstance(child, Linear | Conv1D)
        and (name := path.rpartition(".")[2]) not in chosen
        and _is_target(path, targets)
        and not (trains_head and id(child) in heads)
    ]
    if not found and not chosen:
        names = {name for _, name, child in _places(model) if isinstance(child, Linear | Conv1D)}
        near = did_you_mean(str(targets[0]), names)
        raise VramBudgetError(
            f"no module is called {' or '.join(map(repr, targets))}",
            hint=near or f"there are {', '.join(sorted(names))}",
        )
    adapters: list[LoraLinear | LoraParameter] = []
    for parent, name in found:
        base = getattr(parent, name)
        adapter = _ADAPTERS.get(type(base), LoraLinear)(base, rank, dropout_p)
        setattr(parent, name, adapter)
        adapters.append(adapter)
    adapters += wrap_parameters(model, rank, chosen)
    if trains_head:
        _train_copies_of_heads(model)
    layers = {layer for adapter in adapters for layer in (adapter.lora_A, adapter.lora_B)}
    _cast(model, layers, float32)
    if casts_to is not None:
        _cast(model, layers, casts_to)
    if context.options.checkpointing:
        make_inputs_require_grads(model, of_images=True)


def _train_copies_of_heads(model: Module) -> None:
    """Train copies of all whose name ends like a head's (_set_trainable).

    Raises VramBudgetError if one of them has adapters, as PEFT does.
    """
    for parent, name, child in list(_places(model)):
        if not (name.endswith(_HEADS) and isinstance(child, Module)):
            continue
        if isinstance(child, LoraLinear):
            raise VramBudgetError(
                f"PEFT trains a copy of {name} for this task, so it can have no adapters",
                hint="name other layers with lora_targets",
            )
        setattr(parent, name, TrainedCopy(child))


def _places(module: Module) -> Iterator[tuple[Module, str, object]]:
    """Yield what modules hold and where, in the order of torch's named_modules."""
    return ((parent, path.rpartition(".")[2], child) for parent, path, child in _paths(module))


def _paths(module: Module, prefix: str = "") -> Iterator[tuple[Module, str, object]]:
    for name, child in vars(module).items():
        yield module, prefix + name, child
        for inner in child if isinstance(child, list) else [child]:
            if isinstance(inner, Module):
                yield from _paths(inner, f"{prefix}{name}.")


def _is_target(path: str, targets: str | tuple[str, ...]) -> bool:
    """Whether a module's path ends like a target: "to_k", or "attn.to_k" of some of them."""
    if targets == ALL_LINEAR:
        return path.rpartition(".")[2] not in _OUTPUT_EMBEDDINGS
    return any(f".{path}".endswith(f".{target}") for target in targets)


def _cast(model: Module, layers: Collection[Linear], dtype: DType) -> None:
    """cast_adapter_dtype: 16-bit adapters become float32 once they are on the device."""
    for module in model.modules():  # adapters around one another: the inner one first
        if isinstance(module, Linear) and module in layers and module.weight.dtype is not dtype:
            weight = module.weight
            context.operation = "cast_adapter_dtype"
            cast = empty_like(weight, dtype)
            cast.storage.purpose = Purpose.WEIGHTS
            weight.dtype, weight.storage = dtype, cast.storage


def make_inputs_require_grads(model: Module, *, of_images: bool = False) -> None:
    """Make the embeddings' output require a gradient, as gradient_checkpointing_enable() does.

    Input embeddings are what a module names (`input_embeddings`), else the first table, and in an
    encoder-decoder each stack's own. Those of images are the patches':
    gradient_checkpointing_enable() leaves them alone, PEFT does not.
    """
    found = False
    for parent, name, child in _places(model):
        named = getattr(parent, "input_embeddings", None)
        is_table = isinstance(child, Embedding) and (not found or name == "embed_tokens")
        is_table = is_table if named is None else name == named
        is_patches = of_images and name == "patch_embeddings"
        if isinstance(child, Module) and (is_table or is_patches):
            setattr(parent, name, RequiringGradient(child))
            found = True
