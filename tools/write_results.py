"""Writer of docs/results/index.md and of the README's summary, from the results folder alone.

`make results` runs it in a copy of the repository; it also writes the tables and figures that the page links to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from apmax.reproduce import GridCell, Results, load_grid
from apmax.reproduce.pages import (
    Histories,
    ItemSummary,
    MethodSummary,
    base_table,
    cell_powers,
    cell_table,
    compare_with_base,
    epoch_choice_findings,
    epoch_choice_table,
    epoch_choices,
    escape_markdown,
    file_stem,
    has_figure,
    markdown_table,
    overview_table,
    pooled_methods,
    pooled_table,
    power_table,
    replace_block,
    summarise_item,
    tuning_table,
    write_item_files,
)
from apmax.reproduce.pages.summary import BaseComparison, MethodSummaries, compare_runs, random_cells
from apmax.reproduce.pages.text import (
    MARK_NOTE,
    METRIC_NOTE,
    budget_text,
    difference_note,
    findings,
    first_stage_findings,
    item_notes,
    missing_runs,
    overall_variant_findings,
    paper_findings,
    random_findings,
    range_text,
)
from apmax.reproduce.paper import load_paper_tables, paper_experiment
from apmax.reproduce.plan import ResultLines
from apmax.reproduce.results import read_lines
from apmax.train import write_atomic
from apmax.validation import plural

PAGE, README, RESULTS = Path("docs", "results", "index.md"), Path("README.md"), Path("results")
EPOCHS = "best-test-epoch.jsonl"
"""The runs whose test part was scored after every epoch, by `benchmarks/best_test_epoch.py`."""
LIBAUC = "libauc/hiv"
"""Folder of the runs of LibAUC's own loss, optimiser and sampler, by `benchmarks/libauc/hiv.py`."""
BLOCK = "results"
"""The name of the generated part of the README."""
BASE = "ce"

_FEW_POSITIVES = 5
"""Positives of a test part that are too few to show anything."""

TUNED = "quick"
"""The budget with which all methods are tuned alike."""

PeerRuns = Mapping[str, Sequence[Mapping[str, float]]]
"""The summaries of LibAUC's runs on HIV, one for each seed, by network."""


def summarise_results(lines: ResultLines, items: Sequence[str] | None = None) -> list[ItemSummary]:
    """Return the summaries of the items with a finished run, at larger budgets of those with a chosen configuration.

    Args:
        lines: Results by key.
        items: Only these items.
    """
    grid = load_grid()
    summaries = []
    shown: set[tuple[str, str, str, str]] = set()
    for item in (grid.items[name] for name in items or grid.items):
        for budget, fewer in zip(grid.budgets, [0, *grid.budgets.values()], strict=False):
            cells, rows = grid.cells(item), item.rows
            if fewer:
                # A larger budget has only the cells and methods of which more configurations than those of the
                # smaller one were tried, each in one item.
                tried = {
                    (line["data"], line["model"], line["method"])
                    for line in lines.values()
                    if line["candidate"] >= fewer
                }
                own = {key for key in tried if key[:2] in cells and key[2] in rows}
                cells = [cell for cell in cells if any(key[:2] == cell for key in own)]
                rows = tuple(row for row in rows if row == rows[0] or any(key[2] == row for key in own))
                if all((budget, *key) in shown for key in own):
                    continue
            summary = summarise_item(grid, item, lines, cells=cells, rows=rows, budget=budget)
            if any(entry.done and (not fewer or entry.choices > fewer) for entry in summary.entries.values()):
                summaries.append(summary)
                shown |= {(budget, *key) for key in summary.entries}
    return summaries


