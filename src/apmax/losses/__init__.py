"""The losses: one signature for all, listed in `LOSSES`."""

from apmax.losses.average_precision import APLoss
from apmax.losses.base import Loss
from apmax.losses.listwise import FastAP, SmoothAP
from apmax.losses.minmax import AUCM, MinMax
from apmax.losses.pointwise import LDAM, ClassBalanced, CrossEntropy, Focal
from apmax.losses.weighted import Weighted

__all__ = [
    "AUCM",
    "LDAM",
    "LOSSES",
    "APLoss",
    "ClassBalanced",
    "CrossEntropy",
    "FastAP",
    "Focal",
    "Loss",
    "MinMax",
    "SmoothAP",
    "Weighted",
]

LOSSES: dict[str, type[Loss]] = {
    "ce": CrossEntropy,
    "cb_ce": ClassBalanced,
    "focal": Focal,
    "ldam": LDAM,
    "auc_m": AUCM,
    "smooth_ap": SmoothAP,
    "fast_ap": FastAP,
    "minmax": MinMax,
    "ap": APLoss,
}

Weighted.table = LOSSES
