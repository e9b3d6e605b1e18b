"""The choice of the epoch: by validation, the last, or the best by the test part, beside the paper's numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from apmax.reproduce.grid import ExperimentGrid, GridCell
from apmax.reproduce.pages.tables import ResultTable, TableField, TableRow
from apmax.reproduce.pages.text import NO_VALUE, mean_std_text
from apmax.reproduce.paper import PaperTable, PrintedValue
from apmax.validation import plural

CHOICES = {"chosen": "epoch by validation", "last": "last epoch", "best": "best epoch by the test part"}
"""Ways to choose an epoch, and their names in tables."""
RELEASED = "soap_released"
"""The method whose result lines have the best epoch by the test part."""


class EpochChoice(NamedTuple):
    """Test AUPRC of a method at the epochs of several choices.

    Args:
        cell: Data set and network.
        method: The method.
        runs: The number of runs.
        means: Mean test AUPRC by choice; the last epoch is missing where a run did not keep it.
        printed: The paper's number for the same, None if it has none.
    """

    cell: GridCell
    method: str
    runs: int
    means: Mapping[str, float]
    printed: PrintedValue | None


def epoch_choices(
    grid: ExperimentGrid,
    checks: Iterable[Mapping[str, Any]],
    results: Iterable[Mapping[str, Any]],
    paper: Mapping[str, PaperTable],
) -> list[EpochChoice]:
    """Return the choices in each cell: of cross-entropy, then of the authors' released code.

    Args:
        grid: All experiments.
        checks: The runs whose test part was scored after every epoch (`benchmarks/best_test_epoch.py`).
        results: Result lines; those of the authors' released code have the best epoch.
        paper: The paper's tables.
    """
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for line in checks:
        found.setdefault((line["data"], line["model"], line["method"]), []).append(line)
    for line in results:
        if line["method"] == RELEASED and line.get("best_test"):
            both = {"chosen": line["test"], "best": line["best_test"]}
            found.setdefault((line["data"], line["model"], RELEASED), []).append(both)
    # Where two tables disagree, the number of the first counts: the tables of methods stand before the ablations.
    printed = {key: value for table in reversed(list(paper.values())) for key, value in table.values.items()}
    choices = []
    for data in grid.data:
        for model in grid.models:
            for method, other in (("ce", "ce"), (RELEASED, "soap")):
                lines = found.get((data, model, method), [])
                means = {
                    name: mean(line[name]["auprc"] for line in lines)
                    for name in CHOICES
                    if lines and all(name in line for line in lines)
                }
                if means:
                    choices.append(
                        EpochChoice((data, model), method, len(lines), means, printed.get((data, model, other)))
                    )
    return choices


def epoch_choice_table(grid: ExperimentGrid, choices: Sequence[EpochChoice]) -> ResultTable:
    """Return the table of test AUPRC by choice of the epoch, without the choices that no cell has."""
    shown = [name for name in CHOICES if any(name in each.means for each in choices)]
    rows = []
    for each in choices:
        texts = [grid.cell_label(each.cell), grid.methods[each.method].label, str(each.runs)]
        texts += [f"{each.means[name]:.4f}" if name in each.means else NO_VALUE for name in shown]
        texts.append(NO_VALUE if each.printed is None else mean_std_text(each.printed))
        rows.append(TableRow(tuple(map(TableField, texts))))
    columns = ("Cell", "Method", "Runs", *(CHOICES[name] for name in shown), "Paper")
    return ResultTable("Test AUPRC by choice of the epoch", columns, tuple(rows))


def epoch_choice_findings(grid: ExperimentGrid, choices: Sequence[EpochChoice]) -> list[str]:
    """Return for each method in how many cells the choices come within two of the paper's standard deviations."""
    sentences = []
    for method in dict.fromkeys(each.method for each in choices):
        own = [each for each in choices if each.method == method and each.printed is not None]
        parts = []
        for name in ("chosen", "best"):
            counts = Counter(each.printed.position_of(each.means[name]) for each in own if each.printed is not None)
            parts.append(
                f"in {counts['within']} at the {CHOICES[name]} (above in {counts['above']}, below in {counts['below']})"
            )
        if own:
            sentences.append(
                f"{grid.methods[method].label}: of {plural(len(own), 'cell')} that the paper has, the mean is within "
                f"two of its standard deviations {', and '.join(parts)}."
            )
    return sentences
