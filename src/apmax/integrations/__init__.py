"""Adapters to other frameworks, imported by no other package of apmax."""

from apmax.lazy import lazy_attributes

__all__ = ["boosting", "lightgbm", "lightning", "xgboost"]

__getattr__, __dir__ = lazy_attributes(__name__, __all__)
