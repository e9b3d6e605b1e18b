"""scikit-learn estimator: `APClassifier(...).fit(X, y).predict_proba(X)`."""

from apmax import extras

extras.load("sklearn", "sklearn")

from apmax.estimator.classifier import APClassifier  # noqa: E402 - after the check that scikit-learn is installed

__all__ = ["APClassifier"]
