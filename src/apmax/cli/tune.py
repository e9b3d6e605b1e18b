"""`apmax tune`."""

from __future__ import annotations

EXAMPLES = ""


def tune() -> None:
    """Search for good settings."""
    raise NotImplementedError
