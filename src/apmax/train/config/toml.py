"""A run as TOML text."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apmax import extras, validation
from apmax.train.config.recipes import RECIPES
from apmax.train.config.run import Run
from apmax.train.config.stages import write_stage
from apmax.train.config.table import known_key, to_table


def loads(text: str) -> Run:
    """Return the run that a TOML text describes; `recipe = "default"` stands for that recipe's stages.

    Raises:
        ValueError: Not TOML, an unknown key, a value out of range.
    """
    toml = extras.load("tomllib" if sys.version_info >= (3, 11) else "tomli", "train")
    try:
        table = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise ValueError(f"the configuration is not valid TOML: {error}") from None
    return read_run(table)


def read_run(table: Mapping[str, Any]) -> Run:
    """Return the run that a plain table describes."""
    fields = dict(table)
    names = [f.name for f in dataclasses.fields(Run) if f.name != "stages"]
    for key in fields:
        known_key(key, [*names, "stage", "recipe", "recipe_options"], "the run")
    recipe, options = fields.pop("recipe", None), fields.pop("recipe_options", {})
    stages = fields.pop("stage", None)
    if recipe is not None:
        if stages is not None:
            raise ValueError("recipe and [[stage]] exclude each other: a recipe stands for its stages")
        build = RECIPES[validation.choice("recipe", recipe, RECIPES)]
        for key in options:
            known_key(key, inspect.signature(build).parameters, f"recipe_options of {recipe!r}")
        stages = build(**options)
    elif options:
        raise ValueError("recipe_options need a recipe")
    return Run(**fields) if stages is None else Run(stages=tuple(stages), **fields)


def load(path: str | os.PathLike[str]) -> Run:
    """Return the run described by the TOML file at `path`."""
    return loads(Path(path).read_text(encoding="utf-8"))


def dumps(run: Run) -> str:
    """Return the run as TOML, every default written out; `loads` gives back an equal run."""
    table = {name: value for name, value in to_table(run).items() if name != "stages"}
    table["stage"] = [write_stage(stage) for stage in run.stages]
    return str(extras.load("tomli_w", "train").dumps(table))
