"""The figures of items: each table as dots, and the paper's four kinds of curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apmax import extras
from apmax.reproduce import curves
from apmax.reproduce.drawing import GREY, OURS, PAPERS, tidy
from apmax.reproduce.summary import Cell, Entry, Summary, name_of

Histories = Mapping[str, Mapping[str, Any]]

CURVES = {
    "convergence": curves.convergence,
    "batch-size": curves.batch_sizes,
    "consistency": curves.consistency,
    "pr-curves": curves.precision_recall,
}


def draw(summary: Summary, path: Path, histories: Histories) -> list[Path]:
    """Draw an item's figure and return its files; none where nothing has been run that it could show.

    Args:
        summary: What the results say.
        path: Without an ending.
        histories: How the epochs of runs went, by key.
    """
    extras.load("matplotlib", "report").use("Agg")
    plt = extras.load("matplotlib.pyplot", "report")
    with plt.rc_context({"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = CURVES.get(summary.item.name, dots)(summary, histories)
        if figure is None:
            return []
        target = path.with_name(path.name + ".png")
        # Without the program's version in it, the same numbers give the same file.
        figure.savefig(target, dpi=150, metadata={"Software": None})
        plt.close(figure)
    return [target]


def is_drawn(summary: Summary, histories: Histories) -> bool:
    """Tell whether `draw` would have something to show."""
    shown = CURVES.get(summary.item.name)
    return bool(curves.SHOWN[shown](summary, histories)) if shown in curves.SHOWN else bool(summary.begun)


def dots(summary: Summary, histories: Histories) -> Any:  # noqa: ARG001 - what the other figures are given
    """Draw a panel for each data set and network: a line for each method, its mean, its runs, and the paper's mean.

    A data set's panels have one scale, and the methods of which one of its networks has runs; tables name the others.
    """
    if not summary.begun:
        return None
    plt = extras.load("matplotlib.pyplot", "report")
    cells_of = {data: [cell for cell in summary.begun if cell[0] == data] for data, _ in summary.begun}
    rows_of = {data: rows_with_runs(summary, cells) for data, cells in cells_of.items()}
    columns = max(map(len, cells_of.values()))
    heights = [0.9 + 0.26 * len(rows) for rows in rows_of.values()]
    figure, panels = plt.subplots(
        len(cells_of),
        columns,
        figsize=(2.4 + 3.1 * columns, sum(heights) + 0.4),
        layout="constrained",
        squeeze=False,
        sharex="row",
        height_ratios=heights,
    )
    for line, (data, cells) in zip(panels, cells_of.items(), strict=True):
        for axes, cell in zip(line, cells, strict=False):
            panel(axes, summary, cell, rows_of[data], named=cell is cells[0])
        for axes in line[len(cells) :]:
            axes.set_axis_off()
    handles = legend(plt, any(entry.printed for cell in summary.begun for entry in summary.of(cell)))
    # Beside a single panel there is room for two marks in a line only.
    figure.legend(handles=handles, loc="outside upper left", ncols=2 if columns == 1 else len(handles), frameon=False)
    return figure


def rows_with_runs(summary: Summary, cells: Sequence[Cell]) -> list[str]:
    """Return the methods of which one of the cells has a run."""
    return [row for row in summary.rows if any(summary.entries[data, model, row].done for data, model in cells)]


def panel(axes: Any, summary: Summary, cell: Cell, rows: Sequence[str], *, named: bool) -> None:
    """Draw one data set and network."""
    entries = [summary.entries[cell[0], cell[1], row] for row in rows]
    for height, entry in enumerate(reversed(entries)):
        colour = OURS if summary.grid.methods[entry.method].ours else PAPERS
        draw_entry(axes, entry, height, colour)
    base = next((entry.spread() for entry in entries if entry.method == summary.base), None)
    if base is not None:
        axes.axvline(base.mean, color=GREY, linestyle=":", linewidth=1, zorder=0)
    labels = [summary.grid.methods[row].label for row in reversed(rows)]
    axes.set_yticks(range(len(entries)), labels if named else [""] * len(entries))
    axes.set_ylim(-0.7, len(entries) - 0.3)
    ours = sum(summary.grid.methods[row].ours for row in rows)
    if 0 < ours < len(entries):
        axes.axhline(ours - 0.5, color=GREY, linewidth=0.8, alpha=0.6)
    axes.set_title(name_of(summary, cell), loc="left")
    axes.set_xlabel("test AUPRC")
    tidy(axes)
    axes.tick_params(axis="y", length=0)


def draw_entry(axes: Any, entry: Entry, height: float, colour: str) -> None:
    """Draw one method's line of a panel; what has not been run, or not all, is said."""
    if entry.printed is not None:
        place = [entry.printed.mean], [height + 0.22]
        axes.errorbar(*place, xerr=entry.printed.std, fmt="D", mfc="white", color=GREY, ms=4.5, lw=0.9, zorder=2)
    spread = entry.spread()
    if spread is not None:
        runs = [value["auprc"] for value in entry.values.values()]
        axes.plot(runs, [height] * len(runs), "|", color=colour, alpha=0.45, markersize=7, zorder=1)
        axes.errorbar([spread.mean], [height], xerr=spread.std or 0, fmt="o", color=colour, ms=5.5, lw=1.6, zorder=3)
    if entry.done < entry.total:
        said = f"{entry.done} of {entry.total}" if entry.done else "not run"
        axes.annotate(said, (1.01, height), xycoords=("axes fraction", "data"), fontsize=7, color=GREY, va="center")


def legend(plt: Any, with_paper: bool) -> list[Any]:
    """Return what the marks mean."""
    line = plt.Line2D
    found = [
        line([], [], color=PAPERS, marker="o", lw=1.6, label="the paper's methods, our runs: mean ± std"),
        line([], [], color=OURS, marker="o", lw=1.6, label="our rows"),
        line([], [], color=PAPERS, marker="|", lw=0, alpha=0.6, label="single runs"),
    ]
    if with_paper:
        found.append(line([], [], color=GREY, marker="D", mfc="white", lw=0.9, label="printed in the paper"))
    return found
