"""Commands that start a server or a model, as people type them, in words of `run` and `serve`.

    llama-server -m model.gguf -ngl 99      run model.gguf -ngl 99
    llama-cli -hf org/name-GGUF:Q4_K_M      run org/name-GGUF:Q4_K_M
    ollama run qwen3:8b                     run qwen3:8b --ollama
    vllm serve Qwen/Qwen3-8B                serve Qwen/Qwen3-8B
    python -m sglang.launch_server --model-path M     serve M --engine sglang

`run` and `serve` may stand before it, and `run` in the place of llama-server.
"""

import re
from collections.abc import Mapping, Sequence

_STARTS: Mapping[str, tuple[str, ...]] = {
    r"\S*llama-(server|cli|completion|bench)(\.exe)?": ("run",),
    r"ollama run": ("run", "--ollama"),
    r"vllm serve": ("serve",),
    r"python[\d.]* -m vllm\.entrypoints\.\S+": ("serve",),
    r"sglang serve": ("serve", "--engine", "sglang"),
    r"python[\d.]* -m sglang\.launch_server": ("serve", "--engine", "sglang"),
}
_OF_A_MODEL = frozenset({"-m", "--model", "--model-path", "-hf", "-hfr", "--hf-repo"})


def in_our_words(argv: Sequence[str]) -> Sequence[str]:
    """Return a command that starts a server as vrambudget's, any other as it is."""
    words = argv[1:] if argv[0] in {"run", "serve"} else argv
    for length in (3, 2, 1):
        typed = " ".join(words[:length])
        for start, (command, *more) in _STARTS.items():
            if len(words) > length and re.fullmatch(start, typed) and typed.count(" ") < length:
                return [command, *_model_first(words[length:]), *more]
    return ["run", *_model_first(words)] if argv[0] == "run" else argv


def _model_first(words: Sequence[str]) -> Sequence[str]:
    """Return the words with the model that an option names before all others."""
    for number, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name.replace("_", "-") in _OF_A_MODEL:
            after = number + 1 if sign else number + 2
            named = [value] if sign else words[number + 1 : after]
            return [*named, *words[:number], *words[after:]]
    return words
