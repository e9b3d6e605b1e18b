"""TOML text as plain values."""

from __future__ import annotations

import sys
from typing import Any

from apmax import extras


def parse(text: str) -> dict[str, Any]:
    """Return a TOML text as plain tables.

    Raises:
        ValueError: It is not TOML.
    """
    toml = extras.load("tomllib" if sys.version_info >= (3, 11) else "tomli", "train")
    try:
        table: dict[str, Any] = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise ValueError(f"the configuration is not valid TOML: {error}") from None
    return table


def literal(text: str) -> Any:
    """Return a value written as in TOML, or else the text itself.

    >>> literal("1e-4"), literal("[32, 32]"), literal("adam")
    (0.0001, [32, 32], 'adam')
    """
    try:
        return parse(f"value = {text}")["value"]
    except ValueError:
        return text
