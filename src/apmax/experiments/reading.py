"""What the numbers say in words and counts: made from them, so that it cannot say more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from apmax.experiments.grid import Grid
from apmax.experiments.summary import Entry, Summary, with_paired
from apmax.experiments.tables import Block, Field, Row, difference, name_of, won

Entries = Mapping[tuple[str, str, str], Entry]


@dataclass(frozen=True)
class Score:
    """How a method stands to the base over cells.

    Args:
        cells: Data sets and networks with at least one run of both.
        unfinished: Of these, the ones where runs are missing.
        above: Where the mean difference is above zero.
        surely_above: Where its 95 % interval is above zero.
        surely_below: Where it is below.
        printed: Of these cells, those where the paper has both.
        printed_above: Where its mean is above the base's.
    """

    method: str
    cells: int
    unfinished: int
    above: int
    surely_above: int
    surely_below: int
    printed: int
    printed_above: int


def scores(entries: Entries, base: str) -> list[Score]:
    """Return how each method stands to the base, by the AUPRC of the runs that both have."""
    found = []
    for method in dict.fromkeys(name for _, _, name in entries):
        own = {key[:2]: entry for key, entry in entries.items() if key[2] == method and "auprc" in entry.paired}
        if not own:
            continue
        paired = [entry.paired["auprc"] for entry in own.values()]
        bases = {cell: entries[cell[0], cell[1], base] for cell in own if (cell[0], cell[1], base) in entries}
        printed = [
            entry.printed.mean > other.mean
            for cell, entry in own.items()
            if entry.printed is not None
            and not entry.repeated
            and cell in bases
            and (other := bases[cell].printed) is not None
        ]
        found.append(
            Score(
                method=method,
                cells=len(own),
                unfinished=sum(lacks_runs(entry) or lacks_runs(bases.get(cell)) for cell, entry in own.items()),
                above=sum(each.difference > 0 for each in paired),
                surely_above=sum(each.low > 0 for each in paired),
                surely_below=sum(each.high < 0 for each in paired),
                printed=len(printed),
                printed_above=sum(printed),
            )
        )
    return found


def lacks_runs(entry: Entry | None) -> bool:
    """Tell whether runs have yet to end; one that diverged has."""
    return entry is not None and entry.done < entry.total


def score_block(grid: Grid, found: Sequence[Score], base: str) -> Block:
    """Return the scores as a table."""
    label = grid.methods[base].label
    columns = (
        "Method",
        "Cells",
        f"above {label}",
        "interval above 0",
        "interval below 0",
        f"in the paper above {label}",
    )
    rows = []
    for score in found:
        cells = f"{score.cells}" + (f" ({score.unfinished} unfinished)" if score.unfinished else "")
        printed = f"{score.printed_above} of {score.printed}" if score.printed else ""
        counts = (str(score.above), str(score.surely_above), str(score.surely_below), printed)
        method = grid.methods[score.method]
        rows.append(Row((Field(method.label), Field(cells), *map(Field, counts)), method.ours))
    return Block(f"Test AUPRC against {label}", columns, tuple(rows))


def sentences(summary: Summary) -> list[str]:
    """Return what an item's numbers say: of SOAP and of ours against the base, and of ours against the paper's."""
    if summary.base is None:
        return []
    base = summary.grid.methods[summary.base].label
    varies = any(summary.grid.methods[row].like for row in summary.rows)
    said = []
    for score in scores(summary.entries, summary.base):
        method = summary.grid.methods[score.method]
        if method.name not in ("soap", "apmax") and len(summary.rows) > 8:
            continue
        if varies and method.like is None:
            # Another method beside the variants: what it is compared with is not what the item is about.
            continue
        text = f"{method.label}: above {base} in {score.above} of {plural(score.cells, 'cell')}"
        if score.unfinished:
            text += f" ({score.unfinished} unfinished)"
        text += f"; the 95 % interval is above zero in {score.surely_above}, below in {score.surely_below}."
        if score.printed:
            text += f" In the paper: above in {score.printed_above} of {score.printed} of them."
        said.append(text)
    return [*said, *variants(summary), *kept_cross_entropy(summary), *agreement(summary.entries.values())]


def variants(summary: Summary) -> list[str]:
    """Return how a row stands to the one that it varies, or to its control: the table compares both with the base."""
    said = []
    methods = [summary.grid.methods[row] for row in summary.rows]
    for row, against in [(method.name, other) for method in methods for other in (method.like, *method.controls)]:
        if against is None or against not in summary.rows or against == summary.base:
            continue
        for cell in summary.begun:
            own, other = (summary.entries[cell[0], cell[1], name] for name in (row, against))
            paired = with_paired(own, other).paired
            if paired:
                labels = [summary.grid.methods[name].label for name in (row, against)]
                said.append(
                    f"{name_of(summary, cell)}: {labels[0]} against {labels[1]} {difference(paired['auprc'])}, "
                    f"above in {won(paired['auprc'])}."
                )
    return said


def kept_cross_entropy(summary: Summary) -> list[str]:
    """Return in how many runs of a recipe validation chose a model of its first stage, which no AP loss has touched."""
    said = []
    for method in (summary.grid.methods[row] for row in summary.rows):
        if method.scheme != "recipe":
            continue
        for cell in summary.begun:
            lines = [line for line in summary.entries[cell[0], cell[1], method.name].lines.values() if "chosen" in line]
            first = sum(line["chosen"]["stage"] == 1 for line in lines)
            if first:
                said.append(
                    f"{name_of(summary, cell)}: {method.label}: in {first} of {plural(len(lines), 'run')} validation "
                    "chose an epoch of its first stage, cross-entropy with averaged weights: no AP loss is in these "
                    "models."
                )
    return said


def agreement(entries: Iterable[Entry]) -> list[str]:
    """Return how our means stand to the paper's, or nothing where there are none to compare."""
    standings = [entry.standing for entry in entries if entry.standing is not None and not entry.repeated]
    if not standings:
        return []
    within, above, below = (standings.count(name) for name in ("within", "above", "below"))
    return [
        f"Of {plural(len(standings), 'mean')} that the paper has too, {within} are within two of its standard "
        f"deviations, {above} above, {below} below."
    ]


def unfinished(summary: Summary) -> list[str]:
    """Return the cells that lack runs, each with what it lacks."""
    said = []
    for cell in summary.begun:
        groups: dict[str, list[str]] = {}
        for entry in summary.of(cell):
            if entry.done < entry.total:
                has = f"{entry.done} of {plural(entry.total, 'run')}" if entry.done else "no run"
                groups.setdefault(has, []).append(summary.grid.methods[entry.method].label)
        if groups:
            parts = (f"{has} of {'; '.join(names)}" for has, names in groups.items())
            said.append(f"{name_of(summary, cell)}: {' — '.join(parts)}")
    none = [name_of(summary, cell) for cell in summary.cells if cell not in summary.begun]
    return [*said, *([f"no run at all: {'; '.join(none)}"] if none else [])]


def plural(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "cell"), plural(3, "cell")
    ('1 cell', '3 cells')
    """
    return f"{count} {noun}{'s' * (count != 1)}"
