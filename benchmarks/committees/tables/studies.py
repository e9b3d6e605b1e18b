"""Studies of settings on the development tables: stopping rules, settings of trees, alignment of folds, blends.

Raw scores of every variant are kept in a work folder, so that a study can be extended without fitting again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from apmax.blend import METHODS, fit_blend
from apmax.committee import MEMBERS, Member, find_members
from apmax.committee.members import FoldData
from apmax.committee.network_members import Perceptron
from apmax.committee.trees import STOPPING_RULES
from apmax.data import k_fold
from apmax.metrics import average_precision
from apmax.reproduce.results import append_line, read_lines
from apmax.train import Stage, table_recipe
from benchmarks.committees.report import bootstrap_means
from benchmarks.committees.tables.crossfits import MemberScores, cached_scores, cross_fit, keep_positives
from benchmarks.committees.tables.problems import TableSplit, load_table_split
from benchmarks.markdown import markdown_table
from benchmarks.origin import benchmark_commit

_Array = NDArray[np.float64]
POSITIVES = (10, 30, 100, None)
"""Training positives of the study of stopping rules; None for all."""
LOG_LOSS_MEMBERS = ("gbdt", "forest", "trees", "linear_ce", "mlp_ce")
"""Members whose scores are log-odds, and might do without alignment."""
WITHOUT_NETWORKS = tuple(name for name in MEMBERS if not name.startswith("mlp"))
_SUBSAMPLED = {"bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.6}


class SmoothedForest:
    """A forest of scikit-learn that scores like a member: the log-odds of smoothed mean probabilities."""

    rounds: tuple[int, ...] = ()

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def score(self, matrix: Any) -> _Array:
        """Return the log-odds."""
        trees = self.estimator.n_estimators
        probability = (trees * self.estimator.predict_proba(matrix)[:, 1] + 0.5) / (trees + 1)
        odds: _Array = np.log(probability / (1 - probability))
        return odds

    def to_bytes(self) -> bytes:
        """Raise: variants of a study are not saved."""
        raise NotImplementedError


def _fit_forest(data: FoldData, *, kind: str, **parameters: Any) -> SmoothedForest:
    from sklearn import ensemble

    made = {"forest": ensemble.RandomForestClassifier, "trees": ensemble.ExtraTreesClassifier}[kind]
    estimator = made(random_state=data.seed, n_jobs=1, **{"n_estimators": 100, **parameters})
    return SmoothedForest(estimator.fit(data.matrix, data.labels))


def _forest(kind: str, **parameters: Any) -> Member:
    return replace(MEMBERS[kind], fit=partial(_fit_forest, kind=kind, **parameters))


def _boosting(**options: Any) -> Member:
    return replace(MEMBERS["gbdt"], fit=partial(MEMBERS["gbdt"].fit, **options))


def _fit_by_inner_folds(data: FoldData, folds: int = 3) -> Any:
    """Fit gbdt with the number of rounds at which the mean log-loss over inner folds is least."""
    import lightgbm

    parameters = {"objective": "binary", "learning_rate": 0.05, "seed": data.seed, "deterministic": True}
    found = lightgbm.cv(
        parameters | {"force_row_wise": True, "num_threads": 1, "verbosity": -1},
        lightgbm.Dataset(data.matrix, data.labels),
        1000,
        folds=k_fold(data.labels, folds, seed=data.seed),
        callbacks=[lightgbm.early_stopping(50, verbose=False)],
    )
    return _fit_rounds(data, rounds=len(found["valid binary_logloss-mean"]))


def _fit_rounds(data: FoldData, *, rounds: int) -> Any:
    """Fit gbdt with a fixed number of rounds to all rows."""
    return MEMBERS["gbdt"].fit(replace(data, rounds=(rounds,)))


STOPPING: dict[str, Member] = {
    "log_loss": _boosting(least_rounds=1, refit=False),
    "ap": _boosting(stop_by="ap", least_rounds=1, refit=False),
    "ap_smoothed": _boosting(stop_by="ap_smoothed", least_rounds=1, refit=False),
    "log_loss, refit": _boosting(least_rounds=1),
    "log_loss, refit, at least 100 rounds": _boosting(least_rounds=100),
    "log_loss of 3 inner folds, refit": replace(MEMBERS["gbdt"], fit=_fit_by_inner_folds),
    "100 rounds": replace(MEMBERS["gbdt"], fit=partial(_fit_rounds, rounds=100)),
    "200 rounds": replace(MEMBERS["gbdt"], fit=partial(_fit_rounds, rounds=200)),
}
"""Stopping rules of gbdt; the first is the base of comparison."""
_SLOW = {"learning_rate": 0.05}
BOOSTING: dict[str, Member] = {
    "learning rate 0.05": _boosting(parameters=_SLOW),
    "learning rate 0.05, min_child_samples 5": _boosting(parameters={**_SLOW, "min_child_samples": 5}),
    "learning rate 0.05, 15 leaves": _boosting(parameters={**_SLOW, "num_leaves": 15}),
    "learning rate 0.05, sub-sampled": _boosting(parameters=_SLOW | _SUBSAMPLED),
    "learning rate 0.1": MEMBERS["gbdt"],
    "learning rate 0.05, lambda_l2 5": _boosting(parameters={**_SLOW, "lambda_l2": 5.0}),
}
"""Settings of gbdt with its default stopping."""
FORESTS: dict[str, Member] = {
    "trees": MEMBERS["trees"],
    "trees, 300": _forest("trees", n_estimators=300),
    "trees, entropy": _forest("trees", criterion="entropy"),
    "trees, all columns": _forest("trees", max_features=None),
    "trees, 3 rows a leaf": _forest("trees", min_samples_leaf=3),
    "forest": MEMBERS["forest"],
    "forest, 300": _forest("forest", n_estimators=300),
    "forest, entropy": _forest("forest", criterion="entropy"),
    "forest, 3 rows a leaf": _forest("forest", min_samples_leaf=3),
}


class _AlonePerceptron(Perceptron):
    """The perceptron with the recipe of a network alone."""

    def stages(self, rows: int, positives: int) -> tuple[Stage, ...]:
        """Return the two stages."""
        return table_recipe(rows, positives)


NETWORKS: dict[str, Member] = {
    "mlp_ce": MEMBERS["mlp_ce"],
    "mlp_ce, 4,000 steps": replace(MEMBERS["mlp_ce"], fit=partial(MEMBERS["mlp_ce"].fit, design=_AlonePerceptron())),
}
"""Networks with the recipe for committees, and with that of a network alone."""
VARIANTS: dict[str, Mapping[str, Member]] = {
    "stopping": STOPPING,
    "boosting": BOOSTING,
    "forests": FORESTS,
    "networks": NETWORKS,
}
"""Studies of one member each."""


class Study:
    """Lines of one study, appended as they are made."""

    def __init__(self, path: Path, work: Path) -> None:
        self.path, self.work = path, work
        self.lines = read_lines(path)
        self.commit = benchmark_commit()

    def add(self, place: Mapping[str, Any], split: TableSplit, held_out: _Array, test: _Array, **facts: Any) -> None:
        """Append a line with the AP of cross-fitted and of test scores.

        Args:
            place: Study, table, resplit, positives and setting.
            split: The rows.
            held_out: Cross-fitted scores of the training rows.
            test: Scores of the test rows.
            **facts: More to record.
        """
        line = {
            **place,
            "crossfit_ap": float(average_precision(held_out, split.train_labels)),
            "test_ap": float(average_precision(test, split.test_labels)),
            **facts,
        }
        entry = {key: round(value, 6) if isinstance(value, float) else value for key, value in line.items()}
        self.lines.append(entry | {"commit": self.commit})
        append_line(self.path, self.lines[-1])

    def has(self, **place: Any) -> bool:
        """Return whether a line of this place is there."""
        return any(all(line.get(key) == value for key, value in place.items()) for line in self.lines)

    def scores(
        self, table: str, resplit: int, positives: int | None, name: str, member: Member
    ) -> tuple[TableSplit, MemberScores]:
        """Return the split and the member's raw scores, kept in the work folder."""
        split = keep_positives(load_table_split(table, resplit), positives, resplit)
        file = self.work / f"{table}-{resplit}-{positives or 'all'}-{name.replace(' ', '_')}.npz"
        return split, cached_scores(file, split, member)


