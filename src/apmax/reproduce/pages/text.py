"""Sentences about results: numbers as text, notes on how to read a table, and findings computed from the numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import mean

from apmax.metrics import Paired
from apmax.reproduce.grid import ExperimentGrid, resolve_settings
from apmax.reproduce.pages.summary import (
    Histories,
    ItemSummary,
    MeanStd,
    MethodSummaries,
    MethodSummary,
    compare_runs,
    compare_with_base,
    complete_histories,
    mean_curve,
    objective_correlations,
    random_cells,
)
from apmax.reproduce.paper import PrintedValue
from apmax.validation import plural

NO_VALUE = "—"
_EARLY_EPOCHS = 5
"""The epoch at which the findings read the convergence curves early."""


def mean_std_text(value: MeanStd | PrintedValue) -> str:
    """Return mean ± standard deviation.

    >>> mean_std_text(MeanStd(0.5, 0.01234, 3)), mean_std_text(MeanStd(0.5, None, 1))
    ('0.5000 ± 0.0123', '0.5000')
    """
    return f"{value.mean:.4f}" + ("" if value.std is None else f" ± {value.std:.4f}")


def range_text(values: Iterable[float], digits: str = "") -> str:
    """Return the smallest and the largest value, once where they are written the same.

    >>> range_text([3, 1, 2]), range_text([0.501, 0.502], ".2f")
    ('1 to 3', '0.50')
    """
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(format(value, digits) for value in (ordered[0], ordered[-1])))


def runs_text(entry: MethodSummary) -> str:
    """Return the number of finished runs, of all runs where some are missing, and of diverged ones."""
    if not entry.done:
        return f"{NO_VALUE} (tuning: {entry.tuning[0]} of {entry.tuning[1]})" if entry.tuning else NO_VALUE
    counted = f"{entry.done}" if entry.is_finished else f"{entry.done} of {entry.total}"
    return counted + (f", {entry.diverged} diverged" if entry.diverged else "")


def difference_text(paired: Paired | None) -> str:
    """Return a paired difference with its interval.

    >>> difference_text(Paired(0.1, -0.05, 0.25, 2, 3)), difference_text(Paired(0.1, math.nan, math.nan, 1, 1))
    ('+0.1000 (−0.0500 to +0.2500)', '+0.1000 (one pair)')
    """
    if paired is None:
        return ""
    ends = "one pair" if math.isnan(paired.low) else f"{signed_text(paired.low)} to {signed_text(paired.high)}"
    return f"{signed_text(paired.difference)} ({ends})"


def signed_text(number: float) -> str:
    """Return a number with its sign, a negative one with the minus sign U+2212."""
    return f"{number:+.4f}".replace("-", "−")


def won_text(paired: Paired | None) -> str:
    """Return the number of pairs whose difference is above zero, and of those without a difference.

    >>> won_text(Paired(0.1, -0.05, 0.25, 2, 3)), won_text(Paired(0.1, -0.05, 0.25, 2, 5, equal=1))
    ('2 of 3', '2 of 5, equal in 1')
    """
    if paired is None:
        return ""
    return f"{paired.won} of {paired.cells}" + (f", equal in {paired.equal}" if paired.equal else "")


def budget_text(summary: ItemSummary) -> str:
    """Return the meaning of a summary's budget."""
    count = summary.grid.budgets[summary.budget]
    if count == 1:
        return "one configuration of each method, the published one where there is one"
    return f"up to {count} configurations of each method, the best by validation AP"


METRIC_NOTE = (
    "AUPRC is the trapezoidal area under the precision–recall points, which is what the paper prints; AP is average "
    "precision. Mean ± standard deviation (n − 1) over the runs; bold is the best mean of a column among the methods "
    "with the most runs."
)
MARK_NOTE = (
    "Paper: mean ± standard deviation as printed. ≈ our mean is within two of the paper's standard deviations, ▲ "
    "above, ▼ below, only in rows without missing runs: a description, not a test."
)


