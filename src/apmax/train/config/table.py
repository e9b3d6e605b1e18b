"""What all parts of a configuration share: checked when built, made from plain tables and turned into them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from apmax import validation


class Table:
    """The base of every part: numbers, tuples and nested tables are converted on entry, then checked."""

    _floats: ClassVar[tuple[str, ...]] = ()
    _tuples: ClassVar[tuple[str, ...]] = ()
    _parts: ClassVar[dict[str, type[Table]]] = {}

    def __post_init__(self) -> None:
        for name in self._floats:
            value = getattr(self, name)
            if value is not None:
                self._set(name, validation.interval(name, value, -float("inf")))
        for name in self._tuples:
            value = getattr(self, name)
            self._set(name, (value,) if isinstance(value, (str, int, float)) else tuple(value))
        for name, part in self._parts.items():
            value = getattr(self, name)
            if isinstance(value, Mapping):
                self._set(name, from_table(part, value, name))
            elif not isinstance(value, part):
                raise TypeError(f"{name} must be a {part.__name__} or a table of its fields, got {value!r}")
        self.check()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def check(self) -> None:
        """Raise if a field is out of its range."""


Part = TypeVar("Part", bound=Table)


def known_key(key: str, known: Iterable[str], place: str) -> None:
    """Raise for a key that is not `known`, suggesting the nearest."""
    options = list(known)
    if key in options:
        return
    near = difflib.get_close_matches(key, options, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(options)}"
    raise ValueError(f"unknown key {key!r} in {place} ({hint})")


def from_table(part: type[Part], table: Mapping[str, Any], place: str) -> Part:
    """Return `part` built from a plain table whose keys are its fields."""
    names = [f.name for f in dataclasses.fields(part)]  # type: ignore[arg-type]
    for key in table:
        known_key(key, names, place)
    return part(**table)


def to_table(part: Table) -> dict[str, Any]:
    """Return `part` as plain dicts, lists, strings and numbers; fields that are None are left out."""
    table: dict[str, Any] = {}
    for each in dataclasses.fields(part):  # type: ignore[arg-type]
        value = getattr(part, each.name)
        if isinstance(value, Table):
            value = to_table(value)
        elif isinstance(value, tuple):
            value = [to_table(v) if isinstance(v, Table) else v for v in value]
        if value is not None:
            table[each.name] = value
    return table
