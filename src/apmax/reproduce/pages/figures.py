"""Figures: dots for tables, and the paper's curves of convergence, batch size, consistency and precision–recall."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from apmax import extras
from apmax.reproduce.grid import GridCell, resolve_settings
from apmax.reproduce.pages.summary import (
    Histories,
    ItemSummary,
    MethodSummary,
    complete_histories,
    mean_curve,
    objective_correlations,
)
from apmax.reproduce.pages.text import range_text
from apmax.validation import plural

# The palette of Okabe and Ito, which is safe for colour-blind readers.
_BLUE, _ORANGE, _GREEN, _PURPLE, _SKY, _AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
_BLACK, _GREY = "#222222", "#767676"
_PAPER_ROWS, _OUR_ROWS = _BLUE, _ORANGE
_CURVE_STYLES: dict[str, tuple[str, str]] = {
    "ce": (_BLACK, "-"),
    "soap": (_ORANGE, "-"),
    "apmax": (_BLUE, "-"),
    "ce_averaged": (_GREY, "-"),
    "smooth_ap": (_GREEN, "-"),
    "fast_ap": (_PURPLE, "-"),
    "minmax": (_SKY, "-"),
    "cb_ce": (_BLACK, "--"),
    "focal": (_AMBER, "--"),
    "ldam": (_GREEN, "--"),
    "auc_m": (_PURPLE, "--"),
}
"""Colour and line style of a method, the same in all figures; precision–recall curves have these methods only."""
_LABEL_GAP = 0.05
"""The smallest distance between the names of two curves, as a share of the panel's height."""


def draw_item(summary: ItemSummary, path: Path, histories: Histories) -> list[Path]:
    """Draw the figure of an item and return its files; none where no run could be shown.

    Args:
        summary: The summary of the item.
        path: The file's path without suffix.
        histories: The values after each epoch, by the key of the run.
    """
    if not has_figure(summary, histories):
        return []
    target = path.with_name(path.name + ".png")
    save_figure(lambda: draw_figure(summary, histories), target)
    return [target]


