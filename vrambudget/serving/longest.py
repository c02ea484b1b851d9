"""The longest request that a vLLM server starts with on a card, by its defaults."""

from vrambudget.config.gpus import find_gpu
from vrambudget.config.source import find_model
from vrambudget.serving.options import ServeOptions
from vrambudget.serving.quantization_config import cache_in_fp8, quantisation_of
from vrambudget.serving.vllm import serve
from vrambudget.serving.weights import load_decoder


def longest_request(model: str, gpu: str) -> tuple[str, str, int, int]:
    """Return the model's name, the card's, the most tokens (0: none) and the model's positions."""
    found, card = find_model(model), find_gpu(gpu)
    config = load_decoder(found.values, where=found.where)
    quantisation = found.values.get("quantization_config")
    quantised = quantisation_of(quantisation, None, card, where=found.where)
    options = {"kv_cache_dtype": "fp8"} if cache_in_fp8(quantisation) else {}
    serving = serve(config, card, ServeOptions.parse(options), quantised)
    longest = serving.longest_request if serving.cache_bytes[0] > 0 else 0
    return found.name, card.name, longest, config.max_position_embeddings
