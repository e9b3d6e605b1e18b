"""Inference of the kind of a column, or of the reason to leave it out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from apmax import extras, validation
from apmax.data import parsing
from apmax.data.tables.columns import KINDS, MANY, Column, Number

pa, pc = extras.load("pyarrow", "tables"), extras.load("pyarrow.compute", "tables")

DROP = "drop"
ALL_MISSING, ALL_EQUAL = "no value at all", "the same in every row"
FRAME_INDEX = "row numbers: the index of a data frame"
ROLES = (*KINDS, DROP)
ID_NAMES = ("id", "index", "key", "uuid", "guid", "rowid", "row")
_FRAME_INDEX = re.compile(r"(unnamed: 0(\.\d+)*|__index_level_\d+__)?", re.IGNORECASE)
"""The names of the index of a data frame of pandas without a name, written to a csv or parquet file."""


def kind_of(name: str, column: Any) -> tuple[str, str]:
    """Return the kind of a column and an empty reason, or `DROP` and why it is left out.

    A column is a number if all values read as numbers, a date if one date format reads them all, else a category. Left
    out are columns of one value (or none), text that is different in most rows (an id, a name, free text), whole
    numbers that differ in every row and count the rows or are named like an id, and those that are the index of a data
    frame of pandas by their name, even where numbers repeat, as in frames that were joined.

    >>> import pyarrow as pa
    >>> kind_of("age", pa.array(["31", "", "58"])), kind_of("name", pa.array(["ann", "bob", "eve", "joe"]))
    (('number', ''), ('drop', 'different in every row: an id?'))
    """
    if column.null_count == len(column):
        return DROP, ALL_MISSING
    # Numbers and dates that a data frame holds as categories are categories.
    declared = not parsing.is_text(column) and pa.types.is_dictionary(column.type)
    column = parsing.flatten_column(column) if declared else column
    if not (parsing.is_text(column) or parsing.is_number(column) or parsing.is_date(column)):
        return DROP, f"of type {column.type}, which is not supported"
    if parsing.is_number(column) and not declared:
        values, _ = parsing.numbers(column)
        return _number(name, values)
    text = parsing.words(column)
    if reason := _lack_of_words(text):
        return DROP, reason
    known, distinct = len(text) - text.null_count, len(pc.drop_null(pc.unique(text)))
    values, unreadable = parsing.numbers(text)
    if not declared:
        if parsing.is_date(column):
            return "date", ""
        if unreadable == 0:
            return _number(name, values)
        if parsing.date_format(text) is not None:
            return "date", ""
    if distinct == known and known > 2:
        return DROP, "different in every row: an id?" + _almost(text, known, unreadable)
    if distinct > max(MANY, known // 2):
        return DROP, "different in most rows: names or free text?" + _almost(text, known, unreadable)
    return "category", ""


def column_role(name: str, column: Any, roles: Mapping[str, str]) -> tuple[str, str]:
    """Return the user's kind of a column, or else the inferred one, and the reason if it is left out."""
    if name not in roles:
        return kind_of(name, column)
    wanted = validation.choice(f"columns: the kind of {name!r}", roles[name], ROLES)
    if wanted == DROP:
        return DROP, "as requested"
    readers = {
        "number": lambda: parsing.numbers(column)[0],
        "date": lambda: parsing.seconds(column, parsing.column_date_format(column))[0],
    }
    if wanted in readers and np.isnan(readers[wanted]()).all():
        raise ValueError(f"columns: {name!r} is declared as a {wanted}, but none of its values can be read as one")
    return wanted, ""


def lack_of_values(fitted: Column, column: Any) -> str:
    """Return why the rows of a column say nothing, or an empty text: all are missing or the same."""
    if isinstance(fitted, Number):
        return _lack_of_numbers(fitted.read(column)[0])
    return _lack_of_words(parsing.words(column))


def _lack_of_numbers(values: parsing.Numbers) -> str:
    known = values[~np.isnan(values)]
    if known.size == 0:
        return ALL_MISSING
    return ALL_EQUAL if known.size == values.size and known.min() == known.max() else ""


def _lack_of_words(text: Any) -> str:
    if text.null_count == len(text):
        return ALL_MISSING
    return ALL_EQUAL if text.null_count == 0 and len(pc.unique(text)) == 1 else ""


def _number(name: str, values: parsing.Numbers) -> tuple[str, str]:
    if reason := _lack_of_numbers(values):
        return DROP, reason
    known = values[~np.isnan(values)]
    if not (known == np.round(known)).all():
        return "number", ""
    count = len(np.unique(known))
    if count == values.size > 2 and (_counts_rows(known) or _named_like_an_id(name)):
        return DROP, "a different whole number in every row: an id?"
    # A column without a name may be something else, but seldom where it has so many different whole numbers.
    if _FRAME_INDEX.fullmatch(name) and (count > MANY or name.startswith("__index_level")):
        return DROP, FRAME_INDEX
    return "number", ""


def _counts_rows(values: parsing.Numbers) -> bool:
    """Return whether numbers rise (or fall) from row to row, or fill half of their range, as row numbers do."""
    steps = np.diff(values)
    return bool((steps > 0).all() or (steps < 0).all() or values.max() - values.min() < 2 * values.size)


def _named_like_an_id(name: str) -> bool:
    lower = name.lower()
    by_ending = lower.endswith(("_id", " id", "-id", "_key", "_no", "_nr")) or name.endswith("Id")
    return by_ending or lower in ID_NAMES or _FRAME_INDEX.fullmatch(name) is not None


def _almost(text: Any, known: int, unreadable: int) -> str:
    """Return a hint where most values are numbers and a few are not, which is probably a mistake in the file."""
    if not 0 < unreadable <= known / 10:
        return ""
    bad = text.filter(pc.invert(pc.match_substring_regex(text, parsing.NUMBER, ignore_case=True)))
    example = bad[0].as_py()
    return (
        f" (numbers except for {unreadable} values such as {example!r}; declare it a number to treat those as missing)"
    )
