"""Train models that maximise average precision when positives are rare."""

from apmax.data import Indexed
from apmax.losses import APLoss
from apmax.metrics import average_precision
from apmax.samplers import PositiveBatchSampler

__all__ = ["APLoss", "Indexed", "PositiveBatchSampler", "average_precision"]

__version__ = "0.1.0"
