"""Report of finished lines: a row for each table, means, and paired differences with intervals over tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax.validation import plural
from benchmarks.markdown import markdown_table

_Line = Mapping[str, Any]
_RESAMPLES = 10_000
RESPLITS = (0, 1, 2)
"""Numbers of the resplits, where a report is not given others."""
COMPARED = ("lightgbm", "lightgbm_tuned", "autogluon", "autogluon_best")
"""Methods that the committee is compared with."""


@dataclass(frozen=True)
class TableDifference:
    """Mean paired difference over tables, its 95 % bootstrap interval, and in how many tables it is positive."""

    mean: float
    low: float
    high: float
    won: int
    tables: int


def table_means(
    lines: Sequence[_Line], quantity: str = "ap", resplits: Mapping[str, Sequence[int]] | None = None
) -> dict[str, dict[str, float]]:
    """Return the mean over resplits, by method and table; only where all resplits (of that table) are finished.

    >>> lines = [{"table": "a", "resplit": r, "method": "m", "ap": ap} for r, ap in enumerate([0.2, 0.3, 0.4])]
    >>> round(table_means(lines)["m"]["a"], 6), table_means(lines[:2])
    (0.3, {})
    """
    values: dict[tuple[str, str], dict[int, float]] = {}
    for line in lines:
        if quantity in line:
            values.setdefault((line["method"], line["table"]), {})[line["resplit"]] = line[quantity]
    means: dict[str, dict[str, float]] = {}
    for (method, table), found in values.items():
        if set(found) == set(RESPLITS if resplits is None else resplits[table]):
            means.setdefault(method, {})[table] = float(np.mean(list(found.values())))
    return means


def bootstrap_means(values: Sequence[float], seed: int = 0) -> NDArray[np.float64]:
    """Return the means of resamples with replacement."""
    array = np.asarray(values, np.float64)
    draws = np.random.default_rng(seed).integers(len(array), size=(_RESAMPLES, len(array)))
    means: NDArray[np.float64] = array[draws].mean(1)
    return means


def compare_tables(values: Mapping[str, float], base: Mapping[str, float]) -> TableDifference | None:
    """Return by how much one method exceeds another over the tables that both have; None without such tables.

    >>> found = compare_tables({"a": 0.5, "b": 0.75, "c": 1.0}, {"a": 0.25, "b": 0.5})
    >>> found.mean, found.low, found.high, found.won, found.tables
    (0.25, 0.25, 0.25, 2, 2)
    """
    differences = [values[table] - base[table] for table in values if table in base]
    if not differences:
        return None
    low, high = np.quantile(bootstrap_means(differences), [0.025, 0.975])
    won = sum(difference > 0 for difference in differences)
    return TableDifference(float(np.mean(differences)), float(low), float(high), won, len(differences))


def write_report(
    title: str, lines: Sequence[_Line], tables: Sequence[str], resplits: Mapping[str, Sequence[int]] | None = None
) -> str:
    """Return the report as markdown; `resplits` has the numbers of the resplits by table."""
    means = table_means(lines, resplits=resplits)
    if not means:
        return f"# {title}\n\nNo table has all of its resplits yet.\n"
    parts = [f"# {title}", sources(lines), "## Test average precision, mean of the resplits"]
    alone = [method for method in means if not method.startswith("member ")]
    members = [method for method in means if method.startswith("member ")]
    parts.extend(ap_table(means, methods, tables) for methods in (alone, members) if methods)
    for own in ("standard", "quick"):
        parts.append(f"## Difference of {own} to the others")
        parts.append(difference_table(means, own, [*COMPARED, *(m for m in means if m not in COMPARED)]))
    losses = loss_table(means)
    if losses is not None:
        parts += ["## Members trained by AP and by cross-entropy", losses]
    parts.append("## Cost\n\nMean over splits; the methods of equal time get the wall-clock time of standard.")
    parts.append(cost_table(lines, alone))
    failed = [f"{line['method']} on {line['table']}, resplit {line['resplit']}" for line in lines if "error" in line]
    if failed:
        parts.append(f"Failed, and left out: {'; '.join(failed)}.")
    return "\n\n".join(parts) + "\n"


def sources(lines: Sequence[_Line]) -> str:
    """Return the sentence on commits and versions."""
    commits = ", ".join(sorted({line["commit"] for line in lines}))
    versions = sorted({f"{name} {number}" for line in lines for name, number in line["versions"].items()})
    splits = len({(line["table"], line["resplit"]) for line in lines})
    return f"{plural(splits, 'split')}. Commits: {commits}. Versions: {', '.join(versions)}."


def ap_table(means: Mapping[str, Mapping[str, float]], methods: Sequence[str], tables: Sequence[str]) -> str:
    """Return means by table (rows) and method (columns), and their mean over the tables that all have."""
    names = [method.removeprefix("member ") for method in methods]
    rows = [["table", *names]]
    for table in tables:
        found = [means[method].get(table) for method in methods]
        if any(value is not None for value in found):
            best = max(round(value, 3) for value in found if value is not None)
            rows.append([table, *(_cell(value, best) for value in found)])
    shared = [table for table in tables if all(table in means[method] for method in methods)]
    if len(shared) > 1:
        average = [float(np.mean([means[method][table] for table in shared])) for method in methods]
        rows.append([f"**mean of {len(shared)}**", *(_cell(value, round(max(average), 3)) for value in average)])
    return markdown_table(rows)


def _cell(value: float | None, best: float) -> str:
    if value is None:
        return ""
    return f"**{value:.3f}**" if round(value, 3) == best else f"{value:.3f}"


def difference_table(means: Mapping[str, Mapping[str, float]], own: str, others: Sequence[str]) -> str:
    """Return the differences of a method to others over tables."""
    rows = [[f"{own} − …", "mean", "95 % interval over tables", "tables above"]]
    for other in (name for name in others if name != own):
        found = compare_tables(means.get(own, {}), means.get(other, {}))
        if found is not None:
            rows.append([other, *_difference_fields(found)])
    return markdown_table(rows)


def _difference_fields(found: TableDifference) -> list[str]:
    return [f"{found.mean:+.4f}", f"{found.low:+.4f} to {found.high:+.4f}", f"{found.won} of {found.tables}"]


def loss_table(means: Mapping[str, Mapping[str, float]]) -> str | None:
    """Return the differences of members to the same model trained by cross-entropy; None without such members."""
    rows = [["member", "mean", "95 % interval over tables", "tables above"]]
    for own, other in ((own, f"{own}_ce") for own in sorted(means)):
        found = compare_tables(means[own], means.get(other, {}))
        if own.startswith("member ") and found is not None:
            names = " − ".join(name.removeprefix("member ") for name in (own, other))
            rows.append([names, *_difference_fields(found)])
    return markdown_table(rows) if len(rows) > 1 else None


def cost_table(lines: Sequence[_Line], methods: Sequence[str]) -> str:
    """Return mean seconds and CPU seconds of methods."""
    rows = [["method", "seconds", "CPU seconds"]]
    for method in methods:
        own = [line for line in lines if line["method"] == method and "error" not in line]
        rows.append([method, *(f"{np.mean([line[key] for line in own]):.1f}" for key in ("seconds", "cpu_seconds"))])
    return markdown_table(rows)
