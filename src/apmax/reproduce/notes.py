"""What a reader must know to read an item's numbers."""

from __future__ import annotations

from statistics import mean

from apmax.reproduce.summary import Summary, name_of

NONE = "—"


def tried(summary: Summary) -> str:
    """Return what a budget means."""
    count = summary.grid.budgets[summary.budget]
    if count == 1:
        return "one configuration of each method, the published one where there is one"
    return f"up to {count} configurations of each method, the best by validation AP"


def notes(summary: Summary) -> list[str]:
    """Return what a reader must know to read the numbers."""
    said = [METRIC_NOTE]
    if summary.printed:
        said.append(MARK_NOTE)
    if summary.base is not None:
        said.append(difference_note(summary.grid.methods[summary.base].label))
    return [*said, *own_notes(summary)]


METRIC_NOTE = (
    "AUPRC is the trapezoidal area under the precision–recall points, which is what the paper prints; AP is average "
    "precision. Mean ± standard deviation (n − 1) over the runs; bold is the best mean of a column among the methods "
    "with the most runs."
)
MARK_NOTE = (
    "Paper: mean ± standard deviation as printed. ≈ our mean is within two of the paper's standard deviations, ▲ "
    "above, ▼ below, of rows whose runs are all there: a description, not a test."
)


def difference_note(base: str) -> str:
    """Return what the differences to a method are."""
    return (
        f"− {base}: mean of the differences to {base} over the runs that both have, with Student's 95 % interval; each "
        "is for one comparison, so that one in twenty excludes zero by chance. Won: in how many of these runs it is "
        f"above {base}."
    )


def own_notes(summary: Summary) -> list[str]:
    """Return what is to be known of this item's runs, and of the paper's."""
    said = [*split_notes(summary), *part_notes(summary), *run_notes(summary)]
    if summary.printed:
        count = summary.printed.runs
        said += [f"The paper's numbers are over {count} {summary.printed.over}."] if count else []
        said += summary.printed.notes
    return said


def split_notes(summary: Summary) -> list[str]:
    """Return what is said of data sets whose runs are splits: they differ for another reason than seeds do."""
    said = []
    for data in dict.fromkeys(data for data, _ in summary.begun):
        entry = summary.grid.data[data]
        positives = [line["test"]["positives"] for line in summary.lines if line["data"] == data and line.get("test")]
        if len(entry.splits) > 1 and positives:
            low, high = min(positives), max(positives)
            held = f"{low} positives" if low == high else f"{low} to {high} positives"
            said.append(
                f"{entry.label}: a run is one of {len(entry.splits)} splits, whose test parts have {held}. The "
                "deviation is that between splits; the differences are taken within a split."
            )
            if (summary.seeds or entry.seeds) > 1:
                said.append(
                    f"{entry.label}: the {summary.seeds or entry.seeds} seeds of a split count as runs, though they "
                    "share its data: deviations and intervals are narrower than new splits would give."
                )
    return said


def part_notes(summary: Summary) -> list[str]:
    """Return which networks were run on a part of the splits or seeds only, and what others reach on that part."""
    said = []
    for cell in summary.begun:
        rows = [summary.entries[cell[0], cell[1], row] for row in summary.rows]
        entry = next((each for each in rows if each.method == summary.base), rows[0])
        others = []
        for other in summary.begun:
            beside = summary.entries[other[0], other[1], entry.method]
            if other[0] == cell[0] and entry.values and set(entry.values) < set(beside.values):
                reached = mean(beside.values[where]["auprc"] for where in entry.values)
                others.append(f"{reached:.4f} with {summary.grid.models[other[1]].label}")
        if others:
            where = ", ".join(split or f"seed {seed}" for split, seed in entry.values)
            said.append(
                f"{name_of(summary, cell)}: {where} only. On these {summary.grid.methods[entry.method].label} has "
                f"{' and '.join(others)}: the column is not to be compared with those of all runs."
            )
    return said


def run_notes(summary: Summary) -> list[str]:
    """Return what is said of runs that are missing."""
    shown = [entry for cell in summary.begun for entry in summary.of(cell)]
    said = []
    if any(entry.diverged for entry in shown):
        said.append("Diverged runs have no value: they are counted, and left out of means and differences.")
    if any(entry.done < entry.total for entry in shown):
        said.append(f"Unfinished: n of m runs, {NONE} for none; means and differences are of what there is.")
    return said
