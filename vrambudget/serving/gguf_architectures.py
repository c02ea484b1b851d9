"""llama.cpp's architectures by what their layers keep of a token (`gguf_architectures.toml`)."""

from collections.abc import Mapping

from vrambudget.files import toml_beside

_KINDS = toml_beside(__file__, "gguf_architectures.toml")
PATTERNS: Mapping[str, tuple[int, bool, int | None]] = {
    name: (of["every"], of.get("first", False), of.get("window"))
    for name, of in _KINDS.pop("patterns").items()
}
"""Every so manieth layer sees all tokens (the first of them, or the last; 0: the file says which),
the others a window; the window where the file names none."""
_NAMES = {kind: frozenset(names.split()) for kind, names in _KINDS.items()}
SEEN = _NAMES.pop("seen")
"""Architectures whose compute buffers were held against llama.cpp's own."""
RECURRENT, BY_HEADS = _NAMES["recurrent"], _NAMES["by_heads"]
STATES, UNCACHED = _NAMES["states"], _NAMES["uncached"]
ARCHITECTURES = frozenset(PATTERNS).union(*_NAMES.values())
