"""Rehearse: any PyTorch script on a virtual GPU (see `run.rehearse`)."""

from vrambudget.rehearse.record import Moment, OutOfMemory, Rehearsal
from vrambudget.rehearse.run import rehearse

__all__ = ["Moment", "OutOfMemory", "Rehearsal", "rehearse"]
