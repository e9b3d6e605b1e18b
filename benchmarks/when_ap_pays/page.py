"""Tables and figure of the study, and the part of docs/explanation/when-ap-pays.md that is made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from apmax.metrics import Paired, compare
from apmax.reproduce.pages import markdown_table, replace_block
from apmax.reproduce.pages.figures import new_figure, save_figure
from apmax.reproduce.pages.tables import ResultTable, TableField, TableRow
from apmax.reproduce.pages.text import NO_VALUE
from apmax.validation import plural
from benchmarks.when_ap_pays.problems import Cell
from benchmarks.when_ap_pays.study import MODELS, RATES, Lines, read_study

PAGE, FIGURE, LINES = (
    Path("docs", "explanation", "when-ap-pays.md"),
    Path("results", "map", "map.png"),
    Path("results", "map", "map.jsonl"),
)
BLOCK = "map"
"""The name of the generated part of the page."""
CE_METHODS, AP_METHODS = ("ce", "ce_averaged", "logistic"), ("ap", "ap_ce", "ap_exact")
_LABELS = {
    "best_ap": "best of AP, AP + CE, exact AP",
    "ap": "AP",
    "ap_ce": "AP + CE",
    "ap_exact": "exact AP, last layer",
    "ce_mined": "CE on mined negatives",
    "ce_then_ap": "CE, then AP + CE",
}
_TOP_LABELS = {
    "smooth": "no contested negatives",
    "linear": "linear cue",
    "opposed": "linear cue, opposed by the bulk",
    "nonlinear": "non-linear cue",
    "groups": "two groups",
}
_MODEL_LABELS = {
    "linear": "linear",
    "narrow": "MLP 16",
    "medium": "MLP 2 × 64",
    "wide": "MLP 2 × 256",
}
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#767676"


class CellSummary(NamedTuple):
    """The results of a cell: mean test AP of the best CE and of the best possible ranking, and gains by method."""

    cell: Cell
    ce: float
    best_possible: float
    gains: Mapping[str, Paired]


def comparable_lines(lines: Lines, cell: Cell, seed: int) -> dict[str, Mapping[str, Any]]:
    """Return the results of a seed that were run at the same learning rates as CE, by method.

    Rates were added to the study after some of its runs: methods with different numbers of choices are not compared.
    """
    own = {method: line for (each, number, method), line in lines.items() if (each, number) == (cell, seed)}
    if "ce" not in own or "ce_averaged" not in own:
        return {}
    rates = set(own["ce"]["valid"])
    fitting = {
        "logistic": lambda _: True,
        "ap_exact": lambda line: line["setting"] == own["ce_averaged"]["setting"],
    }
    return {
        method: line
        for method, line in own.items()
        if fitting.get(method, lambda line: set(line["valid"]) == rates)(line)
    }


def best_by_validation(own: Mapping[str, Mapping[str, Any]], methods: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the result with the highest validation AP of several methods; None if one is missing.

    Logistic regression may be missing: only the linear model has it.
    """
    found = [own[method] for method in methods if method in own]
    if len(found) < len(set(methods) - {"logistic"}):
        return None
    return max(found, key=lambda line: max(line["valid"].values()))


