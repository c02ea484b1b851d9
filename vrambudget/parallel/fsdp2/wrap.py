"""fully_shard, and which modules of a model it is called on.

    blocks       every layer, then the root, which has the rest: embeddings, the last norm, the head
    root         the whole model at once
    torchtitan   the embedding by itself; every layer; the last norm and the head together, which
                 are not resharded after forward; then the root, which has nothing left
    torchtitan-2024   blocks, of which the last is not resharded after forward
    accelerate   every layer; an untied embedding by itself; the last norm and the head together,
                 with a tied embedding before them, which are not resharded; then the root

Source: torch/distributed/fsdp/_fully_shard/_fully_shard.py, _fsdp_init.py
(_get_managed_modules, _get_managed_states); torchtitan/models/llama3/infra/parallelize.py
(apply_fsdp); accelerate/utils/fsdp_utils.py (fsdp2_prepare_model), 1.15.
Not modelled: several roots, ignored parameters, parameters of several types in one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vrambudget.config.device_mesh import REHEARSE
from vrambudget.engine.identical_layers import Layer
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter
from vrambudget.errors import NotModelledError
from vrambudget.parallel.ddp import buffers_of
from vrambudget.parallel.fsdp2.param_group import ParamGroup
from vrambudget.parallel.fsdp2.parameter import Policies, ShardedParameter
from vrambudget.parallel.fsdp2.state import FSDPState
from vrambudget.parallel.group import Group
from vrambudget.parallel.meta import allocated, to_empty
from vrambudget.training.kbit import QuantisedLinear
from vrambudget.training.lora import LoraLinear, RequiringGradient

Reshard = bool | int | None


@dataclass(frozen=True, slots=True)
class Sharding:
    """Among whom, and how: what all fully_shard calls on a model have in common."""

    shard: Group
    replicate: Group | None = None  # HSDP
    policies: Policies = field(default_factory=Policies)
    reshard: Reshard = None  # reshard_after_forward; None: fully_shard's default
    wrap: str = "blocks"


class FullyShard:
    """The calls of fully_shard on one model, in order; the last is the root's."""

    def __init__(self, model: Module, sharding: Sharding) -> None:
        self.sharding = sharding
        self.states: list[FSDPState] = []
        self._assigned: set[int] = set()  # parameters of inner groups
        self._ends: tuple[Module, ...] = ()  # the embedding and the head that accelerate looks at
        self._owners: dict[int, list[tuple[Module, str]]] = {}
        for module in model.modules():
            for name, value in module.__dict__.items():
                if isinstance(value, Parameter):
                    self._owners.setdefault(id(value), []).append((module, name))
        self.model = model
        self._wrap()
        self._share()

    def _wrap(self) -> None:
        model, sharding = self.model, self.sharding
        reshard = sharding.reshard
        if sharding.wrap == "torchtitan":
            embedding, norm, head = _ends(model)
            self._fully_shard([embedding], reshard=reshard)
        if sharding.wrap != "root":
            blocks = layers_of(model)
            if not blocks:
                raise NotModelledError(
                    "this model has no layers that are known here, to be wrapped one by one",
                    hint="--fsdp-wrap root wraps the model alone",
                )
            for number, block in enumerate(blocks):
                stays = sharding.wrap == "torchtitan-2024" and number == len(blocks) - 1
                self._fully_shard([block], reshard=False if stays else reshard)
        if sharding.wrap == "torchtitan":
            self._fully_shard([norm, head], reshard=False)
            reshard = None
        if sharding.wrap == "accelerate":
            self._wrap_ends(reshard)
            reshard = None
        # A root whose argument was left at its default is not resharded: it is needed at once.
        self._fully_shard([model], reshard=False if reshard is None else reshard)

    def _wrap_ends(self, reshard: Reshard) -> None:
        """Wrap the embedding, the last norm and the head as accelerate does."""
        embedding, norm, head = _ends_of_transformers(self.model)
        self._ends = embedding, head
        is_tied = embedding.weight is head.weight
        if not is_tied:
            self._fully_shard([embedding], reshard=reshard)
        ends = [norm, embedding, head] if is_tied else [norm, head]
        self._fully_shard([module for module in ends if module is not None], reshard=False)

    def _fully_shard(self, modules: Sequence[Module], *, reshard: Reshard) -> None:
        sharding = self.sharding
        found: dict[int, Parameter] = {}
        for module in modules:
            found |= {id(p): p for p in module.parameters() if id(p) not in self._assigned}
        for key in found:
            owner, name = self._owners[key][0]
            if isinstance(owner, QuantisedLinear) and name == "weight":
                owner.pack()
        self._assigned |= found.keys()
        post_forward = _post_forward_group(sharding.shard, reshard)
        group = None
        if found:
            parameters = [
                ShardedParameter(self._owners[key], sharding.shard, post_forward, sharding.policies)
                for key in found
            ]
            self._assigned |= {id(parameter.sharded) for parameter in parameters}
            self._check(parameters)
            group = ParamGroup(
                parameters,
                sharding.shard,
                post_forward=post_forward,
                replicate=sharding.replicate,
            )
        state = FSDPState(modules, group, sharding.policies)
        for module in modules:
            module.hooks = state
        self.states.append(state)

    @staticmethod
    def _check(parameters: Sequence[ShardedParameter]) -> None:
        """Refuse what fully_shard refuses: trained parameters of several types in a group."""
        if len({p.orig_dtype for p in parameters if p.sharded.requires_grad}) > 1:
            raise NotModelledError(
                "the trained parameters of a layer, or of the rest, are of several types",
                hint="fully_shard raises an AssertionError here: load the model in one type",
            )

    def _share(self) -> None:
        """Let all states have the root's contexts, in the order of named_modules (_lazy_init)."""
        by_module = {id(module): state for state in self.states for module in state.modules}
        shared = self.states[-1].shared
        order = (by_module[id(m)] for m in self.model.modules() if id(m) in by_module)
        shared.all_states = list(dict.fromkeys(order))
        for state in self.states:
            state.shared = shared
            if state.group is not None:
                state.group.comm = shared.comm

    @property
    def parameters(self) -> list[ShardedParameter]:
        """The parameters of all groups."""
        return [p for state in self.states if state.group for p in state.group.parameters]

    def materialise(self) -> None:
        """Give the shards their memory: `model.to_empty(device="cuda")`."""
        by_module = {id(module): state for state in self.states for module in state.modules}

        def applied(module: Module) -> None:
            state = by_module.get(id(module))
            if state is not None and state.group is not None:
                for parameter in state.group.parameters:
                    parameter.reset_sharded_param()

        to_empty(self.model, applied, offload=self.sharding.policies.offload)

    def move_and_shard(self, stepped: Sequence[Parameter] = ()) -> None:
        """Move each group's parameters from main memory to the GPU whole, and shard them there.

        `stepped`: the optimizer's, of which accelerate's _prepare_fsdp2 holds the last one.
        """
        held = []  # besides fsdp2_prepare_model's input_weight and output_weight
        for state in self.states:
            parameters = state.group.parameters if state.group is not None else []
            whole = [p.made_whole() for p in parameters]
            if state is self.states[-1]:
                for buffer in buffers_of(self.model):
                    buffer.storage = allocated(buffer, "buffer")
            for p in parameters:
                p.shard_from_whole()
            held += [
                whole[i]
                for i, p in enumerate(parameters)
                if p.owners[0][0] in self._ends or p.sharded in stepped[-1:]
            ]
            while whole:
                del whole[0]
        del held


