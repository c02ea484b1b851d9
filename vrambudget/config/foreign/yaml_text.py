"""YAML by PyYAML, whose safe loader is not safe enough: what stands for more than it says.

    &a [*b, *b]     aliases: 413 bytes may stand for 9^10 values
    <<: [*a, *a]    merge keys: 591 bytes that PyYAML merges for hours
    1:59:59:...     numbers to the base of 60
    !!int ""        tags of its core, whose constructors raise whatever Python raises

A document is composed into nodes (an alias is the node itself, so that is quick), the nodes are
counted as often as they stand in the document, and only then values are made of them. PyYAML is
imported when a YAML file is read.
"""

from importlib import import_module
from typing import Any

from vrambudget.bounded import LONGEST_KEY, LONGEST_NUMBER, check, keys_of, too_deep, twice
from vrambudget.errors import VramBudgetError

_MOST_NODES = 30_000  # of a file of 10,000 keys; PyYAML makes some 15,000 a second
_DEEPEST = 30
_CORE = "tag:yaml.org,2002:"
_READ = {"null", "bool", "int", "float", "timestamp", "str", "seq", "map", "merge", "value"}
_NUMBERS = {"int", "float"}
_MADE = _NUMBERS | {"null", "bool", "timestamp"}
_NULLS = {"", "~", "null", "Null", "NULL"}


def read_yaml(text: str) -> Any:
    """Return what a document means. Raises VramBudgetError."""
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise VramBudgetError(
            "a YAML file needs PyYAML, which is not installed",
            hint="pip install 'vrambudget[yaml]'; JSON and TOML need nothing",
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """Counts the nodes while they are composed, so that no document is composed for long."""

        made = depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.made, self.depth = self.made + 1, self.depth + 1
            if self.made > _MOST_NODES or self.depth > _DEEPEST:
                raise _too_much(self.made)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _Checked(loader, yaml.YAMLError).node(node, ())
        values = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise VramBudgetError(f"this is no YAML: {' '.join(str(error).split())}") from None
    check(values)
    return values


def _too_much(nodes: int) -> VramBudgetError:
    if nodes > _MOST_NODES:
        return VramBudgetError(f"this has more than {_MOST_NODES:,} values, its aliases counted")
    return too_deep("this, which may refer to itself,", _DEEPEST)


class _Checked:
    """Holds nodes against the bounds, each as often as it stands in the document."""

    def __init__(self, loader: Any, yaml_error: type[Exception]) -> None:
        self.loader, self.yaml_error, self.seen = loader, yaml_error, 0

    def node(self, node: Any, path: tuple[str | int, ...]) -> None:
        """Check a node and what is in it. Raises VramBudgetError."""
        self.seen += 1
        if self.seen > _MOST_NODES or len(path) > _DEEPEST:
            raise _too_much(self.seen)
        core, _, kind = node.tag.rpartition(_CORE)
        if core or not kind or kind not in _READ:
            raise VramBudgetError(f"{keys_of(path) or 'this'} has the tag {node.tag!r}: not read")
        if node.id == "scalar":
            self._scalar(node, kind, path)
        elif node.id == "sequence":
            for number, item in enumerate(node.value):
                self.node(item, (*path, number))
        else:
            self._object(node, path)

    def _object(self, node: Any, path: tuple[str | int, ...]) -> None:
        keys = [key.value if key.id == "scalar" else id(key) for key, _ in node.value]
        if (key := twice(keys)) is not None:
            raise VramBudgetError(f"the key {keys_of((*path, key))!r} stands twice")
        for key, value in node.value:
            if key.id != "scalar" or len(key.value) > LONGEST_KEY:
                raise VramBudgetError(f"a key of {keys_of(path) or 'this'} is no word")
            self.node(key, (*path, key.value))
            self.node(value, (*path, key.value))

    def _scalar(self, node: Any, kind: str, path: tuple[str | int, ...]) -> None:
        """Check a scalar: whether there is a value for it."""
        if kind in _NUMBERS and len(node.value) > LONGEST_NUMBER:
            raise VramBudgetError(
                f"{keys_of(path) or 'this'} is a number of {len(node.value):,} digits"
            )
        if kind not in _MADE or (kind == "null" and node.value in _NULLS):
            return
        try:  # PyYAML takes any text for a null
            made = None if kind == "null" else self.loader.construct_object(node)
        except self.yaml_error:
            raise
        except Exception:  # noqa: BLE001 - PyYAML's constructors raise whatever Python does
            made = None
        if made is None:
            raise VramBudgetError(
                f"{keys_of(path) or 'this'} is {node.value[:40]!r}, which is no {kind}"
            )
