"""A GPU that is full: what the replay of a tape ends with there."""


class OutOfDeviceMemoryError(Exception):
    """The GPU is full, where PyTorch raises torch.cuda.OutOfMemoryError.

    An exception and no result, because no number of a replay that went on would mean anything.
    """

    def __init__(
        self,
        *,
        event: int,
        requested_bytes: int,
        segment_bytes: int,
        allocated_bytes: int,
        reserved_bytes: int,
        phase: str | None = None,
        operation: str | None = None,
    ) -> None:
        super().__init__(f"out of device memory at event {event}")
        # Of a step that is not on the tape (`vrambudget.tape.steps`); None: those of the event.
        self.phase, self.operation = phase, operation
        self.event = event  # index of the event that could not be served
        self.requested_bytes = requested_bytes  # by the operation
        self.segment_bytes = segment_bytes  # "Tried to allocate" in PyTorch's message
        self.allocated_bytes = allocated_bytes  # "allocated by PyTorch"
        self.reserved_bytes = reserved_bytes  # what is left once the cache is given back
