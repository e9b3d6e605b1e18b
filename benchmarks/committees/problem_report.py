"""Report of methods on problems with several splits: means, and paired differences with intervals within a problem."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from apmax.metrics.paired import compare
from benchmarks.committees.ranks import Ranks, read_ranks, resampled_means
from benchmarks.committees.report import ap_table, cost_table, difference_table, sources, table_means
from benchmarks.markdown import markdown_table

_Line = Mapping[str, Any]
# Fewer problems have no interval.
_FEWEST_PROBLEMS = 3


class Problem(Protocol):
    """A problem with several splits."""

    @property
    def resplits(self) -> Sequence[int]:
        """The numbers of the splits."""

    @property
    def unit(self) -> str:
        """What these numbers stand for; "seeds" if all share their rows."""


@dataclass(frozen=True)
class ProblemPage:
    """What a report is about.

    Attributes:
        name: Of the data, and of the files.
        problems: By name, in the order of the report.
        introduction: Its first paragraph.
        resampling: A sentence on what the intervals over rows draw.
        undecided: Problems with too few test positives to compare anything.
        auprc: Problems whose area under the curve by the trapezoid rule is printed, too, under `auprc_text`.
        auprc_text: What to say about that.
    """

    name: str
    problems: Mapping[str, Problem]
    introduction: str
    resampling: str
    undecided: Sequence[str] = ()
    auprc: Sequence[str] = ()
    auprc_text: str = ""

    @property
    def resplits(self) -> dict[str, Sequence[int]]:
        """The numbers of the splits by problem."""
        return {name: problem.resplits for name, problem in self.problems.items()}

    def lines_path(self, folder: Path) -> Path:
        """Return the file of the finished lines."""
        return folder / f"{self.name}.jsonl"

    def ranks_path(self, folder: Path, problem: str, resplit: int) -> Path:
        """Return the file of the ranks of a split."""
        return folder / f"{self.name}-ranks" / f"{problem}-{resplit}.npz"


@dataclass(frozen=True)
class ProblemDifference:
    """Mean difference of two methods on a problem, its interval and what that is over, and the splits above zero."""

    mean: float
    low: float
    high: float
    over: str
    won: int
    splits: int


def compare_on_problem(
    page: ProblemPage,
    lines: Sequence[_Line],
    problem: str,
    own: str,
    others: Sequence[str],
    ranks: Sequence[Ranks] = (),
) -> dict[str, ProblemDifference]:
    """Return the differences of a method to those others that have all splits of a problem.

    `ranks` are those of its splits, in order; without them the interval is over splits, of seeds or one split there is
    none.
    """
    numbers = page.problems[problem].resplits
    values: dict[str, dict[int, float]] = {}
    for line in lines:
        if line["table"] == problem and "ap" in line:
            values.setdefault(line["method"], {})[line["resplit"]] = line["ap"]
    whole = {name: [found[k] for k in numbers] for name, found in values.items() if set(found) == set(numbers)}
    if own not in whole:
        return {}
    kept = [name for name in whole if len(ranks) == len(numbers) and all(name in split for split in ranks)]
    drawn = resampled_means(ranks, kept) if own in kept else {}
    found = {}
    for other in others:
        if other not in whole or other == own:
            continue
        paired, over = compare(whole[own], whole[other]), "splits"
        low, high = paired.low, paired.high
        if other in drawn:
            over = page.name
            low, high = (float(end) for end in np.quantile(drawn[own] - drawn[other], [0.025, 0.975]))
        elif page.problems[problem].unit == "seeds" or len(numbers) < 2:
            over, low, high = "", np.nan, np.nan
        found[other] = ProblemDifference(paired.difference, low, high, over, paired.won, paired.cells)
    return found


def write_problem_report(page: ProblemPage, lines: Sequence[_Line], folder: Path) -> str:
    """Return the report as markdown, with intervals over test rows where the folder has their ranks."""
    title = f"# Committees on {page.name}"
    means = table_means(lines, resplits=page.resplits)
    if not means:
        return f"{title}\n\nNo problem has all of its splits yet.\n"
    methods = [method for method in means if not method.startswith("member ")]
    members = [method for method in means if method.startswith("member ")]
    decided = [name for name in page.problems if name not in page.undecided]
    parts = [title, sources(lines), page.introduction, _problem_table(page, lines)]
    parts.append("## Test average precision, mean of the splits")
    parts += [ap_table(means, group, decided) for group in (methods, members) if group]
    parts += _undecided(page, lines, means)
    parts += _auprc(page, lines, [*methods, *members])
    parts += ["## Difference of standard to the others, within each problem", _differences_text(page)]
    for problem in decided:
        paths = [page.ranks_path(folder, problem, k) for k in page.resplits[problem]]
        ranks = [read_ranks(path) for path in paths if path.exists()]
        found = compare_on_problem(page, lines, problem, "standard", [*methods, *members], ranks)
        if found:
            parts += [f"### {problem}", _problem_differences(found)]
    if len({name for own in means.values() for name in own if name in decided}) >= _FEWEST_PROBLEMS:
        without = f"\n\nWithout {', '.join(page.undecided)}." if page.undecided else ""
        parts.append(f"## Difference of standard to the others, over problems{without}")
        kept = {method: {name: ap for name, ap in own.items() if name in decided} for method, own in means.items()}
        parts.append(difference_table(kept, "standard", [*methods, *members]))
    parts += ["## Cost\n\nMean over splits, all problems.", cost_table(lines, methods)]
    failed = [f"{line['method']} on {line['table']} {line['resplit']}" for line in lines if "error" in line]
    if failed:
        parts.append(f"Failed, and left out: {'; '.join(failed)}.")
    return "\n\n".join(parts) + "\n"


def _differences_text(page: ProblemPage) -> str:
    text = (
        f'Mean over splits (seeds) of the difference in test AP, with a 95 % interval. Over "{page.name}": percentile '
        f"bootstrap of the test {page.name} of the problem, positives and negatives drawn separately. "
        f"{page.resampling} It is an interval of the rows, not of the training's randomness. "
        'Over "splits": Student\'s t of the differences, where the ranks of a method were not kept. '
        f"Seeds share their test {page.name}, and so have no interval over splits."
    )
    return textwrap.fill(text, 120)


def _problem_table(page: ProblemPage, lines: Sequence[_Line]) -> str:
    rows = [["problem", "splits", "training positives", f"test {page.name}", "test positives"]]
    for name, problem in page.problems.items():
        own = {line["resplit"]: line for line in lines if line["table"] == name}
        if own:
            sizes = [_range([line[key] for line in own.values()]) for key in ("train_positives", "test_rows")]
            positives = [own[number]["test_positives"] for number in sorted(own)]
            text = str(positives[0]) if problem.unit == "seeds" else ", ".join(map(str, positives))
            rows.append([name, f"{len(problem.resplits)} {problem.unit}", *sizes, text])
    return markdown_table(rows)


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _undecided(page: ProblemPage, lines: Sequence[_Line], means: Mapping[str, Mapping[str, float]]) -> list[str]:
    parts = []
    for problem in page.undecided:
        own = [method for method in means if problem in means[method]]
        if own:
            positives = _range([line["test_positives"] for line in lines if line["table"] == problem])
            rows = [["method", "test AP"], *([method, f"{means[method][problem]:.3f}"] for method in own)]
            parts.append(
                f"`{problem}` has {positives} test positives in a split, too few to compare methods, and is left out "
                "below."
            )
            parts.append(markdown_table(rows))
    return parts


def _auprc(page: ProblemPage, lines: Sequence[_Line], methods: Sequence[str]) -> list[str]:
    """Return the section on the paper's metric, of the lines that have it."""
    means = table_means(lines, "auprc", page.resplits)
    rows = [["method", *page.auprc]]
    for method in methods:
        found = [means.get(method, {}).get(problem) for problem in rows[0][1:]]
        if any(value is not None for value in found):
            rows.append([method, *("" if value is None else f"{value:.4f}" for value in found)])
    if len(rows) == 1:
        return []
    return ["## Test AUPRC", page.auprc_text, markdown_table(rows)]


def _problem_differences(found: Mapping[str, ProblemDifference]) -> str:
    rows = [["standard − …", "mean", "95 % interval", "over", "above"]]
    for other, each in found.items():
        interval = "" if np.isnan(each.low) else f"{each.low:+.4f} to {each.high:+.4f}"
        rows.append([other, f"{each.mean:+.4f}", interval, each.over, f"{each.won} of {each.splits}"])
    return markdown_table(rows)
