"""Training jobs: from files to a model in a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from apmax.folders import (
    MANIFEST_FILE,
    FolderError,
    Manifest,
    check_free,
    file_checksum,
    is_first_process,
    lock_folder,
    write_atomic,
    write_manifest,
)
from apmax.train import Ensemble, Result, fit
from apmax.train.processes import check_processes, from_first, join_processes, process_count, shared_errors
from apmax.train.run_directory import RunDirectory
from apmax.validation import setting_text
from apmax.workflows.committee_training import train_committee
from apmax.workflows.contact_sheets import draw_contact_sheets
from apmax.workflows.data_types import DataConfig, Encoder, RowReport, data_type_of
from apmax.workflows.data_types.networks import LARGEST_NETWORK
from apmax.workflows.evaluation import evaluate_targets
from apmax.workflows.job import CommitteeJob, Job, JobPlan, ModelConfig, job_from_toml, plan_training
from apmax.workflows.job_result import JobResult, Notify
from apmax.workflows.model_folder import (
    CALIBRATION_FILE,
    JOB_FILES,
    read_started,
    save_calibration,
    save_job,
    weight_files,
)
from apmax.workflows.overrides import Overrides
from apmax.workflows.prediction import write_unreadable
from apmax.workflows.prepare import Folds, PreparedData, ensemble_folds, prepare_data
from apmax.workflows.saved_model import SavedNetwork, Scores
from apmax.workflows.scored_rows import MODEL_KIND, save_scored_rows, score_labelled_rows

_WEIGHTS_FACT = "pretrained_sha256"
"""Key in run.json of the checksum of the weights that a network began with."""


def train_job(
    table: Mapping[str, Any] | CommitteeJob | JobPlan,
    overrides: Overrides | None = None,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    progress: bool | str = False,
    folders: tuple[Path, ...] = (),
    notify: Notify | None = None,
) -> JobResult:
    """Train the committee or the network of a job, and save it with everything about it in a folder.

    Args:
        table: The job as plain tables (as in run.toml), or its plan (`plan_training`).
        overrides: Settings that replace those of the table.
        out: The folder. Unless `resume` is set it must be missing or empty.
        resume: Continue the training in the folder; start if there is none.
        progress: Show the progress; "epochs" adds a line per epoch. All lines are in log.txt.
        folders: Folders in which files that are not in the current one are looked for.
        notify: Called with facts and warnings about the data before training begins.

    Raises:
        FileExistsError: `out` is not empty and `resume` is not set, or another training is running in it.
        FileNotFoundError: A file is missing.
        ValueError: Data or settings are wrong, or the training to resume is damaged; nothing has been written then.
    """
    folder, first, world_size = Path(out), is_first_process(), join_processes()
    with ExitStack() as opened:
        with shared_errors(world_size):
            if first and not resume:
                check_free(folder)
            plan = table if isinstance(table, (JobPlan, CommitteeJob)) else plan_training(table, overrides, folders)
            _check_process_count(plan, world_size)
            # The other processes of a training are started by the first one, or beside it: they share its lock.
            if first:
                opened.enter_context(lock_folder(folder))
            if first and not resume:
                check_free(folder)  # again: a training may have ended in the meantime
            started = read_started(folder) if first else None
        if isinstance(plan, CommitteeJob):
            return train_committee(plan, folder, started, progress=bool(progress), notify=notify)
        with shared_errors(world_size):
            ready = _prepare(plan, folder, started, notify=notify if first else None)
        with shared_errors(world_size):  # once all have prepared theirs: an error leaves no file
            if first and started is None:
                _write_job(ready, folder)
        return _train(ready, folder, started, first=first, resume=resume, progress=progress)


def _check_process_count(plan: JobPlan | CommitteeJob, world_size: int) -> None:
    """Raise `ValueError` if torchrun started more processes than the training uses."""
    if isinstance(plan, JobPlan):
        check_processes(plan.run)
    elif world_size > 1:
        raise ValueError(
            f"a committee is trained by one process, which starts others itself, but torchrun started {world_size}: "
            "start the program without torchrun, or train one network (with a model)"
        )


class _Ready(NamedTuple):
    """A job with its data and its network; `build` is the network, or of an ensemble the function that builds one."""

    job: Job
    prepared: PreparedData
    folds: Folds | None
    build: nn.Module | Callable[[], nn.Module]


def _prepare(plan: JobPlan, folder: Path, started: Manifest | None, *, notify: Notify | None) -> _Ready:
    """Read the data and build the network; `started` is the manifest of an earlier training."""
    before = None if started is None else _read_started_job(started)
    check_model(plan)
    prepared = prepare_data(plan.data, seed=plan.seed)
    job = plan.resolve(prepared.config, rows=prepared.train_rows, positives=prepared.train_positives)
    network, facts = _planned_network(plan, job, prepared)
    if before is not None:
        _check_same_job(folder, before, job)
    folds = ensemble_folds(prepared, job.run.ensemble, seed=job.run.seed)
    if folds is not None:
        positives = folds.rows.positives
        held_out = f"{len(folds.rows.labels):,} rows ({positives:,} positive)"
        facts = [f"each of the {job.run.ensemble} networks is chosen by another part of {held_out}", *facts]
    if notify is not None:
        notify([*prepared.facts, *facts], prepared.warnings)
    if job.run.ensemble == 1:
        build: nn.Module | Callable[[], nn.Module] = network
    else:
        # Each network of an ensemble is built by its own seed: a copy of the first cannot begin at random everywhere.
        build_model = data_type_of(job.data).build_model
        build = partial(build_model, prepared.encoder, job.model.name, job.model.options, prior=prepared.prior)
    return _Ready(job, prepared, folds, build)


def _write_job(ready: _Ready, folder: Path) -> None:
    """Write the job of a new training, and the rows that cannot be read."""
    job, prepared = ready.job, ready.prepared
    if job.model.pretrained is not None:
        RunDirectory(folder).add_facts({_WEIGHTS_FACT: file_checksum(Path(job.model.pretrained)).sha256})
    save_job(folder, job, prepared.encoder, prepared.targets)
    write_unreadable(folder, prepared.unreadable)


def _train(
    ready: _Ready, folder: Path, started: Manifest | None, *, first: bool, resume: bool, progress: bool | str
) -> JobResult:
    """Train in a locked folder; `started` is the manifest of an earlier training there."""
    job, prepared, folds, build = ready
    with nullcontext() if started is None else _marked_incomplete(started):
        result = fit(
            build,
            prepared.data,
            job.run,
            directory=folder,
            resume=resume,
            progress=progress,
            member_data=None if folds is None else folds.data,
        )
    if started is not None:
        # Only now: the trainer has agreed that it is the same run, perhaps with more epochs.
        save_job(folder, job, prepared.encoder, prepared.targets)
    model = SavedNetwork(job, prepared.encoder, prepared.targets, (), result.model)
    evaluated = _evaluate(job, model, prepared, folds, result, folder)
    if first:
        files = (*JOB_FILES, CALIBRATION_FILE, *weight_files(job), *(each.file for each in evaluated.scored))
        write_manifest(folder, files, kind=MODEL_KIND)
    return evaluated


def _planned_network(plan: JobPlan, job: Job, prepared: PreparedData) -> tuple[nn.Module, list[str]]:
    """Return a job's new network, and lines about what the data and pretrained weights decide of it.

    Raises:
        ValueError: As `build_job_network`, or an ensemble of too many parameters.
    """
    network, facts = build_job_network(job, prepared.encoder, prior=prepared.prior)
    parameters = sum(each.numel() for each in network.parameters())
    if parameters * job.run.ensemble > LARGEST_NETWORK:
        raise ValueError(
            f"ensemble: {job.run.ensemble:,} models of {parameters:,} parameters have more than {LARGEST_NETWORK:,}"
        )
    chosen = [f"{name} {value}" for name, value in job.model.options.items() if name not in plan.model.options]
    if not chosen:
        return network, facts
    several = "" if job.run.ensemble == 1 else f", mean of {job.run.ensemble}"
    return network, [f"{job.model.name} with {', '.join(chosen)}{several}, chosen by the data", *facts]


def _read_started_job(started: Manifest) -> Job | None:
    """Return the job of an earlier training; None if it was stopped while it wrote the job."""
    listed = [name for name in JOB_FILES if name in started.files]
    started.verify(listed)
    if "run.toml" not in listed:
        return None
    job = job_from_toml(started.read("run.toml"))
    if not isinstance(job, Job):
        raise ValueError(f"{started.folder} holds a committee, not a network: resume with the same settings")
    return job


@contextmanager
def _marked_incomplete(started: Manifest) -> Iterator[None]:
    """Mark a finished model as incomplete while its training continues, unless the trainer fails before it changes."""
    if not started.complete:
        yield
        return
    content = (started.folder / MANIFEST_FILE).read_bytes()
    write_manifest(started.folder, JOB_FILES, kind=MODEL_KIND, complete=False)
    try:
        yield
    except BaseException:
        with suppress(FolderError):
            started.verify()
            write_atomic(started.folder / MANIFEST_FILE, content)
        raise


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


def _build(
    data: DataConfig, model: ModelConfig, encoder: Encoder, seed: int, prior: float | None
) -> tuple[nn.Module, list[str]]:
    data_type = data_type_of(data)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = data_type.build_model(encoder, model.name, model.options, prior=prior)
    if model.pretrained is None:
        return network, []
    return network, [f"begins with {data_type.load_weights(network, model.pretrained)}"]


def _held_out_scores(model: SavedNetwork, folds: Folds) -> Scores:
    """Return for each row the mean score of the networks that hold it out."""
    total, count = np.zeros_like(folds.rows.labels, np.float64), np.zeros(len(folds.rows.labels))
    assert isinstance(model.network, Ensemble)
    for member, rows in zip(model.network.members, folds.held_out, strict=True):
        total[rows] += replace(model, network=member).score_dataset(folds.rows.dataset.subset(rows))
        count[rows] += 1
    mean: Scores = (total / count.reshape(-1, *[1] * (total.ndim - 1))).astype(np.float32)
    return mean


def _evaluate(
    job: Job, model: SavedNetwork, prepared: PreparedData, folds: Folds | None, result: Result, folder: Path
) -> JobResult:
    names, report = model.targets.names, RowReport()
    rows, part = prepared.valid if folds is None else folds.rows, "validation"
    scores = model.score_dataset(prepared.data.valid) if folds is None else _held_out_scores(model, folds)
    valid = evaluate_targets(scores, rows.labels, names, rows.sample_weight)
    model = model.calibrated(scores, rows.labels, rows.sample_weight)
    test, scored = None, [score_labelled_rows(part, rows, scores)]
    if prepared.test is not None:
        rows, part = prepared.test, "test"
        scores = model.score_rows(rows, report)
        test = evaluate_targets(scores, rows.labels, names, rows.sample_weight)
        scored.append(score_labelled_rows(part, rows, scores))
    sheets: list[Path] = []
    if is_first_process():
        content = {"valid": valid.to_table(), "test": None if test is None else test.to_table()}
        write_atomic(folder / "results.json", (json.dumps(content, indent=2) + "\n").encode())
        save_calibration(folder, model)
        save_scored_rows(folder, scored)
        sheets = draw_contact_sheets(model, rows, scores, folder, part=part)
    chosen = from_first(partial(_chosen_epochs, folder, job), process_count(job.run))
    return JobResult(folder, model, valid, test, result.records, chosen, report.lines(), sheets, scored)


def _chosen_epochs(folder: Path, job: Job) -> list[dict[str, Any]]:
    """Return for each network the stage and epoch that its weights come from."""
    members = [(folder / name).parent for name in weight_files(job)]
    return [json.loads((member / "run.json").read_text(encoding="utf-8"))["chosen"] for member in members]


def _check_same_job(folder: Path, before: Job, job: Job) -> None:
    """Raise if the earlier training in a folder is of another model or other targets."""
    compared = [
        ("kind", before.data.kind, job.data.kind),
        ("model", before.model.name, job.model.name),
        ("the options of the model", dict(before.model.options), dict(job.model.options)),
        ("target", before.data.target, job.data.target),
        *((name, getattr(before.data, name, None), getattr(job.data, name)) for name in job.data.fixed_on_resume),
        ("pretrained", *_pretrained_weights(folder, before.model.pretrained, job.model.pretrained)),
        ("ensemble", before.run.ensemble, job.run.ensemble),
    ]
    for name, old, new in compared:
        if old != new:
            was, now = setting_text(old), setting_text(new)
            raise ValueError(f"{name} was {was} in {folder} and is {now} now: resume with the same")


def _pretrained_weights(folder: Path, before: str | None, path: str | None) -> tuple[str | None, str | None]:
    """Return what is compared of the files of weights that a network began with and is to begin with: their content.

    The file may have moved, and another may be at its place. Where the checksum of the first is not known, as in
    folders of version 0.2, the paths are compared.
    """
    known = RunDirectory(folder).read_facts().get(_WEIGHTS_FACT)
    if before is None or path is None or known is None:
        return before, path
    return f"a file of SHA-256 {known}", f"a file of SHA-256 {file_checksum(Path(path)).sha256}"