def results_page(
    summaries: Sequence[ItemSummary],
    count: int,
    histories: Histories,
    test_scores: Mapping[str, Mapping[str, Any]] | None = None,
    peer_runs: PeerRuns | None = None,
    epoch_checks: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return docs/results/index.md: the comparison over all cells, then each item; items without a run are listed.

    Args:
        summaries: The items with a finished run.
        count: The number of results behind them.
        histories: The values after each epoch, by the key of the run.
        test_scores: The test scores of the runs of folds, by the key of the run.
        peer_runs: The runs of LibAUC on HIV.
        epoch_checks: The runs whose test part was scored after every epoch.
    """
    source = "[results.jsonl](../../results/results.jsonl)" if count else "`results/results.jsonl`"
    parts = [
        "# Results of the paper's experiments",
        *outcome_parts(summaries, "../explanation/when-ap-pays.md"),
        f"Written by `make results` from {source} ({plural(count, 'result')}), never by hand. The grid is "
        "[grid.toml](../../src/apmax/reproduce/grid.toml), the paper's numbers are "
        "[paper.json](../../src/apmax/reproduce/paper.json); `apmax reproduce ITEM` runs an item, "
        "`apmax reproduce --list` lists them.",
    ]
    if not summaries:
        return "\n\n".join([*parts, "Nothing has been run yet."]) + "\n"
    parts += _overall_comparison(summaries)
    parts += _epoch_section(summaries, epoch_checks)
    parts += ["How to read the tables:", _bullets([METRIC_NOTE, MARK_NOTE, difference_note("CE")])]
    parts += _power_section(summaries, test_scores or {})
    for summary in summaries:
        parts += _item_section(summary, histories)
        if summary.item.name == "released" and summary.has_default_budget and peer_runs:
            parts += _peer_part(peer_runs)
    started = [summary.item for summary in summaries]
    missing = [item.title for item in load_grid().items.values() if item not in started]
    if missing:
        parts += ["## Not run yet", _bullets(missing)]
    return "\n\n".join(parts) + "\n"


def _bullets(texts: Sequence[str]) -> str:
    """Return texts as a list in Markdown."""
    return "\n".join(f"* {escape_markdown(text)}" for text in texts)


def _all_entries(summaries: Sequence[ItemSummary], budget: str | None = None) -> MethodSummaries:
    """Return the entries of all items that are compared with cross-entropy, each cell once.

    Args:
        summaries: The items with a finished run.
        budget: The budget; by default the published configurations.
    """
    entries: dict[tuple[str, str, str], MethodSummary] = {}
    for summary in summaries:
        if summary.base == BASE and summary.budget == (budget or summary.grid.default_budget):
            # A cell of two tables has the same runs in both, but perhaps the paper's number in one of them only.
            for key, entry in summary.entries.items():
                if key not in entries or entries[key].printed is None:
                    entries[key] = entry
    return entries


def _epoch_section(summaries: Sequence[ItemSummary], checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the section on the distance to the paper's numbers, and what the choice of the epoch has to do with it."""
    grid = load_grid()
    lines = [line for summary in summaries if summary.item.name == "released" for line in summary.lines]
    choices = epoch_choices(grid, checks, {line["key"]: line for line in lines}.values(), load_paper_tables())
    if not choices:
        return []
    return [
        "## Why the numbers are below the paper's",
        "All our test values are those of the epoch that validation chose. The authors' program for graphs also "
        "reports the best test value of all epochs; which of the two the paper prints is not known. Here are both, "
        "with the test part scored after every epoch: a check, and not a result, because an epoch that the test part "
        "chose says nothing about new data. CE is the paper's first stage, trained once more for this check, so that "
        "validation may have chosen [another epoch](reproduce.md#what-differs-from-the-paper) than in the tables "
        "below. The authors' released code for SOAP begins from their own weights.",
        _bullets(epoch_choice_findings(grid, choices)),
        markdown_table(epoch_choice_table(grid, choices)),
        "On molecules the published SOAP has a margin of 10 on sigmoids, whose differences are below 1: all pairs "
        "count alike, the loss is close to one of ROC AUC and [hardly "
        "trains](reproduce.md#what-differs-from-the-paper). On the scores themselves [it "
        "does](#ours-soap-on-sigmoids-of-the-scores-and-on-the-scores-themselves). "
        f"From [{EPOCHS}](../../results/{EPOCHS}), by `python -m benchmarks.best_test_epoch`.",
    ]


def _power_section(summaries: Sequence[ItemSummary], test_scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the section on what the number of runs can show."""
    grid = load_grid()
    entries = _all_entries(summaries)
    at_random = random_cells(entries)
    powers = [power for power in cell_powers(entries, BASE) if power.cell not in at_random]
    if not powers:
        return []
    left_out = "; ".join(grid.cell_label(cell) for cell in at_random)
    parts = [
        "## How many runs would show a difference",
        "The number of paired runs with which a t-test (two-sided, 5 %) finds a true difference in four of five cases, "
        "if the differences spread as those of the runs so far. A run is a seed on one test part, or a fold or split "
        "with its own, whose positives then vary. Spread is the standard deviation of the differences in AUPRC. That "
        "of three pairs is itself uncertain: with probability 0.95 the true one lies between 0.5 and 6.3 times this "
        "value; that of ten pairs, between 0.7 and 1.8 times. Where all AUPRCs are near 0 the spread is small for that "
        "reason alone, and the number too low for a method that ranks better."
        + (f" Left out, because no method ranks better than at random there: {left_out}." if left_out else ""),
        markdown_table(power_table(grid, powers, BASE)),
    ]
    pooled = {
        title: pooled_methods(grid, _all_entries(summaries, budget), test_scores, BASE)
        for title, budget in (("Published settings", None), (f"Tuned alike ({_budget_size()})", TUNED))
    }
    if any(pooled.values()):
        parts += [
            "## AICURES: the test rows of all folds as one list",
            "Each molecule is a test row of exactly one fold. The scores of a fold are shifted and scaled by mean and "
            "standard deviation of its validation scores, or of its test scores, then all are ranked together: where "
            "the two disagree, the differences between folds decide and not the method. Intervals of differences are a "
            "paired bootstrap over molecules; they do not contain the randomness of training (one run per fold). From "
            "[test-scores.jsonl](../../results/test-scores.jsonl); methods without the scores of all folds are not "
            "listed.",
        ]
        for title, methods in pooled.items():
            if methods:
                parts += [f"**{title}**", markdown_table(pooled_table(grid, methods, BASE))]
    return parts


def _overall_comparison(summaries: Sequence[ItemSummary]) -> list[str]:
    """Return the comparison of the methods with cross-entropy over all cells, each cell counted once."""
    grid, entries = load_grid(), _all_entries(summaries)
    table = base_table(grid, compare_with_base(entries, BASE), BASE)
    if not table.rows:
        return []
    explanation = (
        "By test AUPRC, the trapezoidal area. A cell, or case, is a data set with a network; AICURES with its official "
        "folds and with random splits counts as two. The intervals are 95 % and paired over the runs that both have: "
        "over splits, or over seeds where a data set has one test part, and then without the chance in its rows. A "
        "cell with one pair has no interval."
    )
    texts = [*random_findings(grid, entries), *overall_variant_findings(grid, entries, BASE)]
    texts += first_stage_findings(grid, entries.values())
    texts += paper_findings(grid, entries.values())
    parts = [markdown_table(table), explanation, _bullets(texts)]
    tuned = _all_entries(summaries, TUNED)
    tuned_table = tuning_table(grid, entries, tuned, BASE)
    if tuned_table is not None:
        parts += [
            f"**Tuned alike**: {_budget_size()} of each method, cross-entropy included, of which validation AP chooses "
            "one at each split's first seed. Mean test AUPRC of CE, and the differences of the others to it, with the "
            "published settings and with the chosen ones.",
            markdown_table(tuned_table),
            _bullets(overall_variant_findings(grid, tuned, BASE)),
        ]
    return parts


def _budget_size() -> str:
    """Return the number of configurations of the budget with which methods are tuned."""
    return plural(load_grid().budgets[TUNED], "configuration")


def outcome_parts(summaries: Sequence[ItemSummary], rule: str) -> list[str]:
    """Return what came of the paper's claim: two sentences, and a table of counts; none without runs of SOAP and CE.

    Args:
        summaries: The items with a finished run.
        rule: The address of the page that says when AP training pays.
    """
    entries = _all_entries(summaries)
    soap = _comparison(entries, "soap", BASE)
    if soap is None:
        return []
    claim = (
        "SOAP with the published settings has a higher mean test AUPRC than cross-entropy in "
        f"{soap.above} of {plural(soap.cells, 'case')} (a data set with a network)"
    )
    if soap.printed:
        claim += f", in the paper in {soap.printed_above} of the {soap.printed} that it prints of these"
    most = max((max(entry.test_positives) for entry in _above_base(entries, "soap")), default=_FEW_POSITIVES + 1)
    if most <= _FEW_POSITIVES:
        claim += f"; where it is higher, test parts have at most {plural(most, 'positive')}"
    sentence = (
        f"In a study on generated data AP training paid in [linear models that are too simple]({rule}) for what "
        "separates the top of the list, though not in all of them, and seldom in networks"
    )
    released = next(
        (each.entries for each in summaries if each.item.name == "released" and each.has_default_budget), {}
    )
    counted = {
        "SOAP against cross-entropy, published settings as far as they are known": soap,
        f"both tuned alike ({_budget_size()} each)": _comparison(_all_entries(summaries, TUNED), "soap", BASE),
        "the authors' released code, repaired to run, against their weights that it begins from, on HIV": _comparison(
            released, "soap_released", "ce_authors"
        ),
        "our default recipe against the same training without its AP loss": _comparison(entries, "apmax", "ce_joint"),
    }
    lines = ["| Mean test AUPRC | cases | higher | 95 % interval above 0 | below 0 |", "|---|---:|---:|---:|---:|"]
    for name, found in counted.items():
        if found is not None:
            alone = f" ({found.without_interval} of one pair, without interval)" if found.without_interval else ""
            lines.append(
                f"| {name} | {found.cells}{alone} | {found.above} | {found.surely_above} | {found.surely_below} |"
            )
    return [f"{claim}. {sentence}.", "\n".join(lines)]


def _above_base(entries: MethodSummaries, method: str) -> list[MethodSummary]:
    """Return the entries of a method whose mean difference to the base is above zero."""
    own = [entry for (_, _, name), entry in entries.items() if name == method and "auprc" in entry.paired]
    return [entry for entry in own if entry.paired["auprc"].difference > 0]


def _comparison(entries: MethodSummaries, method: str, base: str) -> BaseComparison | None:
    """Return the comparison of a method with another over all cells that have both, None without any."""
    pairs = {
        (data, model): (entry, entries[data, model, base])
        for (data, model, name), entry in entries.items()
        if name == method and (data, model, base) in entries
    }
    both = {(*cell, method): compare_runs(*pair) for cell, pair in pairs.items()}
    found = compare_with_base(both | {(*cell, base): other for cell, (_, other) in pairs.items()}, base)
    return next((each for each in found if each.method == method), None)


def read_peer_runs(folder: Path) -> PeerRuns:
    """Return the last lines of LibAUC's runs, `NETWORK-SEED.jsonl`, by network."""
    runs: dict[str, list[Mapping[str, float]]] = {}
    for path in sorted(folder.glob("*-*.jsonl")):
        *_, last = path.read_text(encoding="utf-8").splitlines()
        runs.setdefault(path.stem.rpartition("-")[0], []).append(json.loads(last))
    return runs


def _peer_part(runs: PeerRuns) -> list[str]:
    """Return the table of LibAUC's runs from the same weights."""
    models = load_grid().models
    names = {"best_valid": "validation", "test": "test", "best_test": "best test of all epochs"}
    rows = [
        f"| {models[network].label} | {len(found)} | "
        + " | ".join(f"{mean(each[name] for each in found):.4f}" for name in names)
        + " |"
        for network, found in runs.items()
    ]
    head = f"| Network | Seeds | {' | '.join(names.values())} |\n|---|---:|---:|---:|---:|"
    return [
        "**LibAUC 2.0.1 from the same weights**: its own `APLoss`, `SOAP` optimiser and sampler with its published "
        "recipe for graphs, by `benchmarks/libauc/hiv.py`. Mean AUPRC at the epoch that validation chose, and the "
        "highest test AUPRC of all epochs, which is not a result. Every epoch is in "
        f"[results/{LIBAUC}](../../results/{LIBAUC}/README.md).",
        "\n".join([head, *rows]),
    ]


def _item_section(summary: ItemSummary, histories: Histories) -> list[str]:
    """Return an item's section of the page."""
    budget = "" if summary.has_default_budget else f" ({summary.budget} budget)"
    title, files = escape_markdown(summary.item.title), f"../../results/{summary.item.name}/{file_stem(summary)}"
    parts = [f"## {title}{budget}", escape_markdown(paper_experiment(summary.item.name)), _run_description(summary)]
    texts = findings(summary, histories)
    if texts:
        parts.append(_bullets(texts))
    if has_figure(summary, histories):
        parts.append(f"![{title}]({files}.png)")
    for data in summary.started_data:
        cells = [cell for cell in summary.cells if cell[0] == data]
        overview = overview_table(summary, cells)
        if overview is not None:
            parts += [f"**{escape_markdown(summary.grid.data[data].label)}**", markdown_table(overview)]
        started = [cell for cell in cells if cell in summary.started_cells]
        parts += [_cell_part(summary, cell, folded=overview is not None) for cell in started]
    for heading, texts in (("Unfinished:", missing_runs(summary)), ("Notes:", item_notes(summary))):
        if texts:
            parts += [heading, _bullets(texts)]
    parts.append(f"The same as [HTML]({files}.html), [Markdown]({files}.md).")
    return parts


def _cell_part(summary: ItemSummary, cell: GridCell, *, folded: bool) -> str:
    """Return the table of a cell, folded under its title where the overview has its main numbers."""
    table = cell_table(summary, cell)
    if not folded:
        return f"**{escape_markdown(table.title)}**\n\n{markdown_table(table)}"
    title = f"{table.title}: runs, differences, AP"
    return f"<details><summary>{title}</summary>\n\n{markdown_table(table)}\n\n</details>"


def _run_description(summary: ItemSummary) -> str:
    """Return the numbers of runs and epochs, the budget, the time, the commits and the command."""
    done, total = summary.counts
    epochs = [line["epochs"] for line in summary.lines if "epochs" in line]
    seconds = sum(line.get("seconds", 0) for line in summary.lines)
    commits = list(dict.fromkeys(line.get("commit", line.get("version", "?")) for line in summary.lines))
    text = f"Run: {done} of {total} runs, {budget_text(summary)}"
    if epochs:
        text += (
            f"; {range_text(epochs)} epochs each, not counting a shared first stage; {_duration(seconds)} of "
            "wall-clock time in total, pauses included"
        )
    if commits:
        text += f"; commit{'s' * (len(commits) > 1)} {', '.join(commits)}"
    option = "" if summary.has_default_budget else f" --budget {summary.budget}"
    return f"{escape_markdown(text)}. Command: `apmax reproduce {summary.item.name}{option}`."


def _duration(seconds: float) -> str:
    """Return a duration in hours or minutes.

    >>> _duration(90), _duration(9000)
    ('2 minutes', '2.5 hours')
    """
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else plural(max(1, round(seconds / 60)), "minute")


def readme_block(summaries: Sequence[ItemSummary], count: int) -> str:
    """Return the README's summary; the arguments are those of `results_page`."""
    if not summaries:
        return "Nothing has been run yet."
    title = (
        f"**The paper's claim, run again** ({plural(count, 'result')}, [beside the paper's "
        "numbers](docs/results/index.md))."
    )
    text, *table = outcome_parts(summaries, "docs/explanation/when-ap-pays.md") or [""]
    return "\n\n".join([f"{title} {text}".rstrip(), *table])


def write_results(root: Path) -> None:
    """Write the page, the README's summary, and the tables and figures of all items in a copy of the repository."""
    results = Results(root / RESULTS)
    histories, count = results.histories(), len(results.lines)
    summaries = summarise_results(results.lines)
    for summary in summaries:
        write_item_files(summary, root / RESULTS, histories)
    peer_runs, checks = read_peer_runs(root / RESULTS / LIBAUC), read_lines(root / RESULTS / EPOCHS)
    page = results_page(summaries, count, histories, results.test_scores(), peer_runs, checks)
    write_atomic(root / PAGE, page.encode())
    replace_block(root / README, BLOCK, readme_block(summaries, count))


if __name__ == "__main__":
    write_results(Path.cwd())
    sys.stdout.write(f"Written: {PAGE}, {README}, {RESULTS}\n")
