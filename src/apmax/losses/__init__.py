"""The losses: one signature for all, listed in `LOSSES`."""

from apmax.losses.ap_loss import PAPER_OPTIONS, APLoss
from apmax.losses.base import Loss
from apmax.losses.listwise import FastAPLoss, SmoothAPLoss
from apmax.losses.minmax import AUCMLoss, MinMaxLoss
from apmax.losses.pointwise import ClassBalancedLoss, CrossEntropyLoss, FocalLoss, LDAMLoss
from apmax.losses.weighted import WeightedLoss

__all__ = [
    "LOSSES",
    "PAPER_OPTIONS",
    "APLoss",
    "AUCMLoss",
    "ClassBalancedLoss",
    "CrossEntropyLoss",
    "FastAPLoss",
    "FocalLoss",
    "LDAMLoss",
    "Loss",
    "MinMaxLoss",
    "SmoothAPLoss",
    "WeightedLoss",
]

LOSSES: dict[str, type[Loss]] = {
    "ce": CrossEntropyLoss,
    "cb_ce": ClassBalancedLoss,
    "focal": FocalLoss,
    "ldam": LDAMLoss,
    "auc_m": AUCMLoss,
    "smooth_ap": SmoothAPLoss,
    "fast_ap": FastAPLoss,
    "minmax": MinMaxLoss,
    "ap": APLoss,
}

WeightedLoss.table = LOSSES
