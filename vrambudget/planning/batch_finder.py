"""accelerate's `find_executable_batch_size`, started at the predicted batch.

    @find_executable_batch_size(model="gpt2", block=1024)       # the free memory of this GPU now
    def train(batch_size): ...

    train()

accelerate's own starts at 128 and halves the batch at every crash. This one starts at the largest
batch that is predicted to fit; if that crashes all the same, accelerate continues as usual.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from vrambudget.config.gpus import Gpu
from vrambudget.config.source import ModelSource
from vrambudget.errors import VramBudgetError
from vrambudget.planning.fit import max_batch

if TYPE_CHECKING:
    from vrambudget.config.job_fields import RunFields


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    *,
    model: ModelSource,
    gpu: str | Gpu = "auto",
    margin: int | str = 0,
    **fields: "Unpack[RunFields]",
) -> Callable[..., Any]:
    """Return accelerate's decorator, or the decorated function; the rest as for `max_batch`.

    Raises VramBudgetError if not even a batch of 1 fits, or if accelerate is missing.
    """
    try:
        from accelerate.utils import find_executable_batch_size as search  # noqa: PLC0415 - extra
    except ImportError as error:
        raise VramBudgetError(
            "find_executable_batch_size needs accelerate",
            hint="pip install accelerate, or start your own search at vrambudget.max_batch(...)",
        ) from error
    batch = max_batch(model, gpu=gpu, margin=margin, **fields)
    if batch == 0:
        raise VramBudgetError(
            "not even a batch of 1 fits",
            hint="`vrambudget MODEL --advise` says what helps",
        )
    decorated: Callable[..., Any] = search(function, starting_batch_size=batch)
    return decorated
