"""Jobs: from files to a trained model in a directory, and from there to ranked files and figures."""

from apmax.jobs.evaluation import Evaluation, Evaluations, evaluate, evaluate_targets
from apmax.jobs.ranking import rank
from apmax.jobs.sources import open_source
from apmax.jobs.spec import DataSpec, Job, ModelSpec, data_spec
from apmax.jobs.trained import Trained, load
from apmax.jobs.training import Outcome, train
from apmax.jobs.wishes import Wishes

__all__ = [
    "DataSpec",
    "Evaluation",
    "Evaluations",
    "Job",
    "ModelSpec",
    "Outcome",
    "Trained",
    "Wishes",
    "data_spec",
    "evaluate",
    "evaluate_targets",
    "load",
    "open_source",
    "rank",
    "train",
]
