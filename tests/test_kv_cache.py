"""What a cache of keys and values holds, and what an update makes besides."""

import pytest

from vrambudget.dtypes import bfloat16, float32
from vrambudget.engine.autocast import autocast
from vrambudget.engine.context import ModelOptions, Platform, context, no_grad, recording
from vrambudget.engine.tensor import empty
from vrambudget.models import config_class
from vrambudget.models.parts.cache import dynamic_cache
from vrambudget.ops.creation import made
from vrambudget.tape.events import Purpose

B, H, D = 2, 3, 8


def states(tokens, dtype=bfloat16):
    return empty((B, H, tokens, D), dtype)


def kept_bytes(tape):
    alive = tape.alive_at(len(tape.events) - 1)
    return sum(tape.sizes[i] for i in alive if tape.purposes[i] is Purpose.KV_CACHE)


def test_a_dynamic_cache_copies_what_it_is_given_and_grows_by_a_token():
    with recording(Platform()) as tape:
        cache = dynamic_cache([None])
        cache.update(states(5), states(5), 0)
        assert kept_bytes(tape) == 2 * B * H * 5 * D * 2
        cache.update(states(1), states(1), 0)
        assert cache.seen == 6
        assert kept_bytes(tape) == 2 * B * H * 6 * D * 2


def test_an_update_holds_the_old_keys_beside_the_new_ones():
    with recording(Platform()) as tape:
        cache = dynamic_cache([None])
        cache.update(states(5), states(5), 0)
        new = states(1), states(1)
        begin = len(tape.events)
        cache.update(*new, 0)
        made_first, old_keys, made_second, old_values = tape.events[begin:]
        assert made_first >= 0
        assert made_second >= 0
        assert old_keys < 0
        assert old_values < 0


def test_a_sliding_layer_keeps_the_storage_of_a_long_prompt_until_the_next_token():
    window = 4
    with recording(Platform()) as tape:
        cache = dynamic_cache([window])
        length = 8  # bytes of the window's own tensor
        cache.update(states(10), states(10), 0)
        assert kept_bytes(tape) == 2 * B * H * 10 * D * 2 + length
        assert cache.layers[0].mask_sizes(1) == (window, 7)
        cache.update(states(1), states(1), 0)
        assert kept_bytes(tape) == 2 * B * H * window * D * 2 + length


def test_under_autocast_values_are_kept_in_the_type_of_the_keys():
    with recording(Platform()) as tape, autocast(bfloat16):
        cache = dynamic_cache([None])
        cache.update(states(5, float32), states(5), 0)
        assert kept_bytes(tape) == 2 * B * H * 5 * D * 4


SMALL = {
    "gpt2": {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100},
    "gpt_neox": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
    },
    "opt": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128},
    "llama": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
    },
}
TOKENS = 24


@pytest.mark.parametrize("model_type", SMALL)
def test_the_outputs_of_a_decoder_hold_keys_and_values_of_every_layer(model_type):
    config = config_class(model_type).parse({"model_type": model_type, **SMALL[model_type]})
    with recording(Platform(), ModelOptions(dtype=bfloat16, use_cache=True)) as tape, no_grad():
        model = config.build("causal-lm")
        ids = made("ids", (B, TOKENS), float32)
        outputs = model(ids, logits_to_keep=1)
        heads = SMALL[model_type].get("num_key_value_heads", 4)
        assert outputs.logits.shape[1] == 1
        assert outputs.past_key_values.seen == TOKENS
        assert kept_bytes(tape) == 2 * 2 * B * heads * TOKENS * 16 * 2
        context.options = ModelOptions(dtype=bfloat16)
        assert model(ids).past_key_values is None
