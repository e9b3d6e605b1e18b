"""Committee: different models, cross-fitted, on one scale, joined by a blend."""

from apmax.committee.crossfit import Committee, TrainingRows, fit_committee, make_folds, number_of_folds
from apmax.committee.features import ArrayFeatures, Features, ImageFeatures, MoleculeFeatures, TableFeatures
from apmax.committee.image_networks import ImageTraining
from apmax.committee.leaderboard import AP_LOSS_RULE, Leaderboard, LeaderboardRow, LossVerdict, loss_advice
from apmax.committee.members import (
    EFFORTS,
    IMAGE_MEMBERS,
    MEMBER_NAMES,
    MEMBERS,
    MEMBERS_BY_KIND,
    MOLECULE_MEMBERS,
    Member,
    find_members,
    image_members,
)
from apmax.committee.plan import CommitteePlan, plan_committee
from apmax.committee.storage import (
    load_committee,
    load_results,
    read_committee,
    save_committee,
    save_result,
    write_committee,
)
from apmax.committee.tasks import FitProgress, FitResult, FitTask

__all__ = [
    "AP_LOSS_RULE",
    "EFFORTS",
    "IMAGE_MEMBERS",
    "MEMBERS",
    "MEMBERS_BY_KIND",
    "MEMBER_NAMES",
    "MOLECULE_MEMBERS",
    "ArrayFeatures",
    "Committee",
    "CommitteePlan",
    "Features",
    "FitProgress",
    "FitResult",
    "FitTask",
    "ImageFeatures",
    "ImageTraining",
    "Leaderboard",
    "LeaderboardRow",
    "LossVerdict",
    "Member",
    "MoleculeFeatures",
    "TableFeatures",
    "TrainingRows",
    "find_members",
    "fit_committee",
    "image_members",
    "load_committee",
    "load_results",
    "loss_advice",
    "make_folds",
    "number_of_folds",
    "plan_committee",
    "read_committee",
    "save_committee",
    "save_result",
    "write_committee",
]