def run_studies(out: Path, work: Path, names: Sequence[str], tables: Sequence[str], resplits: Sequence[int]) -> None:
    """Run studies on the development tables, and write their summary."""
    out.mkdir(parents=True, exist_ok=True)
    study = Study(out / "studies.jsonl", work)
    for resplit in resplits:
        for name in names or ALL_STUDIES:
            ALL_STUDIES[name](study, tables, resplit)
            (out / "studies.md").write_text(summary(study.lines), encoding="utf-8")


def _run_variants(study: Study, tables: Sequence[str], resplit: int, *, name: str) -> None:
    for table in tables:
        for positives in POSITIVES if name == "stopping" else (None,):
            if positives is not None and load_table_split(table, resplit).train_labels.sum() <= positives:
                continue
            for setting, member in VARIANTS[name].items():
                place = {"study": name, "table": table, "resplit": resplit, "positives": positives, "setting": setting}
                if study.has(**place):
                    continue
                split, found = study.scores(table, resplit, positives, f"{name}-{setting}", member)
                held_out, test = found.aligned(by_fold=True)
                study.add(place, split, held_out, test, seconds=found.seconds)


def _run_alignment(study: Study, tables: Sequence[str], resplit: int, *, name: str, members: Sequence[str]) -> None:
    """Compare alignment by fold with none for log-loss members: each alone, and the blend of all."""
    for table in tables:
        place = {"study": name, "table": table, "resplit": resplit, "positives": None}
        if study.has(**place, setting="blend, none"):
            continue
        found = {each: study.scores(table, resplit, None, each, MEMBERS[each]) for each in members}
        split = next(iter(found.values()))[0]
        scores = {each: own for each, (_, own) in found.items()}
        for setting, held_out, test in aligned_scores(scores, split.train_labels):
            study.add({**place, "setting": setting}, split, held_out, test)


