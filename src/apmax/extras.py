"""Imports of optional dependencies, with an error that names the extra to install."""

from __future__ import annotations

import importlib
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
