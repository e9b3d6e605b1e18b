"""The page of results and the README's block about them, made from the results' folder and from nothing else.

`python -m apmax.reproduce.pages` writes them, and the tables and figures that they lead to.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apmax.reproduce.figures import is_drawn
from apmax.reproduce.grid import Grid, grid
from apmax.reproduce.notes import MARK_NOTE, METRIC_NOTE, difference_note, own_notes, tried
from apmax.reproduce.output import stem, write
from apmax.reproduce.paper import did
from apmax.reproduce.plan import Lines
from apmax.reproduce.reading import agreement, score_block, scores, unfinished
from apmax.reproduce.remarks import chose_first_stage, overall_comparisons, sentences
from apmax.reproduce.rendering import markdown_table, plain
from apmax.reproduce.results import Results
from apmax.reproduce.summary import Entry, Summary, plural, summarise
from apmax.reproduce.tables import detail, overview
from apmax.train import write_atomic

PAGE, README, RESULTS = Path("docs", "results.md"), Path("README.md"), Path("results")
OPENING, CLOSING = "<!-- results -->", "<!-- /results -->"
BASE = "ce"

Histories = Mapping[str, Mapping[str, Any]]


def summaries(lines: Lines, items: Sequence[str] | None = None) -> list[Summary]:
    """Return all items of which something has been run; at larger budgets those of which a choice has been made.

    Args:
        lines: Results by key.
        items: Only these.
    """
    found = []
    for item in (grid().items[name] for name in items or grid().items):
        fewer = 0
        for budget, count in grid().budgets.items():
            # Beyond the published configurations, only cells where more were tried than the smaller budget has.
            tried_there = {(line["data"], line["model"]) for line in lines.values() if line["candidate"] >= fewer}
            cells = [cell for cell in grid().cells(item) if not fewer or cell in tried_there]
            summary = summarise(grid(), item, lines, cells=cells, budget=budget)
            if any(entry.done and (not fewer or entry.choices > fewer) for entry in summary.entries.values()):
                found.append(summary)
            fewer = count
    return found


def results_page(found: Sequence[Summary], count: int, histories: Histories) -> str:
    """Return the page: what was run, what it says, the tables and figures; what is missing is named.

    Args:
        found: All that has been run.
        count: From how many results.
        histories: How the epochs of runs went, by key.
    """
    source = "[results.jsonl](../results/results.jsonl)" if count else "`results/results.jsonl`"
    parts = [
        "# The paper's experiments, run again",
        f"Written by `python -m apmax.reproduce.pages` from {source} ({plural(count, 'result')}), never by hand. The "
        "grid is [grid.toml](../src/apmax/reproduce/grid.toml), the paper's numbers are "
        "[paper.json](../src/apmax/reproduce/paper.json); `apmax reproduce ITEM` runs an item, "
        "`apmax reproduce --list` names them.",
    ]
    if not found:
        return "\n\n".join([*parts, "Nothing has been run yet."]) + "\n"
    parts += overall(grid(), found)
    parts.append("How to read the tables:")
    parts.append("\n".join(f"* {plain(note)}" for note in (METRIC_NOTE, MARK_NOTE, difference_note("CE"))))
    for summary in found:
        parts += section(summary, histories)
    missing = [item.title for item in grid().items.values() if item not in [summary.item for summary in found]]
    if missing:
        parts += ["## Not run yet", "\n".join(f"* {plain(title)}" for title in missing)]
    return "\n\n".join(parts) + "\n"


def overall(grid: Grid, found: Sequence[Summary]) -> list[str]:
    """Return how the methods stand to cross-entropy over all cells, each counted once."""
    entries: dict[tuple[str, str, str], Entry] = {}
    for summary in found:
        if summary.base == BASE and summary.budget == next(iter(grid.budgets)):
            # A cell of two tables has the same runs in both; one of them may have the paper's number.
            for key, entry in summary.entries.items():
                if key not in entries or entries[key].printed is None:
                    entries[key] = entry
    block = score_block(grid, scores(entries, BASE), BASE)
    if not block.rows:
        return []
    cells = (
        "By test AUPRC, the trapezoidal area. A cell is a data set with a network; the intervals are 95 % and paired "
        "over the runs that both have."
    )
    said = [*overall_comparisons(grid, entries, BASE), *chose_first_stage(grid, entries.values())]
    said += agreement(grid, entries.values())
    return ["\n".join(markdown_table(block)), cells, "\n".join(f"* {plain(text)}" for text in said)]


def section(summary: Summary, histories: Histories) -> list[str]:
    """Return an item's part of the page."""
    budget = "" if summary.budget == next(iter(summary.grid.budgets)) else f" ({summary.budget} budget)"
    place = f"../results/{summary.item.name}/{stem(summary)}"
    parts = [f"## {plain(summary.item.title)}{budget}", plain(did(summary.item.name)), ran(summary)]
    said = sentences(summary, histories)
    if said:
        parts.append("\n".join(f"* {plain(text)}" for text in said))
    if is_drawn(summary, histories):
        parts.append(f"![{plain(summary.item.title)}]({place}.png)")
    for data in dict.fromkeys(data for data, _ in summary.begun):
        cells = [cell for cell in summary.cells if cell[0] == data]
        beside = overview(summary, cells)
        if beside is not None:
            parts += [f"**{plain(summary.grid.data[data].label)}**", "\n".join(markdown_table(beside))]
        parts += [of_cell(summary, cell, folded=beside is not None) for cell in cells if cell in summary.begun]
    lacking = unfinished(summary)
    if lacking:
        parts += ["Unfinished:", "\n".join(f"* {plain(text)}" for text in lacking)]
    notes = own_notes(summary)
    if notes:
        parts += ["Notes:", "\n".join(f"* {plain(note)}" for note in notes)]
    parts.append(f"The same as [HTML]({place}.html), [LaTeX]({place}.tex), [Markdown]({place}.md).")
    return parts


