"""The runs of the study: every method on the same rows, its setting chosen by validation, one line of JSON each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from apmax.committee.network import build_network
from apmax.metrics import average_precision
from apmax.reproduce.results import append_line, read_lines
from apmax.train import Data, DivergedError, ExactHead, Optimizer, Run, Sampler, Schedule, Stage, epochs, predict
from benchmarks.when_ap_pays.problems import FEATURES, Cell, Problem, Rows, make_problem

MODELS: dict[str, tuple[int, ...]] = {"linear": (), "narrow": (16,), "medium": (64, 64), "wide": (256, 256)}
"""Hidden layers of each model."""
RATES = (0.001, 0.005, 0.025, 0.125)
"""Learning rates; a result that lacks some of them is completed."""
STRENGTHS = (0.01, 1.0, 100.0)
_LEAST_EPOCHS, _BATCH, _NUM_POS, _EMA = 4, 256, 32, 0.99
_VALID_SHARE = 0.25
_PHASES_BEFORE_RECIPE = 3


Lines = Mapping[tuple[Cell, int, str], Mapping[str, Any]]
"""Results by cell, seed and method."""


class Parts(NamedTuple):
    """The data of a cell with a seed."""

    problem: Problem
    train: Rows
    valid: Rows
    test: Rows


class Choice(NamedTuple):
    """A fitted model: its setting, validation AP, and the function that scores features."""

    setting: float
    valid: float
    score: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def load_parts(cell: Cell, seed: int) -> Parts:
    """Return the rows of a cell; models share them, other tops and seeds do not."""
    generator = np.random.default_rng([seed, sum(map(ord, cell.top)), cell.clusters])
    problem = make_problem(cell, generator)
    train, valid = (problem.sample(rows, generator) for rows in (cell.rows, round(_VALID_SHARE * cell.rows)))
    return Parts(problem, train, valid, problem.sample_test(generator))


def _gradient_stage(
    loss: dict[str, float], sampler: str, rate: float, rows: Rows, *, steps: int, ema: float | None
) -> Stage:
    """Return a stage of about as many steps as any other stage on these rows."""
    positives = int(rows.labels.sum())
    num_pos = min(_NUM_POS, positives)
    negatives = len(rows.labels) - positives
    batches = -(-len(rows.labels) // _BATCH)
    steps = max(steps, _LEAST_EPOCHS * batches)
    if sampler != "shuffle":
        batches = -(-negatives // (_BATCH - num_pos))
    return Stage(
        loss=loss,
        epochs=max(2, round(steps / batches)),
        optimizer=Optimizer(lr=rate),
        schedule=Schedule(name="cosine"),
        sampler=Sampler(name=sampler, batch_size=_BATCH, num_pos=num_pos),
        ema=ema,
    )


def _train(cell: Cell, parts: Parts, seed: int, stages: tuple[Stage | ExactHead, ...]) -> tuple[float, nn.Module]:
    """Return the validation AP of the selected epoch, and the network."""
    model = build_network(None, FEATURES, hidden=MODELS[cell.model], prior=cell.prevalence, seed=seed)
    train, valid = (TensorDataset(_tensor(part.features), _tensor(part.labels)) for part in parts[1:3])
    for _ in epochs(model, Data(train, valid), Run(stages=stages, seed=seed, accelerator="cpu")):
        pass
    return _ap(predict(model, valid).numpy(), parts.valid), model


def _tensor(values: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(values).float()


def _ap(scores: np.ndarray[Any, Any], rows: Rows) -> float:
    return float(average_precision(scores, rows.labels, sample_weight=rows.weight))


def _network_score(model: nn.Module) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    return lambda features: predict(model, TensorDataset(_tensor(features))).numpy()


def _fit_stages(
    loss: dict[str, float], sampler: str, *, ema: float | None = _EMA, after_ce: bool = False
) -> Callable[..., list[Choice]]:
    """Return the function that trains by a loss at every rate; with `after_ce` only in the second half of the steps.

    The first half is then averaged cross-entropy. Its best epoch is where the second half begins, but not a candidate.
    """

    def fit(cell: Cell, parts: Parts, seed: int, rates: Sequence[float]) -> list[Choice]:
        choices = []
        for rate in rates:
            stage = _gradient_stage(loss, sampler, rate, parts.train, steps=cell.steps, ema=ema)
            stages = (stage,)
            if after_ce:
                first = _gradient_stage({"ce": 1.0}, "shuffle", rate, parts.train, steps=cell.steps, ema=ema)
                stages = (
                    replace(first, epochs=first.epochs // 2),
                    replace(stage, epochs=stage.epochs // 2, keep=False),
                )
            try:
                valid, model = _train(cell, parts, seed, stages)
            except DivergedError:
                valid, model = 0.0, nn.Module()  # never chosen: a validation AP is above 0
            choices.append(Choice(rate, valid, _network_score(model)))
        return choices

    return fit


def _fit_exact(cell: Cell, parts: Parts, seed: int, rates: Sequence[float]) -> list[Choice]:
    """Train averaged cross-entropy at the rate chosen for it, then the last layer by the exact objective."""
    (rate,) = rates
    first = _gradient_stage({"ce": 1.0}, "shuffle", rate, parts.train, steps=cell.steps, ema=_EMA)
    valid, model = _train(cell, parts, seed, (first, ExactHead(keep=False, max_iter=50)))
    return [Choice(rate, valid, _network_score(model))]


def _fit_logistic(_: Cell, parts: Parts, __: int, strengths: Sequence[float]) -> list[Choice]:
    """Fit logistic regression to convergence at every strength."""
    choices = []
    for strength in strengths:
        model = LogisticRegression(C=strength, max_iter=2000).fit(parts.train.features, parts.train.labels)
        valid = _ap(model.decision_function(parts.valid.features), parts.valid)
        choices.append(Choice(strength, valid, model.decision_function))
    return choices


METHODS: dict[str, Callable[..., list[Choice]]] = {
    "ce": _fit_stages({"ce": 1.0}, "shuffle", ema=None),
    "ce_averaged": _fit_stages({"ce": 1.0}, "shuffle"),
    "logistic": _fit_logistic,
    "ce_mined": _fit_stages({"ce": 1.0}, "mined", after_ce=True),
    "ap": _fit_stages({"ap": 1.0}, "positive"),
    "ap_ce": _fit_stages({"ap": 1.0, "ce": 1.0}, "positive"),
    "ap_exact": _fit_exact,
    "ce_then_ap": _fit_stages({"ap": 1.0, "ce": 1.0}, "positive", after_ce=True),
}
"""Methods by name."""


def _cell_methods(cell: Cell) -> list[str]:
    """Return the methods that every phase runs; logistic regression is for the linear model."""
    return [name for name in METHODS if name != "ce_then_ap" and (name != "logistic" or cell.model == "linear")]


def plan() -> Iterator[tuple[Cell, int, list[str]]]:
    """Yield cells, seeds and methods, the most useful first: the map, then one factor at a time, then more seeds."""
    tops = ("nonlinear", "linear", "opposed", "smooth")
    base = {model: [Cell(top, model) for top in tops] for model in MODELS}
    simple = [*base["linear"], *base["medium"]]
    groups = [Cell("groups", model, clusters=2) for model in ("linear", "medium")]
    small: list[dict[str, Any]] = [
        {"prevalence": 0.2},
        {"noise": 0.2},
        {"rows": 1_000, "prevalence": 0.05},
        {"prevalence": 0.005},
        {"clusters": 1},
        {"clusters": 10},
    ]
    large: list[dict[str, Any]] = [{"steps": 2400}, {"rows": 100_000}, {"rows": 100_000, "prevalence": 0.001}]
    phases = [
        (simple, range(3)),
        ([*base["narrow"], *groups], range(3)),
        (_vary(small, tops[:1]), range(3)),
        (base["wide"], range(3)),
        (_vary(large, tops[:1]), range(3)),
        ([*simple, *groups, *base["wide"], *base["narrow"]], range(3, 6)),
        (_vary([*small, *large], tops[2:3]), range(3)),
        (_vary([*small, *large], tops[:1]), range(3, 6)),
        ([cell for cells in base.values() for cell in cells], range(6, 10)),
        (_vary([*small, *large], tops[1:2]), range(3)),
        (_vary([*small, *large], tops, models=("wide",)), range(3)),
    ]
    for number, (cells, seeds) in enumerate(phases):
        for seed in seeds:
            for cell in cells:
                yield cell, seed, _cell_methods(cell)
        if number == _PHASES_BEFORE_RECIPE:
            yield from ((cell, seed, ["ce_then_ap"]) for seed in range(3) for cell in [*simple, *base["wide"]])


def _vary(
    factors: list[dict[str, Any]], tops: Sequence[str], models: Sequence[str] = ("linear", "medium")
) -> list[Cell]:
    """Return the cells in which one factor differs from the map."""
    return [replace(Cell(top, model), **factor) for factor in factors for top in tops for model in models]


def _group_values(scores: np.ndarray[Any, Any], rows: Rows) -> dict[str, list[float]]:
    """Return for each cluster the share of its positives among the first rows, as many as there are positives.

    And the AP within the cluster: among its own positives and contested negatives.
    """
    order = np.argsort(-scores, kind="stable")
    cut = np.searchsorted(np.cumsum(rows.weight[order]), (rows.weight * rows.labels).sum())
    first = np.zeros(len(scores), dtype=bool)
    first[order[: cut + 1]] = True
    recall, within = [], []
    for cluster in range(rows.cluster.max() + 1):
        own = rows.cluster == cluster
        recall.append(round(float(first[own & (rows.labels == 1)].mean()), 4))
        within.append(round(float(average_precision(scores[own], rows.labels[own], sample_weight=rows.weight[own])), 4))
    return {"cluster_recall": recall, "cluster_ap": within}


def missing_settings(lines: Lines, cell: Cell, seed: int, method: str) -> list[float]:
    """Return the settings that a method has not been run with: rates, strengths, or averaged CE's chosen rate."""
    known = lines.get((cell, seed, method), {"valid": {}})["valid"]
    settings: Sequence[float] = STRENGTHS if method == "logistic" else RATES
    if method == "ap_exact":
        averaged = lines.get((cell, seed, "ce_averaged"))
        settings = [averaged["setting"]] if averaged else RATES[:1]
    return [setting for setting in settings if f"{setting:g}" not in known]


