"""How a training evaluates: after its second step, or before its first, too."""

from collections.abc import Iterable
from typing import Annotated

from vrambudget.config.settings import Field, Settings, Size

_OPTIONS = ("eval_batch", "eval_first", "eval_gather")


class Evaluation(Settings, heading="evaluation between steps"):
    """An evaluation beside the optimizer's states: how many batches, and what is kept of them."""

    eval_batches: Annotated[Size, Field(le=1000)] | None = Field(
        None, description="evaluate that many batches after the second step (default: none)"
    )
    eval_batch: Size | None = Field(
        None, description="sequences per batch of the evaluation (default: the loop's own)"
    )
    eval_first: bool = Field(default=False, description="evaluate before the first step, too")
    eval_gather: bool = Field(
        default=False,
        description="keep the logits of all batches on the GPU and concatenate them",
    )

    @property
    def evaluates(self) -> bool:
        """Whether a training evaluates between its steps."""
        return self.eval_batches is not None

    def problems(self) -> Iterable[str]:
        """Yield options of an evaluation that are set although the job has none."""
        for name in _OPTIONS:
            if getattr(self, name) and not self.evaluates:
                yield f"{name} is given without eval_batches: how many batches are evaluated"
