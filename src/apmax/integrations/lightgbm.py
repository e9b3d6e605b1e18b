"""LightGBM: average precision as objective and as metric.

    import lightgbm
    from apmax.integrations.lightgbm import APObjective, lightgbm_average_precision

    booster = lightgbm.train({"objective": APObjective()}, train, valid_sets=[valid], feval=lightgbm_average_precision)
    model = lightgbm.LGBMClassifier(objective=APObjective(), metric="none")
    model.fit(X, y, sample_weight=w)  # to stop early: eval_metric=lightgbm_average_precision
    scores = model.predict(X, raw_score=True)

`metric="none"` leaves out the log-loss that LightGBM's classifier adds to any other metric: early stopping would heed
it, and of scores that are no log-odds it says nothing. The metric also serves other objectives, whose probabilities it
ranks by. A saved booster needs no apmax to load.
"""

from __future__ import annotations

from typing import Any

from apmax.integrations.boosting import APObjective, boosting_average_precision

__all__ = ["APObjective", "lightgbm_average_precision"]


def lightgbm_average_precision(first: Any, second: Any, sample_weight: Any = None) -> tuple[str, float, bool]:
    """Return LightGBM's triple of name, value and whether higher is better: the exact average precision.

    Args:
        first: Scores, with a `lightgbm.Dataset` as `second` (`feval`); labels otherwise (`eval_metric`).
        second: The data set, or scores.
        sample_weight: Weights of the rows, if `second` is no data set.
    """
    return "ap", boosting_average_precision(first, second, sample_weight), True