def of_cell(summary: Summary, cell: tuple[str, str], *, folded: bool) -> str:
    """Return a cell's table, behind its title where its main numbers stand in another."""
    block = detail(summary, cell)
    table = "\n".join(markdown_table(block))
    if not folded:
        return f"**{plain(block.title)}**\n\n{table}"
    return f"<details><summary>{block.title}: runs, differences, AP</summary>\n\n{table}\n\n</details>"


def ran(summary: Summary) -> str:
    """Return what was run: runs, budget, epochs, code, command."""
    done, total = summary.counts
    epochs = sorted({line["epochs"] for line in summary.lines if "epochs" in line})
    seconds = sum(line.get("seconds", 0) for line in summary.lines)
    commits = list(dict.fromkeys(line.get("commit", line.get("version", "?")) for line in summary.lines))
    said = f"Run: {done} of {total} runs, {tried(summary)}"
    if epochs:
        length = f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
        time = f"{duration(seconds)} in all by the clock, pauses included"
        said += f"; {length} epochs each, without a first stage that is shared, {time}"
    if commits:
        said += f"; commit{'s' * (len(commits) > 1)} {', '.join(commits)}"
    option = "" if summary.budget == next(iter(summary.grid.budgets)) else f" --budget {summary.budget}"
    return f"{plain(said)}. Again: `apmax reproduce {summary.item.name}{option}`."


def duration(seconds: float) -> str:
    """Return a duration in the unit that suits it.

    >>> duration(90), duration(9000)
    ('2 minutes', '2.5 hours')
    """
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else plural(max(1, round(seconds / 60)), "minute")


def progress(summary: Summary) -> str:
    """Return how far an item is."""
    done, total = summary.counts
    return f"{stem(summary)} ({done} of {total} runs)"


def readme_block(found: Sequence[Summary], count: int, histories: Histories) -> str:
    """Return the README's summary, between its marks; the arguments are those of `results_page`."""
    parts = [OPENING]
    if found:
        parts.append(
            f"{plural(count, 'result')} of `apmax reproduce` so far, beside the paper's numbers where it has them, in "
            f"[docs/results.md](docs/results.md): {', '.join(progress(s) for s in found)}. [What differs from the "
            "paper](docs/reproduce.md#what-differs-from-the-paper) says why numbers may."
        )
        parts += overall(grid(), found)
        drawn = [s for s in found if s.item.paper and is_drawn(s, histories) and s.budget == next(iter(grid().budgets))]
        if drawn:
            most = max(drawn, key=lambda summary: len(summary.lines))
            parts.append(f"![{plain(most.item.title)}](results/{most.item.name}/{stem(most)}.png)")
    else:
        parts.append("Nothing has been run yet.")
    return "\n\n".join([*parts, CLOSING])


def with_block(readme: str, block: str) -> str:
    """Return the README with its block replaced.

    Raises:
        ValueError: The README does not have the two marks.
    """
    if readme.count(OPENING) != 1 or readme.count(CLOSING) != 1:
        raise ValueError(f"README.md must have one {OPENING} and one {CLOSING}, between which the summary stands")
    return re.sub(f"{re.escape(OPENING)}.*{re.escape(CLOSING)}", lambda _: block, readme, flags=re.DOTALL)


def write_pages(root: Path) -> None:
    """Write the page, the README's block, and the tables and figures of all items, in a copy of the repository."""
    results = Results(root / RESULTS)
    histories, count = results.histories(), len(results.lines)
    found = summaries(results.lines)
    for summary in found:
        write(summary, root / RESULTS, histories)
    write_atomic(root / PAGE, results_page(found, count, histories).encode())
    readme = (root / README).read_text(encoding="utf-8")
    write_atomic(root / README, with_block(readme, readme_block(found, count, histories)).encode())


if __name__ == "__main__":
    write_pages(Path.cwd())
    sys.stdout.write(f"Written: {PAGE}, {README}, {RESULTS}\n")
