"""Which additive table suits a surrogate."""

from __future__ import annotations

from torch import Tensor

from apmax.exact.buckets import Buckets
from apmax.exact.exponential import Exponential
from apmax.exact.grid import Grid
from apmax.surrogates import Surrogate

Table = Buckets | Exponential | Grid


def table(
    anchors: Tensor, surrogate: Surrogate, margin: float, low: Tensor | None = None, high: Tensor | None = None
) -> Table:
    """Return the additive table that suits the surrogate; only a grid needs the range of the scores."""
    if not anchors.numel():
        raise ValueError("anchors must not be empty: there is nothing to compare the scores with")
    if surrogate.pieces is not None:
        return Buckets(anchors, surrogate, margin)
    if surrogate.name == "exponential":
        return Exponential(anchors, margin)
    if low is None or high is None:
        raise ValueError(f"low and high are needed for {surrogate.name!r}: the smallest and the largest score of all")
    return Grid(anchors, surrogate, margin, low, high)
