"""Training: `for record in epochs(model, data, run)`, or `fit(model, data, run)` for a whole run.

A run is a value (`Run`): a tuple of stages, each with its loss, optimiser, schedule and sampler. Runs can be resumed
bit for bit and give the same weights on any number of processes.
"""

from apmax.folders import is_first_process, write_atomic
from apmax.train.calibration import PlattCurve, fit_platt
from apmax.train.checkpoints import load_checkpoint, previous_checkpoint, save_checkpoint
from apmax.train.config import (
    Checkpoints,
    ConfigTable,
    ExactHead,
    Objective,
    Optimizer,
    Run,
    Sampler,
    Schedule,
    Stage,
    check_known_key,
    config_from_table,
    config_to_table,
    stage_from_table,
    stage_to_table,
)
from apmax.train.data import Data
from apmax.train.display import format_record
from apmax.train.embedding import embed
from apmax.train.errors import CheckpointError, DivergedError, NotWrittenError, Terminated
from apmax.train.loop import epochs
from apmax.train.recipes import MINED_STAGE, RECIPES, image_recipe, mined_stage, sized_recipe, table_recipe
from apmax.train.records import EpochMetrics, Record, compute_metrics, nan_to_none
from apmax.train.run_directory import read_records
from apmax.train.scoring import predict
from apmax.train.seeds import Ensemble, Result, fit
from apmax.train.toml import (
    format_toml,
    parse_literal,
    parse_toml,
    read_run,
    run_from_table,
    run_from_toml,
    run_to_table,
    run_to_toml,
)

__all__ = [
    "MINED_STAGE",
    "RECIPES",
    "CheckpointError",
    "Checkpoints",
    "ConfigTable",
    "Data",
    "DivergedError",
    "Ensemble",
    "EpochMetrics",
    "ExactHead",
    "NotWrittenError",
    "Objective",
    "Optimizer",
    "PlattCurve",
    "Record",
    "Result",
    "Run",
    "Sampler",
    "Schedule",
    "Stage",
    "Terminated",
    "check_known_key",
    "compute_metrics",
    "config_from_table",
    "config_to_table",
    "embed",
    "epochs",
    "fit",
    "fit_platt",
    "format_record",
    "format_toml",
    "image_recipe",
    "is_first_process",
    "load_checkpoint",
    "mined_stage",
    "nan_to_none",
    "parse_literal",
    "parse_toml",
    "predict",
    "previous_checkpoint",
    "read_records",
    "read_run",
    "run_from_table",
    "run_from_toml",
    "run_to_table",
    "run_to_toml",
    "save_checkpoint",
    "sized_recipe",
    "stage_from_table",
    "stage_to_table",
    "table_recipe",
    "write_atomic",
]