def run_method(cell: Cell, seed: int, method: str, parts: Parts, lines: Lines) -> dict[str, Any]:
    """Return the result line of a method, run with the settings that its line in `lines` lacks."""
    started = time.process_time()
    # The exact layer belongs to one model of averaged CE: one for another rate replaces it.
    before = None if method == "ap_exact" else lines.get((cell, seed, method))
    choices = METHODS[method](cell, parts, seed, missing_settings(lines, cell, seed, method))
    best = max(choices, key=lambda choice: choice.valid)
    valid = {f"{choice.setting:g}": round(choice.valid, 5) for choice in choices}
    if before is not None and max(before["valid"].values()) >= max(valid.values()):
        line = {**before, "valid": before["valid"] | valid}
    else:
        scores = best.score(parts.test.features)
        line = {
            **asdict(cell),
            "seed": seed,
            "method": method,
            "setting": best.setting,
            "valid": valid if before is None else before["valid"] | valid,
            "test": round(_ap(scores, parts.test), 5),
        }
        if cell.top == "groups":
            line |= _group_values(scores, parts.test)
    seconds = time.process_time() - started + (0.0 if before is None else before["seconds"])
    return line | {"seconds": round(seconds, 1)}


def read_study(path: Path) -> dict[tuple[Cell, int, str], dict[str, Any]]:
    """Return the latest results by cell, seed and method."""
    results = {}
    for line in read_lines(path):
        cell = Cell(**{name: line[name] for name in Cell.__dataclass_fields__})
        results[cell, line["seed"], line["method"]] = line
    return results


