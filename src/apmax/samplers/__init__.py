"""Batch samplers that put a fixed number of positives into every batch.

Everything drawn is a function of (seed, epoch, batch) alone: no state is carried from batch to batch, so that any
position can be restarted without replaying what came before, and every process can draw the same joined batches.
"""

from apmax.labels import labels_of
from apmax.samplers.multitask import MultiTaskBatchSampler
from apmax.samplers.positive import PositiveBatchSampler

__all__ = ["MultiTaskBatchSampler", "PositiveBatchSampler", "labels_of"]
