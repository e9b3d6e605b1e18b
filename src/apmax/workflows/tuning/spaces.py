"""What is searched, as data: for every setting the values it may take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apmax.train import Run, Stage, parse_literal

Values = tuple[Any, ...]
Space = dict[str, Values]

EVERY: Space = {"lr": (1e-5, 1e-4, 1e-3, 1e-2), "weight_decay": (1e-6, 1e-5, 1e-4)}
"""The paper's grids for every method."""

SAMPLED: Space = {"num_pos": (1, 2, 3, 4, 5)}
"""The paper's, where the sampler takes a number of positives."""

SPACES: dict[str, Space] = {
    "ce": {},
    "cb_ce": {"beta": (0.9, 0.99, 0.999, 0.9999)},
    "focal": {"focusing": (1.0, 2.0, 5.0), "balance": (0.25, 0.5, 0.75)},
    "ldam": {"max_margin": (0.1, 0.3, 0.5), "scale": (1.0, 10.0, 30.0)},
    "auc_m": {"margin": (0.5, 1.0, 5.0)},
    "smooth_ap": {"temperature": (0.01, 0.1, 1.0, 3.0)},
    "fast_ap": {"bins": (2, 5, 10)},
    "minmax": {"anchors": (5, 10)},
    "ap": {"gamma": (0.9, 0.99, 0.999), "margin": (0.5, 1.0, 2.0, 5.0, 10.0)},
}
"""The losses' own options: the paper's grids for AP, ours for the others, for which the paper gives none."""


def space_for(run: Run) -> Space:
    """Return what is searched of a run by default: its last stage's settings, by their paths.

    >>> from apmax.train import RECIPES
    >>> list(space_for(Run(stages=RECIPES["default"]())))[:3]
    ['stages.1.lr', 'stages.1.weight_decay', 'stages.1.num_pos']

    Raises:
        ValueError: The run has no stage of gradient steps.
    """
    numbers = [number for number, stage in enumerate(run.stages) if isinstance(stage, Stage)]
    if not numbers:
        raise ValueError("the run has no stage of gradient steps to tune")
    number = numbers[-1]
    stage = run.stages[number]
    assert isinstance(stage, Stage)
    own = {**EVERY, **(SAMPLED if stage.sampler.name == "positive" else {})}
    space = {f"stages.{number}.{key}": values for key, values in own.items()}
    for loss in stage.weights:
        space |= {f"stages.{number}.options.{loss}.{key}": values for key, values in SPACES[loss].items()}
    return space


def read_space(texts: Iterable[str]) -> Space:
    """Return what is searched as written: "path=value,value,…".

    >>> read_space(["stages.1.lr=1e-4,1e-3", "model.hidden=[32];[64,64]"])
    {'stages.1.lr': (0.0001, 0.001), 'model.hidden': ([32], [64, 64])}

    Raises:
        ValueError: Not so written, or fewer than two values.
    """
    space: Space = {}
    for text in texts:
        path, sign, values = text.partition("=")
        # Lists have commas of their own: then a semicolon stands between the values.
        parts = [part.strip() for part in values.split(";" if ";" in values else ",")]
        if not sign or not path or len(parts) < 2 or not all(parts):
            raise ValueError(f"a range is written PATH=VALUE,VALUE,… with two values or more, got {text!r}")
        space[path.strip()] = tuple(parse_literal(part) for part in parts)
    return space
