"""`apmax evaluate`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apmax.cli import _options

if TYPE_CHECKING:
    from apmax.decide import Decision
    from apmax.workflows import ModelComparison, TargetEvaluations

EXAMPLES = """[bold]Examples[/]

apmax evaluate runs/churn next_month.csv

apmax evaluate runs/churn next_month.csv --json | jq .ap.estimate

apmax evaluate runs/churn next_month.csv --against runs/churn_2024

apmax evaluate runs/active confirmed.csv --smiles canonical_smiles

apmax evaluate runs/skin next_year/"""


def evaluate_command(
    directory: _options.DirectoryOption,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="csv, csv.gz or parquet with the target, or a folder per class.")
    ],
    smiles: _options.OtherSmilesOption = None,
    path: _options.OtherPathOption = None,
    root: _options.OtherRootOption = None,
    ending: _options.OtherEndingOption = None,
    against: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Compare with another model on the same rows.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report/--no-report", help="Write DIR/report-DATA.html, a page about the ranking; not with --json."
        ),
    ] = True,
    member: _options.MemberOption = None,
    model: _options.OtherModelOption = None,
    against_model: _options.AgainstModelOption = None,
) -> None:
    """Measure a model on labelled rows: AP, AUPRC, AUROC, BEDROC, enrichment, precision and recall at k.

    All have 95 % intervals; "no skill" is the AP of a random ranking. If `apmax decide` has stored a threshold, its
    precision and recall on these rows follow.

    With --against two models are measured on the same rows, with the difference of their AP and its interval. That says
    more than the two separate intervals, because the difficulty of the rows cancels.
    """
    from apmax import workflows
    from apmax.cli import _console
    from apmax.decide.folder import assess_decisions, read_decisions
    from apmax.workflows.evaluation import evaluate_scored_rows
    from apmax.workflows.model_folder import open_other_model

    _options.allow_local_import(model, against_model)
    if against_model is not None and against is None:
        raise ValueError("against_model names the network of another model: name its folder, too (against=FOLDER)")
    options = {"smiles": smiles, "path": path, "root": root, "ending": ending}
    saved, source = workflows.load_model(directory, model=model).with_member(member).open(data, **options)
    result: TargetEvaluations | ModelComparison
    stored: dict[str, Decision] = {}
    assessed: dict[str, Decision] = {}
    if against is None:
        scored, warnings = workflows.score_source(saved, source)
        result, remarks = evaluate_scored_rows(saved, source, scored)
        warnings = [*warnings, *remarks]
        if saved.thresholds:
            stored = read_decisions(directory)
            assessed = assess_decisions(stored, saved.targets.names, scored)
    else:
        other = open_other_model(against, data, model=against_model, options=options)
        result, warnings = workflows.compare_models(saved, source, *other)
    _console.show_warnings([*workflows.ignored_files_warning(source), *warnings])
    if as_json:
        sys.stdout.write(json.dumps(_json_content(result, assessed), indent=2) + "\n")
        return
    if isinstance(result, workflows.TargetEvaluations):
        _show_evaluations(result)
        _show_decisions(assessed, stored, result)
    else:
        _show_comparison(result, _names_of([directory, Path(str(against))], member))
    if report:
        others = {"against": against, "against_model": against_model}
        _write_report(directory, data, member=member, model=model, **others, **options)


def _show_evaluations(results: TargetEvaluations) -> None:
    from apmax.cli import _console

    console = _console.output()
    _console.show_table(_console.metrics_table({"": results}), console)
    for name, result in results.each.items():
        console.print()
        if results.several:
            console.print(name)
        _console.show_table(_console.early_recognition_table(result), console)


def _json_content(result: TargetEvaluations | ModelComparison, assessed: Mapping[str, Decision]) -> dict[str, Any]:
    """Return the metrics as plain dicts, and what the stored decision means on the rows (of several targets each)."""
    from apmax.train import nan_to_none

    table = result.to_table()
    for name, decision in assessed.items():
        each = table["targets"].get(name) if "targets" in table else table
        if each is not None:
            each["decision"] = nan_to_none(asdict(decision))
    return table


def _show_decisions(
    assessed: Mapping[str, Decision], stored: Mapping[str, Decision], results: TargetEvaluations
) -> None:
    """Show what the stored decisions mean on these rows, and what was expected of them."""
    from apmax.cli import _console

    console = _console.output()
    for name, decision in assessed.items():
        expected = stored[name]
        precision = expected.precision.estimate
        was = "" if math.isnan(precision) else f"precision {precision:.3f}, "
        console.print()
        console.print(
            f"{f'{name}: the' if results.several else 'The'} stored decision: {decision}; when it was chosen, "
            f"{was}recall {expected.recall.estimate:.3f}.",
            soft_wrap=True,
        )


def _names_of(folders: list[Path], member: str | None) -> list[str]:
    """Return the names of two models: the folders without their parents where these differ, the first with its member.

    >>> _names_of([Path("runs/churn"), Path("runs/churn")], "gbdt")
    ['runs/churn (gbdt)', 'runs/churn']
    """
    names = [folder.resolve().name for folder in folders]
    if names[0] == names[1]:
        names = list(map(str, folders))
    return names if member is None else [f"{names[0]} ({member})", names[1]]


def _show_comparison(comparison: ModelComparison, names: list[str]) -> None:
    from apmax.cli import _console

    console = _console.output()
    table = _console.metrics_table(dict(zip(names, (comparison.first, comparison.second), strict=True)))
    _console.show_table(table, console)
    console.print()
    several = len(comparison.differences) > 1
    for target, difference in comparison.differences.items():
        line = _console.difference_line(difference, names, target if several else "")
        console.print(line, soft_wrap=True)


def _write_report(directory: Path, data: Path, **options: Any) -> None:
    """Write the report on these rows into the folder; the metrics are shown, so that what fails is a warning."""
    from apmax import report
    from apmax.cli import _console

    page = directory / report.page_name(data)
    try:
        report.write_report(report.report_folder(directory, data=data, **options), page)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        _console.show_lack_of_report(error)
        return
    _console.output().print(f"Report: {page}", soft_wrap=True)
