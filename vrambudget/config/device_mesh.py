"""How the ranks of a job share its work: "fsdp2", "tp=2", "fsdp2+tp=2", "pp=4", "fsdp2+cp=2".

A layout is one way to share data (ddp, fsdp2, deepspeed3, ...), ways to cut the model (tp=T, pp=P,
ep=E) or its sequences (cp=C), or both, joined by "+". The ranks are the product: of 8 with
"fsdp2+tp=2", 4 share the parameters of each of the 2 cuts. Those that share sequences have the same
part of the model: of 8 with "fsdp2+cp=2", all 8 share its parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from vrambudget.errors import NotModelledError, VramBudgetError, did_you_mean
from vrambudget.units import whole_number

DEEPSPEED = ("deepspeed1", "deepspeed2", "deepspeed3")
DATA_PARALLEL = ("ddp", "zero1", "fsdp2", "fsdp1", *DEEPSPEED)
CUTS = ("tp", "pp", "ep", "cp")
ALIASES = {"zero2": "deepspeed2", "zero3": "deepspeed3"}  # torch has no such stages

_WAYS = {
    "tp": "tensor parallelism",
    "pp": "a pipeline",
    "ep": "expert parallelism",
    "cp": "context parallelism",
}
_ALONE = {name: _WAYS[name] for name in ("pp", "ep")}
"""Ways that go with no other: transformers' mesh has one dimension."""

NOT_MODELLED = {"megatron": "Megatron-LM", "sp": "sequence parallelism"}
_MEANT = {
    "fsdp": "fsdp2 is fully_shard, fsdp1 FullyShardedDataParallel",
    "hsdp": "it is fsdp2 with a number of copies: --parallel fsdp2 --replicate 2",
    "deepspeed": "name its stage: deepspeed1, zero2 or zero3",
    "zero": "name its stage: zero1 (PyTorch's), deepspeed1, zero2 or zero3",
    "dp": "ddp is DistributedDataParallel; DataParallel runs in one process: rehearse it",
}
REHEARSE = (
    "`vrambudget rehearse --gpu GPU --ranks N -- python train.py` runs any script as one rank of N"
)


@dataclass(frozen=True, slots=True)
class DeviceMesh:
    """How so many ranks share the work: the sizes of the mesh's dimensions."""

    ranks: int
    data: str | None  # one of DATA_PARALLEL
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1

    @property
    def shards(self) -> int:
        """How many ranks have the same part of the model: they share data, or its parameters."""
        return self.ranks // self.cuts

    @property
    def cuts(self) -> int:
        """How many ranks share the model."""
        return self.tp * self.pp * self.ep

    @property
    def records_streams(self) -> bool:
        """Whether blocks that another stream uses come back when its work is over."""
        return self.data in {"fsdp1", "deepspeed3"}

    def __str__(self) -> str:
        parts = [self.data] if self.data else []
        parts += [f"{name}={n}" for name in CUTS if (n := getattr(self, name)) > 1]
        return "+".join(parts) or "one GPU"


def parse_mesh(text: str | None, ranks: int | None) -> DeviceMesh:
    """Return the layout of a job's `parallel` and `ranks`.

    Raises VramBudgetError for words that are not known or numbers that do not fit, and
    NotModelledError for known ways that are not modelled.
    """
    if text is None:
        if ranks in {None, 1}:
            return DeviceMesh(1, None)
        raise VramBudgetError(
            f"nothing says how {ranks} GPUs share the work",
            hint=f"`vrambudget plan MODEL --gpu {ranks}xGPU` lists the ways that fit; or name one,"
            f" --parallel ddp for example ({', '.join(DATA_PARALLEL[1:])}, tp=2, fsdp2+tp=2)",
        )
    data, cuts = None, dict.fromkeys(CUTS, 0)
    for part in text.lower().replace(" ", "").split("+"):
        name, sign, number = part.partition("=")
        name = ALIASES.get(name, name)
        if name in DATA_PARALLEL and not sign:
            if data is not None:
                raise VramBudgetError(f"parallel is {text!r}: {data} and {name} exclude each other")
            data = name
        elif name in CUTS and not cuts[name]:
            cuts[name] = _degree(text, part, number if sign else str(ranks or ""))
        else:
            raise _unknown(text, name)
    return _checked(text, ranks, data, {name: cuts[name] or 1 for name in CUTS})


def _degree(text: str, part: str, number: str) -> int:
    if not 1 <= (whole_number(number) or 0) <= 2**20:
        raise VramBudgetError(
            f"parallel is {text!r}: {part!r} should end in a number of ranks, for example tp=2"
        )
    return int(number)


def _checked(text: str, ranks: int | None, data: str | None, cuts: Mapping[str, int]) -> DeviceMesh:
    cut = prod(cuts.values())
    ranks = ranks or cut
    if ranks % cut:
        raise VramBudgetError(
            f"parallel is {text!r}, which takes a multiple of {cut} ranks; ranks is {ranks}"
        )
    if data is None and ranks != cut:
        raise VramBudgetError(
            f"parallel is {text!r}, which takes {cut} ranks; ranks is {ranks}",
            hint=_with_others(text, ranks, cuts),
        )
    if data is not None and ranks == 1:
        raise NotModelledError(
            f"parallel is {text!r} of one rank: {data} alone is not modelled",
            hint="say how many with --ranks, or leave parallel out for a plain loop on one GPU",
        )
    for name, alone in _ALONE.items():
        others = [data, *(_WAYS[other] for other in CUTS if other != name and cuts[other] > 1)]
        together = [other for other in others if other]
        if cuts[name] > 1 and together:
            raise NotModelledError(
                f"{alone} together with {' and '.join(together)} is not modelled", hint=REHEARSE
            )
    if cuts["tp"] > 1 and data not in {None, "fsdp2"}:
        raise NotModelledError(f"tensor parallelism with {data} is not modelled", hint=REHEARSE)
    if cuts["cp"] > 1 and (cuts["tp"] > 1 or data not in {None, "ddp", "fsdp2"}):
        raise NotModelledError(
            f"context parallelism with {'tensor parallelism' if cuts['tp'] > 1 else data} is not"
            " modelled",
            hint=f"alone, with ddp and with fsdp2 it is; {REHEARSE}",
        )
    return DeviceMesh(ranks, data, **cuts)


def _with_others(text: str, ranks: int, cuts: Mapping[str, int]) -> str:
    """Return what to write instead, where a layout leaves ranks over."""
    alone = next((name for name in _ALONE if cuts[name] > 1), None)
    if alone is None:
        return f"say how the others share the data, for example fsdp2+{text}"
    goes = f"{_ALONE[alone]} goes with no other layout"
    return f"{goes}: write {alone}={ranks}, or name {cuts[alone]} GPUs"


def _unknown(text: str, name: str) -> VramBudgetError:
    if name in NOT_MODELLED:
        return NotModelledError(
            f"parallel is {text!r}: {NOT_MODELLED[name]} is not modelled", hint=REHEARSE
        )
    known = (*DATA_PARALLEL, *CUTS)
    return VramBudgetError(
        f"parallel is {text!r}: {name!r} is not known",
        hint=_MEANT.get(name)
        or did_you_mean(name, known)
        or f"it is made of {', '.join(known)}, for example fsdp2",
    )