def difference_note(base: str) -> str:
    """Return the meaning of the differences to a method."""
    return (
        f"− {base}: mean of the differences to {base} over the runs that both have, with Student's 95 % interval; each "
        "interval is for one comparison, so that one in twenty excludes zero by chance. Won: the number of these runs "
        f"in which the method is above {base}."
    )


def table_notes(summary: ItemSummary) -> list[str]:
    """Return all notes that belong under an item's tables."""
    notes = [METRIC_NOTE]
    if summary.paper_table:
        notes.append(MARK_NOTE)
    if summary.base is not None:
        notes.append(difference_note(summary.method_label(summary.base)))
    return [*notes, *item_notes(summary)]


def item_notes(summary: ItemSummary) -> list[str]:
    """Return the notes on this item's runs, and on the paper's."""
    notes = [*_split_notes(summary), *partial_cell_notes(summary), *_missing_run_notes(summary)]
    if summary.paper_table:
        count = summary.paper_table.runs
        notes += [f"The paper's numbers are over {count} {summary.paper_table.over}."] if count else []
        notes += summary.paper_table.notes
    return notes


def _split_notes(summary: ItemSummary) -> list[str]:
    """Return notes on what varies between the runs of a data set: splits, or seeds on one test part."""
    notes = []
    for data in summary.started_data:
        entry = summary.grid.data[data]
        lines = [line for line in summary.lines if line["data"] == data and line.get("test")]
        if not lines:
            continue
        test, valid = (range_text([line[part]["positives"] for line in lines], ",") for part in ("test", "valid"))
        positives = f"with {test} positives in the test part and {valid} in the validation part"
        if len(entry.splits) > 1:
            notes.append(
                f"{entry.label}: a run is one of {len(entry.splits)} splits, {positives}. The deviation is that "
                "between splits; the differences are taken within a split."
            )
            if (summary.seeds or entry.seeds) > 1:
                notes.append(
                    f"{entry.label}: the {summary.seeds or entry.seeds} seeds of a split count as runs, though they "
                    "share its data: deviations and intervals are narrower than new splits would give."
                )
        elif (summary.seeds or entry.seeds) > 1:
            notes.append(
                f"{entry.label}: runs are seeds on one split, {positives}: deviations and intervals contain the "
                "randomness of training, and not which rows are in the test."
            )
    return notes


def partial_cell_notes(summary: ItemSummary) -> list[str]:
    """Return notes on networks that ran on a part of the splits or seeds only, with the others' means on that part."""
    notes = []
    for cell in summary.started_cells:
        rows = summary.of_cell(cell)
        entry = next((each for each in rows if each.method == summary.base), rows[0])
        others = []
        for other in summary.started_cells:
            beside = summary.entries[other[0], other[1], entry.method]
            if other[0] == cell[0] and entry.values and set(entry.values) < set(beside.values):
                value = mean(beside.values[replicate]["auprc"] for replicate in entry.values)
                others.append(f"{value:.4f} with {summary.grid.models[other[1]].label}")
        if others:
            part = ", ".join(split or f"seed {seed}" for split, seed in entry.values)
            notes.append(
                f"{summary.cell_label(cell)}: {part} only. On these {summary.method_label(entry.method)} has "
                f"{' and '.join(others)}: do not compare this column with those of all runs."
            )
    return notes


def _missing_run_notes(summary: ItemSummary) -> list[str]:
    """Return notes on diverged and missing runs."""
    shown = [entry for cell in summary.started_cells for entry in summary.of_cell(cell)]
    notes = []
    if any(entry.diverged for entry in shown):
        notes.append("Diverged runs have no value: they are counted, and left out of means and differences.")
    if not all(entry.is_finished for entry in shown):
        notes.append(f"Unfinished: n of m runs, {NO_VALUE} for none; means and differences are over the finished runs.")
    return notes


