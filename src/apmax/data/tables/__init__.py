"""Tables of numbers, categories and dates as matrices that a model takes."""

from apmax.data.tables.encoder import TableEncoder
from apmax.data.tables.leakage import Leak, leaks
from apmax.data.tables.report import EncodingReport

__all__ = [
    "EncodingReport",
    "Leak",
    "TableEncoder",
    "leaks",
]