def save_figure(draw: Callable[[], Any], path: Path) -> None:
    """Write the figure that a function draws as PNG, the same bytes for the same figure."""
    mpl = extras.load("matplotlib", "report")
    with mpl.rc_context({"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False}):
        # Without the version of matplotlib in it, the same numbers give the same file.
        draw().savefig(path, dpi=150, metadata={"Software": None})


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of a size in inches, which belongs to no window."""
    return extras.load("matplotlib.figure", "report").Figure(figsize=(width, height), layout="constrained")


def has_figure(summary: ItemSummary, histories: Histories) -> bool:
    """Return whether an item has a run that its figure can show."""
    return bool(_shown_cells(summary, histories))


def draw_figure(summary: ItemSummary, histories: Histories) -> Any:
    """Return the figure of an item that has one: its curves, a panel for each cell, or dots.

    Args:
        summary: The summary of the item.
        histories: The values after each epoch, by the key of the run.
    """
    cells, curves = _shown_cells(summary, histories), CURVE_FIGURES.get(summary.item.name)
    if curves is None:
        return _draw_dots(summary, cells)
    figure, panels = _panels(len(cells), width=curves.width, height=curves.height)
    for axes, cell in zip(panels, cells, strict=True):
        curves.draw(axes, summary, cell, histories)
        _add_grid_lines(axes)
    if curves.caption:
        figure.supxlabel(curves.caption, fontsize=8, color=_GREY)
    return figure


def _shown_cells(summary: ItemSummary, histories: Histories) -> list[GridCell]:
    """Return the cells that the figure of an item can show."""
    curves = CURVE_FIGURES.get(summary.item.name)
    return [
        cell
        for cell in summary.started_cells
        if curves is None or any(curves.has_values(entry, histories) for entry in summary.of_cell(cell))
    ]


def _draw_dots(summary: ItemSummary, started: Sequence[GridCell]) -> Any:
    """Return a panel for each cell: for each method its mean, its single runs, and the paper's mean.

    The panels of a data set share the scale, and the methods that have runs with one of its networks.
    """
    cells_of = {data: [cell for cell in started if cell[0] == data] for data, _ in started}
    rows_of = {data: _rows_with_runs(summary, cells) for data, cells in cells_of.items()}
    columns = max(map(len, cells_of.values()))
    heights = [0.9 + 0.26 * len(rows) for rows in rows_of.values()]
    figure = new_figure(2.4 + 3.1 * columns, sum(heights) + 0.4)
    panels = figure.subplots(len(cells_of), columns, squeeze=False, sharex="row", height_ratios=heights)
    for line, (data, cells) in zip(panels, cells_of.items(), strict=True):
        for axes, cell in zip(line, cells, strict=False):
            _draw_dot_panel(axes, summary, cell, rows_of[data], with_labels=cell is cells[0])
        for axes in line[len(cells) :]:
            axes.set_axis_off()
    handles = _dot_legend(any(entry.printed for cell in started for entry in summary.of_cell(cell)))
    # A single panel is wide enough for two entries in a line only.
    figure.legend(handles=handles, loc="outside upper left", ncols=2 if columns == 1 else len(handles), frameon=False)
    return figure


def _rows_with_runs(summary: ItemSummary, cells: Sequence[GridCell]) -> list[str]:
    """Return the methods that have a run in one of the cells."""
    return [row for row in summary.rows if any(summary.entries[data, model, row].done for data, model in cells)]


def _draw_dot_panel(axes: Any, summary: ItemSummary, cell: GridCell, rows: Sequence[str], *, with_labels: bool) -> None:
    """Draw the panel of one data set and network."""
    entries = [summary.entries[cell[0], cell[1], row] for row in rows]
    for height, entry in enumerate(reversed(entries)):
        colour = _OUR_ROWS if summary.grid.methods[entry.method].ours else _PAPER_ROWS
        _draw_dot_row(axes, entry, height, colour)
    base = next((entry.mean_std() for entry in entries if entry.method == summary.base), None)
    if base is not None:
        axes.axvline(base.mean, color=_GREY, linestyle=":", linewidth=1, zorder=0)
    labels = [summary.method_label(row) for row in reversed(rows)]
    axes.set_yticks(range(len(entries)), labels if with_labels else [""] * len(entries))
    axes.set_ylim(-0.7, len(entries) - 0.3)
    ours = sum(summary.grid.methods[row].ours for row in rows)
    if 0 < ours < len(entries):
        axes.axhline(ours - 0.5, color=_GREY, linewidth=0.8, alpha=0.6)
    axes.set_title(summary.cell_label(cell), loc="left")
    axes.set_xlabel("test AUPRC")
    _add_grid_lines(axes)
    axes.tick_params(axis="y", length=0)


def _draw_dot_row(axes: Any, entry: MethodSummary, height: float, colour: str) -> None:
    """Draw one method of a panel, with a remark where runs are missing."""
    if entry.printed is not None:
        position = [entry.printed.mean], [height + 0.22]
        axes.errorbar(*position, xerr=entry.printed.std, fmt="D", mfc="white", color=_GREY, ms=4.5, lw=0.9, zorder=2)
    value = entry.mean_std()
    if value is not None:
        runs = [each["auprc"] for each in entry.values.values()]
        axes.plot(runs, [height] * len(runs), "|", color=colour, alpha=0.45, markersize=7, zorder=1)
        axes.errorbar([value.mean], [height], xerr=value.std or 0, fmt="o", color=colour, ms=5.5, lw=1.6, zorder=3)
    if not entry.is_finished:
        text = f"{entry.done} of {entry.total}" if entry.done else "not run"
        axes.annotate(text, (1.01, height), xycoords=("axes fraction", "data"), fontsize=7, color=_GREY, va="center")


def _dot_legend(with_paper: bool) -> list[Any]:
    """Return the legend's entries."""
    line = extras.load("matplotlib.lines", "report").Line2D
    handles = [
        line([], [], color=_PAPER_ROWS, marker="o", lw=1.6, label="the paper's methods, our runs: mean ± std"),
        line([], [], color=_OUR_ROWS, marker="o", lw=1.6, label="our rows"),
        line([], [], color=_PAPER_ROWS, marker="|", lw=0, alpha=0.6, label="single runs"),
    ]
    if with_paper:
        handles.append(line([], [], color=_GREY, marker="D", mfc="white", lw=0.9, label="printed in the paper"))
    return handles


def _draw_convergence(axes: Any, summary: ItemSummary, cell: GridCell, histories: Histories) -> None:
    """Draw the test AUPRC of the AP-type methods after each epoch: mean over runs and its standard error."""
    ends, missing = [], []
    for entry in summary.of_cell(cell):
        runs = complete_histories(histories, entry, "test_auprc")
        if not runs:
            missing.append(entry)
            continue
        colour, style = _CURVE_STYLES.get(entry.method, (_GREY, "-"))
        means, errors = mean_curve(runs)
        epochs = range(1, len(means) + 1)
        axes.plot(epochs, means, color=colour, linestyle=style, linewidth=1.8)
        _draw_band(axes, epochs, means, errors, colour)
        ends.append((len(means), means[-1], f"{summary.method_label(entry.method)} ({len(runs)})", colour))
    axes.set(xlabel="epoch of the second stage" + _not_run(summary, missing), ylabel="test AUPRC")
    axes.set_title(summary.cell_label(cell), loc="left")
    axes.set_xlim(left=0)
    _label_curve_ends(axes, ends)


def _draw_batch_sizes(axes: Any, summary: ItemSummary, cell: GridCell, _: Histories) -> None:
    """Draw the test AUPRC of SOAP against the batch size: single runs, and mean ± standard deviation."""
    sizes, values = [], []
    for entry in summary.of_cell(cell):
        size, value = resolve_settings(summary.grid, *cell, entry.method)["batch_size"], entry.mean_std()
        if value is None:
            continue
        axes.plot([size] * value.runs, [v["auprc"] for v in entry.values.values()], "_", color=_ORANGE, alpha=0.5)
        sizes.append(size)
        values.append(value)
    means, deviations = [value.mean for value in values], [value.std or 0 for value in values]
    axes.errorbar(sizes, means, yerr=deviations, fmt="o-", color=_ORANGE, linewidth=1.8, markersize=5)
    ticks = [resolve_settings(summary.grid, *cell, row)["batch_size"] for row in summary.rows]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.set_xlim(min(ticks) / 1.4, max(ticks) * 1.4)
    missing = [entry for entry in summary.of_cell(cell) if not entry.values]
    axes.set(xlabel="batch size" + _not_run(summary, missing), ylabel="test AUPRC")
    axes.set_title(f"{summary.cell_label(cell)}: SOAP", loc="left")


def _draw_consistency(axes: Any, summary: ItemSummary, cell: GridCell, histories: Histories) -> None:
    """Draw AP and −P(w) of the training set over the iterations: means over runs, on two scales."""
    (entry,) = summary.of_cell(cell)
    steps = max(complete_histories(histories, entry, "steps"), key=len)
    right = axes.twinx()
    for side, name, label, colour, style, sign in (
        (axes, "train_ap", "AP", _BLUE, "-", 1),
        (right, "train_objective", "−P(w)", _ORANGE, "--", -1),
    ):
        runs = [[sign * value for value in run] for run in complete_histories(histories, entry, name)]
        means, errors = mean_curve(runs)
        side.plot(steps[: len(means)], means, color=colour, linestyle=style, linewidth=1.8)
        _draw_band(side, steps[: len(means)], means, errors, colour)
        side.set_ylabel(f"{label} on the training set ({'dashed' if style == '--' else 'full line'})", color=colour)
        side.tick_params(axis="y", colors=colour)
    right.spines["right"].set_visible(True)
    axes.set(xlabel="iteration")
    values = objective_correlations(histories, entry)
    text = f"rank correlation {range_text(values, '.2f')}, {plural(len(values), 'run')}"
    axes.set_title(f"{summary.cell_label(cell)}\n{text}", loc="left")


def _draw_precision_recall(axes: Any, summary: ItemSummary, cell: GridCell, _: Histories) -> None:
    """Draw precision over recall of the first run of each method, with the no-skill line n₊/n."""
    drawn = {entry.method: line for entry in summary.of_cell(cell) if (line := _curve_line(entry)) is not None}
    for method, line in drawn.items():
        colour, style = _CURVE_STYLES[method]
        label = f"{line['test']['auprc']:.3f} {summary.method_label(method)}"
        width, order = (2.2, 3) if method in ("ce", "soap", "apmax") else (1.2, 2)
        points = zip(*line["curve"], strict=True)
        axes.plot(*points, color=colour, linestyle=style, linewidth=width, zorder=order, label=label)
    share = next(line["test"]["positives"] / line["test"]["rows"] for line in drawn.values())
    axes.axhline(share, color="grey", linestyle="--", linewidth=1, label=f"{share:.3f} no skill, n₊/n")
    missing = [entry for entry in summary.of_cell(cell) if entry.method in _CURVE_STYLES.keys() - drawn]
    axes.set(xlabel="recall" + _not_run(summary, missing), ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    axes.set_title(f"{summary.cell_label(cell)}: first run", loc="left")
    position = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "alignment": "left"}
    axes.legend(frameon=False, fontsize=8, title="test AUPRC", title_fontsize=8, **position)


def _curve_line(entry: MethodSummary) -> Mapping[str, Any] | None:
    """Return the result that has a precision–recall curve, or None; only methods with a curve style have one."""
    return next((line for line in entry.lines.values() if "curve" in line and entry.method in _CURVE_STYLES), None)


class _Curves(NamedTuple):
    """A kind of figure with curves in a panel for each cell.

    Args:
        draw: Draws the panel of a cell.
        has_values: Returns whether the results of a method have what is drawn.
        caption: A line below the panels.
        width: Width of a panel in inches.
        height: Height of a panel in inches.
    """

    draw: Callable[[Any, ItemSummary, GridCell, Histories], None]
    has_values: Callable[[MethodSummary, Histories], bool]
    caption: str = ""
    width: float = 4.3
    height: float = 3.6


CURVE_FIGURES = {
    "convergence": _Curves(
        _draw_convergence,
        lambda entry, histories: bool(complete_histories(histories, entry, "test_auprc")),
        "Mean over (n) runs, band: standard error. A line ends where the first of its runs stopped early.",
    ),
    "batch-size": _Curves(_draw_batch_sizes, lambda *_: True),
    "consistency": _Curves(
        _draw_consistency,
        lambda entry, histories: bool(complete_histories(histories, entry, "train_objective")),
        width=4.8,
    ),
    "pr-curves": _Curves(
        _draw_precision_recall,
        lambda entry, _: _curve_line(entry) is not None,
        "The best precision at or beyond each recall.",
        width=6.0,
        height=4.0,
    ),
}
"""The figures of curves by the names of their items; all other items are drawn as dots."""


def _draw_band(axes: Any, x: Iterable[float], means: Sequence[float], errors: Sequence[float], colour: str) -> None:
    """Draw a band of one standard error around a curve, unless all errors are zero."""
    if any(errors):
        low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(list(x), low, high, color=colour, alpha=0.15, linewidth=0)


def _not_run(summary: ItemSummary, entries: Sequence[MethodSummary]) -> str:
    """Return the text under a panel about the methods that it lacks."""
    names = [summary.method_label(entry.method) for entry in entries]
    return "\n" + fill(f"(not run: {'; '.join(names)})", 45) if names else ""


def _panels(count: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
    """Return a figure and its panels, two or three in a row."""
    columns = min(count, 2 if count in (2, 4) else 3)
    rows = -(-count // columns)
    figure = new_figure(width * columns, height * rows)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[count:]:
        axes.set_axis_off()
    return figure, list(panels.flat[:count])


def _add_grid_lines(axes: Any) -> None:
    """Draw faint grid lines behind the data."""
    axes.grid(axis="both", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)


def _label_curve_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write the name of each curve beside its end, without overlaps.

    Args:
        axes: The panel; its limits must not change afterwards.
        ends: x, y, name and colour of each curve.
    """
    low, high = axes.get_ylim()
    positions = spread_out([(y - low) / (high - low) for _, y, _, _ in ends], _LABEL_GAP)
    for (x, y, name, colour), position in zip(ends, positions, strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=(1.02, position),
            textcoords="axes fraction",
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.6, "shrinkA": 0, "shrinkB": 0},
        )


def spread_out(positions: Sequence[float], gap: float) -> list[float]:
    """Return positions moved apart to at least `gap`, in the same order and with the same mean.

    >>> [round(position, 3) for position in spread_out([0.5, 0.9, 0.5], 0.1)]
    [0.45, 0.9, 0.55]
    """

    def start(group: Sequence[int]) -> float:
        return sum(positions[k] for k in group) / len(group) - gap * (len(group) - 1) / 2

    # Neighbours that are too close form a group, spaced evenly around its mean; groups that then overlap are joined.
    groups: list[list[int]] = []
    for k in sorted(range(len(positions)), key=lambda k: positions[k]):
        groups.append([k])
        while len(groups) > 1 and start(groups[-1]) < start(groups[-2]) + gap * len(groups[-2]) - 1e-12:
            last = groups.pop()
            groups[-1] += last
    result = [0.0] * len(positions)
    for group in groups:
        for number, k in enumerate(group):
            result[k] = start(group) + number * gap
    return result
