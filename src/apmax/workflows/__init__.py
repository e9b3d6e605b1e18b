"""Jobs: from files to a trained model in a directory, and from there to ranked files and figures."""

from apmax.workflows.evaluation import Evaluation, Evaluations, evaluate, evaluate_targets
from apmax.workflows.ranking import rank
from apmax.workflows.sources import open_source
from apmax.workflows.spec import DataSpec, Job, ModelSpec, data_spec
from apmax.workflows.trained import Trained, load
from apmax.workflows.training import Outcome, train
from apmax.workflows.wishes import Wishes

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