def summarise_cell(lines: Lines, cell: Cell) -> CellSummary | None:
    """Return the summary of a cell, or None without a seed that has all methods of CE and of AP."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    ceiling = []
    for seed in sorted({seed for each, seed, _ in lines if each == cell}):
        own = comparable_lines(lines, cell, seed)
        base, best = (best_by_validation(own, methods) for methods in (CE_METHODS, AP_METHODS))
        if base is None or best is None:
            continue
        ceiling.append(base["best_possible"])
        for name, line in ({"best_ap": best} | {name: own[name] for name in _LABELS if name in own}).items():
            pairs.setdefault(name, []).append((line["test"], base["test"]))
    if not pairs:
        return None
    gains = {name: compare(*map(list, zip(*values, strict=True))) for name, values in pairs.items()}
    return CellSummary(cell, mean(base for _, base in pairs["best_ap"]), mean(ceiling), gains)


def summarise_map(lines: Lines) -> dict[Cell, CellSummary]:
    """Return the summaries of all cells that have one."""
    cells = dict.fromkeys(cell for cell, _, _ in lines)
    found = {cell: summarise_cell(lines, cell) for cell in cells}
    return {cell: summary for cell, summary in found.items() if summary is not None}


def _is_base(cell: Cell) -> bool:
    return replace(cell, top="linear", model="linear") == Cell("linear", "linear")


def _factor_text(cell: Cell) -> str:
    """Return what differs from the map's own cells.

    >>> _factor_text(Cell("linear", "wide", rows=1000, prevalence=0.05))
    '1,000 rows, 5 % positive'
    """
    base, parts = Cell(cell.top, cell.model), []
    if cell.rows != base.rows:
        parts.append(f"{cell.rows:,} rows")
    if cell.prevalence != base.prevalence:
        parts.append(f"{100 * cell.prevalence:g} % positive")
    if cell.clusters != base.clusters and cell.top != "groups":
        parts.append(plural(cell.clusters, "cluster"))
    if cell.noise != base.noise:
        parts.append(f"{100 * cell.noise:g} % of the positive labels wrong")
    if cell.steps != base.steps:
        parts.append(f"{cell.steps:,} steps")
    return ", ".join(parts)


def gain_table(summaries: Sequence[CellSummary], title: str, *, factors: bool) -> ResultTable:
    """Return the table of gains over the best CE."""
    first = ("Top", "Changed", "Model") if factors else ("Top", "Model")
    shown = [name for name in _LABELS if any(name in summary.gains for summary in summaries)]
    columns = (*first, "Seeds", "best CE", "possible", *(f"{_LABELS[name]}, gain (95 %)" for name in shown))
    rows = []
    for cell, ce, best_possible, gains in summaries:
        texts = [_TOP_LABELS[cell.top], *([_factor_text(cell)] if factors else []), _MODEL_LABELS[cell.model]]
        texts += [str(gains["best_ap"].cells), f"{ce:.3f}", f"{best_possible:.3f}"]
        texts += [_gain_text(gains.get(name)) for name in shown]
        rows.append(TableRow(tuple(map(TableField, texts))))
    return ResultTable(title, columns, tuple(rows))


def _gain_text(paired: Paired | None) -> str:
    """Return a gain with its interval.

    >>> _gain_text(Paired(0.0312, -0.001, 0.06, 3, 3)), _gain_text(Paired(0.03, math.nan, math.nan, 1, 1))
    ('+0.031 (−0.001 to +0.060)', '+0.030 (one seed)')
    """
    if paired is None:
        return NO_VALUE
    ends = "one seed" if math.isnan(paired.low) else f"{_signed(paired.low)} to {_signed(paired.high)}"
    return f"{_signed(paired.difference)} ({ends})"


def _signed(number: float) -> str:
    return f"{number:+.3f}".replace("-", "−")


def group_table(lines: Lines) -> ResultTable | None:
    """Return the shares of the two groups' positives at the top of the ranking, by model and method."""
    rows = []
    for model in MODELS:
        cell = Cell("groups", model, clusters=2)
        for name in ("ce_averaged", "ce_mined", "ap", "ap_ce", "ap_exact"):
            seeds = [seed for each, seed, method in lines if (each, method) == (cell, name)]
            found = [comparable_lines(lines, cell, seed) for seed in seeds]
            own = [line[name] for line in found if name in line]
            if not own:
                continue
            texts = [_MODEL_LABELS[model], _LABELS.get(name, "CE, averaged weights"), str(len(own))]
            texts.append(f"{mean(line['test'] for line in own):.3f}")
            for values in ("cluster_recall", "cluster_ap"):
                texts += [f"{mean(line[values][group] for line in own):.3f}" for group in (0, 1)]
            rows.append(TableRow(tuple(map(TableField, texts))))
    if not rows:
        return None
    columns = ("Model", "Method", "Seeds", "AP", "recall, group 1", "recall, group 2", "AP within 1", "AP within 2")
    return ResultTable("Two groups", columns, tuple(rows))


def count_sentences(summaries: Mapping[Cell, CellSummary]) -> list[str]:
    """Return in how many cells AP is above and below the best CE, for each size of the model."""
    texts = []
    for model in MODELS:
        gains = [s.gains for cell, s in summaries.items() if cell.model == model and cell.top != "groups"]
        if not gains:
            continue
        best = [each["best_ap"] for each in gains]
        above, surely = sum(each.difference > 0 for each in best), sum(each.low > 0 for each in best)
        text = (
            f"{_MODEL_LABELS[model]}: the mean gain of AP over the best CE is above 0 in {above} of "
            f"{plural(len(best), 'cell')}; its 95 % interval is above 0 in {surely}, below in "
            f"{sum(each.high < 0 for each in best)}. The median of the mean gains is "
            f"{_signed(median(each.difference for each in best))}"
        )
        mined = [each["ce_mined"] for each in gains if "ce_mined" in each]
        if mined:
            text += f", of CE on mined negatives {_signed(median(each.difference for each in mined))}"
        texts.append(text + ".")
    return texts


