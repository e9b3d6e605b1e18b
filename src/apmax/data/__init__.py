"""Data sets, and how their rows reach the losses."""

from apmax.data.indexed import Indexed

__all__ = ["Indexed"]