def findings(summary: ItemSummary, histories: Histories) -> list[str]:
    """Return what an item's numbers show: against the base, variants, controls, curves, and the paper's numbers.

    Args:
        summary: The summary of the item.
        histories: The values after each epoch, by the key of the run.
    """
    return [
        *_base_findings(summary),
        *random_findings(summary.grid, summary.entries),
        *_variant_findings(summary),
        *(
            f"{summary.cell_label(cell)}: {text}"
            for cell in summary.started_cells
            for text in first_stage_findings(summary.grid, summary.of_cell(cell))
        ),
        *_deferred_weight_findings(summary),
        *_ITEM_FINDINGS.get(summary.item.name, lambda *_: [])(summary, histories),
        *paper_findings(summary.grid, summary.entries.values()),
    ]


def _base_findings(summary: ItemSummary) -> list[str]:
    """Return the comparisons of SOAP and the recipe with the base, or of each variant of the base with it."""
    if summary.base is None:
        return []
    base = summary.method_label(summary.base)
    varies = any(summary.grid.methods[row].like for row in summary.rows)
    sentences = []
    for counts in compare_with_base(summary.entries, summary.base):
        method = summary.grid.methods[counts.method]
        if method.name not in ("soap", "apmax") and len(summary.rows) > 8:
            continue
        if varies and method.like != summary.base and summary.base != "ce":
            # An item of variants is not about other methods, unless cross-entropy is its base.
            continue
        text = f"{method.label}: above {base} in {counts.above} of {plural(counts.cells, 'cell')}"
        if counts.unfinished:
            text += f" ({counts.unfinished} unfinished)"
        text += f"; the 95 % interval is above zero in {counts.surely_above}, below in {counts.surely_below}"
        text += f"{_without_interval(counts.without_interval)}."
        if counts.printed:
            text += f" In the paper: above in {counts.printed_above} of {counts.printed} of them."
        sentences.append(text)
    return sentences


def random_findings(grid: ExperimentGrid, entries: MethodSummaries) -> list[str]:
    """Return the cells in which no method ranks test rows better than at random."""
    return [
        f"{grid.cell_label(cell)}: no method ranks the test rows better than at random (mean AUROC "
        f"{range_text(values, '.2f')} by method): differences between methods say nothing here."
        for cell, values in random_cells(entries).items()
    ]


def _comparisons(grid: ExperimentGrid, methods: Iterable[str], base: str | None) -> Iterator[tuple[str, str]]:
    """Yield each method with the one that it varies and its controls, except the base, which is in the tables."""
    names = list(methods)
    for method in (grid.methods[name] for name in names):
        for other in (method.like, *method.controls):
            if other in names and other != base:
                yield method.name, other


def _variant_findings(summary: ItemSummary) -> list[str]:
    """Return the comparison of each row with the one that it varies and with its controls, cell by cell."""
    sentences = []
    for row, control in _comparisons(summary.grid, summary.rows, summary.base):
        for cell in summary.started_cells:
            own, other = (summary.entries[cell[0], cell[1], name] for name in (row, control))
            paired = compare_runs(own, other).paired
            if paired:
                sentences.append(
                    f"{summary.cell_label(cell)}: {summary.method_label(row)} against {summary.method_label(control)} "
                    f"{difference_text(paired['auprc'])}, above in {won_text(paired['auprc'])}"
                    f"{_different_commits(own, other)}."
                )
    return sentences


def _different_commits(own: MethodSummary, other: MethodSummary) -> str:
    """Return the number of pairs from different commits, in which separate trainings also differ by rounding."""
    pairs = [(own.lines[replicate], other.lines[replicate]) for replicate in own.values if replicate in other.values]
    count = sum(one.get("commit") != two.get("commit") for one, two in pairs)
    return f" ({count} of {plural(len(pairs), 'pair')} from different commits)" if count else ""


