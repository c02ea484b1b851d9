"""What an answer about a server is: values, and the text that a command prints of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vrambudget.escaping import escape


@dataclass(frozen=True, slots=True)
class Server:
    """What a server holds; `values` are bytes and tokens, where a pair is least and most."""

    engine: str
    starts: bool
    values: Mapping[str, Any]
    text: str

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> str:
        """Return the values as JSON."""
        return json.dumps(self.values, indent=2)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"
