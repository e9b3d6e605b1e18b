"""Values of text columns: missing values, numbers, dates and words, from Arrow arrays to numpy or Arrow text."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import extras

pa = extras.load("pyarrow", "tables")
pc = extras.load("pyarrow.compute", "tables")

Numbers = npt.NDArray[np.float64]

MISSING = ("", "?", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none", "nat")
"""Texts for a missing value, in any case."""

DATE_FORMATS = ("iso", "iso with zone", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y")
"""In the order in which they are tried; the first that reads every value is taken."""

INFINITE = r"^[+-]?(inf|infinity)$"
NUMBER = rf"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|{INFINITE}"
_DECIMAL_COMMA = r"^[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?$"
_WHOLE_NUMBER = r"^[+-]?\d+$"
_FORMATTED_NUMBER = r"^[+-]?[$€£]? ?(\d{1,3}([,.'’ \x{a0}\x{202f}]\d{3})+([.,]\d+)?|\d+[.,]?\d*) ?[%$€£]?$"
_TRAILING_ZERO = r"^([+-]?\d+)\.0*$"
_EXPONENT = r"^[+-]?\d(\.\d+)?e[+-]\d{1,3}$"
"""Only the form in which programs write numbers, 1e-05: the 1E5 of a plate is no number."""
_MIDNIGHT = r"^(\d{4}-\d\d-\d\d)[ T]00:00:00(\.0+)?$"
_WHOLE_SECOND = r"^(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)\.0+$"
_FIRST_WORDS = 20
"""Words that are inspected before all: most columns are neither dates nor have decimal commas."""


def is_text(column: Any) -> bool:
    """Return whether a column has the type of words: text, categories of text, or booleans."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_boolean(kind)
        or kind == pa.string_view()
    )


def is_number(column: Any) -> bool:
    """Return whether a column has the type of numbers."""
    kind = column.type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_date(column: Any) -> bool:
    """Return whether a column has the type of dates."""
    return bool(pa.types.is_date(column.type) or pa.types.is_timestamp(column.type))


def words(column: Any) -> Any:
    """Return a column as one array of text, trimmed, null where missing.

    Of text too, whole numbers lose a trailing ".0", dates midnight and seconds ".000000", numbers such as 1e-05 are
    written without the exponent, and booleans are lower case, so that one value is one word in every file format:
    pandas writes the 1 of a column with missing values as "1.0" to a csv.

    >>> words(pa.array([1.0, 2.5, None])).to_pylist(), words(pa.array([" a", "N/A", "True", "1.0"])).to_pylist()
    (['1', '2.5', None], ['a', None, 'true', '1'])
    """
    array = flatten_column(column)
    if pa.types.is_float16(array.type):
        array = pc.cast(array, pa.float32())  # Arrow cannot round half precision
    text = pc.utf8_trim_whitespace(_float_text(array) if pa.types.is_floating(array.type) else _cast_text(array))
    text = pc.replace_substring_regex(text, _TRAILING_ZERO, r"\1")
    # Looked for as plain text first, which is much faster: most columns have neither.
    exponent = pc.or_(pc.match_substring(text, "e-"), pc.match_substring(text, "e+"))
    if pc.any(exponent).as_py():
        number = pc.if_else(exponent, text, None)
        number = pc.if_else(pc.match_substring_regex(number, _EXPONENT), number, None)
        text = pc.coalesce(_float_text(pc.cast(number, pa.float64())), text)
    if pc.any(pc.match_substring(text, ":")).as_py():
        for pattern in (_MIDNIGHT, _WHOLE_SECOND):
            text = pc.replace_substring_regex(text, pattern, r"\1")
    lower = pc.utf8_lower(text)
    text = pc.if_else(pc.is_in(lower, pa.array(["true", "false"])), lower, text)
    return pc.if_else(pc.is_in(lower, pa.array(MISSING)), None, text)


