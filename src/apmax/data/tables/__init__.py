"""Tables in files: csv, csv.gz and parquet, from their columns to what a model takes, and back with a score added."""

from apmax.data.tables.encoder import TableEncoder
from apmax.data.tables.leakage import Leak, leaks
from apmax.data.tables.reading import SUFFIXES, Source
from apmax.data.tables.report import Report
from apmax.data.tables.splits import by_group, by_time, stratified
from apmax.data.tables.target import Target
from apmax.data.tables.writing import open_writer

__all__ = [
    "SUFFIXES",
    "Leak",
    "Report",
    "Source",
    "TableEncoder",
    "Target",
    "by_group",
    "by_time",
    "leaks",
    "open_writer",
    "stratified",
]
