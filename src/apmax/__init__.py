"""Train models that maximise average precision when positives are rare."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apmax.data import Indexed
    from apmax.estimator import APClassifier
    from apmax.losses import APLoss
    from apmax.metrics import average_precision
    from apmax.samplers import PositiveBatchSampler

__all__ = ["APClassifier", "APLoss", "Indexed", "PositiveBatchSampler", "average_precision"]

__version__ = "0.1.0"

_HOMES = {
    "APClassifier": "apmax.estimator",
    "APLoss": "apmax.losses",
    "Indexed": "apmax.data",
    "PositiveBatchSampler": "apmax.samplers",
    "average_precision": "apmax.metrics",
}


def __getattr__(name: str) -> Any:
    # Imported when first asked for: `apmax --help` answers without waiting for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'apmax' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
