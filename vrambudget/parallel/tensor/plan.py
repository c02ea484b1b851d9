"""Which module gets which style, and a model's parameters cut to the rank's own part.

    torchtitan's Llama    embedding by rows; wq, wk, wv, w1, w3 by columns; wo, w2 by rows; the head
                          by columns, its logits gathered unless the loss is parallel;
                          sequence_parallel: norms and residuals are cut along the sequence
    transformers          q, k, v, gate, up by columns; o, down by rows; an untied head by columns,
                          its logits gathered: embeddings and norms stay whole on every rank

Source: torchtitan/models/llama3/infra/parallelize.py (apply_tp); the plans of transformers'
configurations (base_model_tp_plan), given to torch.distributed.tensor.parallel.parallelize_module.
Not modelled: transformers' own tp_plan="auto"; layers with other projections or experts.
"""

from typing import Any

from vrambudget.config.device_mesh import REHEARSE
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter
from vrambudget.errors import NotModelledError
from vrambudget.models.families.titan import Trained, Transformer
from vrambudget.models.parts.causal_lm import CausalLM
from vrambudget.models.parts.layers import CheckpointedLayer, Linear
from vrambudget.parallel.dtensor import Lies, Placement, ShardedTensorParameter
from vrambudget.parallel.group import Group
from vrambudget.parallel.tensor.collectives import part_of
from vrambudget.parallel.tensor.loss import cross_entropy
from vrambudget.parallel.tensor.styles import Colwise, Gathers, Lookup, Rowwise


def parallelize(
    model: Module, group: Group, *, sequence_parallel: bool = False, loss_parallel: bool = False
) -> None:
    """Give a model's modules their styles, and cut its parameters. Raises NotModelledError."""
    if isinstance(model, Trained):
        _titan(model.model, group, sequence=sequence_parallel, gathers=not loss_parallel)
        if loss_parallel:
            model.cross_entropy = cross_entropy
        return
    if sequence_parallel or loss_parallel:
        raise NotModelledError(
            "sequence_parallel and loss_parallel are modelled for torchtitan's Llama alone",
            hint=f"model_type titan is the same architecture; {REHEARSE}",
        )
    layers = getattr(getattr(model, "model", None), "layers", None)  # Gemma 3 with images has none
    if not isinstance(model, CausalLM) or layers is None:
        raise _no_plan(model)
    for layer in layers:
        _decoder_layer(layer, model, group)
    if not model.config.tie_word_embeddings:
        model.lm_head.hooks = Colwise(group, gathers=model.config.vocab_size)
        _cut(model.lm_head, 0, group)


def _titan(model: Transformer, group: Group, *, sequence: bool, gathers: bool) -> None:
    rows = model.tok_embeddings.weight.shape[0]
    _cut(model.tok_embeddings, 0, group, gradient="whole")
    model.tok_embeddings.hooks = Lookup(group, rows, sequence=sequence)
    takes = "sequence" if sequence else "local"
    model.output.hooks = Colwise(group, takes, rows if gathers else 0)
    _cut(model.output, 0, group)
    column, row, gather = (
        Colwise(group, "whole" if sequence else "local"),
        Rowwise(group, sequence=sequence),
        Gathers(group),
    )
    norms = [model.norm]
    for block in model.layers:
        attention, feed_forward = block.attention, block.feed_forward
        if sequence:
            attention.hooks = feed_forward.hooks = gather
        _check_heads(attention.wk, attention.head_dim, group)
        columns = attention.wq, attention.wk, attention.wv, feed_forward.w1, feed_forward.w3
        _styled(columns, (attention.wo, feed_forward.w2), column, row)
        norms += block.attention_norm, block.ffn_norm
    for norm in norms if sequence else ():
        norm.weight = _part(norm.weight, norm.weight.shape, "partial")


_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


def _decoder_layer(layer: CheckpointedLayer, model: CausalLM, group: Group) -> None:
    """Cut a layer like Llama's, by its modules' names: any other is not modelled."""
    head_dim = model.config.head_width
    attention, mlp = _modules(layer, "self_attn"), _modules(layer, "mlp")
    norms = {"input_layernorm", "post_attention_layernorm"} <= vars(layer).keys()
    of_heads = (attention[name] for name in attention.keys() - {*_ATTENTION})
    if not (
        norms
        and mlp.keys() == {*_MLP}
        and attention.keys() >= {*_ATTENTION}
        and all(norm.weight.shape == (head_dim,) for norm in of_heads)
    ):
        raise _no_plan(model)
    query, key, value, output = (attention[name] for name in _ATTENTION)
    gate, up, down = (mlp[name] for name in _MLP)
    _check_heads(key, head_dim, group)
    columns = query, key, value, gate, up
    _styled(columns, (output, down), Colwise(group), Rowwise(group))
    layer.ranks = group.size


def _modules(layer: Module, name: str) -> dict[str, Any]:
    found = vars(getattr(layer, name, Module())).items()
    return {own: module for own, module in found if isinstance(module, Module)}


def _check_heads(keys: Linear, head_dim: int, group: Group) -> None:
    heads = keys.weight.shape[0] // head_dim
    if heads % group.size:
        raise NotModelledError(
            f"the model has {heads} heads of keys and values, which tp={group.size} ranks cannot"
            " share evenly",
            hint="choose a number of ranks that divides them: a model's own view(..., heads, width)"
            " fails otherwise",
        )


def _styled(
    columns: tuple[Linear, ...], rows: tuple[Linear, ...], column: Colwise, row: Rowwise
) -> None:
    for linear in columns:
        _cut(linear, 0, column.group)
        linear.hooks = column
    for linear in rows:
        if linear.bias is not None:
            raise NotModelledError("a bias of what is cut by rows is not modelled", hint=REHEARSE)
        if linear.weight.shape[1] % row.group.size:
            raise NotModelledError(
                f"PyTorch cannot multiply {linear.weight.shape[1]} features, cut among"
                f" tp={row.group.size} ranks in parts that differ (a RuntimeError)",
                hint="choose a number of ranks that divides them",
            )
        _cut(linear, 1, row.group)
        linear.hooks = row


def _cut(module: Any, dim: int, group: Group, *, gradient: Lies = "like it") -> None:
    """Let a module have the rank's part of its weight along `dim`, and of a bias."""
    for name in ("weight", "bias"):
        parameter: Parameter | None = getattr(module, name, None)
        if parameter is not None:
            setattr(module, name, _part(parameter, part_of(parameter, dim, group), gradient))


def _part(parameter: Parameter, shape: tuple[int, ...], gradient: Lies) -> Parameter:
    part = ShardedTensorParameter(shape, parameter.dtype)
    part.placement = Placement(gradient)
    part.requires_grad = parameter.requires_grad
    return part


def _no_plan(module: Module) -> NotModelledError:
    config = getattr(module, "config", None)
    name = type(module).__name__ if config is None else config.model_type
    return NotModelledError(
        f"tensor parallelism of {name} is not modelled: the layers of Llama, and those like them,"
        " are",
        hint=REHEARSE,
    )