def rate_sentence(lines: Lines) -> str:
    """Return how much the learning rate of averaged CE matters, and how often validation chose the largest."""
    own = [line for (_, _, method), line in lines.items() if method == "ce_averaged"]
    spread = median(max(line["valid"].values()) - min(line["valid"].values()) for line in own)
    largest = sum(f"{line['setting']:g}" == max(line["valid"], key=float) for line in own)
    extended = sum(len(line["valid"]) == len(RATES) for line in own)
    short = f"; {extended} have all {len(RATES)} rates, the others lack the largest" if extended < len(own) else ""
    return (
        f"CE with averaged weights: between the best and worst of the learning rates validation AP differs by "
        f"{spread:.3f} (median of {plural(len(own), 'run')}). In {largest} of them validation chose the largest rate"
        f"{short}."
    )


def page_block(lines: Lines) -> str:
    """Return the generated part of the page."""
    summaries = summarise_map(lines)
    commits = list(dict.fromkeys(line.get("commit", "?") for line in lines.values()))
    order = [Cell(top, model) for top in _TOP_LABELS for model in MODELS]
    base = [summaries[cell] for cell in order if cell in summaries]
    others = sorted(
        (s for c, s in summaries.items() if not _is_base(c) and c.top != "groups"),
        key=lambda s: (list(_TOP_LABELS).index(s.cell.top), _factor_text(s.cell), list(MODELS).index(s.cell.model)),
    )
    parts = [
        f"{plural(len(lines), 'result')} in [map.jsonl](../../results/map/map.jsonl), commits {', '.join(commits)}. "
        "`python -m benchmarks.when_ap_pays --hours 1` continues the study where it stopped, "
        "`python -m benchmarks.when_ap_pays --write` writes this part of the page.",
        "![Gain of AP over the best cross-entropy](../../results/map/map.png)",
        "\n".join(f"* {text}" for text in [*count_sentences(summaries), rate_sentence(lines)]),
        "**The map**: 10,000 rows, 2 % positive, three clusters, 600 steps.",
        markdown_table(gain_table(base, "The map", factors=False)),
    ]
    if others:
        parts += ["**One factor changed.**", markdown_table(gain_table(others, "Factors", factors=True))]
    groups = group_table(lines)
    if groups is not None:
        parts += [
            "**Two groups** with equally many positives and opposite cues; group 1 has one contested negative per "
            "positive, group 2 nine. Recall is the share of a group's positives among the first rows of the "
            "ranking, as many as there are positives.",
            markdown_table(groups),
        ]
    return "\n\n".join(parts)


def draw_map(summaries: Mapping[Cell, CellSummary]) -> Any:
    """Return the figure: a panel for each top, gains by size of the model, with 95 % intervals."""
    tops = [top for top in _TOP_LABELS if any(_is_base(cell) and cell.top == top for cell in summaries)]
    figure = new_figure(2.6 * len(tops) + 0.6, 3.2)
    panels = figure.subplots(1, len(tops), sharey=True, squeeze=False)
    for axes, top in zip(panels[0], tops, strict=True):
        axes.axhline(0, color=_GREY, linewidth=0.8)
        for name, colour, shift in (("best_ap", _ORANGE, -0.1), ("ce_mined", _BLUE, 0.1)):
            found = [
                (k, summaries[Cell(top, model)].gains.get(name))
                for k, model in enumerate(MODELS)
                if Cell(top, model) in summaries
            ]
            known = [(k, gain) for k, gain in found if gain is not None]
            if known:
                places, gains = zip(*known, strict=True)
                centre = [gain.difference for gain in gains]
                reach = [0.0 if gain.cells < 2 else gain.high - gain.difference for gain in gains]
                axes.errorbar(
                    [place + shift for place in places],
                    centre,
                    yerr=reach,
                    fmt="o",
                    color=colour,
                    capsize=2,
                    markersize=4,
                    linewidth=1,
                    label=_LABELS[name],
                )
        axes.set_title(_TOP_LABELS[top])
        axes.set_xticks(range(len(MODELS)), [_MODEL_LABELS[model].replace("MLP ", "MLP\n") for model in MODELS])
        axes.set_xlim(-0.5, len(MODELS) - 0.5)
    panels[0][0].set_ylabel("test AP − best tuned CE (95 %)")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(handles), frameon=False)
    return figure


def write_page(root: Path) -> None:
    """Write the figure, and the block of the page in a copy of the repository.

    Raises:
        ValueError: The page does not have the two marks.
    """
    lines = read_study(root / LINES)
    save_figure(lambda: draw_map(summarise_map(lines)), root / FIGURE)
    replace_block(root / PAGE, BLOCK, page_block(lines))
