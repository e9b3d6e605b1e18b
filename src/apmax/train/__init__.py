"""Training: `for record in epochs(model, data, run)`, or `fit(model, data, run)` for the whole of it.

A run is a value (`apmax.train.config.Run`): a tuple of stages, each with its loss, optimiser, schedule and sampler.
Runs are resumable to the bit and give the same weights on any number of processes.
"""

from apmax.train.ensemble import Ensemble, Result, fit
from apmax.train.failures import DivergedError, NotWrittenError, Terminated
from apmax.train.files import read_records
from apmax.train.loading import Data
from apmax.train.loop import epochs
from apmax.train.records import Metrics, Record, measure
from apmax.train.scoring import predict

__all__ = [
    "Data",
    "DivergedError",
    "Ensemble",
    "Metrics",
    "NotWrittenError",
    "Record",
    "Result",
    "Terminated",
    "epochs",
    "fit",
    "measure",
    "predict",
    "read_records",
]
