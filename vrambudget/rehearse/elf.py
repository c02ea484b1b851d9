"""What a shared library needs, where it looks, and which functions it exports: its ELF file.

Only 64-bit little-endian files are read (Linux on x86-64 and arm64), through their section headers.

Not modelled: symbol versions, libraries whose section headers were stripped away.
"""

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vrambudget.errors import VramBudgetError
from vrambudget.files import open_file

_SYMTAB, _DYNAMIC, _DYNSYM = 2, 6, 11  # section types
_NEEDED, _SONAME, _RPATH, _RUNPATH = 1, 14, 15, 29  # tags of the dynamic section
_FUNCTION = 2  # symbol type
_SYMBOL_BYTES = 24


@dataclass(frozen=True, slots=True)
class Library:
    """`functions` are defined here (global or weak); `undefined` names are looked for elsewhere."""

    path: Path
    soname: str
    needed: tuple[str, ...]
    folders: tuple[Path, ...]
    functions: frozenset[str]
    undefined: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int  # for symbols and the dynamic section: the number of their table of names


def read_library(path: Path) -> Library:
    """Return what the file says of itself. Raises VramBudgetError for no 64-bit ELF file."""
    with (
        open_file(path, "library") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        if data[:6] != b"\x7fELF\x02\x01":
            raise VramBudgetError("not a 64-bit ELF file", where=str(path))
        sections = _sections(data)
        dynamic = list(_dynamic(data, sections))
        symbols = list(_symbols(data, sections))
    names = {tag: [text for t, text in dynamic if t == tag] for tag, _ in dynamic}
    folders = ":".join(names.get(_RPATH, []) + names.get(_RUNPATH, []))
    return Library(
        path=path,
        soname=next(iter(names.get(_SONAME, [])), path.name),
        needed=tuple(names.get(_NEEDED, [])),
        folders=tuple(
            Path(folder.replace("$ORIGIN", str(path.parent))).resolve()
            for folder in folders.split(":")
            if folder
        ),
        functions=frozenset(name for name, defined in symbols if defined),
        undefined=frozenset(name for name, defined in symbols if not defined),
    )


def c_names(path: Path, pattern: str) -> set[str]:
    """Return the zero-terminated strings that match: names looked up at run time are there."""
    with (
        open_file(path, "library") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return {m[1].decode() for m in re.finditer(rb"\0(" + pattern.encode() + rb")(?=\0)", data)}


def _sections(data: mmap.mmap) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_bytes, count = struct.unpack_from("<HH", data, 0x3A)
    found = []
    for i in range(count):
        _, kind, _, _, offset, size, link = struct.unpack_from(
            "<IIQQQQI", data, table + i * entry_bytes
        )
        found.append(_Section(kind, offset, size, link))
    return found


def _name(data: mmap.mmap, table: _Section, offset: int) -> str:
    start = table.offset + offset
    return data[start : data.find(b"\0", start)].decode()


def _dynamic(data: mmap.mmap, sections: list[_Section]) -> Iterator[tuple[int, str]]:
    for section in sections:
        if section.kind != _DYNAMIC:
            continue
        for at in range(section.offset, section.offset + section.size, 16):
            tag, value = struct.unpack_from("<qQ", data, at)
            if tag in (_NEEDED, _SONAME, _RPATH, _RUNPATH):
                yield tag, _name(data, sections[section.link], value)


def _symbols(data: mmap.mmap, sections: list[_Section]) -> Iterator[tuple[str, bool]]:
    """Yield (name, defined here) for the global functions, and for all names that are undefined."""
    kinds = {section.kind for section in sections}
    wanted = _DYNSYM if _DYNSYM in kinds else _SYMTAB  # an object file has only the latter
    for section in sections:
        if section.kind != wanted:
            continue
        for at in range(section.offset, section.offset + section.size, _SYMBOL_BYTES):
            name, info, _, home = struct.unpack_from("<IBBH", data, at)
            is_local, defined = info >> 4 == 0, home != 0
            if name and not is_local and (not defined or info & 15 == _FUNCTION):
                yield _name(data, sections[section.link], name), defined
