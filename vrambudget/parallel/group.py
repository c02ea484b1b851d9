"""A process group, as far as memory goes: how many ranks there are, and which of them this is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """One rank's view of a group (torch.distributed.ProcessGroup)."""

    size: int
    rank: int = 0

    def padded(self, length: int) -> int:
        """Return the elements of a dimension that every rank makes room for."""
        return -(-length // self.size)

    def local(self, length: int) -> int:
        """Return the elements of a dimension that this rank has: chunks of torch.chunk.

        The last ranks may have fewer than the others, or none.
        """
        part = self.padded(length)
        return max(0, min(part, length - self.rank * part))