def numbers(column: Any, *, decimal_comma: bool = False) -> tuple[Numbers, int]:
    """Return a column as float64, NaN where missing or infinite, and how many values were not numbers at all.

    Args:
        column: The column.
        decimal_comma: Read "2,5" as 2.5, too; "1.000,5" remains unreadable.

    >>> values, unreadable = numbers(pa.array(["1", " 2.5", "?", "many"]))
    >>> values.tolist(), unreadable
    ([1.0, 2.5, nan, nan], 1)
    """
    array, unreadable = decimal_points(column) if decimal_comma else flatten_column(column), 0
    if is_text(array):
        try:
            array = pc.cast(array, pa.float64())
        except pa.ArrowInvalid:
            text = words(array)
            readable = pc.match_substring_regex(text, NUMBER, ignore_case=True)
            unreadable = int(pc.sum(pc.invert(readable)).as_py() or 0)
            array = pc.cast(pc.if_else(readable, text, None), pa.float64())
    elif not is_number(array):
        return np.full(len(array), np.nan), len(array) - array.null_count
    values = pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    finite = np.isfinite(values)
    return (values if finite.all() else np.where(finite, values, np.nan)), unreadable


def unreadable_words(column: Any, values: Numbers, most: int) -> list[str]:
    """Return the first different words of a column that are NaN in `values`, at most 50 characters of each.

    >>> unreadable_words(pa.array(["1", "?", "many", "many", "few"]), np.array([1.0, *[np.nan] * 4]), 2)
    ['many', 'few']
    """
    try:
        text = words(column)
    except ValueError:  # lists, bytes
        return []
    infinite = pc.match_substring_regex(text, INFINITE, ignore_case=True)
    left_out = pc.or_(pc.fill_null(infinite, fill_value=True), pa.array(~np.isnan(values)))
    return [word[:50] for word in pc.unique(text.filter(pc.invert(left_out)))[:most].to_pylist()]


def decimal_points(column: Any) -> Any:
    """Return a column as one array whose decimal commas are points; other values, and other types, remain.

    >>> decimal_points(pa.array(["2,5", "1.5", "1.000,5"])).to_pylist()
    ['2.5', '1.5', '1.000,5']
    """
    array = flatten_column(column)
    if not is_text(array):
        return array
    text = words(array)
    return pc.if_else(
        pc.match_substring_regex(text, _DECIMAL_COMMA), pc.replace_substring(text, pattern=",", replacement="."), text
    )


def has_decimal_commas(column: Any, *, every: bool = True) -> bool:
    """Return whether a column has numbers with a decimal comma and, unless `every` is False, only such and whole ones.

    >>> has_decimal_commas(pa.array(["2,5", "3", ""])), has_decimal_commas(pa.array(["2,5", "1.5"]))
    (True, False)
    """
    if not is_text(column):
        return False
    text = pc.drop_null(words(column))
    if every:
        pattern = f"{_DECIMAL_COMMA}|{_WHOLE_NUMBER}"
        for part in (text[:_FIRST_WORDS], text):
            if not pc.all(pc.match_substring_regex(part, pattern)).as_py():
                return False
    return bool(pc.any(pc.match_substring_regex(text, _DECIMAL_COMMA)).as_py())


def formatted_number(column: Any) -> str | None:
    """Return a value with separators of thousands, a currency or a percent sign, if all others are numbers or such.

    >>> formatted_number(pa.array(["12", "1,234.50", ""])), formatted_number(pa.array(["12%", "a lot"]))
    ('1,234.50', None)
    """
    if not is_text(column):
        return None
    text = pc.drop_null(words(column))
    plain = pc.match_substring_regex(text, NUMBER, ignore_case=True)
    if not pc.all(pc.or_(plain, pc.match_substring_regex(text, _FORMATTED_NUMBER))).as_py():
        return None
    formatted = text.filter(pc.invert(plain))
    return str(formatted[0].as_py()) if len(formatted) else None


def seconds(column: Any, form: str) -> tuple[Numbers, int]:
    """Return a column of dates as seconds since 1970, NaN where missing, and how many values were not such dates.

    >>> seconds(pa.array(["1970-01-02", ""]), "iso")
    (array([86400.,    nan]), 0)
    """
    array = flatten_column(column)
    if is_date(array):
        moments = pc.cast(array, pa.timestamp("us"), safe=False)
        unreadable = 0
    elif not is_text(array):
        return np.full(len(array), np.nan), len(array) - array.null_count
    else:
        text = words(array)
        moments = _moments(text, form)
        unreadable = moments.null_count - text.null_count
    whole = pc.cast(moments, pa.int64())
    values = pc.cast(whole, pa.float64(), safe=False).to_numpy(zero_copy_only=False) / 1e6
    return np.where(np.isnan(values), np.nan, values), unreadable


