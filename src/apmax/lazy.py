"""Lazy attributes of packages: sub-modules and public names that are imported on first access (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_attributes(
    package: str, public: Sequence[str], exports: Mapping[str, Sequence[str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    Args:
        package: Its `__name__`.
        public: Its public names. A name that is not in `exports` is a sub-module.
        exports: The names of each sub-module that the package offers as its own.

    >>> get, names = lazy_attributes("apmax", ["extras", "load"], {"extras": ["load"]})
    >>> get("load") is get("extras").load
    True
    >>> get("loda")
    Traceback (most recent call last):
    ...
    AttributeError: module 'apmax' has no attribute 'loda'
    """
    homes = {name: module for module, names in (exports or {}).items() for name in names}

    def get(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{homes.get(name, name)}")
        value = getattr(module, name) if name in homes else module
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(public)
