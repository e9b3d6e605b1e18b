"""The paper's figures: convergence, batch size, consistency, precision over recall."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, stdev
from textwrap import fill
from typing import Any

from apmax import extras
from apmax.reproduce.drawing import AMBER, BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, label_ends, tidy
from apmax.reproduce.settings import resolve
from apmax.reproduce.summary import Cell, Entry, Summary, name_of, plural

Histories = Mapping[str, Mapping[str, Any]]
Line = Sequence[float]

STYLES: dict[str, tuple[str, str]] = {
    "ce": (BLACK, "-"),
    "soap": (ORANGE, "-"),
    "apmax": (BLUE, "-"),
    "ce_averaged": (GREY, "-"),
    "smooth_ap": (GREEN, "-"),
    "fast_ap": (PURPLE, "-"),
    "minmax": (SKY, "-"),
    "cb_ce": (BLACK, "--"),
    "focal": (AMBER, "--"),
    "ldam": (GREEN, "--"),
    "auc_m": (PURPLE, "--"),
}
"""Colour and stroke of a method, the same in all figures; others are not drawn as curves."""


def convergence(summary: Summary, histories: Histories) -> Any:
    """Draw the test AUPRC of the AP-type methods after each epoch: mean over runs and its standard error."""
    cells = with_histories(summary, histories)
    if not cells:
        return None
    figure, panels = row_of_panels(len(cells), width=4.3)
    for axes, cell in zip(panels, cells, strict=True):
        ends = []
        for entry in summary.of(cell):
            runs = known(histories, entry, "test_auprc")
            if not runs:
                continue
            colour, stroke = STYLES.get(entry.method, (GREY, "-"))
            middle, reach = averaged(runs)
            epochs = range(1, len(middle) + 1)
            axes.plot(epochs, middle, color=colour, linestyle=stroke, linewidth=1.8)
            band(axes, epochs, middle, reach, colour)
            ends.append((len(middle), middle[-1], f"{summary.grid.methods[entry.method].label} ({len(runs)})", colour))
        lacking = [entry for entry in summary.of(cell) if not known(histories, entry, "test_auprc")]
        axes.set(xlabel="epoch of the second stage" + not_run(summary, lacking), ylabel="test AUPRC")
        axes.set_title(name_of(summary, cell), loc="left")
        axes.set_xlim(left=0)
        tidy(axes)
        label_ends(axes, ends)
    figure.supxlabel(
        "Mean over (n) runs, band: standard error. A line ends where the first of its runs stopped early.",
        fontsize=8,
        color=GREY,
    )
    return figure


def batch_sizes(summary: Summary, histories: Histories) -> Any:  # noqa: ARG001 - what the other figures are given
    """Draw SOAP's test AUPRC against the batch's size: single runs, their mean ± standard deviation."""
    if not summary.begun:
        return None
    figure, panels = row_of_panels(len(summary.begun), width=4.3)
    for axes, cell in zip(panels, summary.begun, strict=True):
        sizes, spreads = [], []
        for entry in summary.of(cell):
            size, spread = resolve(summary.grid, *cell, entry.method)["batch_size"], entry.spread()
            if spread is None:
                continue
            axes.plot([size] * spread.runs, [v["auprc"] for v in entry.values.values()], "_", color=ORANGE, alpha=0.5)
            sizes.append(size)
            spreads.append(spread)
        means, reach = [spread.mean for spread in spreads], [spread.std or 0 for spread in spreads]
        axes.errorbar(sizes, means, yerr=reach, fmt="o-", color=ORANGE, linewidth=1.8, markersize=5)
        every = [resolve(summary.grid, *cell, row)["batch_size"] for row in summary.rows]
        axes.set_xscale("log", base=2)
        axes.set_xticks(every, [str(size) for size in every])
        axes.set_xlim(min(every) / 1.4, max(every) * 1.4)
        lacking = [entry for entry in summary.of(cell) if not entry.values]
        axes.set(xlabel="batch size" + not_run(summary, lacking), ylabel="test AUPRC")
        axes.set_title(f"{name_of(summary, cell)}: SOAP", loc="left")
        tidy(axes)
    return figure


def consistency(summary: Summary, histories: Histories) -> Any:
    """Draw AP and −P(w) of the training set over the iterations: means over runs, each on a scale of its own."""
    cells = with_histories(summary, histories)
    if not cells:
        return None
    figure, panels = row_of_panels(len(cells), width=4.8)
    for axes, cell in zip(panels, cells, strict=True):
        (entry,) = (entry for entry in summary.of(cell))
        steps = max(known(histories, entry, "steps"), key=len)
        other = axes.twinx()
        for place, name, label, colour, stroke, sign in (
            (axes, "train_ap", "AP", BLUE, "-", 1),
            (other, "train_objective", "−P(w)", ORANGE, "--", -1),
        ):
            runs = [[sign * value for value in run] for run in known(histories, entry, name)]
            middle, reach = averaged(runs)
            place.plot(steps[: len(middle)], middle, color=colour, linestyle=stroke, linewidth=1.8)
            band(place, steps[: len(middle)], middle, reach, colour)
            place.set_ylabel(
                f"{label} on the training set ({'dashed' if stroke == '--' else 'full line'})", color=colour
            )
            place.tick_params(axis="y", colors=colour)
        other.spines["right"].set_visible(True)
        axes.set(xlabel="iteration")
        agreement = rank_correlations(histories, entry)
        said = "rank correlation " + " to ".join(dict.fromkeys(f"{end(agreement):.2f}" for end in (min, max)))
        axes.set_title(f"{name_of(summary, cell)}\n{said}, {plural(len(agreement), 'run')}", loc="left")
        tidy(axes)
    return figure


def precision_recall(summary: Summary, histories: Histories) -> Any:  # noqa: ARG001 - what the other figures are given
    """Draw precision over recall of each method's first run, with the no-skill line n₊/n."""
    cells = with_curves(summary)
    if not cells:
        return None
    figure, panels = row_of_panels(len(cells), width=6.0, height=4.0)
    for axes, cell in zip(panels, cells, strict=True):
        drawn = {entry.method: line for entry in summary.of(cell) if (line := curve_of(entry)) is not None}
        for method, line in drawn.items():
            colour, stroke = STYLES[method]
            strong = method in ("ce", "soap", "apmax")
            label = f"{line['test']['auprc']:.3f} {summary.grid.methods[method].label}"
            width, order = (2.2, 3) if strong else (1.2, 2)
            at = zip(*line["curve"], strict=True)
            axes.plot(*at, color=colour, linestyle=stroke, linewidth=width, zorder=order, label=label)
        share = next(line["test"]["positives"] / line["test"]["rows"] for line in drawn.values())
        axes.axhline(share, color="grey", linestyle="--", linewidth=1, label=f"{share:.3f} no skill, n₊/n")
        lacking = [entry for entry in summary.of(cell) if entry.method in STYLES and entry.method not in drawn]
        axes.set(xlabel="recall" + not_run(summary, lacking), ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
        axes.set_title(f"{name_of(summary, cell)}: first run", loc="left")
        place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "alignment": "left"}
        axes.legend(frameon=False, fontsize=8, title="test AUPRC", title_fontsize=8, **place)
        tidy(axes)
    figure.supxlabel("The best precision at or beyond each recall.", fontsize=8, color=GREY)
    return figure


