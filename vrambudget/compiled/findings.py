"""What the compiler reported of the job that was traced last, for its report."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vrambudget.units import format_bytes


@dataclass(slots=True)
class Findings:
    """Graph breaks, and what pad_mm's benchmark decides."""

    compiler: str = ""  # the version of torch that compiled
    rules: str = ""  # the version of torch that the job names
    padded: tuple[int, int] | None = None  # peak bytes requested without and with padding
    asked: set[str] = field(default_factory=set)  # products that the benchmark decides about
    breaks: list[str] = field(default_factory=list)
    not_modelled: list[str] = field(default_factory=list)  # what was counted by its result alone
    damaged: str = ""  # a file of the cache that was compiled anew

    def begin(self, compiler: str, rules: str) -> None:
        """Forget what was reported of another job."""
        self.compiler, self.rules = compiler, rules
        self.padded = None
        self.asked.clear()
        self.breaks, self.not_modelled, self.damaged = [], [], ""

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, as plain data."""
        names = ("compiler", "rules", "padded", "breaks", "not_modelled")
        return {name: getattr(self, name) for name in names}

    def take(self, saved: Mapping[str, Any]) -> None:
        """Report what was reported before."""
        self.compiler, self.rules = saved["compiler"], saved["rules"]
        self.padded = saved["padded"] and tuple(saved["padded"])
        self.breaks, self.not_modelled, self.damaged = saved["breaks"], saved["not_modelled"], ""

    def notes(self) -> Iterator[str]:
        """Yield what a user should know."""
        yield f"compiled by PyTorch {self.compiler}'s own compiler"
        if self.compiler != self.rules:
            yield (
                f"the job names torch {self.rules}, but torch {self.compiler} is installed and"
                " compiles: what it fuses and keeps may differ"
            )
        if self.padded is not None:
            plain, padded = self.padded
            yield (
                "PyTorch benchmarks on the GPU whether to pad matrix products:"
                f" {format_bytes(plain)} requested if it does not, {format_bytes(padded)} if it"
                " does; the larger is shown"
            )
        if self.damaged:
            yield f"{self.damaged} is damaged: it was compiled anew, and written anew"
        for line in self.breaks:
            yield f"graph break: {line}"


findings = Findings()
"""Of the job that was followed last."""
