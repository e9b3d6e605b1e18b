"""Training of a committee: from files to its folder, by a plan that is stored before the work."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apmax.committee import (
    Committee,
    CommitteePlan,
    Leaderboard,
    Member,
    TrainingRows,
    find_members,
    fit_committee,
    load_results,
    make_folds,
    plan_committee,
    save_result,
    write_committee,
)
from apmax.committee.leaderboard import CROSS_FITTED, HELD_OUT
from apmax.data import one_column
from apmax.data.caching import worker_processes
from apmax.data.splits import RowNumbers
from apmax.folders import FolderError, Manifest, write_atomic, write_manifest
from apmax.train import Data, nan_to_none
from apmax.train.display import format_duration
from apmax.train.run_directory import data_fingerprint
from apmax.validation import plural, setting_text
from apmax.workflows.committee_progress import CommitteeProgress
from apmax.workflows.contact_sheets import draw_contact_sheets
from apmax.workflows.data_types import FrozenImageType, LabelledRows, RowReport, data_type_of
from apmax.workflows.evaluation import evaluate_targets
from apmax.workflows.job import CommitteeConfig, CommitteeJob, job_from_toml
from apmax.workflows.job_result import JobResult, Notify
from apmax.workflows.model_folder import DECISION_FILE, PLAN_FILE, committee_folders, job_files, save_job
from apmax.workflows.prediction import write_unreadable
from apmax.workflows.prepare import CommitteeRows, prepare_committee_rows
from apmax.workflows.saved_model import SavedCommittee
from apmax.workflows.scored_rows import MODEL_KIND, save_scored_rows, score_labelled_rows, scores_file

PARALLEL_SECONDS = 10.0
"""Estimated time from which several processes fit the members: starting them takes some seconds."""

_FORMER_SCORES = scores_file(CROSS_FITTED)
"""File of the scores of one split in folders of version 0.2."""


def train_committee(
    job: CommitteeJob, folder: Path, started: Manifest | None, *, progress: bool, notify: Notify | None
) -> JobResult:
    """Train a committee in a locked folder, or continue one.

    Args:
        job: The job.
        folder: The folder.
        started: The manifest of an earlier training there.
        progress: Show the progress; all lines are in log.txt.
        notify: Called with facts and warnings about the data before training begins.

    Raises:
        ValueError: Data or settings are wrong, or differ from those of the training to continue.
    """
    before = None if started is None else _read_started(started)
    networks = _check_networks(job)  # before data are read, which may take long
    prepared = prepare_committee_rows(job.data, seed=job.committee.seed)
    job = CommitteeJob(prepared.data_type.config, job.committee)
    weights = None
    if job.committee.frozen:
        prepared, weights = _with_embeddings(prepared, job.committee, notify)
    fingerprint = _fingerprint(prepared, job.committee, weights)
    if before is None:
        plan = _make_plan(job, prepared)
    else:
        plan = before.plan
        _check_same_job(folder, before, job, fingerprint)
    # Before anything is written: the rows may not allow even one split.
    folds = _shared_folds(prepared, job, plan)
    targets = _target_rows(prepared, folds, plan, job.committee)
    if notify is not None:
        notify([*prepared.facts, *networks, *plan_lines(plan)], prepared.warnings)
    if before is None:
        content = json.dumps({"plan": plan.to_table(), "data": " ".join(fingerprint.values())}, indent=1) + "\n"
        save_job(folder, job, prepared.encoder, prepared.targets, plan=content.encode(), backbone=weights)
        write_unreadable(folder, prepared.unreadable)
    committees = [_fit(target, plan, folder, progress=progress) for target in targets]
    return _finish(job, targets, committees, prepared, folder, started)


def _check_networks(job: CommitteeJob) -> list[str]:
    """Return lines about the network of the members and the weights that it begins with, where these are given.

    Raises:
        ValueError: No such network, one of another output, weights of another network, or none.
    """
    path, backbone, data_type = job.committee.pretrained, job.committee.backbone, data_type_of(job.data)
    if path is None and backbone is None:
        return []
    network = data_type.build_backbone(backbone)
    lines = [] if backbone is None else [f"networks are {backbone}"]
    return lines if path is None else [*lines, f"networks begin with {data_type.load_weights(network, path)}"]


def _with_embeddings(
    prepared: CommitteeRows, config: CommitteeConfig, notify: Notify | None
) -> tuple[CommitteeRows, bytes]:
    """Return the rows as embeddings of the frozen network, and its weights as a file."""
    if notify is not None:
        notify([f"embeddings of {len(prepared.rows.labels):,} images are computed once, or read from the cache"], [])
    data_type = prepared.data_type
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        network = data_type.build_backbone(config.backbone)
    if config.pretrained is not None:
        data_type.load_weights(network, config.pretrained)
    content = io.BytesIO()
    torch.save(network.state_dict(), content)
    frozen = FrozenImageType(data_type.config, network, prepared.rows.dataset)
    return replace(prepared, data_type=frozen), content.getvalue()


def plan_lines(plan: CommitteePlan) -> list[str]:
    """Return the plan in words.

    >>> plan_lines(CommitteePlan("quick", ("gbdt",), 1, 2.0, (), 0))
    ['plan (quick): gbdt on one split, about 2 s']
    """
    folds = "one split" if plan.folds == 1 else plural(plan.folds, "fold")
    members = ", ".join(plan.members)
    return [f"plan ({plan.effort}): {members} on {folds}, about {format_duration(plan.seconds)}", *plan.notes]


_Folds = list[tuple[RowNumbers, RowNumbers]]
_Scores = NDArray[np.float64]


@dataclass(frozen=True)
class _TargetRows:
    """The rows that have the label of a target.

    Args:
        name: The target; empty if it is the only one.
        folder: The folder of its committee below that of the model, with a slash at the end.
        places: (n,) their places among all rows.
        rows: The rows.
        folds: (training, held-out) rows of each fold, as positions in `rows`.
        members: The members by name.
    """

    name: str
    folder: str
    places: RowNumbers
    rows: TrainingRows
    folds: _Folds
    members: Mapping[str, Member]


def _all_rows(prepared: CommitteeRows) -> TrainingRows:
    """Return all training rows; of several targets a row is positive if it is for any of them."""
    return TrainingRows(
        prepared.data_type.committee_features(prepared.rows, prepared.encoder),
        one_column(prepared.rows.labels).astype(np.float64),
        prepared.sample_weight,
        groups=prepared.groups,
        times=prepared.times,
    )


def _shared_folds(prepared: CommitteeRows, job: CommitteeJob, plan: CommitteePlan) -> _Folds:
    """Return the folds of all rows, which the targets have in common."""
    if plan.folds == 1:
        return [prepared.hold_out(job.data.share, seed=plan.seed)]
    return make_folds(_all_rows(prepared), plan.folds, plan.seed)


def _target_rows(
    prepared: CommitteeRows, folds: _Folds, plan: CommitteePlan, config: CommitteeConfig
) -> list[_TargetRows]:
    """Return the labelled rows of each target, with their part of the shared folds."""
    names = prepared.targets.names
    every, data_type = _all_rows(prepared), prepared.data_type

    def members(rows: LabelledRows) -> dict[str, Member]:
        table = data_type.committee_members(rows, pretrained=config.pretrained, backbone=config.backbone)
        return find_members(plan.members, effort=plan.effort, table=table)

    if len(names) == 1:
        return [_TargetRows("", "", np.arange(len(every.labels)), every, folds, members(prepared.rows))]
    found = []
    for name, folder, labels in zip(names, committee_folders(len(names)), prepared.rows.labels.T, strict=True):
        places = np.flatnonzero(~np.isnan(labels))
        labelled = replace(prepared.rows.take(places), labels=labels[places])
        rows = TrainingRows(
            data_type.committee_features(labelled, prepared.encoder),
            labels[places].astype(np.float64),
            every.sample_weight[places],
            groups=None if every.groups is None else every.groups[places],
            times=None if every.times is None else every.times[places],
        )
        own = _labelled_folds(rows, folds, places, plan)
        found.append(_TargetRows(name, folder, places, rows, own, members(labelled)))
    return found


def _labelled_folds(rows: TrainingRows, folds: _Folds, places: RowNumbers, plan: CommitteePlan) -> _Folds:
    """Return the part of shared folds that has a label; one split of its own where fewer than two can be fitted."""
    number = np.full(max(int(part.max(initial=0)) for fold in folds for part in fold) + 1, -1)
    number[places] = np.arange(len(places))
    parts = [(number[train][number[train] >= 0], number[held][number[held] >= 0]) for train, held in folds]
    possible = [(train, held) for train, held in parts if len(held) and len(set(rows.labels[train].tolist())) == 2]
    if len(possible) < min(2, plan.folds):
        return make_folds(rows, 1, plan.seed)
    return possible


def _make_plan(job: CommitteeJob, prepared: CommitteeRows) -> CommitteePlan:
    config, rows = job.committee, _all_rows(prepared)
    most = prepared.data_type.committee_folds(config.effort)
    try:
        possible = len(make_folds(rows, most, config.seed)) if config.effort != "quick" else 1
    except ValueError:
        possible = 1
    data_type = prepared.data_type
    table = data_type.committee_members(prepared.rows, pretrained=config.pretrained, backbone=config.backbone)
    notes = data_type.committee_notes(config.backbone)
    if notes and not set(config.members) <= set(table):
        raise ValueError(f"members: {notes[0]}")
    plan = plan_committee(
        rows=len(rows.labels),
        positives=int(rows.labels.sum()),
        columns=data_type.committee_columns(prepared.encoder),
        possible_folds=possible,
        effort=config.effort,
        members=config.members or None,
        time_limit=config.time_limit,
        n_jobs=worker_processes(),
        seed=config.seed,
        kind=job.data.kind,
        targets=len(prepared.targets.each),
        table=table,
    )
    return replace(plan, notes=(*plan.notes, *notes))


def _fit(target: _TargetRows, plan: CommitteePlan, folder: Path, *, progress: bool) -> Committee:
    own, members = folder / target.folder, target.members
    finished = load_results(own, members, len(target.folds))
    with CommitteeProgress(len(target.folds), folder / "log.txt", show=progress, target=target.name) as display:
        return fit_committee(
            target.rows,
            members,
            folds=target.folds,
            seed=plan.seed,
            n_jobs=worker_processes() if plan.seconds > PARALLEL_SECONDS else 1,
            finished=finished,
            on_result=lambda result: save_result(own, result, members[result.task.name]),
            on_progress=display.update,
        )


def _finish(
    job: CommitteeJob,
    targets: list[_TargetRows],
    committees: list[Committee],
    prepared: CommitteeRows,
    folder: Path,
    started: Manifest | None,
) -> JobResult:
    """Evaluate and save fitted committees, the manifest last; `started` is the one of an earlier training."""
    frozen = prepared.data_type if isinstance(prepared.data_type, FrozenImageType) else None
    model = SavedCommittee.of(job, prepared.encoder, prepared.targets, committees, frozen=frozen)
    names, rows, report = model.targets.names, prepared.rows, RowReport()
    blended, own = _cross_fitted_scores(len(rows.labels), targets, committees)
    leaderboards = {name: committee.leaderboard for name, committee in zip(names, committees, strict=True)}
    # Where there are several targets, one of them can have a split of its own.
    part = HELD_OUT if all(each.part == HELD_OUT for each in leaderboards.values()) else CROSS_FITTED
    scored = [score_labelled_rows(part, rows, blended, own)]
    valid = evaluate_targets(blended, rows.labels, names, rows.sample_weight)
    test, shown = None, (rows, blended.astype(np.float32), part)
    if (new := prepared.test) is not None:
        scores = model.score_rows(new, report)
        test = evaluate_targets(scores, new.labels, names, new.sample_weight)
        scored.append(score_labelled_rows("test", new, scores))
        shown = new, scores, "test"
    boards = {name: _leaderboard_content(leaderboard) for name, leaderboard in leaderboards.items()}
    content = {
        part.replace("-", "_"): valid.to_table(),
        "test": None if test is None else test.to_table(),
        **(boards[names[0]] if len(names) == 1 else {"targets": boards}),
    }
    write_atomic(folder / "results.json", (json.dumps(content, indent=2) + "\n").encode())
    files = [
        target.folder + name
        for target, committee in zip(targets, committees, strict=True)
        for name in write_committee(folder / target.folder, committee)
    ]
    files += [*save_scored_rows(folder, scored), *job_files(job)]
    decided = started is not None and _has_decision(started, files, scored[0].file)
    write_manifest(folder, [*files, *([DECISION_FILE] if decided else [])], kind=MODEL_KIND)
    if not decided:
        (folder / DECISION_FILE).unlink(missing_ok=True)
    if part == HELD_OUT:
        (folder / _FORMER_SCORES).unlink(missing_ok=True)
    sheets = draw_contact_sheets(model, *shown[:2], folder, part=shown[2])
    return JobResult(
        folder,
        model,
        valid,
        test,
        warnings=report.lines(),
        contact_sheets=sheets,
        scored=scored,
        leaderboards=leaderboards,
    )


def _cross_fitted_scores(
    rows: int, targets: Sequence[_TargetRows], committees: Sequence[Committee]
) -> tuple[_Scores, dict[str, _Scores]]:
    """Return the scores of the blends, and those of every member, (rows, targets); NaN where a row has no label."""
    blended = np.full((rows, len(targets)), np.nan)
    own = {name: blended.copy() for name in committees[0].table}
    for number, (target, committee) in enumerate(zip(targets, committees, strict=True)):
        assert committee.cross_fitted is not None
        blended[target.places, number] = committee.blend.score(committee.cross_fitted)
        for name, scores in zip(committee.table, committee.cross_fitted.T, strict=True):
            own[name][target.places, number] = scores
    return blended, own


def _has_decision(started: Manifest, files: Iterable[str], scores: str) -> bool:
    """Return whether a finished training has a decision, and the models and scores that it was made for are in files.

    The blend is compared by its scores: committee.json has the sum of the seconds, too, which rounding can change.
    """
    if not started.complete or DECISION_FILE not in started.files:
        return False
    basis = [name for name in files if "members/" in name]
    try:
        started.verify([*basis, DECISION_FILE])
        former = started.read(scores if scores in started.files else _FORMER_SCORES)
    except FolderError:
        return False
    return former == (started.folder / scores).read_bytes()


def _leaderboard_content(leaderboard: Leaderboard) -> dict[str, Any]:
    """Return a leaderboard and its verdicts as plain values for JSON."""
    table: dict[str, Any] = nan_to_none(asdict(leaderboard))
    verdicts = [
        {**entry, "sentence": verdict.sentence}
        for entry, verdict in zip(table["verdicts"], leaderboard.verdicts, strict=True)
    ]
    return {"leaderboard": [*table["rows"], table["blend"]], "verdicts": verdicts}


@dataclass(frozen=True)
class _Started:
    """The job, the plan and the fingerprint of the rows of an earlier training."""

    job: CommitteeJob
    plan: CommitteePlan
    fingerprint: str


def _read_started(started: Manifest) -> _Started | None:
    """Return the earlier training in a folder; None if it was stopped while it wrote its job."""
    if "run.toml" not in started.files:
        return None
    started.verify([name for name in started.files if name in ("run.toml", "encoder.json", PLAN_FILE)])
    job = job_from_toml(started.read("run.toml"))
    if not isinstance(job, CommitteeJob):
        raise ValueError(f"{started.folder} holds the training of one network: resume with the same settings")
    try:
        table = json.loads(started.read(PLAN_FILE))
        plan = CommitteePlan.from_table(table["plan"], kind=job.committee.member_kind(job.data.kind))
        return _Started(job, plan, str(table["data"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FolderError(f"{started.folder} was not written by apmax: its {PLAN_FILE} has no plan ({error})") from None


def _check_same_job(folder: Path, before: _Started, job: CommitteeJob, fingerprint: Mapping[str, str]) -> None:
    """Raise if the earlier training in a folder is of other settings or other rows."""
    settings = (
        "target",
        "positive",
        "group",
        "time",
        "weight",
        "split",
        "share",
        "test_share",
        "columns",
        "decimal_comma",
        "duplicates",
        "augment",
        "mirror",
        "upside_down",
    )
    named = (*settings, *job.data.fixed_on_resume)
    compared = [
        ("kind", before.job.data.kind, job.data.kind),
        *((name, getattr(before.job.data, name, None), getattr(job.data, name, None)) for name in named),
        *(
            (each.name, getattr(before.job.committee, each.name), getattr(job.committee, each.name))
            for each in fields(CommitteeConfig)
            # Two files of weights are compared by content, in the fingerprint.
            if each.name != "pretrained" or None in (before.job.committee.pretrained, job.committee.pretrained)
        ),
    ]
    for name, old, new in compared:
        if old != new:
            was, now = setting_text(old), setting_text(new)
            raise ValueError(f"{name} was {was} in {folder} and is {now} now: resume with the same")
    earlier = before.fingerprint.split()
    # An earlier version may have stored fewer digests: which part differs is then not known.
    same_parts = len(earlier) == len(fingerprint)
    others = [
        f"other {name}"
        for number, (name, part) in enumerate(fingerprint.items())
        if not same_parts or part != earlier[number]
    ]
    if others:
        what = (" and " if same_parts else " or ").join(others)
        raise ValueError(f"the training in {folder} was of {what}: their fingerprint differs; resume with the same")


def _fingerprint(prepared: CommitteeRows, config: CommitteeConfig, frozen: bytes | None) -> dict[str, str]:
    """Return SHA-256 by what the fits depend on: the training rows, what decides the folds, a network's given weights.

    Args:
        prepared: The rows: their inputs, labels and weights, groups and times.
        config: The committee, which may name a file of weights.
        frozen: The weights of a frozen network.
    """
    rows = prepared.rows
    labels, weight = torch.tensor(rows.labels), torch.tensor(prepared.sample_weight)
    groups = None if prepared.groups is None else np.unique(prepared.groups, return_inverse=True)[1].ravel()
    contents: dict[str, bytes | None] = {
        "groups": None if groups is None else groups.tobytes(),
        "times": None if prepared.times is None else prepared.times.tobytes(),
    }
    if config.pretrained is not None:
        contents[f"weights (pretrained={config.pretrained!r})"] = frozen or Path(config.pretrained).read_bytes()
    else:
        contents["weights of the network"] = frozen
    digests = {name: hashlib.sha256(each).hexdigest() for name, each in contents.items() if each is not None}
    data = Data(rows.model_inputs(prepared.encoder))
    return {"rows": data_fingerprint(data, (labels, None), (weight, None)), **digests}
