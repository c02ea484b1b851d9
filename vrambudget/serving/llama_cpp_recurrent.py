"""Recurrent layers in llama.cpp's graphs: a convolution's last tokens, and a state.

    convolved  [k - 1 + T / S, channels, S]: what the cache has of S sequences, and the batch
    state      read from the cache, by one kernel with the batch, written back
    early      the first reads of a layer stand before what the layer before has yet to do: a graph
               is written as far as it is asked for

Source: llama.cpp b11549 of October 2026: src/llama-graph.cpp (build_rs), src/models/mamba-base.cpp,
delta-net-base.cpp, qwen35.cpp, lfm2.cpp; ggml-cuda.cu (offload_op: a scan is never moved to a GPU).
Not modelled: other recurrent layers but by their projections.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vrambudget.serving.ggml_builder import F32, Builder, Weight
from vrambudget.serving.ggml_graph import CACHE, HOST, GgmlNode
from vrambudget.serving.gguf_model import GgufModel
from vrambudget.serving.options import LlamaCppOptions

if TYPE_CHECKING:
    from vrambudget.serving.llama_cpp_place import TensorPlacement

_VIEWED = "by sequences"  # a shape whose place nothing takes: what reads it reads a view
_DELTA_NET = frozenset({"attn_qkv", "attn_gate", "ssm_out"})


class Recurrent(Builder):
    """A graph's recurrent layers.

    `slots`: sequences; `sequences`: which states are theirs, also in two parts.
    """

    model: GgufModel
    options: LlamaCppOptions
    placed: "TensorPlacement"
    slots: int
    sequences: GgmlNode
    of_batch: GgmlNode
    of_others: GgmlNode

    def recurrent(self, layer: int, of: Mapping[str, Weight], cur: GgmlNode) -> GgmlNode:
        """Return what a recurrent layer adds to the residual stream."""
        if "shortconv.conv" in of:
            return self._short_convolution(layer, of, cur)
        if "ssm_in" in of:
            return self._mamba(layer, of, cur)
        if of.keys() >= _DELTA_NET:
            return self._delta_net(layer, of, cur)
        names = [n for n in of if n[:3] in {"att", "ssm", "sho"} and len(of[n].shape) > 1]
        made = [self.matrix(of, n, cur) for n in names if of[n].shape[0] == self.model.hidden]
        return self.node(self.model.hidden, *made)

    def cache_device(self, layer: int) -> int:
        """Return where a layer's cache, or its state, is."""
        return HOST if self.options.no_kv_offload else self.placed.devices[layer]

    def _before(self, layer: int, weight: Weight) -> GgmlNode:
        """Return a convolution's last tokens, as the cache has them."""
        kernel, channels = weight.shape
        nbytes = (kernel - 1) * channels * self.slots * F32
        return self.early(GgmlNode(nbytes, self.cache_device(layer), [self.sequences]))

    def _joined(self, layer: int, before: GgmlNode, made: GgmlNode, channels: int) -> GgmlNode:
        """Return what was before with what is in this batch, whose last tokens are kept."""
        read = self.node(channels, before, made, more=before.nbytes)
        last = read.nbytes - F32 * self.rows // self.slots
        self.keep(read, last, self.cache_device(layer))
        return read

    def _convolved(self, weight: Weight, read: GgmlNode) -> GgmlNode:
        return self.node(weight.shape[1], read, self.weight(weight), device=self.runs_on(weight))

    def _state_bytes(self, layer: int, weight: Weight) -> int:
        """Return the bytes of a sequence's state, without its convolution's part."""
        kernel, channels = weight.shape
        return (self.model.states[layer] - (kernel - 1) * channels) * F32

    def _short_convolution(self, layer: int, of: Mapping[str, Weight], cur: GgmlNode) -> GgmlNode:
        weight = of["shortconv.conv"]
        before = self._before(layer, weight)
        three = self.matrix(of, "shortconv.in_proj", cur)
        width = weight.shape[1]
        mixed = self._convolved(weight, self._joined(layer, before, self.node(width, three), width))
        return self._out(of, "shortconv.out_proj", self.same(mixed, three))

    def _mamba(self, layer: int, of: Mapping[str, Weight], cur: GgmlNode) -> GgmlNode:
        """Return what Mamba makes, the first (`ssm_x`) or the second."""
        weight, values = of["ssm_conv1d"], of["ssm_out"].shape[0]
        before = self._before(layer, weight)
        joint = self.matrix(of, "ssm_in", cur)
        mixed = self._convolved(weight, self._joined(layer, before, joint, weight.shape[1]))
        mixed = self.same(self.scaled(of["ssm_conv1d.bias"], mixed))
        is_first = "ssm_x" in of
        read = self._selected(of, mixed) if is_first else self._steps(of, mixed, joint)
        made = self._scanned(layer, of, values, read)
        gate = self.node(values, joint)
        direct = of["ssm_d"]
        if is_first:
            own = self.scaled(direct, mixed)
        else:
            own = self.node(values, mixed, self.weight(direct), device=self.runs_on(direct))
        made = self.node(values, made, own, in_place=True)
        made = self.node(values, gate, made)
        if "ssm_norm" in of:
            made = self.norm(of, "ssm_norm", made, in_place=True)
        return self._out(of, "ssm_out", made)

    def _out(self, of: Mapping[str, Weight], name: str, made: GgmlNode) -> GgmlNode:
        """Return the projection, by sequences: what is read of it is a view."""
        found = self.matrix(of, name, made)
        found.shape = _VIEWED
        return found

    def _selected(self, of: Mapping[str, Weight], mixed: GgmlNode) -> list[GgmlNode]:
        """Return what the first Mamba's scan reads: tokens, their steps, and two gates."""
        low, rank, state = self.matrix(of, "ssm_x", mixed), of["ssm_dt"].shape[0], of["ssm_a"].shape
        steps = self.node(rank, low)
        if "ssm_dt_norm" in of:
            steps = self.scaled(of["ssm_dt_norm"], steps)
        steps = self.matrix(of, "ssm_dt", steps)
        gates = [
            self.scaled(of[name], self.node(state[0], low))
            for name in ("ssm_b_norm", "ssm_c_norm")
            if name in of
        ]
        return [mixed, steps, *(gates or self._views(of, low, state[0], 2))]

    def _steps(self, of: Mapping[str, Weight], mixed: GgmlNode, joint: GgmlNode) -> list[GgmlNode]:
        """Return what the second Mamba's scan reads."""
        bias = of["ssm_dt.bias"]
        steps = self.scaled(bias, self.node(bias.shape[0], joint))
        values = of["ssm_out"].shape[0]
        gate = (of["ssm_conv1d"].shape[1] - values) // 2
        (own,) = self._views(of, mixed, values, 1)
        return [own, steps, *self._views(of, mixed, gate, 2)]

    def _views(
        self, of: Mapping[str, Weight], x: GgmlNode, width: int, times: int
    ) -> list[GgmlNode]:
        """Return parts of rows: each is copied by itself where the scan is elsewhere."""
        if not self._is_apart(of):
            return [x]
        row = x.nbytes // self.rows
        return [self.view(x, x.nbytes - row + width * F32) for _ in range(times)]

    def _is_apart(self, of: Mapping[str, Weight]) -> bool:
        """Return whether the scan is in main memory, and what it reads on a GPU."""
        return of["ssm_a"].device == HOST != self.runs_on(of["ssm_a"])

    def _scanned(
        self, layer: int, of: Mapping[str, Weight], values: int, read: list[GgmlNode]
    ) -> GgmlNode:
        one, lies = self._state_bytes(layer, of["ssm_conv1d"]), self.cache_device(layer)
        state = one * self.slots
        cache = GgmlNode(state, lies, shape=CACHE, lies=True)
        made = self.node(values, *read, self.of_batch, cache, more=state, device=of["ssm_a"].device)
        if self.slots > 1:  # those of no sequence of the batch
            others = GgmlNode(one * (self.slots - 1), lies, [self.of_others])
            self.nodes += [others, GgmlNode(0, lies, [others], lies=True)]
        self.keep(made, state, lies)
        made.shape = _VIEWED
        return self.view(made, values * self.rows * F32, HOST) if self._is_apart(of) else made

    def _delta_net(self, layer: int, of: Mapping[str, Weight], cur: GgmlNode) -> GgmlNode:
        weight, values = of["ssm_conv1d"], of["ssm_out"].shape[0]
        channels, lies = weight.shape[1], self.cache_device(layer)
        state = self._state_bytes(layer, weight) * self.slots
        self.expand()  # its norm is asked for
        before = self._before(layer, weight)
        read = self._joined(layer, before, self.matrix(of, "attn_qkv", cur), channels)
        kept = self.node(0, self.sequences, more=state, device=lies)
        self.expand()
        mixed = self.same(self._convolved(weight, read))
        halves = [self.node((channels - values) // 2, mixed) for _ in "qk"]
        made = self.node(values, *halves, mixed, *self._decays(of, cur), kept, more=state)
        self.keep(made, state, lies)
        normed = self.scaled(of["ssm_norm"], self.node(values, made))
        gate = self.copied(self.matrix(of, "attn_gate", cur))
        return self._out(of, "ssm_out", self.same(normed, gate))

    def _decays(self, of: Mapping[str, Weight], cur: GgmlNode) -> list[GgmlNode]:
        """Return how a state decays, and what is added to it."""
        found = []
        for name in ("ssm_ba", "ssm_alpha", "ssm_beta"):
            if name in of:
                made = self.copied(self.matrix(of, name, cur))
                if name == "ssm_alpha":
                    made = self.scaled(of["ssm_a"], self.same(self.scaled(of["ssm_dt.bias"], made)))
                found.append(made)
        return found