def timestamps(column: Any) -> Numbers:
    """Return a column of dates, or of numbers that count time, as float64; NaN where missing or not readable.

    >>> timestamps(pa.array(["1970-01-02", ""])).tolist(), timestamps(pa.array(["2019", "2020"])).tolist()
    ([86400.0, nan], [2019.0, 2020.0])
    """
    if is_date(column):
        return seconds(column, "iso")[0]
    values, unreadable = numbers(column)
    if unreadable == 0:
        return values
    dates = seconds(column, column_date_format(column))[0]
    # Of a column of both, what most values are: the others are those to be reported.
    return max(dates, values, key=lambda times: int(np.isfinite(times).sum()))


def column_date_format(column: Any) -> str:
    """Return the date format of a column, "iso" where it has none."""
    return "iso" if is_date(column) else date_format(words(column)) or "iso"


def cells(column: Any) -> list[str]:
    """Return the trimmed texts of a column, "" where a cell is empty.

    >>> cells(pa.array([" CCO", None]))
    ['CCO', '']
    """
    return [(cell or "").strip() for cell in _cast_text(flatten_column(column)).to_pylist()]


def date_format(text: Any) -> str | None:
    """Return the first of DATE_FORMATS that reads every word of `text`, or None.

    >>> date_format(words(pa.array(["31/12/2024", None, "01/02/2024"])))
    '%d/%m/%Y'
    """
    distinct = pc.drop_null(pc.unique(text))
    for form in DATE_FORMATS:
        parts = (distinct[:_FIRST_WORDS], distinct)
        if len(distinct) and all(_moments(part, form).null_count == 0 for part in parts):
            return form
    return None


def flatten_column(column: Any) -> Any:
    """Return a column as one plain array: chunks joined, categories written out."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _float_text(array: Any) -> Any:
    """Return floating numbers as text, whole ones without a point, infinite ones as null."""
    array = pc.if_else(pc.is_finite(array), array, None)
    # Each by itself: a value must not be written differently beside others, in another chunk of the file.
    whole = pc.and_(pc.equal(pc.round(array), array), pc.less(pc.abs(array), 2.0**63))
    integers = pc.cast(pc.if_else(whole, array, None), pa.int64(), safe=False)
    return pc.coalesce(_cast_text(integers), _cast_text(array))


def _cast_text(array: Any) -> Any:
    """Return an array as text.

    Raises:
        ValueError: Its values are lists, structs or bytes that are not UTF-8.
    """
    try:
        return pc.cast(array, pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise ValueError(f"values of type {array.type} cannot be read as text") from None


def _moments(text: Any, form: str) -> Any:
    if form.startswith("iso"):
        kind = pa.timestamp("us", "UTC") if "zone" in form else pa.timestamp("us")
        pattern = r"^\d{4}-\d\d-\d\d([ T]\d\d(:\d\d(:\d\d(\.\d+)?)?)?)?" + (
            r"(Z|[+-]\d\d:?\d\d)$" if "zone" in form else "$"
        )
        text = pc.if_else(pc.match_substring_regex(text, pattern), text, None)
        try:
            return pc.cast(text, kind)
        except pa.ArrowInvalid:  # such as the 31st of February
            return pc.cast(pa.array([_one(value, kind) for value in text.to_pylist()], kind), pa.timestamp("us"))
    parsed = pc.strptime(text, format=form, unit="us", error_is_null=True)
    # Neither years of two digits nor text after the date.
    shaped = pc.match_substring_regex(text, r"^(\d{4}/\d{1,2}/\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{4})$")
    return pc.if_else(shaped, parsed, None)


def _one(value: str | None, kind: Any) -> Any:
    try:
        return None if value is None else pc.cast(pa.scalar(value), kind)
    except pa.ArrowInvalid:
        return None
