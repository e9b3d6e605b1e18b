"""XGBoost: average precision as objective and as metric.

    import xgboost
    from apmax.integrations.xgboost import APObjective, xgboost_average_precision

    stop = xgboost.callback.EarlyStopping(rounds=50, maximize=True)
    booster = xgboost.train({"min_child_weight": 0.01}, train, 500, obj=APObjective(), evals=[(valid, "valid")],
                            custom_metric=xgboost_average_precision, callbacks=[stop])
    model = xgboost.XGBClassifier(objective=APObjective(), eval_metric=xgboost_average_precision, callbacks=[stop])
    scores = model.predict(X, output_margin=True)

Set `maximize=True` in early stopping: XGBoost minimises metrics that it does not know. The curvatures of all rows sum
to about the number of positives, so that `min_child_weight` has to be far below its default of 1 where these are few. A
saved booster needs no apmax to load.
"""

from __future__ import annotations

from typing import Any

from apmax.integrations.boosting import APObjective, boosting_average_precision

__all__ = ["APObjective", "xgboost_average_precision"]


def xgboost_average_precision(first: Any, second: Any, sample_weight: Any = None) -> tuple[str, float] | float:
    """Return the exact average precision: with its name for `xgboost.train`, alone for its scikit-learn classes.

    Args:
        first: Scores, with an `xgboost.DMatrix` as `second` (`custom_metric`); labels otherwise (`eval_metric`).
        second: The data set, or scores.
        sample_weight: Weights of the rows, if `second` is no data set.
    """
    value = boosting_average_precision(first, second, sample_weight)
    return ("ap", value) if hasattr(second, "get_label") else value
