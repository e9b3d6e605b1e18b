"""Runs as plain tables, TOML text and TOML files.

>>> run = run_from_toml('''
... seed = 7
... [[stage]]
... loss = { ap = 1.0, ce = 1.0 }
... epochs = 5
... sampler = { name = "positive", batch_size = 128, num_pos = 16 }
... ''')
>>> run.stages[0].loss, run.stages[0].optimizer.lr
({'ap': 1.0, 'ce': 1.0}, 0.001)
>>> run_from_toml("sed = 7")
Traceback (most recent call last):
...
ValueError: unknown key 'sed' in the run (did you mean 'seed'?)
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apmax import extras, validation
from apmax.train.config import Run, check_known_key, config_to_table
from apmax.train.recipes import RECIPES


def parse_toml(text: str) -> dict[str, Any]:
    """Return a TOML text as plain tables.

    Raises:
        ValueError: The text is not valid TOML.
    """
    toml = extras.load("tomllib" if sys.version_info >= (3, 11) else "tomli", "train")
    try:
        table: dict[str, Any] = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise ValueError(f"the configuration is not valid TOML: {error}") from None
    return table


def parse_literal(text: str) -> Any:
    """Return the value of a TOML literal, or the text itself if it is none.

    >>> parse_literal("1e-4"), parse_literal("[32, 32]"), parse_literal("adam")
    (0.0001, [32, 32], 'adam')
    """
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def format_toml(table: Mapping[str, Any]) -> str:
    """Return plain tables as TOML text."""
    return str(extras.load("tomli_w", "train").dumps(table))


def run_from_table(table: Mapping[str, Any]) -> Run:
    """Return the run of a plain table: the fields of `Run`, with the stages under the key `stage`.

    Instead of `stage` the table may name a `recipe`, with `recipe_options`.

    Raises:
        ValueError: An unknown key, a value out of range, or both stages and a recipe.

    >>> [stage.name for stage in run_from_table({"recipe": "default", "recipe_options": {"epochs": 5}}).stages]
    ['ce', 'ap + ce']
    """
    fields = dict(table)
    names = [f.name for f in dataclasses.fields(Run) if f.name != "stages"]
    for key in fields:
        check_known_key(key, [*names, "stage", "recipe", "recipe_options"], "the run")
    recipe, options = fields.pop("recipe", None), fields.pop("recipe_options", {})
    stages = fields.pop("stage", None)
    if not isinstance(options, Mapping):
        raise TypeError(f"recipe_options must be a table, got {options!r}")
    if stages is not None and not (isinstance(stages, (list, tuple)) and all(isinstance(s, Mapping) for s in stages)):
        raise TypeError(f"stage must be a list of tables ([[stage]]), got {stages!r}")
    if recipe is not None:
        if stages is not None:
            raise ValueError("recipe and stage exclude each other: a recipe stands for its stages")
        build = RECIPES[validation.choice("recipe", recipe, RECIPES)]
        for key in options:
            check_known_key(key, inspect.signature(build).parameters, f"recipe_options of {recipe!r}")
        stages = build(**options)
    elif options:
        raise ValueError("recipe_options need a recipe")
    return Run(**fields) if stages is None else Run(stages=tuple(stages), **fields)


def run_to_table(run: Run) -> dict[str, Any]:
    """Return the run as plain dicts, lists, strings and numbers; `run_from_table` gives back an equal run."""
    table = config_to_table(run)
    # Last, because in TOML text the keys after a [[stage]] belong to that stage.
    table["stage"] = table.pop("stages")
    return table


def run_from_toml(text: str) -> Run:
    """Return the run described by a TOML text.

    Raises:
        ValueError: Not TOML, an unknown key, a value out of range.
    """
    return run_from_table(parse_toml(text))


def run_to_toml(run: Run) -> str:
    """Return the run as TOML text with every default written out; `run_from_toml` gives back an equal run."""
    return format_toml(run_to_table(run))


def read_run(path: str | os.PathLike[str]) -> Run:
    """Return the run described by the TOML file at `path`."""
    return run_from_toml(Path(path).read_text(encoding="utf-8"))
