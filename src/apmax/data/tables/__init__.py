"""Tables of numbers, categories and dates as matrices that a model takes."""

from apmax.data.tables.columns import EncodingReport
from apmax.data.tables.encoder import TableEncoder
from apmax.data.tables.leakage import Leak, leaks

__all__ = [
    "EncodingReport",
    "Leak",
    "TableEncoder",
    "leaks",
]
