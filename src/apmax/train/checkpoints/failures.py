"""What a checkpoint may fail by."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A file that is not a whole checkpoint of this version, or a state that cannot become one."""
