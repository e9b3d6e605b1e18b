"""What an item's numbers say in words: made from them, so that it cannot say more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import mean

from apmax.reproduce.curves import Histories, averaged, known, rank_correlations
from apmax.reproduce.grid import Grid
from apmax.reproduce.reading import Entries, agreement, scores
from apmax.reproduce.settings import resolve
from apmax.reproduce.summary import Entry, Summary, name_of, plural, with_paired
from apmax.reproduce.tables import difference, won

EARLY = 5
"""After so many epochs the figure of convergence is read."""


def sentences(summary: Summary, histories: Histories) -> list[str]:
    """Return what an item's numbers say: against the base, of variants and controls, of curves, against the paper's.

    Args:
        summary: What the results say.
        histories: How the epochs of runs went, by key.
    """
    return [
        *against_base(summary),
        *variants(summary),
        *kept_cross_entropy(summary),
        *never_reweighted(summary),
        *CURVES.get(summary.item.name, lambda *_: [])(summary, histories),
        *agreement(summary.grid, summary.entries.values()),
    ]


def against_base(summary: Summary) -> list[str]:
    """Return how SOAP and ours stand to the base, or each variant of the base to it."""
    if summary.base is None:
        return []
    base = summary.grid.methods[summary.base].label
    varies = any(summary.grid.methods[row].like for row in summary.rows)
    said = []
    for score in scores(summary.entries, summary.base):
        method = summary.grid.methods[score.method]
        if method.name not in ("soap", "apmax") and len(summary.rows) > 8:
            continue
        if varies and method.like != summary.base and summary.base != "ce":
            # Beside variants of the base another method is not what the item is about; to cross-entropy all are set.
            continue
        text = f"{method.label}: above {base} in {score.above} of {plural(score.cells, 'cell')}"
        if score.unfinished:
            text += f" ({score.unfinished} unfinished)"
        text += f"; the 95 % interval is above zero in {score.surely_above}, below in {score.surely_below}."
        if score.printed:
            text += f" In the paper: above in {score.printed_above} of {score.printed} of them."
        said.append(text)
    return said


def comparisons(grid: Grid, methods: Iterable[str], base: str | None) -> Iterator[tuple[str, str]]:
    """Yield each row with those that it varies or is controlled by, but the base, which the tables compare with."""
    names = list(methods)
    for method in (grid.methods[name] for name in names):
        for other in (method.like, *method.controls):
            if other in names and other != base:
                yield method.name, other


def variants(summary: Summary) -> list[str]:
    """Return how a row stands to the one that it varies, or to its control, cell by cell."""
    said = []
    for row, against in comparisons(summary.grid, summary.rows, summary.base):
        for cell in summary.begun:
            own, other = (summary.entries[cell[0], cell[1], name] for name in (row, against))
            paired = with_paired(own, other).paired
            if paired:
                labels = [summary.grid.methods[name].label for name in (row, against)]
                said.append(
                    f"{name_of(summary, cell)}: {labels[0]} against {labels[1]} {difference(paired['auprc'])}, "
                    f"above in {won(paired['auprc'])}{of_other_code(own, other)}."
                )
    return said


def of_other_code(own: Entry, other: Entry) -> str:
    """Say how many pairs were run by different commits: what begins anew then differs by rounding as well."""
    pairs = [(own.lines[where], other.lines[where]) for where in own.values if where in other.values]
    apart = sum(one.get("commit") != two.get("commit") for one, two in pairs)
    return f" ({apart} of {plural(len(pairs), 'pair')} from different commits)" if apart else ""


def overall_comparisons(grid: Grid, entries: Entries, base: str) -> list[str]:
    """Return how variants stand to what they vary, and the recipe to its controls, in counts over all cells."""
    said = []
    for row, against in comparisons(grid, dict.fromkeys(method for _, _, method in entries), base):
        pairs = [(entry, entries.get((*key[:2], against))) for key, entry in entries.items() if key[2] == row]
        found = [with_paired(own, other).paired.get("auprc") for own, other in pairs if other is not None]
        paired = [each for each in found if each is not None]
        if paired:
            said.append(
                f"{grid.methods[row].label} against {grid.methods[against].label}: above in "
                f"{sum(each.difference > 0 for each in paired)} of {plural(len(paired), 'cell')}, interval above 0 in "
                f"{sum(each.low > 0 for each in paired)}, below in {sum(each.high < 0 for each in paired)}."
            )
    return said


def kept_cross_entropy(summary: Summary) -> list[str]:
    """Return in how many runs of a recipe validation chose a model of its first stage, which no AP loss has touched."""
    return [
        f"{name_of(summary, cell)}: {text}"
        for cell in summary.begun
        for text in chose_first_stage(summary.grid, summary.of(cell))
    ]


def chose_first_stage(grid: Grid, entries: Iterable[Entry]) -> list[str]:
    """Return the same of given entries, a sentence for each recipe."""
    counts: dict[str, list[bool]] = {}
    for entry in entries:
        if grid.methods[entry.method].scheme == "recipe":
            chosen = [line["chosen"]["stage"] == 1 for line in entry.lines.values() if "chosen" in line]
            counts.setdefault(entry.method, []).extend(chosen)
    return [
        f"{grid.methods[name].label}: in {sum(first)} of {plural(len(first), 'run')} validation chose an epoch of its "
        "first stage, cross-entropy with averaged weights: no AP loss is in these models."
        for name, first in counts.items()
        if any(first)
    ]


def never_reweighted(summary: Summary) -> list[str]:
    """Return in how many runs of LDAM the chosen epoch is before the one that its weights set in at."""
    said = []
    for method in (summary.grid.methods[row] for row in summary.rows):
        early = []
        for data, model in summary.begun:
            begins = resolve(summary.grid, data, model, method.name).get("options", {}).get("defer_epoch")
            lines = summary.entries[data, model, method.name].lines.values() if begins is not None else ()
            early += [line["chosen"]["epoch"] <= begins for line in lines if "chosen" in line]
        if any(early):
            said.append(
                f"{method.label}: in {sum(early)} of {plural(len(early), 'run')} validation chose an epoch before its "
                "class weights set in: these models have its margins alone."
            )
    return said


def early_and_late(summary: Summary, histories: Histories) -> list[str]:
    """Return the test AUPRC of each method early, at the chosen epoch, and at the best epoch by the test part."""
    said = []
    for cell in summary.begun:
        columns: dict[str, list[str]] = {"early": [], "chosen": [], "best": []}
        for entry in summary.of(cell):
            runs, spread = known(histories, entry, "test_auprc"), entry.spread()
            if not runs or spread is None:
                continue
            label, middle = summary.grid.methods[entry.method].label, averaged(runs)[0]
            columns["early"].append(f"{label} {middle[min(EARLY, len(middle)) - 1]:.3f}")
            columns["chosen"].append(f"{label} {spread.mean:.3f}")
            columns["best"].append(f"{label} {mean(max(run) for run in runs):.3f}")
        if columns["early"]:
            said.append(
                f"{name_of(summary, cell)}, mean test AUPRC: after {EARLY} epochs {', '.join(columns['early'])}; at "
                f"the epoch that validation chose {', '.join(columns['chosen'])}; at each run's best epoch by the test "
                f"part, which is no result but shows what choosing so would print, {', '.join(columns['best'])}."
            )
    return said


def agreement_of_objective(summary: Summary, histories: Histories) -> list[str]:
    """Return how well AP and −P(w) agree over the epochs."""
    said = []
    for cell in summary.begun:
        for entry in summary.of(cell):
            found = rank_correlations(histories, entry)
            if found:
                ends = " to ".join(dict.fromkeys(f"{value:.3f}" for value in (min(found), max(found))))
                said.append(
                    f"{name_of(summary, cell)}: rank correlation of AP and −P(w) on the training set over the epochs "
                    f"{ends} ({plural(len(found), 'run')})."
                )
    return said


def range_of_means(summary: Summary, histories: Histories) -> list[str]:  # noqa: ARG001 - what the others are given
    """Return between which values the means of a cell's rows lie."""
    said = []
    for cell in summary.begun:
        means = {entry.method: spread.mean for entry in summary.of(cell) if (spread := entry.spread()) is not None}
        if len(means) > 1:
            low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
            sizes = {name: resolve(summary.grid, *cell, name)["batch_size"] for name in (low, high)}
            said.append(
                f"{name_of(summary, cell)}: over {len(means)} sizes the mean test AUPRC lies between {means[low]:.4f} "
                f"(batches of {sizes[low]}) and {means[high]:.4f} (of {sizes[high]})."
            )
    return said


CURVES: Mapping[str, Callable[[Summary, Histories], list[str]]] = {
    "convergence": early_and_late,
    "consistency": agreement_of_objective,
    "batch-size": range_of_means,
}
"""What is read from the figures that are more than a table."""