def overall_variant_findings(grid: ExperimentGrid, entries: MethodSummaries, base: str) -> list[str]:
    """Return the comparison of methods with those that they vary and with their controls, in counts over all cells."""
    sentences = []
    for row, control in _comparisons(grid, dict.fromkeys(method for _, _, method in entries), base):
        pairs = [(entry, entries.get((*key[:2], control))) for key, entry in entries.items() if key[2] == row]
        compared = [compare_runs(own, other).paired.get("auprc") for own, other in pairs if other is not None]
        paired = [each for each in compared if each is not None]
        if paired:
            sentences.append(
                f"{grid.methods[row].label} against {grid.methods[control].label}: above in "
                f"{sum(each.difference > 0 for each in paired)} of {plural(len(paired), 'cell')}, interval above 0 in "
                f"{sum(each.low > 0 for each in paired)}, below in {sum(each.high < 0 for each in paired)}"
                f"{_without_interval(sum(each.cells == 1 for each in paired))}."
            )
    return sentences


def _without_interval(count: int) -> str:
    """Return how many of the counted cells have no interval, because they have one pair."""
    return f"; {plural(count, 'cell')} with one pair {'has' if count == 1 else 'have'} none" if count else ""


def first_stage_findings(grid: ExperimentGrid, entries: Iterable[MethodSummary]) -> list[str]:
    """Return, for each recipe, in how many runs validation chose an epoch of the first stage, before any AP loss."""
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


def _deferred_weight_findings(summary: ItemSummary) -> list[str]:
    """Return in how many runs of LDAM the chosen epoch is before the one from which the classes are weighted."""
    sentences = []
    for row in summary.rows:
        early = []
        for data, model in summary.started_cells:
            begins = resolve_settings(summary.grid, data, model, row).get("options", {}).get("defer_epoch")
            lines = summary.entries[data, model, row].lines.values() if begins is not None else ()
            early += [line["chosen"]["epoch"] <= begins for line in lines if "chosen" in line]
        if any(early):
            sentences.append(
                f"{summary.method_label(row)}: in {sum(early)} of {plural(len(early), 'run')} validation chose an "
                "epoch before its class weights set in: these models have its margins alone."
            )
    return sentences


def _convergence_findings(summary: ItemSummary, histories: Histories) -> list[str]:
    """Return the test AUPRC of each method early, at the chosen epoch, and at the best epoch by the test part."""
    sentences = []
    for cell in summary.started_cells:
        columns: dict[str, list[str]] = {"early": [], "chosen": [], "best": []}
        for entry in summary.of_cell(cell):
            runs, value = complete_histories(histories, entry, "test_auprc"), entry.mean_std()
            if not runs or value is None:
                continue
            label, means = summary.method_label(entry.method), mean_curve(runs)[0]
            columns["early"].append(f"{label} {means[min(_EARLY_EPOCHS, len(means)) - 1]:.3f}")
            columns["chosen"].append(f"{label} {value.mean:.3f}")
            columns["best"].append(f"{label} {mean(max(run) for run in runs):.3f}")
        if columns["early"]:
            sentences.append(
                f"{summary.cell_label(cell)}, mean test AUPRC: after {_EARLY_EPOCHS} epochs "
                f"{', '.join(columns['early'])}; at the epoch that validation chose {', '.join(columns['chosen'])}; at "
                "each run's best epoch by the test part, which is not a result but shows what selection by the test "
                f"part would print, {', '.join(columns['best'])}."
            )
    return sentences


def _consistency_findings(summary: ItemSummary, histories: Histories) -> list[str]:
    """Return the rank correlation of AP and −P(w) over the epochs."""
    sentences = []
    for cell in summary.started_cells:
        for entry in summary.of_cell(cell):
            values = objective_correlations(histories, entry)
            if values:
                sentences.append(
                    f"{summary.cell_label(cell)}: rank correlation of AP and −P(w) on the training set over the epochs "
                    f"{range_text(values, '.3f')} ({plural(len(values), 'run')})."
                )
    return sentences


