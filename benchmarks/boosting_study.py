"""LightGBM by average precision against LightGBM by log-loss, at equal budget, paired over resplits of real tables.

    APMAX_DATA=... python -m benchmarks.boosting_study --out results/boosting/study.jsonl
    python -m benchmarks.boosting_study --out results/boosting/study.jsonl --markdown

Of every table 30 % of the rows are the test rows of a resplit. Every objective tries the same eight settings of the
trees (learning rate, leaves, sub-sampling) with the same number of rounds on three folds of the training rows. The mean
average precision of the rows left out chooses the setting and the number of rounds, a multiple of ten; the choice is
fitted to all training rows and scored once. One json line for each table, resplit and objective; lines that are there
are not computed again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import torch
from numpy.typing import NDArray

from apmax.data import k_fold, split_stratified
from apmax.integrations.lightgbm import APObjective
from apmax.metrics import average_precision
from apmax.reproduce.results import append_line, read_lines
from benchmarks.committees.tables.problems import read_table
from benchmarks.markdown import markdown_table
from benchmarks.origin import benchmark_commit

TABLES = (
    "letter",
    "thyroid",
    "optdigits",
    "satimage-2",
    "musk",
    "pendigits",
    "mammography",
    "PageBlocks",
    "hiva",
    "satellite",
    "ALOI",
)
THINNED = {"satellite": 0.02}
"""Tables of which positives are removed until this share is left."""
RESPLITS, FOLDS, ROUNDS, EARLY, STEP = 3, 3, 200, 25, 10
SUB_SAMPLING = {"bagging_fraction": 0.5, "bagging_freq": 1, "feature_fraction": 0.8}
SETTINGS: tuple[dict[str, Any], ...] = tuple(
    {"learning_rate": rate, "num_leaves": leaves, **sampling}
    for rate, leaves, sampling in itertools.product((0.03, 0.1), (7, 31), ({}, SUB_SAMPLING))
)
OBJECTIVES: dict[str, tuple[int, APObjective | None]] = {
    "log-loss": (ROUNDS, None),
    "AP": (0, APObjective()),
    "log-loss, then AP": (EARLY, APObjective()),
    "AP, damping 0.01": (0, APObjective(damping=0.01)),
    "AP, damping 1": (0, APObjective(damping=1.0)),
}
"""Rounds of log-loss at the beginning, and the objective of all others."""
BASE = "log-loss"

_Array = NDArray[Any]


def read_thinned_table(name: str) -> tuple[_Array, _Array]:
    """Return the features and the 0/1 labels of a table."""
    features, labels = read_table(name)
    features, labels = features.astype(np.float64), labels.astype(np.int64)
    if name in THINNED:
        positives, negatives = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
        count = round(THINNED[name] / (1 - THINNED[name]) * len(negatives))
        kept = np.sort(np.r_[negatives, np.random.default_rng(0).choice(positives, count, replace=False)])
        features, labels = features[kept], labels[kept]
    return features, labels


def fit(objective: str, features: _Array, labels: _Array, setting: dict[str, Any], rounds: int) -> lightgbm.Booster:
    """Return the booster after that number of rounds."""
    shared = {"num_threads": 1, "verbosity": -1, "seed": 0, "deterministic": True, "force_row_wise": True, **setting}

    def train(by: Any, rounds: int, start: lightgbm.Booster | None = None) -> lightgbm.Booster:
        # LightGBM changes a data set that another booster was trained on: each has its own.
        data = lightgbm.Dataset(features, labels, free_raw_data=False)
        return lightgbm.train({**shared, "objective": by}, data, rounds, init_model=start)

    early, later = OBJECTIVES[objective]
    booster = train("binary", min(rounds, early)) if early else None
    return booster if booster is not None and rounds <= early else train(later, rounds - early, booster)


def staged_ap(booster: lightgbm.Booster, features: _Array, labels: _Array) -> list[float]:
    """Return the average precision after every `STEP` rounds."""
    scores, found = np.zeros(len(labels)), []
    for start in range(0, ROUNDS, STEP):
        scores += booster.predict(features, raw_score=True, start_iteration=start, num_iteration=STEP, num_threads=1)
        found.append(float(average_precision(scores, labels)))
    return found


def run_cell(features: _Array, labels: _Array, objective: str, resplit: int) -> dict[str, Any]:
    """Return the choice by inner validation and its average precision on the test rows."""
    began = time.process_time()
    train, test = split_stratified(labels, 0.3, seed=resplit)
    found = np.zeros((len(SETTINGS), ROUNDS // STEP))
    for inner, valid in k_fold(labels[train], FOLDS, seed=resplit):
        for number, setting in enumerate(SETTINGS):
            booster = fit(objective, features[train[inner]], labels[train[inner]], setting, ROUNDS)
            found[number] += np.array(staged_ap(booster, features[train[valid]], labels[train[valid]])) / FOLDS
    number, step = np.unravel_index(np.argmax(found), np.shape(found))
    rounds = STEP * (int(step) + 1)
    booster = fit(objective, features[train], labels[train], SETTINGS[number], rounds)
    scores = booster.predict(features[test], raw_score=True, num_threads=1)
    return {
        "setting": int(number),
        "rounds": rounds,
        "valid": float(found[number, step]),
        "test": float(average_precision(scores, labels[test])),
        "seconds": round(time.process_time() - began, 2),
    }


def summary(lines: list[dict[str, Any]]) -> str:
    """Return a Markdown table: mean test AP by log-loss, and the paired difference of each other objective to it."""
    values = {(line["table"], line["resplit"], line["objective"]): line["test"] for line in lines}
    # An objective has a column once it has every resplit of the tables that log-loss has.
    cells_of = {name: {key[:2] for key in values if key[2] == name} for name in OBJECTIVES}
    others = [name for name in OBJECTIVES if name != BASE and cells_of[name] >= cells_of[BASE]]
    rows = [["table", "resplits", BASE, *others]]
    means: dict[str, list[float]] = {name: [] for name in others}
    for table in TABLES:
        base = {r: values[table, r, BASE] for r in range(RESPLITS) if (table, r, BASE) in values}
        if not base:
            continue
        cells = [f"{np.mean(list(base.values())):.3f}"]
        for name in others:
            gain = np.array([values[table, r, name] - value for r, value in base.items()])
            means[name].append(float(gain.mean()))
            error = f" ± {gain.std(ddof=1) / len(gain) ** 0.5:.3f}" if len(gain) > 1 else ""
            cells.append(f"{gain.mean():+.3f}{error}")
        rows.append([table, str(len(base)), *cells])
    cells = []
    for gains in means.values():
        error = np.std(gains, ddof=1) / len(gains) ** 0.5
        above = sum(gain > 0 for gain in gains)
        cells.append(f"{np.mean(gains):+.3f} ± {error:.3f}, above in {above} of {len(gains)}")
    return markdown_table([*rows, ["mean of the tables", "", "", *cells]])


def main() -> None:
    """Compute the missing lines, or print the table of those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of json lines")
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES)
    parser.add_argument("--objectives", nargs="+", default=list(OBJECTIVES), choices=OBJECTIVES)
    parser.add_argument("--markdown", action="store_true", help="print the table of results and compute nothing")
    options = parser.parse_args()
    if options.markdown:
        print(summary(read_lines(options.out)))
        return
    torch.set_num_threads(1)
    commit = benchmark_commit()
    done = {(line["table"], line["resplit"], line["objective"]) for line in read_lines(options.out)}
    for resplit in range(RESPLITS):
        for table in options.tables:
            features, labels = read_thinned_table(table)
            for objective in options.objectives:
                if (table, resplit, objective) in done:
                    continue
                line = {"table": table, "resplit": resplit, "objective": objective}
                line |= run_cell(features, labels, objective, resplit) | {"commit": commit}
                append_line(options.out, line)
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
