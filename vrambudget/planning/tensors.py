"""Tensors by name: what a storage of a tape is, in words, with shape and type.

    logits as bfloat16, 64·1024 x 50304
    12 x activation of gelu as float32, 8 x 1024 x 3072, in transformer.h.*.mlp

A dimension that is batch times block is written as the product, where rows are many. `held` names
what is alive at a moment, identical ones once: of one description, made by the same module of any
layer.

Not modelled: which name in the user's code holds a tensor.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vrambudget.config.job import Job
from vrambudget.tape.events import Content, Purpose, Tape

_KINDS = {
    Purpose.WEIGHTS: "weight",
    Purpose.AUTOCAST_COPIES: "autocast copy of a weight",
    Purpose.GRADIENTS: "gradient of a weight",
    Purpose.OPTIMIZER_STATES: "optimizer state",
    Purpose.ACTIVATIONS: "activation of",
    Purpose.KV_CACHE: "keys or values",
    Purpose.TEMPORARIES: "temporary of",
    Purpose.WORKSPACES: "workspace of",
    Purpose.INPUTS: "input",
    Purpose.GATHERED: "gathered weight",
    Purpose.COMMUNICATION: "buffer of",
}
_OF_THE_MODEL = {  # no dimension of theirs is one of the batch
    Purpose.WEIGHTS,
    Purpose.AUTOCAST_COPIES,
    Purpose.GRADIENTS,
    Purpose.OPTIMIZER_STATES,
    Purpose.GATHERED,
}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")  # of a layer, in a module's path
_AT_THE_HEAD = {
    "log_softmax": "log-probabilities",
    "softmax": "probabilities",
    "nll_loss": "loss",
}


@dataclass(frozen=True, slots=True)
class HeldTensors:
    """Tensors that are alive at a moment and identical; `bytes` of one of them.

    `module`: the path of what made them, "*" for the layers of several; "" if no module did.
    """

    description: str
    bytes: int
    count: int
    module: str

    def __str__(self) -> str:
        count = f"{self.count} x " if self.count > 1 else ""
        return count + self.description + (f", in {self.module}" if self.module else "")


def describe(tape: Tape, storage: int, job: Job) -> str:
    """Return what a storage is."""
    content = tape.contents[storage]
    name = _name(tape.purposes[storage], tape.operations[storage], content)
    if content is None:
        return name
    rows = None if tape.purposes[storage] in _OF_THE_MODEL else job
    return f"{name} as {content[1]}{_shape(content[0], rows)}"


def held(tape: Tape, storages: Iterable[int], job: Job) -> list[HeldTensors]:
    """Return what these storages are, the largest first."""
    kinds: dict[tuple[str, int, str], list[int]] = {}
    for storage in storages:
        kind = describe(tape, storage, job), tape.sizes[storage], any_layer(tape.path_of(storage))
        kinds.setdefault(kind, []).append(storage)
    return sorted(
        (
            HeldTensors(
                name, nbytes, len(group), tape.path_of(group[0]) if len(group) == 1 else module
            )
            for (name, nbytes, module), group in kinds.items()
        ),
        key=lambda one: -one.bytes,
    )


def any_layer(path: str) -> str:
    """Return a module's path with "*" for its layer's number: "transformer.h.*.mlp"."""
    return _NUMBER.sub("*", path)


def _name(purpose: Purpose, operation: str, content: Content) -> str:
    if purpose is Purpose.LOGITS_AND_LOSS:
        return _name_at_the_head(operation, content)
    kind = _KINDS[purpose]
    return f"{kind} {operation}" if kind.endswith((" of", " state")) else kind


def _name_at_the_head(operation: str, content: Content) -> str:
    if content is not None and not content[1].is_floating_point:
        return "labels"
    if operation.endswith("_backward"):
        return "gradient of the logits"
    return _AT_THE_HEAD.get(operation, "logits")


def _shape(shape: tuple[int, ...], job: Job | None) -> str:
    """Return the dimensions; the first that is the rows of the job's batch says so."""
    dims = list(map(str, shape))
    if job is not None and job.batch > 1 and (job.block or 1) > 1:
        rows = job.batch * (job.block or 1)
        if rows in shape:
            dims[shape.index(rows)] = f"{job.batch}·{job.block}"
    return f", {' x '.join(dims)}" if dims else ""
