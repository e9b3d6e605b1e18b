"""The losses: one signature for all, listed in `LOSSES`."""

from apmax.losses.base import Loss
from apmax.losses.pointwise import CrossEntropy

__all__ = ["LOSSES", "CrossEntropy", "Loss"]

LOSSES: dict[str, type[Loss]] = {"ce": CrossEntropy}