def with_histories(summary: Summary, histories: Histories) -> list[Cell]:
    """Return the cells of which some run's epochs were kept."""
    name = "test_auprc" if summary.item.name == "convergence" else "train_objective"
    return [cell for cell in summary.begun if any(known(histories, entry, name) for entry in summary.of(cell))]


def with_curves(summary: Summary) -> list[Cell]:
    """Return the cells of which some run's curve was kept."""
    return [cell for cell in summary.begun if any(curve_of(entry) is not None for entry in summary.of(cell))]


def curve_of(entry: Entry) -> Mapping[str, Any] | None:
    """Return the result that has an entry's curve, or None; of the methods that are drawn."""
    return next((line for line in entry.lines.values() if "curve" in line and entry.method in STYLES), None)


SHOWN: dict[Callable[[Summary, Histories], Any], Callable[[Summary, Histories], list[Cell]]] = {
    convergence: with_histories,
    consistency: with_histories,
    precision_recall: lambda summary, _: with_curves(summary),
}
"""What decides whether a figure has something to show, where that is not the results alone."""


def known(histories: Histories, entry: Entry, name: str) -> list[Line]:
    """Return one quantity over the epochs of those of an entry's runs of which it was kept throughout."""
    found = [histories[line["key"]][name] for line in entry.lines.values() if line["key"] in histories]
    return [run for run in found if run and None not in run]


def averaged(runs: Sequence[Line]) -> tuple[list[float], list[float]]:
    """Return the mean at each epoch that all runs have, and its standard error.

    >>> averaged([[1.0, 2.0, 9.0], [3.0, 2.0]])
    ([2.0, 2.0], [1.0, 0.0])
    """
    each = list(zip(*runs, strict=False))
    reach = [stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0 for values in each]
    return [mean(values) for values in each], reach


def rank_correlations(histories: Histories, entry: Entry) -> list[float]:
    """Return Spearman's correlation of AP and −P(w) over the epochs of each run."""
    runs = zip(known(histories, entry, "train_ap"), known(histories, entry, "train_objective"), strict=True)
    return [correlation(ranks(values), ranks([-value for value in objective])) for values, objective in runs]


def ranks(values: Line) -> list[float]:
    """Return the ranks of values, the mean rank where they are equal.

    >>> ranks([0.2, 0.1, 0.2])
    [2.5, 1.0, 2.5]
    """
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def correlation(a: Line, b: Line) -> float:
    """Return Pearson's correlation; NaN where one does not vary."""
    mean_a, mean_b = mean(a), mean(b)
    product = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    scale = (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5
    return product / scale if scale else float("nan")


def band(axes: Any, at: Iterable[float], middle: Line, reach: Line, colour: str) -> None:
    """Draw the band around a line, if it has a width."""
    if any(reach):
        low, high = ([m + sign * r for m, r in zip(middle, reach, strict=True)] for sign in (-1, 1))
        axes.fill_between(list(at), low, high, color=colour, alpha=0.15, linewidth=0)


def not_run(summary: Summary, entries: Sequence[Entry]) -> str:
    """Return what is said under a panel of the methods that it lacks."""
    names = [summary.grid.methods[entry.method].label for entry in entries]
    return "\n" + fill(f"(not run: {'; '.join(names)})", 45) if names else ""


def row_of_panels(count: int, *, width: float, height: float = 3.6) -> tuple[Any, list[Any]]:
    """Return a figure with so many panels, two or three beside each other."""
    plt = extras.load("matplotlib.pyplot", "report")
    columns = min(count, 2 if count in (2, 4) else 3)
    rows = -(-count // columns)
    size = (width * columns, height * rows)
    figure, panels = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes in panels.flat[count:]:
        axes.set_axis_off()
    return figure, list(panels.flat[:count])
