"""LightGBM by average precision against LightGBM by log-loss, at equal budget, paired over resplits of real tables.

    APMAX_DATA=... python -m benchmarks.boosting_study --out results/boosting/study.jsonl
    python -m benchmarks.boosting_study --out results/boosting/study.jsonl --markdown

Of every table 30 % of the rows are the test rows of a resplit. An objective tries the same four settings of the trees
(learning rate, leaves and sub-sampling, a half of the full factorial) with the same number of rounds on two thirds of the
training rows; average precision on the other third chooses the setting and the number of rounds, a multiple of ten. The
choice is fitted to all training rows and scored once. One json line for each table, resplit and objective; lines
that are there are not computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import torch
from numpy.typing import NDArray

from apmax.data import split_stratified
from apmax.integrations.lightgbm import APObjective
from apmax.metrics import average_precision

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
RESPLITS, ROUNDS, EARLY, STEP = 3, 200, 25, 10
SETTINGS: tuple[dict[str, Any], ...] = (
    {"learning_rate": 0.1, "num_leaves": 31},
    {"learning_rate": 0.1, "num_leaves": 7, "bagging_fraction": 0.5, "bagging_freq": 1, "feature_fraction": 0.8},
    {"learning_rate": 0.03, "num_leaves": 31, "bagging_fraction": 0.5, "bagging_freq": 1, "feature_fraction": 0.8},
    {"learning_rate": 0.03, "num_leaves": 7},
)
OBJECTIVES = ("log-loss", "AP", "log-loss, then AP")
"""Names of the rows; the last has log-loss in its first `EARLY` rounds. Each has `ROUNDS` rounds in all."""

_Array = NDArray[Any]


def read_table(name: str) -> tuple[_Array, _Array]:
    """Return the features and the 0/1 labels of a table."""
    with np.load(Path(os.environ["APMAX_DATA"]) / "tabular" / f"{name}.npz") as data:
        features, labels = data["X"].astype(np.float64), data["y"].astype(np.int64)
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

    if objective == "log-loss":
        return train("binary", rounds)
    if objective == "AP":
        return train(APObjective(), rounds)
    first = train("binary", min(rounds, EARLY))
    return first if rounds <= EARLY else train(APObjective(), rounds - EARLY, first)


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
    inner, valid = (train[rows] for rows in split_stratified(labels[train], 1 / 3, seed=resplit))
    found = [
        staged_ap(fit(objective, features[inner], labels[inner], setting, ROUNDS), features[valid], labels[valid])
        for setting in SETTINGS
    ]
    number, step = np.unravel_index(np.argmax(found), np.shape(found))
    rounds = STEP * (int(step) + 1)
    booster = fit(objective, features[train], labels[train], SETTINGS[number], rounds)
    scores = booster.predict(features[test], raw_score=True, num_threads=1)
    return {
        "setting": int(number),
        "rounds": rounds,
        "valid": found[number][step],
        "test": float(average_precision(scores, labels[test])),
        "seconds": round(time.process_time() - began, 2),
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the results so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a Markdown table: mean test AP of each objective, and paired differences to log-loss."""
    values = {(line["table"], line["resplit"], line["objective"]): line["test"] for line in lines}
    yield (
        f"| table | resplits | {' | '.join(OBJECTIVES)} | "
        + " | ".join(f"{o} − log-loss" for o in OBJECTIVES[1:])
        + " |"
    )
    yield "|---|---|" + "---|" * (2 * len(OBJECTIVES) - 1)
    means: list[list[float]] = []
    for table in TABLES:
        resplits = [r for r in range(RESPLITS) if all((table, r, o) in values for o in OBJECTIVES)]
        if not resplits:
            continue
        of = {o: np.array([values[table, r, o] for r in resplits]) for o in OBJECTIVES}
        gains = [of[o] - of[OBJECTIVES[0]] for o in OBJECTIVES[1:]]
        means.append([float(gain.mean()) for gain in gains])
        cells = [f"{of[o].mean():.3f}" for o in OBJECTIVES] + [
            f"{gain.mean():+.3f}" + (f" ± {gain.std(ddof=1) / len(gain) ** 0.5:.3f}" if len(gain) > 1 else "")
            for gain in gains
        ]
        yield f"| {table} | {len(resplits)} | {' | '.join(cells)} |"
    if len(means) > 1:
        mean, error = np.mean(means, 0), np.std(means, 0, ddof=1) / len(means) ** 0.5
        cells = [f"{m:+.3f} ± {e:.3f}, above in {sum(row[i] > 0 for row in means)} of {len(means)}"
                 for i, (m, e) in enumerate(zip(mean, error, strict=True))]  # fmt: skip
        yield f"| mean of the tables | | | | | {' | '.join(cells)} |"


def main() -> None:
    """Compute the missing lines, or print the table of those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of json lines")
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES)
    parser.add_argument("--markdown", action="store_true", help="print the table of results and compute nothing")
    options = parser.parse_args()
    if options.markdown:
        print("\n".join(summary(read_lines(options.out))))
        return
    torch.set_num_threads(1)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    done = {(line["table"], line["resplit"], line["objective"]) for line in read_lines(options.out)}
    for resplit in range(RESPLITS):
        for table in options.tables:
            features, labels = read_table(table)
            for objective in OBJECTIVES:
                if (table, resplit, objective) in done:
                    continue
                line = {"table": table, "resplit": resplit, "objective": objective}
                line |= run_cell(features, labels, objective, resplit) | {"commit": commit.stdout.strip()}
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
