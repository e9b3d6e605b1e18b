"""The decision of a trained model: chosen on the scores in its folder, and stored there."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax import validation
from apmax.decide.thresholds import Bounded, Decision, assess_threshold, choose_threshold
from apmax.folders import FolderError, add_file, lock_folder, read_manifest
from apmax.train import nan_to_none
from apmax.workflows.model_folder import DECISION_FILE, read_targets
from apmax.workflows.scored_rows import MODEL_KIND, SELECTION_PARTS, ScoredRows, load_scored_rows, unequal_weights

_Array = NDArray[np.float64]
DECISION_VERSION = 1


@dataclass(frozen=True)
class FolderDecision:
    """The decision on a model's folder.

    Attributes:
        target: The target.
        part: The scored rows that chose the threshold, "cross-fitted", "held-out" or "validation".
        decision: The threshold.
        test: The same threshold on the test rows, which had no part in the choice; None without them.
        rows: Number of rows that counts are told for.
    """

    target: str
    part: str
    decision: Decision
    test: Decision | None
    rows: int


def decide_folder(
    folder: str | os.PathLike[str], *, target: str | None = None, rows: int | None = None, **rule: Any
) -> FolderDecision:
    """Choose the threshold of a trained model by its cross-fitted or validation scores, and store it in its folder.

    `apmax predict` and `write_predictions` then add a column of decisions. A new decision replaces the earlier one of
    the same target.

    Args:
        folder: The folder of `apmax train`.
        target: The target, where there are several.
        rows: Number of rows that `top` and `budget` are taken from; by default that of the scored rows.
        **rule: Other arguments of `choose_threshold`, such as precision, recall, top or cost, and prevalence.

    Raises:
        FileNotFoundError: There is no trained model.
        ValueError: As `choose_threshold`; several targets and none named; a damaged folder.
    """
    read_manifest(folder, kind=MODEL_KIND)  # before the lock, which would create a folder that is missing
    with lock_folder(folder):
        manifest = read_manifest(folder, kind=MODEL_KIND)
        if not manifest.complete:
            raise FileNotFoundError(f"the training in {folder} is not finished: continue it with resume=True")
        names = read_targets(manifest).names
        if target is None and len(names) > 1:
            raise ValueError(f"target: there are several, {', '.join(names)}: choose one")
        name = names[0] if target is None else validation.choice("target", target, names)
        parts = load_scored_rows(folder)
        part = next((parts[each] for each in SELECTION_PARTS if each in parts), None)
        if part is None:
            raise ValueError(f"{folder} holds no scores of rows that the model was not fitted to: train it again")
        scores, labels, weight = _known_rows(part, names.index(name))
        if rule.get("top") is not None or rule.get("budget") is not None:
            rule = {**rule, "rows": rows}
        decision = choose_threshold(scores, labels, sample_weight=weight, **rule)
        test = None
        if "test" in parts:
            test = _assess_on(parts["test"], names.index(name), decision, rule.get("prevalence"))
        decisions = {**read_decisions(folder), name: decision}
        add_file(manifest, DECISION_FILE, _render(decisions))
    return FolderDecision(name, part.part, decision, test, len(labels) if rows is None else rows)


def read_decisions(folder: str | os.PathLike[str]) -> dict[str, Decision]:
    """Return the decisions that are stored in a model's folder, by target.

    Raises:
        FileNotFoundError: There is no trained model.
        FolderError: The file is damaged or not written by apmax.
    """
    manifest = read_manifest(folder, kind=MODEL_KIND)
    if DECISION_FILE not in manifest.files:
        return {}
    try:
        entries: Mapping[str, Any] = json.loads(manifest.read(DECISION_FILE))["targets"]
        return {name: _parse(entry) for name, entry in entries.items()}
    except (LookupError, TypeError, AttributeError, json.JSONDecodeError):
        raise FolderError(f"{Path(folder) / DECISION_FILE} was not written by apmax: it cannot be read") from None


def assess_decisions(decisions: Mapping[str, Decision], names: Sequence[str], part: ScoredRows) -> dict[str, Decision]:
    """Return what decisions mean on other labelled rows, at the prevalence of these; rows of weight 0 do not count.

    Args:
        decisions: By target.
        names: The targets of the scored rows.
        part: The scored rows.

    Returns:
        By target; without those of which the rows have no positive or no negative.
    """
    counted = part.sample_weight > 0
    part = replace(
        part, scores=part.scores[counted], labels=part.labels[counted], sample_weight=part.sample_weight[counted]
    )
    assessed = {name: _assess_on(part, names.index(name), decision, None) for name, decision in decisions.items()}
    return {name: decision for name, decision in assessed.items() if decision is not None}


def _render(decisions: Mapping[str, Decision]) -> bytes:
    content = {"version": DECISION_VERSION, "targets": {name: asdict(each) for name, each in decisions.items()}}
    return (json.dumps(nan_to_none(content), indent=1, allow_nan=False) + "\n").encode()


def _parse(entry: Mapping[str, Any]) -> Decision:
    fields = dict(entry)
    for name in ("precision", "recall", "cost"):
        if fields[name] is not None:
            fields[name] = Bounded(*(math.nan if each is None else each for each in fields[name]))
    for name in ("requested", "costs"):
        fields[name] = tuple(fields[name]) if isinstance(fields[name], list) else fields[name]
    return Decision(**fields)


def _known_rows(part: ScoredRows, target: int) -> tuple[_Array, _Array, _Array | None]:
    """Return scores, labels and weights of the rows of a target; no weights where all are equal."""
    known = ~np.isnan(part.labels[:, target])
    return part.scores[known, target], part.labels[known, target], unequal_weights(part.sample_weight[known])


def _assess_on(part: ScoredRows, target: int, decision: Decision, prevalence: float | None) -> Decision | None:
    """Return what a decision means on other rows, by default at their own prevalence; None where a class is missing."""
    scores, labels, weight = _known_rows(part, target)
    if len(np.unique(labels)) < 2:
        return None
    return assess_threshold(
        scores,
        labels,
        decision.threshold,
        cost=decision.costs,
        prevalence=prevalence,
        confidence=decision.confidence,
        sample_weight=weight,
    )