def aligned_scores(scores: Mapping[str, MemberScores], labels: _Array) -> Iterator[tuple[str, _Array, _Array]]:
    """Yield (setting, cross-fitted scores, test scores) of log-loss members and of the blend, "by fold" and "none"."""
    for setting, by_fold in (("by fold", True), ("none", False)):
        aligned = {name: own.aligned(by_fold or name not in LOG_LOSS_MEMBERS) for name, own in scores.items()}
        for name in scores:
            if name in LOG_LOSS_MEMBERS:
                yield f"{name}, {setting}", *aligned[name]
        held_out, test = (np.stack([each[part] for each in aligned.values()], 1) for part in (0, 1))
        blend = fit_blend(held_out, labels)
        yield f"blend, {setting}", blend.score(held_out), blend.score(test)


def _member_columns(study: Study, table: str, resplit: int, positives: int | None) -> tuple[TableSplit, _Array, _Array]:
    """Return a split, and the aligned scores of training and test rows: a column for each member but the networks."""
    found = [study.scores(table, resplit, positives, name, MEMBERS[name]) for name in WITHOUT_NETWORKS]
    aligned = [each.aligned(by_fold=True) for _, each in found]
    held_out, test = (np.stack([each[part] for each in aligned], 1) for part in (0, 1))
    return found[0][0], held_out, test


def _run_blends(study: Study, tables: Sequence[str], resplit: int) -> None:
    """Compare the methods of blending by the number of positives, without networks."""
    for table in tables:
        for positives in (10, 30, None):
            place = {"study": "blends", "table": table, "resplit": resplit, "positives": positives}
            few = positives is not None and load_table_split(table, resplit).train_labels.sum() <= positives
            if few or study.has(**place, setting="mean"):
                continue
            split, held_out, test = _member_columns(study, table, resplit, positives)
            blends = {name: fit_blend(held_out, split.train_labels, method=name) for name in (*METHODS, "auto")}
            mean = np.full(held_out.shape[1], 1 / held_out.shape[1])
            for setting, blend in [*blends.items(), ("mean", replace(blends["greedy"], weights=mean))]:
                study.add({**place, "setting": setting}, split, blend.score(held_out), blend.score(test))


def _run_small_weights(study: Study, tables: Sequence[str], resplit: int) -> None:
    """Compare blends with and without the members of small weights, without networks."""
    for table in tables:
        place = {"study": "small weights", "table": table, "resplit": resplit, "positives": None}
        if study.has(**place):
            continue
        split, held_out, test = _member_columns(study, table, resplit, None)
        for setting, share in (("from a tenth of the largest", 0.1), ("all weights", 1e-6), ("from a fifth", 0.2)):
            with mock.patch("apmax.blend._LEAST_SHARE", share):
                blend = fit_blend(held_out, split.train_labels)
            members = int((blend.weights > 0).sum())
            study.add({**place, "setting": setting}, split, blend.score(held_out), blend.score(test), members=members)


