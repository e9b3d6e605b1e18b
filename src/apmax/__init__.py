"""Train models that maximise average precision when positives are rare.

Sub-packages and public names are imported on first access, so that `import apmax` and `apmax --help` do not wait for
torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apmax.lazy import lazy_attributes

if TYPE_CHECKING:
    from apmax import (
        blend,
        committee,
        data,
        decide,
        distributed,
        estimator,
        exact,
        functional,
        integrations,
        losses,
        metrics,
        models,
        optim,
        plot,
        report,
        reproduce,
        samplers,
        surrogates,
        train,
        workflows,
    )
    from apmax.blend import fit_blend
    from apmax.data import Indexed
    from apmax.distributed import Gathered
    from apmax.estimator import APClassifier, APEnsembleClassifier
    from apmax.functional import ap_objective
    from apmax.losses import (
        LOSSES,
        APLoss,
        AUCMLoss,
        ClassBalancedLoss,
        CrossEntropyLoss,
        FastAPLoss,
        FocalLoss,
        LDAMLoss,
        MinMaxLoss,
        SmoothAPLoss,
        WeightedLoss,
    )
    from apmax.metrics import (
        AveragePrecision,
        auprc,
        auprc_interval,
        auroc,
        auroc_interval,
        average_precision,
        average_precision_interval,
    )
    from apmax.optim import param_groups
    from apmax.samplers import PositiveBatchSampler
    from apmax.train import Run, Stage, epochs, fit, predict
    from apmax.workflows import load_model

__version__ = "0.2.0"

__all__ = [
    "LOSSES",
    "APClassifier",
    "APEnsembleClassifier",
    "APLoss",
    "AUCMLoss",
    "AveragePrecision",
    "ClassBalancedLoss",
    "CrossEntropyLoss",
    "FastAPLoss",
    "FocalLoss",
    "Gathered",
    "Indexed",
    "LDAMLoss",
    "MinMaxLoss",
    "PositiveBatchSampler",
    "Run",
    "SmoothAPLoss",
    "Stage",
    "WeightedLoss",
    "ap_objective",
    "auprc",
    "auprc_interval",
    "auroc",
    "auroc_interval",
    "average_precision",
    "average_precision_interval",
    "blend",
    "committee",
    "data",
    "decide",
    "distributed",
    "epochs",
    "estimator",
    "exact",
    "fit",
    "fit_blend",
    "functional",
    "integrations",
    "load_model",
    "losses",
    "metrics",
    "models",
    "optim",
    "param_groups",
    "plot",
    "predict",
    "report",
    "reproduce",
    "samplers",
    "surrogates",
    "train",
    "workflows",
]

_EXPORTS = {
    "blend": ("fit_blend",),
    "data": ("Indexed",),
    "distributed": ("Gathered",),
    "estimator": ("APClassifier", "APEnsembleClassifier"),
    "functional": ("ap_objective",),
    "losses": (
        "LOSSES",
        "APLoss",
        "AUCMLoss",
        "ClassBalancedLoss",
        "CrossEntropyLoss",
        "FastAPLoss",
        "FocalLoss",
        "LDAMLoss",
        "MinMaxLoss",
        "SmoothAPLoss",
        "WeightedLoss",
    ),
    "metrics": (
        "AveragePrecision",
        "auprc",
        "auprc_interval",
        "auroc",
        "auroc_interval",
        "average_precision",
        "average_precision_interval",
    ),
    "optim": ("param_groups",),
    "samplers": ("PositiveBatchSampler",),
    "train": ("Run", "Stage", "epochs", "fit", "predict"),
    "workflows": ("load_model",),
}

__getattr__, __dir__ = lazy_attributes(__name__, __all__, _EXPORTS)
