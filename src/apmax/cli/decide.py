"""`apmax decide`."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apmax.cli import _options

if TYPE_CHECKING:
    from rich.table import Table

    from apmax.decide import Bounded, Decision, FolderDecision

EXAMPLES = """[bold]Examples[/]

apmax decide runs/churn --precision 0.8

apmax decide runs/churn --recall 0.9 --guarantee

apmax decide runs/churn --top 50 --rows 10000

apmax decide runs/fraud --cost 1:50 --prevalence 0.002

apmax decide runs/fraud --cost 1:50 --budget 200 --rows 100000

apmax decide runs/tox --target NR-AhR --precision 0.5"""
_RULE, _USE = "What is wanted (one of)", "Where it is used"


def decide_command(
    directory: _options.DirectoryOption,
    precision: Annotated[
        float | None,
        typer.Option(metavar="P", help="At least this share of the rows taken is positive.", rich_help_panel=_RULE),
    ] = None,
    recall: Annotated[
        float | None,
        typer.Option(metavar="R", help="At least this share of the positives is taken.", rich_help_panel=_RULE),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="At most K of --rows rows are taken (without --rows: of the held-out rows).",
            rich_help_panel=_RULE,
        ),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            metavar="FP:FN", help="Least cost: of a false alarm, and of a missed positive.", rich_help_panel=_RULE
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="With --cost: take at most K of --rows rows (without --rows: of the held-out rows).",
        ),
    ] = None,
    guarantee: Annotated[
        bool,
        typer.Option(
            "--guarantee", help="With --precision or --recall: the bound must reach it, not the estimate alone."
        ),
    ] = False,
    confidence: Annotated[float, typer.Option(metavar="C", help="Confidence of the bounds.")] = 0.95,
    prevalence: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Share of positives there, if it differs from that of the held-out rows.",
            rich_help_panel=_USE,
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of rows to choose from, such as those of a day; --top and --budget count among them.",
            rich_help_panel=_USE,
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="Which of several targets.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Choose the lowest score of a row that is taken, and store it with the model: predict then adds a decision.

    The threshold is chosen on rows that the model was not fitted to: the cross-fitted rows of a committee, the
    validation rows of a network. Test rows have no part in it; they show how well the choice holds.
    """
    from apmax.cli import _console
    from apmax.decide import decide_folder

    result = decide_folder(
        directory,
        target=target,
        rows=rows,
        precision=precision,
        recall=recall,
        top=top,
        cost=None if cost is None else _parse_costs(cost),
        budget=budget,
        prevalence=prevalence,
        confidence=confidence,
        guarantee=guarantee,
    )
    limits = {"--top": top, "--budget": budget}
    if rows is None:
        _console.show_warnings(
            [_share_warning(name, limit, result) for name, limit in limits.items() if limit is not None]
        )
    if as_json:
        from apmax.train import nan_to_none

        sys.stdout.write(json.dumps(nan_to_none(asdict(result)), indent=2) + "\n")
        return
    console = _console.output()
    decision = result.decision
    total = decision.positives + decision.negatives
    console.print(_sentence(decision, result.part), soft_wrap=True)
    console.print(
        f"Chosen on {total:,} {result.part} rows, {decision.positives:,} of them positive; all numbers are for "
        f"{decision.prevalence:.3%} positive rows.",
        soft_wrap=True,
    )
    console.print()
    _console.show_table(_table(result), console)
    console.print()
    for line in _remarks(result):
        console.print(line, soft_wrap=True)
    console.print(
        f"Stored in {directory}: `apmax predict` adds a column of decisions, 1 for rows to take.", soft_wrap=True
    )


def _parse_costs(text: str) -> tuple[float, float]:
    """Return the two numbers of "FP:FN"."""
    parts = text.split(":")
    try:
        first, second = map(float, parts)
    except ValueError:
        raise typer.BadParameter(f"--cost is written FP:FN, such as 1:20, got {text!r}") from None
    return first, second


def _share_warning(name: str, limit: int, result: FolderDecision) -> str:
    """Return the warning that a number of held-out rows is a share of every other file."""
    share = 100 * limit / result.rows
    return (
        f"{name} takes at most {limit:,} of the {result.rows:,} {result.part} rows: {share:.3g} % of any "
        f"file; give --rows N, the number of rows that are looked at, or use predict --top {limit}"
    )


def _sentence(decision: Decision, part: str) -> str:
    if decision.share == 0:
        # All digits: rounded, the threshold could be a score that is there.
        return (
            f"Take only rows with a score of at least {decision.threshold!r}, which no {part} row has: "
            "at these costs it is cheapest to take none of them."
        )
    return f"Take the rows with a score of at least {decision.threshold:.6g}."


def _table(result: FolderDecision) -> Table:
    """Return estimates, bounds, and values on test rows."""
    from apmax.cli import _console

    decision, test = result.decision, result.test
    table = _console.plain_table("", "expected", f"{decision.confidence:.0%} sure", *(["test rows"] if test else []))
    values: dict[str, tuple[Bounded | None, str, Bounded | None]] = {
        "share of positives in the rows taken": (decision.precision, "at least", test.precision if test else None),
        "share of the positives taken": (decision.recall, "at least", test.recall if test else None),
        "cost of a row": (decision.cost, "at most", test.cost if test else None),
    }
    for name, (value, words, tested) in values.items():
        if value is not None:
            table.add_row(
                name,
                _number(value.estimate),
                "" if math.isnan(value.bound) else f"{words} {value.bound:.4f}",
                *([] if tested is None else [_number(tested.estimate)]),
            )
    table.add_row()
    table.add_row(f"of {result.rows:,} rows")
    for name, count in _whole_counts(decision.expected_counts(result.rows)).items():
        table.add_row(f"  {name}", f"{count:,}")
    return table


def _number(value: float) -> str:
    """Return a share or cost as text; without any row taken there is no precision."""
    return "none taken" if math.isnan(value) else f"{value:.4f}"


def _whole_counts(counts: dict[str, float]) -> dict[str, int]:
    """Return counts rounded such that the rows taken are the hits and the false alarms.

    >>> _whole_counts({"taken": 9.3, "hits": 3.7, "false alarms": 5.6, "missed": 3.7})
    {'taken': 10, 'hits': 4, 'false alarms': 6, 'missed': 4}
    """
    whole = {name: round(count) for name, count in counts.items()}
    return {**whole, "taken": whole["hits"] + whole["false alarms"]}


def _remarks(result: FolderDecision) -> list[str]:
    decision, lines = result.decision, []
    if decision.costs_without is not None:
        none, every = decision.costs_without
        lines.append(f"The cost of a row is {none:.4g} if no row is taken, and {every:.4g} if all are.")
    reached: dict[str, Any] = {"precision": decision.precision, "recall": decision.recall}
    if decision.rule in reached and not decision.guaranteed and reached[decision.rule].bound < decision.requested:
        lines.append(
            f"The {decision.rule} may be lower than {decision.requested:g}: --guarantee chooses a threshold whose "
            "bound reaches it."
        )
    taken = decision.expected_counts(result.rows)["taken"]
    if decision.rule == "top" and isinstance(decision.requested, int) and taken > decision.requested + 0.5:
        lines.append(
            f"The best score of these {result.part} rows alone takes more rows than are wanted: take so many with "
            f"`apmax predict --top {decision.requested}`."
        )
    return lines
