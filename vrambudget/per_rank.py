"""The ranks of a job: which of them differ, what each takes, and which is the fullest.

    fsdp2    all identical where the shards are even; else the first ranks have most
    zero1    each has the optimizer's states of its own parameters
    deepspeed 1, 2    each copies the gradients of its own parameters, whole
    cp       the first ranks meet others' keys with half their queries, the last ones all queries
    others   all identical

One rank of each kind is simulated.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from vrambudget.budget import MultiGpu, RankPeak
from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig
from vrambudget.engine.context import Platform
from vrambudget.simulate import Recording, simulate
from vrambudget.tape.replay import Replay, replay

_MIB = 2**20

NCCL_PER_CHANNEL = 12 * _MIB
"""A connection's buffers: LL, LL128 and Simple, 10 MiB to receive and 2 MiB to send (NCCL,
src/init.cc, computeBuffSizes; src/transport/p2p.cc)."""
NCCL_CHANNELS = (2, 32)
NCCL_ALGORITHMS = (1, 2)  # a ring, or a ring and a tree


@dataclass(frozen=True, slots=True)
class Fullest:
    """The recording of the rank that takes most, and what all ranks take."""

    job: Job  # with its rank
    recording: Recording
    replayed: Replay
    distributed: MultiGpu


def fullest(config: ModelConfig, job: Job, platform: Platform) -> Fullest:
    """Return the fullest of a job's ranks, or the rank that the job names."""
    first = job if job.rank is not None else job.model_copy(update={"rank": 0})
    recording = simulate(config, first, platform)
    kinds = recording.kinds
    if job.rank is not None or not unlike(kinds):
        kinds = {first.rank or 0: None}
    found = {kinds[first.rank or 0]: (first, recording, replay(recording.tape))}
    for rank in unlike(kinds):
        other = job.model_copy(update={"rank": rank})
        recording = simulate(config, other, platform)
        found[kinds[rank]] = other, recording, replay(recording.tape)
    peaks = [_peak(rank, found[kind][2]) for rank, kind in kinds.items()]
    most = max(found.values(), key=lambda each: _sizes(each[2]))
    return Fullest(*most, _distributed(job, most[1], peaks))


def _peak(rank: int, replayed: Replay) -> RankPeak:
    return RankPeak(rank, *reversed(_sizes(replayed)))


def _sizes(replayed: Replay) -> tuple[int, int]:
    return replayed.peak.reserved_bytes, replayed.peak.allocated_bytes


def unlike(kinds: Mapping[int, Hashable]) -> list[int]:
    """Return the first rank of each kind but the first rank's."""
    first: dict[Hashable, int] = {}
    for rank, kind in kinds.items():
        first.setdefault(kind, rank)
    return [*first.values()][1:]


def nccl(job: Job) -> tuple[int, tuple[int, int]]:
    """Return how many groups of ranks there are, and NCCL's buffers at their least and largest."""
    mesh = job.mesh
    sizes = (mesh.shards, mesh.tp, mesh.pp, mesh.ep, mesh.cp)
    groups = sum(size > 1 for size in sizes)
    groups += job.replicate > 1
    low, high = (
        NCCL_PER_CHANNEL * channels * algorithms * groups
        for channels, algorithms in zip(NCCL_CHANNELS, NCCL_ALGORITHMS, strict=True)
    )
    return groups, (low, high)


def _distributed(job: Job, recording: Recording, peaks: Sequence[RankPeak]) -> MultiGpu:
    mesh = job.mesh
    groups, nccl_bytes = nccl(job)
    return MultiGpu(
        ranks=mesh.ranks,
        parallel=str(mesh),
        peaks=tuple(peaks),
        host_bytes=recording.host_bytes,
        nccl_groups=groups,
        nccl_bytes=nccl_bytes,
    )