def run_study(
    path: Path,
    *,
    seconds: float,
    origin: dict[str, str],
    report: Callable[[str], None],
    share: tuple[int, int] = (0, 1),
) -> None:
    """Run what is missing in the order of `plan` and append it to `path`, until `seconds` have passed.

    Of several processes with the same file each has its share: (its number from 0, how many there are).
    """
    torch.set_num_threads(1)
    lines, end = read_study(path), time.monotonic() + seconds
    for place, (cell, seed, methods) in enumerate(plan()):
        if place % share[1] != share[0]:
            continue
        missing = [method for method in methods if missing_settings(lines, cell, seed, method)]
        if not missing:
            continue
        parts = load_parts(cell, seed)
        for method in [each for each in methods if each in missing or each == "ap_exact"]:
            # The rate of averaged CE may just have changed.
            if not missing_settings(lines, cell, seed, method):
                continue
            if time.monotonic() > end:
                return
            line = run_method(cell, seed, method, parts, lines)
            line["best_possible"] = round(_ap(parts.problem.log_odds(parts.test.features), parts.test), 5)
            line |= origin
            append_line(path, line)
            lines[cell, seed, method] = line
            report(
                f"{cell} seed {seed} {method}: test AP {line['test']} of {line['best_possible']}, {line['seconds']} s"
            )
