"""Committee: different models, cross-fitted, on one scale, joined by a blend."""

from apmax.committee.crossfit import Committee, TrainingRows, fit_committee, number_of_folds
from apmax.committee.features import ArrayFeatures, TableFeatures
from apmax.committee.leaderboard import Leaderboard, LeaderboardRow, LossVerdict
from apmax.committee.members import EFFORTS, MEMBERS, Member, find_members
from apmax.committee.plan import CommitteePlan, plan_committee
from apmax.committee.storage import load_committee, save_committee
from apmax.committee.tasks import FitProgress, FitResult, FitTask

__all__ = [
    "EFFORTS",
    "MEMBERS",
    "ArrayFeatures",
    "Committee",
    "CommitteePlan",
    "FitProgress",
    "FitResult",
    "FitTask",
    "Leaderboard",
    "LeaderboardRow",
    "LossVerdict",
    "Member",
    "TableFeatures",
    "TrainingRows",
    "find_members",
    "fit_committee",
    "load_committee",
    "number_of_folds",
    "plan_committee",
    "save_committee",
]
