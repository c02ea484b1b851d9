"""A component of a pipeline, played: one call of it, at the sizes of its inputs.

Whole numbers among a call's arguments are sizes, too ("numbers": their names in the program).
"""

from collections.abc import Callable, Mapping

from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.outputs import Outputs
from vrambudget.program.form import Program
from vrambudget.program.player import Played


class PlayedComponent(Played):
    """The model that a component's program is of; `depths` say how many layers it has."""

    def __init__(self, program: Program, depths: Mapping[str, int]) -> None:
        super().__init__(program, dict(depths), {})
        self._depths = dict(depths)
        self.numbers: Mapping[str, int] = {}

    @property
    def entered(self) -> Callable[[str], None] | None:
        """What hears whose instructions follow."""
        return self._state.entered

    @entered.setter
    def entered(self, hears: Callable[[str], None]) -> None:
        self._state.entered = hears

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Parameters and buffers, by "@" and their names."""
        return self._state.parameters([*self._state.owners])

    def kind_of(self, path: str) -> str | None:
        """Return the class of a module that is one of torch's plain ones."""
        return self._kinds.get(path)

    def forget(self) -> None:
        """Bind the program anew: the weights' type changed."""
        self._bound.clear()

    def forward(self, **batch: Tensor) -> Outputs:
        """Run the program on a batch."""
        symbols: Mapping[str, str] = self._program.source["numbers"]
        numbers = {s: self.numbers[name] for name, s in symbols.items() if name in self.numbers}
        self._given = {**self._depths, **numbers}
        return super().forward(**batch)
