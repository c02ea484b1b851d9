"""Find the request of a job that an out-of-memory message is about, by its size.

The message does not print the tensor's request, but the size of the segment that the allocator
then wanted from the driver (`get_allocation_size`, c10/cuda/CUDACachingAllocator.cpp, unchanged
from the last messages that say "cached" to torch 2.11; seen in 2.11 for requests of 100 bytes,
3 MiB and 10 MiB + 5 bytes):

    request            printed
    up to 1 MiB        2 MiB
    below 10 MiB       20 MiB
    from 10 MiB on     rounded up to 2 MiB

and that with two decimals. The asynchronous backend prints the request itself. So a request
matches "exact" if its own bytes print the same, and "rounded" if its segment's do.

Not modelled: torch 1.0 (it could print 12.50 MiB), `roundup_power2_divisions`,
`large_segment_size_mb`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from vrambudget.oom.message import Printed
from vrambudget.tape.segment_sizes import UNIT_BITS, segment_size, units


@dataclass(frozen=True, slots=True)
class Request:
    """One request that a job makes: bytes, what it is ("logits as bf16"), and when ("forward")."""

    bytes: int
    description: str
    phase: str


@dataclass(frozen=True, slots=True)
class Match:
    """A request that the message may be about."""

    request: Request
    how: Literal["exact", "rounded"]


def segment_bytes(requested: int) -> int:
    """Return the size of the segment that PyTorch requests from the driver to serve a request."""
    return segment_size(units(requested)) << UNIT_BITS


def match_request(printed: Printed, candidates: Iterable[Request]) -> tuple[Match, ...]:
    """Return the candidates that would print as `printed`: the exact ones first, then by size."""
    matches = []
    for request in candidates:
        if printed.holds(request.bytes):
            matches.append(Match(request, "exact"))
        elif printed.holds(segment_bytes(request.bytes)):
            matches.append(Match(request, "rounded"))

    def distance(match: Match) -> tuple[str, int]:
        return match.how, abs(match.request.bytes - printed.bytes)

    return tuple(sorted(matches, key=distance))
