"""scikit-learn estimators: `APClassifier`, one model, and `APEnsembleClassifier`, a committee."""

from apmax import extras

extras.load("sklearn", "sklearn")

from apmax.estimator.classifier import APClassifier  # noqa: E402 - after the check that scikit-learn is installed
from apmax.estimator.ensemble import APEnsembleClassifier  # noqa: E402

__all__ = ["APClassifier", "APEnsembleClassifier"]
