"""The whole way from files to a model in a directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from apmax.train import Record, Result, fit, is_first_process, write_atomic
from apmax.workflows import trained
from apmax.workflows.data_types import KINDS, RowReport
from apmax.workflows.evaluation import Evaluations, evaluate_targets
from apmax.workflows.networks import new_network
from apmax.workflows.refusals import write_refused
from apmax.workflows.rows import Prepared, prepare
from apmax.workflows.sheets import draw_best
from apmax.workflows.spec import DataSpec, Job, data_spec, loads, located, resolve
from apmax.workflows.wishes import Wishes


@dataclass(frozen=True)
class Outcome:
    """How a training ended: the chosen model on the rows it was chosen by and, once, on the test rows.

    `sheets` are pictures of the best-ranked rows, of the test if there is one.
    """

    directory: Path
    valid: Evaluations
    test: Evaluations | None
    records: list[Record]
    chosen: list[dict[str, Any]]
    warnings: list[str]
    sheets: list[Path] = field(default_factory=list)


def train(
    table: Mapping[str, Any],
    wishes: Wishes,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    progress: bool = False,
    places: tuple[Path, ...] = (),
    tell: Callable[[list[str], list[str]], None] = lambda _facts, _warnings: None,
) -> Outcome:
    """Train as a job's table and wishes say, and leave everything in the directory `out`.

    Args:
        table: The job as plain tables, as TOML has them.
        wishes: What differs.
        out: The directory. Unless `resume` is set it must be missing or empty.
        resume: Go on with what stands there; nothing there: begin.
        progress: Show it.
        places: Folders in which files that are not in the current one are looked for.
        tell: Called with what was understood of the data, and what asks for a look, before training begins.

    Raises:
        FileExistsError: `out` holds something and `resume` is not set.
        FileNotFoundError: A file is not there.
        ValueError: Data or settings that cannot be meant; nothing has been written then.
    """
    directory = Path(out)
    data = located(data_spec(table, wishes, places), places)
    first = is_first_process()
    if first and not resume and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(f"{directory} is not empty: go on with --resume, or choose another directory")
    prepared = prepare(data, seed=draft(table, wishes, data).run.seed)
    job = resolve(table, wishes, prepared.spec, rows=prepared.train_rows, positives=prepared.train_positives)
    model, lines = new_network(job, prepared.encoder)
    begun = (directory / "run.toml").exists()
    if begun:
        check_same_model(directory, job)
    if first:
        tell([*prepared.facts, *lines], prepared.warnings)
        if not begun:
            trained.save(directory, job, prepared.encoder, prepared.target)
            write_refused(directory / "unreadable.csv", prepared.refused)
    result = fit(model, prepared.data, job.run, directory=directory, resume=resume, progress=progress)
    if first:
        # Again where it was resumed, and only now: the trainer has agreed that it is the same run, with more epochs.
        trained.save(directory, job, prepared.encoder, prepared.target)
    return judged(trained.Trained(job, prepared.encoder, prepared.target, result.model), prepared, result, directory)


def draft(table: Mapping[str, Any], wishes: Wishes, data: DataSpec) -> Job:
    """Return the job as far as it is known before the data are read; mistakes in its settings come out here."""
    job = resolve(table, wishes, data, rows=10**6, positives=10**4)
    kind = KINDS[data.kind]
    if kind.gather is not None:
        # Such data may take long to read, and their encoder needs none of them.
        new_network(job, kind.fit(None, data, ()))
    return job


def judged(model: trained.Trained, prepared: Prepared, result: Result, directory: Path) -> Outcome:
    """Return how good the chosen model is, and write it down."""
    names, report = model.target.names, RowReport()
    valid_scores = model.score_items(prepared.data.valid)
    valid = evaluate_targets(valid_scores, np.asarray(prepared.data.valid_labels), names)
    test = test_scores = None
    if prepared.test is not None:
        rows = prepared.test
        test_scores = model.score(rows.table, report) if rows.dataset is None else model.score_items(rows.dataset)
        test = evaluate_targets(test_scores, rows.labels, names)
    count = model.job.run.ensemble
    members = [directory] if count == 1 else [directory / f"member-{number}" for number in range(count)]
    sheets: list[Path] = []
    if is_first_process():
        facts = {"valid": valid.to_table(), "test": None if test is None else test.to_table()}
        write_atomic(directory / "results.json", (json.dumps(facts, indent=2) + "\n").encode())
        if prepared.test is not None and test_scores is not None:
            sheets = draw_best(model, prepared.test, test_scores, directory, what="test")
        else:
            sheets = draw_best(model, prepared.valid, valid_scores, directory, what="validation")
    return Outcome(directory, valid, test, result.records, [chosen_in(m) for m in members], report.lines(), sheets)


def check_same_model(directory: Path, job: Job) -> None:
    """Raise if the training that stands in `directory` is of another model or target."""
    before = loads((directory / "run.toml").read_text(encoding="utf-8"))
    for what, old, new in (
        ("model", before.model.name, job.model.name),
        ("the model's options", dict(before.model.options), dict(job.model.options)),
        ("target", before.data.target, job.data.target),
        ("kind", before.data.kind, job.data.kind),
        ("the images' size", before.data.size, job.data.size),
        ("the way images become square", before.data.fit, job.data.fit),
        ("pretrained", before.model.pretrained, job.model.pretrained),
        ("ensemble", before.run.ensemble, job.run.ensemble),
    ):
        if old != new:
            raise ValueError(f"{what} was {old} in {directory} and is {new} now: resume with the same")


def chosen_in(directory: Path) -> dict[str, Any]:
    """Return which stage and epoch the weights in a run's directory are of."""
    facts: dict[str, Any] = json.loads((directory / "run.json").read_text(encoding="utf-8"))["chosen"]
    return facts
