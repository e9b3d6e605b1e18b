"""How methods stand to cross-entropy and to the paper, in counts, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from apmax.reproduce.grid import Grid
from apmax.reproduce.summary import Entry, Summary, name_of, plural
from apmax.reproduce.tables import Block, Field, Row

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


def agreement(grid: Grid, entries: Iterable[Entry]) -> list[str]:
    """Return how our means stand to the paper's, or nothing where there are none to compare."""
    counted = [entry for entry in entries if entry.standing is not None and not entry.repeated]
    if not counted:
        return []
    said = []
    for standing, words in (
        ("within", "within two of its standard deviations"),
        ("above", "above"),
        ("below", "below"),
    ):
        labels = Counter(grid.data[entry.data].label for entry in counted if entry.standing == standing)
        each = f" ({'; '.join(f'{label}: {count}' for label, count in labels.items())})" if labels else ""
        said.append(f"{words} {labels.total()}{each}")
    return [f"Means of finished rows that the paper has too: {len(counted)}; {', '.join(said)}."]


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
