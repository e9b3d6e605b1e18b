"""Sums of a surrogate over all pairs (example, anchor): the one differentiable kernel behind every objective."""

from apmax.exact.kernel import PAIR_SUM_METHODS, pair_sums
from apmax.exact.stream import PairStream, pair_sums_across_ranks

__all__ = ["PAIR_SUM_METHODS", "PairStream", "pair_sums", "pair_sums_across_ranks"]
