"""What the first batches of a data loader say: their length, and whether they have padding.

Rows are read from the dataset and put together by the loader's own collator, the longest ones of
those looked at: that is the batch that takes most. Random numbers are drawn again afterwards as if
nothing had been read, so that the training is the same with and without a look.

Not modelled: datasets that can be read only once; the batch sampler.
"""

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vrambudget.errors import VramBudgetError

_ROWS = 256
_SECONDS = 2.0  # rows may be images that have to be decoded
_MODELLED = {"input_ids", "attention_mask", "labels", "pixel_values"}
_NO_LABEL = -100  # torch's cross_entropy, ignore_index
_OF_PACKED = {
    "position_ids",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
}
"""What TRL's SFTTrainer adds to rows that it lays end to end, and hands over as one."""
_OF_PAIRS = {"completion_mask", "ref_chosen_logps", "ref_rejected_logps"}
"""What TRL's DPOTrainer adds, whose batches are pairs."""


def read_batch(
    loader: Any, batch: int, *, has_completions: bool = False
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return fields of a job, and what is not modelled. Raises VramBudgetError for an iterator.

    `has_completions`: whether memory depends on how many tokens are trained on.
    """
    dataset = getattr(loader, "dataset", None)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise VramBudgetError(
            "the dataset can be read only once, so its lengths are not known",
            hint="pass block=..., the length of the longest sequence",
        )
    with _same_random_numbers():
        rows = sorted(_first_rows(dataset, batch), key=_length, reverse=True)
        collated = loader.collate_fn(rows[:batch])
    fields, not_modelled = _fields(collated, {_length(row) for row in rows})
    if has_completions:
        fields["completion_len"] = _completion_len(collated)
    if "cu_seq_lens_q" in collated:
        fields |= {name: -(-fields[name] // batch) for name in ("block", "completion_len")}
        fields |= {"rows": "packed", "attention_mask": "none"}
    return fields, not_modelled


def _first_rows(dataset: Any, least: int) -> list[Any]:
    rows, until = list[Any](), time.monotonic() + _SECONDS
    for index in range(min(len(dataset), max(_ROWS, least))):
        if len(rows) >= least and time.monotonic() > until:
            break
        rows.append(dataset[index])
    return rows


def _length(row: Any) -> int:
    if not isinstance(row, Mapping):
        return 0
    if "chosen_ids" in row:
        longer = max(len(row["chosen_ids"]), len(row["rejected_ids"]))
        return len(row.get("prompt_ids", ())) + longer
    ids = row.get("input_ids")
    return len(ids) if ids is not None else 0


def _fields(batch: Any, lengths: set[int]) -> tuple[dict[str, Any], tuple[str, ...]]:
    if not hasattr(batch, "keys"):
        raise VramBudgetError(f"a batch is a {type(batch).__name__}, not a dict of named tensors")
    ids, mask, labels = (batch.get(key) for key in ("input_ids", "attention_mask", "labels"))
    modelled = _MODELLED | (_OF_PAIRS if "completion_mask" in batch else set())
    modelled |= _OF_PACKED if "cu_seq_lens_q" in batch else set()
    not_modelled = [f"the batch's {key}" for key in batch if key not in modelled]
    if ids is None:
        return {}, tuple(not_modelled)
    fields: dict[str, Any] = {"block": int(ids.shape[1])}
    if mask is not None and not bool(mask.all()):
        fields["rows"] = "padded"
    else:
        fields["attention_mask"] = "none" if mask is None else "ones"
    if labels is not None and labels.dim() > 1 and labels.shape != ids.shape:
        fields["target_len"] = int(labels.shape[1])
    if len(lengths) > 1:
        not_modelled.append(
            f"rows of {min(lengths)} to {max(lengths)} tokens: reserved bytes depend on their order"
            f" (block='{min(lengths)}:{max(lengths)}' tries some of them)"
        )
    return fields, tuple(not_modelled)


def _completion_len(batch: Any) -> int:
    """Return the tokens of a row that are trained on, at most, as TRL's collators say it."""
    pairs = "completion_mask" in batch
    trained = batch["completion_mask"] if pairs else batch["labels"] != _NO_LABEL
    return int(trained.sum(1).max())


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Put the generators of Python, NumPy and torch back as they were."""
    numpy, torch = (sys.modules.get(name) for name in ("numpy", "torch"))
    before: Sequence[Any] = (
        random.getstate(),
        numpy.random.get_state() if numpy else None,
        torch.get_rng_state() if torch else None,
    )
    try:
        yield
    finally:
        random.setstate(before[0])
        if numpy:
            numpy.random.set_state(before[1])
        if torch:
            torch.set_rng_state(before[2])
