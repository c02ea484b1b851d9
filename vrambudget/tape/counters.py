"""What `torch.cuda.memory_stats()` counts, now and at its peak; in units of 512 bytes within."""

from vrambudget.tape.segment_sizes import UNIT_BITS


class Counters:
    """Requested, allocated and reserved bytes of one device."""

    def __init__(self) -> None:
        self.num_alloc_retries = 0
        # Index of the event that took allocated bytes to their peak; None after reset_peaks.
        self.peak_event: int | None = None
        self.peak_step = -1  # if that event stands for steps (`vrambudget.tape.steps`), which
        self._allocated = self._peak_allocated = 0
        self._reserved = self._peak_reserved = 0
        self._requested_bytes = self._peak_requested_bytes = 0

    @property
    def requested_bytes(self) -> int:
        """Bytes as they were asked for, of all that is allocated now."""
        return self._requested_bytes

    @property
    def allocated_bytes(self) -> int:
        """`torch.cuda.memory_allocated()`."""
        return self._allocated << UNIT_BITS

    @property
    def reserved_bytes(self) -> int:
        """`torch.cuda.memory_reserved()`."""
        return self._reserved << UNIT_BITS

    @property
    def peak_requested_bytes(self) -> int:
        """`torch.cuda.memory_stats()["requested_bytes.all.peak"]`."""
        return self._peak_requested_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        """`torch.cuda.max_memory_allocated()`."""
        return self._peak_allocated << UNIT_BITS

    @property
    def peak_reserved_bytes(self) -> int:
        """`torch.cuda.max_memory_reserved()`."""
        return self._peak_reserved << UNIT_BITS

    def reset_peaks(self) -> None:
        """Let the peaks be what is there now: `torch.cuda.reset_peak_memory_stats()`."""
        self._peak_allocated, self._peak_reserved = self._allocated, self._reserved
        self._peak_requested_bytes = self._requested_bytes
        self.peak_event = None
