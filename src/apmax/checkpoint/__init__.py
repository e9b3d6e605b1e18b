"""Checkpoints that survive a crash, say what they are, and never execute code when read."""

from apmax.checkpoint.disk import previous, write, write_atomic
from apmax.checkpoint.failures import CheckpointError
from apmax.checkpoint.format import encoded, load, save

__all__ = ["CheckpointError", "encoded", "load", "previous", "save", "write", "write_atomic"]
