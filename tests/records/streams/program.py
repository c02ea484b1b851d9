"""What the records beside this file are of: `vrambudget rehearse -- python program.py OUT SEED`.

A random program allocates on three streams, lets other streams use tensors (record_stream), gives
bytes back and takes them again (resize_), and reads the allocator's counters after each thing that
it does. A third argument is the most bytes that it may reserve. Each line of `did`:

    what       allocate, free, release, fill, record_stream, end (of a released one), empty_cache
    storage    its number
    stream     0 is the default one
    counters   allocated, reserved and requested bytes, then the peaks of these, then retries
"""

import json
import random
import sys
from pathlib import Path

import torch

MIB = 2**20
KEYS = ("allocated_bytes", "reserved_bytes", "requested_bytes")


def counters():
    found = torch.cuda.memory_stats()
    values = [found.get(f"{key}.all.{kind}", 0) for kind in ("current", "peak") for key in KEYS]
    return [*values, found.get("num_alloc_retries", 0)]


def size_of(rng):
    largest = rng.choice([600, 100_000, 2 * MIB, 2 * MIB, 40 * MIB])
    return rng.choice([512, MIB, 10 * MIB, rng.randrange(1, largest), rng.randrange(1, largest)])


class Program:
    def __init__(self, seed):
        self.rng = random.Random(seed)  # noqa: S311 - the same program again
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.tensors, self.released, self.sizes, self.did = {}, set(), [], []

    def allocate(self, stream):
        self.asking_on = stream
        self.sizes.append(size_of(self.rng))
        with torch.cuda.stream(self.streams[stream]):
            new = torch.empty(self.sizes[-1], dtype=torch.uint8, device="cuda")
        self.tensors[len(self.sizes) - 1] = new
        return len(self.sizes) - 1

    def step(self):
        stream = self.rng.randrange(3)
        full = sorted(self.tensors.keys() - self.released)
        what = self.rng.choices(
            ["allocate", "free", "release", "fill", "record_stream", "empty_cache"],
            [45, 25 + len(full), 8, 8, 25, 1],
        )[0]
        storage = -1
        if what == "allocate":
            storage = self.allocate(stream)
        elif what == "free" and self.tensors:
            storage = self.rng.choice(sorted(self.tensors))
            del self.tensors[storage]
            what = "end" if storage in self.released else "free"
            self.released.discard(storage)
        elif what == "release" and full:
            storage = self.rng.choice(full)
            self.tensors[storage].untyped_storage().resize_(0)
            self.released.add(storage)
        elif what == "fill" and self.released:
            storage = self.rng.choice(sorted(self.released))
            with torch.cuda.stream(self.streams[stream]):
                self.tensors[storage].untyped_storage().resize_(self.sizes[storage])
            self.released.remove(storage)
        elif what == "record_stream" and full:
            storage = self.rng.choice(full)
            self.tensors[storage].record_stream(self.streams[stream])
        elif what == "empty_cache":
            torch.cuda.empty_cache()
        else:
            return
        self.did.append([what, storage, stream, *counters()])


def main(out, seed, most_bytes=None):
    total = torch.cuda.get_device_properties(0).total_memory
    if most_bytes:
        torch.cuda.set_per_process_memory_fraction(int(most_bytes) / total)
    program, full = Program(int(seed)), None
    try:
        while len(program.did) < 600:
            program.step()
    except torch.cuda.OutOfMemoryError as error:
        full = [str(error), program.asking_on, *counters()]
    record = {
        "torch": torch.__version__,
        "card_bytes": total,
        "most_bytes": int(most_bytes) if most_bytes else None,
        "sizes": program.sizes,
        "did": program.did,
        "out_of_memory": full,
    }
    Path(out).write_text(json.dumps(record))


main(*sys.argv[1:])