def _post_forward_group(shard: Group, reshard: Reshard) -> Group | None:
    """Return the ranks that hold the parameters together between forward and backward."""
    if reshard is False:
        return None
    if reshard is None or reshard is True or reshard == shard.size:
        return shard
    if shard.size % reshard:
        raise NotModelledError(
            f"reshard_after_forward is {reshard}, which does not divide the {shard.size} ranks"
            " that share the parameters",
            hint="fully_shard raises a ValueError here",
        )
    return None if reshard == 1 else Group(reshard, shard.rank % reshard)


def layers_of(model: Module) -> list[Layer]:
    """Return the layers of a model's stacks, in order: what is wrapped one by one."""
    return [module for module in model.modules() if isinstance(module, Layer) and module.is_stacked]


def _ends_of_transformers(model: Module) -> tuple[Any, Module | None, Any]:
    """Return the embedding, the last norm and the head of a model with transformers' names."""
    model = getattr(model, "patched", model)  # of a head that makes no logits (TRL)
    head = getattr(model, "lm_head", None)
    base: Any = next((m for m in model.children() if m is not head), None)
    names = ("embed_tokens", "wte", "embed_in")
    inner = (vars(module) for module in base.modules()) if base is not None else ()
    embedding = next((own[name] for own in inner for name in names if name in own), None)
    if isinstance(embedding, RequiringGradient):
        embedding = embedding.embeddings
    if head is None or embedding is None:
        raise NotModelledError(
            "the embedding and the head of this model, which accelerate wraps, are not known here",
            hint=REHEARSE,
        )
    has_adapters = any(isinstance(module, LoraLinear) for module in model.modules())
    # What PEFT's model has as "model" is the whole model, which has no norm of its own.
    is_whole = has_adapters and vars(model).get("model") is base
    children = [] if is_whole else base.children()
    norms = [module for module in children if "Norm" in type(module).__name__]
    return embedding, norms[-1] if norms else None, head


def _ends(model: Module) -> tuple[Module, Module, Module]:
    """Return the embedding, the last norm and the head of a model with torchtitan's names."""
    try:
        return model.tok_embeddings, model.norm, model.output  # type: ignore[attr-defined]
    except AttributeError:
        raise NotModelledError(
            "this model does not have torchtitan's modules (tok_embeddings, norm, output)",
            hint="use --fsdp-wrap blocks",
        ) from None
