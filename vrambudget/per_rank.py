"""The ranks of a job: which of them differ, what each takes, and which is the fullest.

    fsdp2    all alike where the shards are even; else the first ranks have most
    zero1    each has the optimizer's states of its own parameters
    deepspeed 1, 2    each copies the gradients of its own parameters, whole
    cp       the first ranks meet others' keys with half their queries, the last ones all queries
    others   all alike

Ranks that differ are simulated: all of a few, or those with most and least.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vrambudget.budget import RankPeak, Several
from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig
from vrambudget.engine.context import Platform
from vrambudget.simulate import Recording, simulate
from vrambudget.tape.replay import Replay, replay

_EACH = 8  # ranks of which each is simulated; of more, the first and the last
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
    several: Several


def fullest(config: ModelConfig, job: Job, platform: Platform) -> Fullest:
    """Return the fullest of a job's ranks, or the rank that the job names."""
    first = job if job.rank is not None else job.model_copy(update={"rank": 0})
    recording = simulate(config, first, platform)
    found = [(first, recording, replay(recording.tape))]
    if job.rank is None and recording.ranks_differ:
        for rank in _others(job.layout.ranks, recording.fullest_rank):
            other = job.model_copy(update={"rank": rank})
            recording = simulate(config, other, platform)
            found.append((other, recording, replay(recording.tape)))
    peaks = [_peak(one.rank or 0, replayed) for one, _, replayed in found]
    sizes = [(peak.peak_reserved_bytes, peak.peak_allocated_bytes) for peak in peaks]
    most = sizes.index(max(sizes))
    return Fullest(*found[most], _several(job, found[most][1], peaks))


def _others(ranks: int, fullest_rank: int) -> Sequence[int]:
    if ranks <= _EACH:
        return range(1, ranks)
    return sorted({fullest_rank, ranks - 1} - {0})


def _peak(rank: int, replayed: Replay) -> RankPeak:
    peak = replayed.peak
    return RankPeak(rank, peak.allocated_bytes, peak.reserved_bytes)


def _several(job: Job, recording: Recording, peaks: Sequence[RankPeak]) -> Several:
    layout = job.layout
    sizes = (layout.shards, layout.tp, layout.pp, layout.ep, layout.cp)
    groups = sum(size > 1 for size in sizes)
    groups += job.replicate > 1
    low, high = (
        NCCL_PER_CHANNEL * channels * algorithms * groups
        for channels, algorithms in zip(NCCL_CHANNELS, NCCL_ALGORITHMS, strict=True)
    )
    return Several(
        ranks=layout.ranks,
        parallel=str(layout),
        peaks=tuple(peaks),
        host_bytes=recording.host_bytes,
        nccl_groups=groups,
        nccl_bytes=(low, high),
    )
