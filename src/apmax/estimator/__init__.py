"""scikit-learn's way in: `APClassifier(...).fit(X, y).predict_proba(X)`."""

from apmax import extras

extras.load("sklearn", "sklearn")

from apmax.estimator.classifier import APClassifier  # noqa: E402 - a missing scikit-learn is reported first

__all__ = ["APClassifier"]
