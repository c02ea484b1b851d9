"""Reading and printing sizes: the only module that knows what a KiB is.

In the program a size is an `int` of bytes. Sizes print in binary units (1 GiB = 2**30 bytes), as
PyTorch and the driver print them. `parse_bytes` reads both kinds exactly: "11.69GiB" is
11.69 * 2**30, "12GB" is 12 * 10**9. (What a GPU *sold* as 12 GB has is in `config.gpus`.)
"""

import re

from vrambudget.errors import VramBudgetError

_FACTORS: dict[str, int] = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
_SIZE = re.compile(r"\s*(\d{0,18})(?:\.(\d{1,18}))?\s*([a-z]+)\s*", re.IGNORECASE)
_STEP = 1024
_DIGITS = 18
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def parse_bytes(text: str) -> int:
    """Return the bytes that `text` names, rounded down. Raises VramBudgetError if it is no size."""
    match = _SIZE.fullmatch(text)
    whole, decimals, unit = match.groups(default="") if match else ("", "", "")
    factor = _FACTORS.get(unit.lower())
    if factor is None or not whole + decimals:
        raise VramBudgetError(
            f"{text!r} is not a size",
            hint="write a number and a unit, for example 11.69GiB, 512MiB or 12GB",
        )
    scale: int = 10 ** len(decimals)
    return int(whole + decimals) * factor // scale  # in integers: exact at any size


def whole_number(text: str) -> int | None:
    """Return the number that a text is, None for one with anything but digits, or too many."""
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdigit() else None


def format_bytes(n: int, unit: str | None = None) -> str:
    """Return `n` bytes as text: "11.69 GiB", "-1.50 MiB", "512 B"."""
    if unit is None:
        unit = unit_for(n)
    if unit == "B":
        return f"{n:,} B"
    return f"{n / bytes_in(unit):,.2f} {unit}"


def gib(n: int) -> str:
    """Return bytes in GiB."""
    return format_bytes(n, "GiB")


def spread(low: int, high: int) -> str:
    """Return a range of bytes in GiB."""
    return gib(low) if low == high else f"{low / 2**30:.2f} to {gib(high)}"


def round_up(n: int, multiple: int) -> int:
    """Return the least multiple that is no less than n."""
    return -(-n // multiple) * multiple


def bytes_in(unit: str) -> int:
    """Return how many bytes one binary unit has: 1024 for "KiB"."""
    return 1 << 10 * _BINARY_UNITS.index(unit)


def unit_for(n: int) -> str:
    """Return the binary unit in which `n` bytes print as a number from 1 to 1023.99."""
    power, rest = 0, float(abs(n))
    while round(rest, 2) >= _STEP and power < len(_BINARY_UNITS) - 1:  # never print 1024.00
        power, rest = power + 1, rest / _STEP
    return _BINARY_UNITS[power]
