"""Rehearse: any PyTorch script on a virtual GPU (see `run.rehearse`)."""

from vrambudget.rehearse.record import Moment, RecordedOutOfMemory, Rehearsal
from vrambudget.rehearse.run import rehearse

__all__ = ["Moment", "RecordedOutOfMemory", "Rehearsal", "rehearse"]
