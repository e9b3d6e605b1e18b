"""Checkpoints that survive a crash, say what they are, and never execute code when read."""

from apmax.train.checkpoints.content import encoded, load, save
from apmax.train.checkpoints.disk import previous, write, write_atomic
from apmax.train.checkpoints.failures import CheckpointError

__all__ = ["CheckpointError", "encoded", "load", "previous", "save", "write", "write_atomic"]
