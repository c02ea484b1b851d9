"""vLLM's cache: groups of layers, blocks of tokens, and how many requests they hold.

    page             2 * block * Hkv * D * itemsize   of one layer and block
    one kind         all layers are one group: a block is a page of every layer
    two kinds        layers that see a window, and layers that see all, in groups of equal size:
                     a block is a page of every layer of one group, and a request has blocks in each
    blocks           cache // page // layers of a group
    tokens           blocks // groups * block, as the log says
    of a request     all tokens in a group that sees all; with a window at most window - 1 + the
                     tokens of a step, and a block more

Source: vllm/v1/core/kv_cache_utils.py (get_kv_cache_groups, _get_kv_cache_groups_uniform_page_size,
get_num_blocks, get_max_concurrency_for_kv_cache_config, _report_kv_cache_config),
v1/kv_cache_interface.py (max_memory_usage_bytes). vLLM 0.19.
"""

from dataclasses import dataclass

from vrambudget.models.parts.decoder import DecoderConfig

_PAD_BELOW = 1.5  # a kind with so many times the layers of the other still sets the groups' size


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a model's layers: for each the window, None where it sees all."""

    windows: tuple[int | None, ...]
    layers: int  # of each group, padding among them

    def blocks_of(self, tokens: int, step: int, block: int) -> int:
        """Return the blocks of a request of so many tokens, of which a step computes `step`."""
        return sum(_blocks(window, tokens, step, block) for window in self.windows)


def _blocks(window: int | None, tokens: int, step: int, block: int) -> int:
    if window is None:
        return -(-tokens // block)
    return -(-min(window - 1 + step, tokens) // block) + 1


def groups_of(config: DecoderConfig, layers: range) -> Groups:
    """Return the groups of these layers of a model."""
    kinds = [config.layer_kinds[layer] for layer in layers]
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    least, most = min(counts.values()), max(counts.values())
    size = most if most < least * _PAD_BELOW else least
    windows: list[int | None] = []
    for kind, count in counts.items():
        window = config.window if kind == "sliding_attention" else None
        windows += [window] * -(-count // size)
    return Groups(tuple(windows), size)
