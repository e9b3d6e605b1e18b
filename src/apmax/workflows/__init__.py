"""Workflows: from files to a trained model in a folder, and from there to ranked files and metrics."""

from apmax.workflows.data_types import (
    DATA_TYPES,
    DataConfig,
    DataType,
    ImageData,
    MoleculeData,
    RowReport,
    TableData,
    ignored_files_warning,
)
from apmax.workflows.evaluation import (
    Evaluation,
    ModelComparison,
    TargetEvaluations,
    compare_models,
    evaluate_scores,
    evaluate_source,
    evaluate_targets,
    score_source,
)
from apmax.workflows.job import CommitteeConfig, CommitteeJob, Job, JobPlan, ModelConfig, plan_job, plan_training
from apmax.workflows.job_result import JobResult
from apmax.workflows.model_folder import load_model
from apmax.workflows.overrides import Overrides, parse_settings
from apmax.workflows.prediction import write_predictions
from apmax.workflows.saved_model import SavedCommittee, SavedModel, SavedNetwork
from apmax.workflows.scored_rows import ScoredRows, load_scored_rows
from apmax.workflows.training import train_job

__all__ = [
    "DATA_TYPES",
    "CommitteeConfig",
    "CommitteeJob",
    "DataConfig",
    "DataType",
    "Evaluation",
    "ImageData",
    "Job",
    "JobPlan",
    "JobResult",
    "ModelComparison",
    "ModelConfig",
    "MoleculeData",
    "Overrides",
    "RowReport",
    "SavedCommittee",
    "SavedModel",
    "SavedNetwork",
    "ScoredRows",
    "TableData",
    "TargetEvaluations",
    "compare_models",
    "evaluate_scores",
    "evaluate_source",
    "evaluate_targets",
    "ignored_files_warning",
    "load_model",
    "load_scored_rows",
    "parse_settings",
    "plan_job",
    "plan_training",
    "score_source",
    "train_job",
    "write_predictions",
]