def _batch_size_findings(summary: ItemSummary, histories: Histories) -> list[str]:  # noqa: ARG001 - one signature
    """Return the lowest and highest mean of each cell with their batch sizes, over the runs that all sizes have."""
    sentences = []
    for cell in summary.started_cells:
        entries = [entry for entry in summary.of_cell(cell) if entry.values]
        shared = set.intersection(*(set(entry.values) for entry in entries)) if len(entries) > 1 else set()
        if shared:
            means = {entry.method: mean(entry.values[run]["auprc"] for run in shared) for entry in entries}
            low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
            sizes = {name: resolve_settings(summary.grid, *cell, name)["batch_size"] for name in (low, high)}
            sentences.append(
                f"{summary.cell_label(cell)}: over {len(means)} sizes the mean test AUPRC lies between "
                f"{means[low]:.4f} (batches of {sizes[low]}) and {means[high]:.4f} (of {sizes[high]}), each over the "
                f"{plural(len(shared), 'run')} that all have."
            )
    return sentences


def _released_findings(summary: ItemSummary, histories: Histories) -> list[str]:  # noqa: ARG001
    """Return for each cell the validation and test AUPRC of every row, and the best test AUPRC where it was kept."""
    sentences = []
    for cell in summary.started_cells:
        parts = []
        for entry in summary.of_cell(cell):
            lines = [line for line in entry.lines.values() if line.get("test")]
            if not lines:
                continue
            valid, test = (mean(line[part]["auprc"] for line in lines) for part in ("valid", "test"))
            best = [line["best_test"]["auprc"] for line in lines if "best_test" in line]
            text = f"{summary.method_label(entry.method)} {valid:.3f} and {test:.3f}"
            parts.append(text + (f" ({mean(best):.3f} at the best epoch by the test part)" if best else ""))
        if parts:
            sentences.append(
                f"{summary.cell_label(cell)}, mean AUPRC on validation and test at the epoch that validation chose: "
                f"{'; '.join(parts)}. The authors' weights are one network, the same for all seeds."
            )
    return sentences


_ITEM_FINDINGS: Mapping[str, Callable[[ItemSummary, Histories], list[str]]] = {
    "convergence": _convergence_findings,
    "consistency": _consistency_findings,
    "batch-size": _batch_size_findings,
    "released": _released_findings,
}


def paper_findings(grid: ExperimentGrid, entries: Iterable[MethodSummary]) -> list[str]:
    """Return the numbers of our means within, above and below the paper's; nothing where there are none to compare."""
    counted = [entry for entry in entries if entry.against_paper is not None and not entry.repeated]
    if not counted:
        return []
    parts = []
    for position, words in (
        ("within", "within two of its standard deviations"),
        ("above", "above"),
        ("below", "below"),
    ):
        labels = Counter(grid.data[entry.data].label for entry in counted if entry.against_paper == position)
        each = f" ({'; '.join(f'{label}: {count}' for label, count in labels.items())})" if labels else ""
        parts.append(f"{words} {labels.total()}{each}")
    return [f"Means of finished rows that the paper has too: {len(counted)}; {', '.join(parts)}."]


def missing_runs(summary: ItemSummary) -> list[str]:
    """Return the cells with missing runs, each with the runs that it lacks."""
    texts = []
    for cell in summary.started_cells:
        groups: dict[str, list[str]] = {}
        for entry in summary.of_cell(cell):
            if not entry.is_finished:
                runs = f"{entry.done} of {plural(entry.total, 'run')}" if entry.done else "no run"
                groups.setdefault(runs, []).append(summary.method_label(entry.method))
        if groups:
            parts = (f"{runs} of {'; '.join(names)}" for runs, names in groups.items())
            texts.append(f"{summary.cell_label(cell)}: {' — '.join(parts)}")
    none = [summary.cell_label(cell) for cell in summary.missing_cells]
    return [*texts, *([f"no run at all: {'; '.join(none)}"] if none else [])]
