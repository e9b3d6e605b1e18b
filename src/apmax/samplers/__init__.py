"""Batch samplers that put a fixed number of positives into every batch, and the labels of data sets.

Every draw is a function of (seed, epoch, batch) alone, and in `MinedBatchSampler` of the mined rows: no other state is
carried from batch to batch, so that a run can resume at any position without repeating earlier draws, and every process
can draw the same joined batches.
"""

from apmax.samplers.batches import MultiTaskBatchSampler, PositiveBatchSampler
from apmax.samplers.labels import known_labels, labels_of
from apmax.samplers.mined import MinedBatchSampler

__all__ = ["MinedBatchSampler", "MultiTaskBatchSampler", "PositiveBatchSampler", "known_labels", "labels_of"]
