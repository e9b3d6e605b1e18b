"""Adapters to other frameworks, imported by no other package of apmax."""

from apmax.lazy import lazy_attributes

__all__ = ["lightning"]

__getattr__, __dir__ = lazy_attributes(__name__, __all__)
