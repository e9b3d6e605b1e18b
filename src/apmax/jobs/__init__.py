"""Jobs: from files to a trained model in a directory, and from there to ranked files and figures."""

from apmax.jobs.evaluation import Evaluation, evaluate
from apmax.jobs.ranking import rank
from apmax.jobs.spec import DataSpec, Job, ModelSpec
from apmax.jobs.trained import Trained, load
from apmax.jobs.training import Outcome, train
from apmax.jobs.wishes import Wishes

__all__ = [
    "DataSpec",
    "Evaluation",
    "Job",
    "ModelSpec",
    "Outcome",
    "Trained",
    "Wishes",
    "evaluate",
    "load",
    "rank",
    "train",
]
