"""vLLM's cache: groups of layers, blocks of tokens, and how many requests they hold.

    page             2 * block * Hkv * D * itemsize   of one layer and block
    one kind         all layers are one group: a block is a page of every layer
    widths           a page is that of the widest layers, and a block of narrower ones has as many
                     times more tokens
    two kinds        layers that see a window, and layers that see all, in groups of equal size:
                     a block is a page of every layer of one group, and a request has blocks in each
    blocks           cache // page // layers of a group
    tokens           blocks // groups * block, as the log says
    recurrent        layers with a state are groups, too: a request has two or three blocks in each,
                     and a block as many tokens as it takes for a page to hold a state
    of a request     all tokens in a group that sees all; with a window at most window - 1 + the
                     tokens of a step, and a block more

Source: vllm/v1/core/kv_cache_utils.py (get_kv_cache_groups, _get_kv_cache_groups_uniform_page_size,
get_num_blocks, get_max_concurrency_for_kv_cache_config, _report_kv_cache_config),
v1/kv_cache_interface.py (max_memory_usage_bytes). vLLM 0.19. Recurrent layers: of 0.33
platforms/interface.py (_align_hybrid_block_size), MambaSpec.max_memory_usage_bytes with "align",
which the cache of prefixes asks for (model_executor/models/config.py), and
model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py (_resolve_gdn_prefill_backend).
"""

from dataclasses import dataclass
from typing import NamedTuple

from vrambudget.config.gpus import Gpu
from vrambudget.models.parts.decoder import DecoderConfig, LayerType
from vrambudget.models.parts.latent import LatentConfig
from vrambudget.serving.tabled import TabledDecoder
from vrambudget.serving.weights import kv_heads

_PAD_BELOW = 1.5  # a kind with so many times the layers of the other still sets the groups' size


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a model's layers: for each the window, None where it sees all."""

    windows: tuple[int | None, ...]
    layers: int  # of each group, padding among them
    state_blocks: int = 0  # of a request, in all groups of recurrent layers
    width: int = 0  # elements of a token's keys and values in a layer, on one rank; the most
    narrower: tuple[int, ...] = ()  # how many times as many tokens a block of each group has

    def blocks_of(self, tokens: int, step: int, block: int) -> int:
        """Return the blocks of a request of so many tokens, of which a step computes `step`."""
        times = self.narrower or (1,) * len(self.windows)
        each = zip(self.windows, times, strict=True)
        return self.state_blocks + sum(_blocks(w, tokens, step, block * n) for w, n in each)


def _blocks(window: int | None, tokens: int, step: int, block: int) -> int:
    if window is None:
        return -(-tokens // block)
    return -(-min(window - 1 + step, tokens) // block) + 1


class StatePages(NamedTuple):
    """How recurrent layers keep states: how many of a request, in blocks of a multiple of tokens.

    The running one, that at the end of the last whole block and, where FlashInfer's kernel computes
    prefills (Hopper and newer), one within a prefill, at a multiple of 64 tokens.
    """

    kept: int
    multiple: int

    def block_of(self, token_bytes: int, state_bytes: int) -> int:
        """Return the tokens of a block whose page has room for a state."""
        return self.multiple * -(-state_bytes // (self.multiple * token_bytes))


def has_prefill_kernel(gpu: Gpu) -> bool:
    """Whether FlashInfer's kernel computes prefills of recurrent layers, and not Triton's."""
    return gpu.compute_capability >= (9, 0)


def state_pages(gpu: Gpu, block: int) -> StatePages:
    """Return how states are kept on a GPU."""
    return StatePages(3, max(64, block)) if has_prefill_kernel(gpu) else StatePages(2, block)


def groups_of(config: DecoderConfig, layers: range, tp: int = 1, states_kept: int = 0) -> Groups:
    """Return the groups of these layers of a model; a request keeps so many states of each."""
    counts: dict[LayerType, int] = {}
    widths: dict[LayerType, int] = {}
    for layer in layers:
        kind, width = config.layer_kinds[layer], _width(config, layer, tp)
        if width or kind == "linear_attention":  # others read an earlier layer's keys and values
            counts[kind] = counts.get(kind, 0) + 1
            widths[kind] = width
    least, most = min(counts.values()), max(counts.values())
    size = most if most < least * _PAD_BELOW else least
    widest = max(widths.values())
    windows: list[int | None] = []
    narrower: list[int] = []
    state_blocks = states_kept * -(-counts.pop("linear_attention", 0) // size)
    for kind, count in counts.items():
        number = -(-count // size)
        windows += [config.window if kind == "sliding_attention" else None] * number
        narrower += [widest // widths[kind]] * number
    return Groups(tuple(windows), size, state_blocks, widest, tuple(narrower))


def _width(config: DecoderConfig, layer: int, tp: int) -> int:
    """Return the elements of a token's keys and values in a layer; latent ones are whole."""
    if isinstance(config, TabledDecoder):
        return config.token_width(layer, tp)
    if isinstance(config, LatentConfig):
        return config.latent_width
    return 2 * kv_heads(config, tp) * config.head_width
