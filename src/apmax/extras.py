"""Imports of optional dependencies, with an error that names the extra to install."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def load(module: str, extra: str) -> Any:
    """Import and return `module`, or raise an error that names the extra to install.

    Raises:
        ModuleNotFoundError: `module` is not installed.

    >>> load("no_such_module", "train")
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: no_such_module is not installed; it comes with: pip install apmax[train]
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        message = f"{error.name} is not installed; it comes with: pip install apmax[{extra}]"
        raise ModuleNotFoundError(message, name=error.name) from None


def load_callable(path: str) -> Callable[..., Any]:
    """Return the function or class that a user names as "package.module:name"; its module is imported.

    Raises:
        ValueError: Another form, no such module, or nothing callable of that name in it.

    >>> load_callable("collections:OrderedDict").__name__
    'OrderedDict'
    >>> load_callable("collections:no_such")
    Traceback (most recent call last):
    ...
    ValueError: collections:no_such cannot be loaded: module collections has no callable 'no_such'
    """
    module, _, name = path.partition(":")
    if not module or not name.isidentifier():
        raise ValueError(f"{path} cannot be loaded: write it as package.module:callable")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from None
    if not callable(found):
        raise ValueError(f"{path} cannot be loaded: module {module} has no callable {name!r}")
    builder: Callable[..., Any] = found
    return builder
