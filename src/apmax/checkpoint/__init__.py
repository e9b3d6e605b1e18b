"""Checkpoints that survive a crash, say what they are, and never execute code when read."""

from apmax.checkpoint.content import encoded, load, save
from apmax.checkpoint.disk import previous, write, write_atomic
from apmax.checkpoint.failures import CheckpointError

__all__ = ["CheckpointError", "encoded", "load", "previous", "save", "write", "write_atomic"]