def grouped_split(seed: int, groups: int = 30, size: int = 200, spread: float = 1.0) -> tuple[TableSplit, _Array]:
    """Return rows of groups that differ in prevalence, new groups for the test, and the group of each training row.

    A column tells the group's log-odds up to noise, so that differences between groups can be predicted.
    """
    rng = np.random.default_rng(seed)

    def draw(count: int) -> tuple[_Array, _Array, _Array]:
        group = np.repeat(np.arange(count), size)
        effect = spread * rng.normal(size=count)
        own = rng.normal(size=(len(group), 3))
        odds = -4.5 + effect[group] + own[:, 0] + 0.7 * own[:, 1]
        labels = (rng.random(len(group)) < 1 / (1 + np.exp(-odds))).astype(float)
        context = effect[group] + 0.3 * rng.normal(size=count)[group]
        return np.column_stack([own, context]), labels, group

    (train, train_labels, group), (test, test_labels, _) = draw(groups), draw(2 * groups)
    return TableSplit(train, train_labels, test, test_labels), group


def _run_groups(study: Study, tables: Sequence[str], resplit: int) -> None:  # noqa: ARG001 - generated rows
    """Compare alignments where groups differ in prevalence and folds keep groups together."""
    members = {name: MEMBERS[name] for name in ("gbdt", "trees", "linear", "linear_ce")}
    for spread in (0.0, 1.0, 2.0):
        for seed in range(5 * resplit, 5 * resplit + 5):
            table = f"groups, spread {spread:g}, seed {seed}"
            place = {"study": "groups", "table": table, "resplit": resplit, "positives": spread}
            if study.has(**place, setting="blend, none"):
                continue
            split, groups = grouped_split(seed, spread=spread)
            scores = {name: cross_fit(split, member, groups=groups) for name, member in members.items()}
            for setting, held_out, test in aligned_scores(scores, split.train_labels):
                study.add({**place, "setting": setting}, split, held_out, test)


ALL_STUDIES: dict[str, Callable[[Study, Sequence[str], int], None]] = {
    **{name: partial(_run_variants, name=name) for name in VARIANTS},
    "alignment": partial(_run_alignment, name="alignment", members=WITHOUT_NETWORKS),
    "blends": _run_blends,
    "small weights": _run_small_weights,
    "alignment with networks": partial(
        _run_alignment, name="alignment with networks", members=list(find_members(None))
    ),
    "groups": _run_groups,
}
"""Studies by name."""


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean of every setting, and its paired difference to the study's first, as markdown."""
    parts = [f"# Studies on the development tables\n\nStopping rules: {', '.join(STOPPING_RULES)}."]
    for name in ALL_STUDIES:
        own = [line for line in lines if line["study"] == name]
        sizes = sorted({line["positives"] for line in own}, key=lambda each: (each is None, each))
        parts += [_summary_table(name, size, [line for line in own if line["positives"] == size]) for size in sizes]
    return "\n\n".join(parts) + "\n"


def _summary_table(name: str, positives: Any, lines: Sequence[Mapping[str, Any]]) -> str:
    values: dict[str, dict[tuple[str, int], Mapping[str, Any]]] = {}
    for line in lines:
        values.setdefault(line["setting"], {})[line["table"], line["resplit"]] = line
    shared = set.intersection(*(set(each) for each in values.values()))
    tables = sorted({table for table, _ in shared})
    rows = [["setting", "cross-fitted AP", "test AP", "test AP − base", "95 % interval over tables", "tables above"]]
    for setting, found in values.items():
        base = values[_base(setting, list(values))]
        by_table = [
            float(np.mean([found[key]["test_ap"] - base[key]["test_ap"] for key in shared if key[0] == table]))
            for table in tables
        ]
        means = [f"{np.mean([found[key][what] for key in shared]):.4f}" for what in ("crossfit_ap", "test_ap")]
        if found is base:
            rows.append([setting, *means, "", "", ""])
            continue
        low, high = np.quantile(bootstrap_means(by_table), [0.025, 0.975])
        above = f"{sum(each > 0 for each in by_table)} of {len(tables)}"
        rows.append([setting, *means, f"{np.mean(by_table):+.4f}", f"{low:+.4f} to {high:+.4f}", above])
    what = f", {positives or 'all'} positives" if name in ("stopping", "blends") else ""
    what = f", spread {positives}" if name == "groups" else what
    return f"## {name}{what}\n\n{len(shared)} splits of {len(tables)} tables.\n\n{markdown_table(rows)}"


def _base(setting: str, settings: Sequence[str]) -> str:
    """Return the setting to compare with: the same member "by fold", or the last member without options before it."""
    if setting.endswith(", none"):
        return setting.removesuffix("none") + "by fold"
    if setting.endswith(", by fold"):
        return setting
    plain = setting.split(",")[0]
    return plain if plain in settings and (plain != setting or plain in MEMBERS) else settings[0]
