"""Training jobs: from files to a model in a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from apmax.train import Record, Result, fit, is_first_process, write_atomic
from apmax.workflows.contact_sheets import draw_contact_sheets
from apmax.workflows.data_types import Encoder, RowReport, data_type_of
from apmax.workflows.evaluation import TargetEvaluations, evaluate_targets
from apmax.workflows.job import Job, JobPlan, plan_job, read_job
from apmax.workflows.overrides import Overrides
from apmax.workflows.prediction import unreadable_table, write_table
from apmax.workflows.prepare import PreparedData, prepare_data
from apmax.workflows.saved_model import SavedModel, save_job


@dataclass(frozen=True)
class JobResult:
    """The outcome of a training.

    Args:
        folder: Where the model is.
        model: The chosen model.
        valid: Its metrics on the validation rows, by which it was chosen.
        test: Its metrics on the test rows, if there are any.
        records: The trainer's records, one an epoch.
        chosen: Stage and epoch of the chosen weights, for each member of an ensemble.
        warnings: Anomalies of the test rows.
        contact_sheets: Pictures of the best-ranked images, of the test rows if there are any.
    """

    folder: Path
    model: SavedModel
    valid: TargetEvaluations
    test: TargetEvaluations | None
    records: list[Record]
    chosen: list[dict[str, Any]]
    warnings: list[str]
    contact_sheets: list[Path] = field(default_factory=list)


def train_job(
    table: Mapping[str, Any] | JobPlan,
    overrides: Overrides | None = None,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    progress: bool | str = False,
    folders: tuple[Path, ...] = (),
    notify: Callable[[list[str], list[str]], None] | None = None,
) -> JobResult:
    """Train the model of a job, and save it with everything about it in a folder.

    Args:
        table: The job as plain tables (as in run.toml), or its plan.
        overrides: Settings that replace those of the table.
        out: The folder. Unless `resume` is set it must be missing or empty.
        resume: Continue the training in the folder; start if there is none.
        progress: Show the progress; "epochs" adds a line per epoch. All lines are in log.txt.
        folders: Folders in which files that are not in the current one are looked for.
        notify: Called with facts and warnings about the data before training begins.

    Raises:
        FileExistsError: `out` is not empty and `resume` is not set.
        FileNotFoundError: A file is missing.
        ValueError: Data or settings are wrong; nothing has been written then.
    """
    folder, first = Path(out), is_first_process()
    plan = table if isinstance(table, JobPlan) else plan_job(table, overrides, folders)
    if first and not resume and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is not empty: continue with resume=True, or choose another folder")
    check_model(plan)
    prepared = prepare_data(plan.data, seed=plan.seed)
    job = plan.resolve(prepared.config, rows=prepared.train_rows, positives=prepared.train_positives)
    prior = prepared.train_positives / prepared.train_rows
    network, facts = build_job_network(job, prepared.encoder, prior=prior)
    chosen = [f"{name} {value}" for name, value in job.model.options.items() if name not in plan.model.options]
    if chosen:
        facts = [f"{job.model.name} with {', '.join(chosen)}, chosen by the data", *facts]
    started = (folder / "run.toml").exists()
    if started:
        _check_same_job(folder, job)
    if first and notify is not None:
        notify([*prepared.facts, *facts], prepared.warnings)
    if first and not started:
        save_job(folder, job, prepared.encoder, prepared.targets)
        if prepared.unreadable:
            write_table(folder / "unreadable.csv", unreadable_table(prepared.unreadable))
    result = fit(network, prepared.data, job.run, directory=folder, resume=resume, progress=progress)
    if first and started:
        # Only now: the trainer has agreed that it is the same run, perhaps with more epochs.
        save_job(folder, job, prepared.encoder, prepared.targets)
    model = SavedModel(job, prepared.encoder, prepared.targets, result.model)
    return _evaluate(model, prepared, result, folder)


def check_model(plan: JobPlan) -> None:
    """Build a plan's network before data are read, where its encoder needs none: reading images may take long."""
    data_type = data_type_of(plan.data)
    if not data_type.learns_from_rows:
        _build(plan.data, plan.model, data_type.fit_encoder(None, ()), plan.seed, None)


def build_job_network(job: Job, encoder: Encoder, *, prior: float | None = None) -> tuple[nn.Module, list[str]]:
    """Return a job's new network by its seed, and lines about pretrained weights.

    Args:
        job: The job.
        encoder: The encoder of its inputs.
        prior: Share of positive training rows.

    Raises:
        ValueError: Options that the network does not have, or weights of another one.
        FileNotFoundError: There is no such file of weights.
    """
    return _build(job.data, job.model, encoder, job.run.seed, prior)


def _build(data: Any, model: Any, encoder: Encoder, seed: int, prior: float | None) -> tuple[nn.Module, list[str]]:
    data_type = data_type_of(data)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = data_type.build_model(encoder, model.name, model.options, prior=prior)
    if model.pretrained is None:
        return network, []
    return network, [f"begins with {data_type.load_weights(network, model.pretrained)}"]


def _evaluate(model: SavedModel, prepared: PreparedData, result: Result, folder: Path) -> JobResult:
    names, report = model.targets.names, RowReport()
    rows, scores, part = prepared.valid, model.score_dataset(prepared.data.valid), "validation"
    valid = evaluate_targets(scores, np.asarray(prepared.data.valid_labels), names)
    test = None
    if prepared.test is not None:
        rows, part = prepared.test, "test"
        encoded = rows.dataset is not None
        scores = model.score_dataset(rows.dataset) if encoded else model.score_table(rows.table, report)
        test = evaluate_targets(scores, rows.labels, names)
    sheets: list[Path] = []
    if is_first_process():
        content = {"valid": valid.to_table(), "test": None if test is None else test.to_table()}
        write_atomic(folder / "results.json", (json.dumps(content, indent=2) + "\n").encode())
        sheets = draw_contact_sheets(model, rows, scores, folder, part=part)
    count = model.job.run.ensemble
    members = [folder] if count == 1 else [folder / f"member-{number}" for number in range(count)]
    chosen = [json.loads((member / "run.json").read_text(encoding="utf-8"))["chosen"] for member in members]
    return JobResult(folder, model, valid, test, result.records, chosen, report.lines(), sheets)


def _check_same_job(folder: Path, job: Job) -> None:
    """Raise if the training in a folder is of another model or other targets."""
    before = read_job(folder / "run.toml")
    compared = [
        ("kind", before.data.kind, job.data.kind),
        ("model", before.model.name, job.model.name),
        ("the options of the model", dict(before.model.options), dict(job.model.options)),
        ("target", before.data.target, job.data.target),
        *((name, getattr(before.data, name, None), getattr(job.data, name, None)) for name in ("size", "fit")),
        ("pretrained", before.model.pretrained, job.model.pretrained),
        ("ensemble", before.run.ensemble, job.run.ensemble),
    ]
    for name, old, new in compared:
        if old != new:
            raise ValueError(f"{name} was {old} in {folder} and is {new} now: resume with the same")
