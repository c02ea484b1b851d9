"""Bytes in a column: one unit for the whole table, and printed parts add up to printed totals.

    amounts = Amounts.for_total(device_peak)      the unit: MiB or GiB, two digits after the point
    amounts.of(n)                                 n in hundredths of the unit, rounded to nearest
    amounts.split(parts, total)                   parts in hundredths that add up to `total`
    amounts.text(hundredths)                      "11.69"

`split` rounds down and gives the rest to the parts with the largest remainders, so that no printed
part is off by a whole hundredth.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from vrambudget.units import bytes_in, unit_for

HUNDREDTHS = 100


class Amounts(NamedTuple):
    """The sizes of one table, in whole hundredths of one unit."""

    unit: str

    @classmethod
    def for_total(cls, total_bytes: int) -> Self:
        """Return the unit that suits the table's largest number; at least MiB."""
        unit = unit_for(total_bytes)
        return cls("MiB" if unit in ("B", "KiB") else unit)

    def of(self, n: int) -> int:
        """Return `n` bytes in hundredths of the unit, rounded to the nearest."""
        scale = bytes_in(self.unit)
        return (2 * HUNDREDTHS * n + scale) // (2 * scale)

    def split(self, parts: Sequence[int], total: int) -> list[int]:
        """Return each part in hundredths, rounded so that they add up to `total` hundredths."""
        scale = bytes_in(self.unit)
        floors = [HUNDREDTHS * part // scale for part in parts]
        lost = sorted(range(len(parts)), key=lambda i: -(HUNDREDTHS * parts[i] % scale))
        for i in lost[: total - sum(floors)]:
            floors[i] += 1
        return floors

    def text(self, hundredths: int) -> str:
        """Return hundredths as printed: "1,234.50"."""
        sign = "-" if hundredths < 0 else ""
        whole, rest = divmod(abs(hundredths), HUNDREDTHS)
        return f"{sign}{whole:,}.{rest:02}"
