"""Networks for tables, images and molecular graphs."""

from apmax.lazy import lazy_attributes

__all__ = ["graphs", "images", "tables"]

__getattr__, __dir__ = lazy_attributes(__name__, __all__)
