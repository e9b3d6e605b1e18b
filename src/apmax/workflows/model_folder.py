"""Folders of trained models.

run.toml            the job, every default written out: `apmax train FOLDER/run.toml --out OTHER` repeats it
encoder.json        the encoder of the rows and the meaning of the targets' values
results.json        metrics of the chosen model on held-out and test rows; of a committee also the leaderboard
unreadable.csv      the rows that could not be read, if there were any
contact-sheet.png   the best-ranked images, if the data are images
decision.json       the threshold of each target, if `apmax decide` has chosen one
scores-*.npz        the scores of held-out and test rows (`apmax.workflows.scored_rows`)
manifest.json       the checksums of the files from which the model is loaded, written last
.lock               held by the training

of a network
model.pt            the weights; of an ensemble member-0/model.pt, member-1/model.pt, …
calibration.json    the curve from scores to probabilities of each target, fitted to the validation rows
(and the files of the trainer: config.toml, run.json, records.jsonl, log.txt, checkpoint.pt)

of a committee
plan.json           members, folds and estimated time, and the checksum of the training rows
log.txt             a line for each fitted member
backbone.pt         the weights of a frozen network, whose embeddings the members read
committee.json, members/…   the committee (`apmax.committee.storage`); of several targets target-0/committee.json, …
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apmax.committee import Member, read_committee
from apmax.data import RowSource, Targets
from apmax.folders import STUDY_FILE, FolderError, Manifest, read_manifest, write_atomic, write_json, write_manifest
from apmax.train import Ensemble, PlattCurve
from apmax.validation import setting_text
from apmax.workflows.data_types import DATA_TYPES, DataType, Encoder, FrozenImageType, ImageData, data_type_of
from apmax.workflows.data_types.images import ImageEncoder
from apmax.workflows.job import CommitteeJob, Job, job_from_toml, write_job
from apmax.workflows.saved_model import SavedCommittee, SavedModel, SavedNetwork
from apmax.workflows.scored_rows import MODEL_KIND

FORMAT_VERSION = 3
JOB_FILES = ("run.toml", "encoder.json")
"""Files that are written before training."""
CALIBRATION_FILE, DECISION_FILE, PLAN_FILE = "calibration.json", "decision.json", "plan.json"
BACKBONE_FILE = "backbone.pt"


def save_job(
    folder: Path,
    job: Job | CommitteeJob,
    encoder: Encoder,
    targets: Targets,
    *,
    plan: Mapping[str, Any] | None = None,
    backbone: bytes | None = None,
) -> None:
    """Write all of a model's folder that is known before training; of a committee also its plan and frozen network."""
    if read_started(folder) is not None:
        # While the files are replaced, the manifest lists none of them.
        write_manifest(folder, (), kind=MODEL_KIND, complete=False)
        (folder / DECISION_FILE).unlink(missing_ok=True)  # it was made for the earlier weights
    write_job(job, folder / "run.toml")
    content = {
        "version": FORMAT_VERSION,
        "kind": job.data.kind,
        "targets": targets.to_table(),
        "encoder": encoder.to_table(),
    }
    write_json(folder / "encoder.json", content)
    if plan is not None:
        write_json(folder / PLAN_FILE, plan)
    if backbone is not None:
        write_atomic(folder / BACKBONE_FILE, backbone)
    write_manifest(folder, job_files(job), kind=MODEL_KIND, complete=False)


def job_files(job: Job | CommitteeJob) -> tuple[str, ...]:
    """Return the files that are written before training."""
    if not isinstance(job, CommitteeJob):
        return JOB_FILES
    return (*JOB_FILES, PLAN_FILE, *([BACKBONE_FILE] if job.committee.frozen else []))


def committee_folders(targets: int) -> list[str]:
    """Return the folder of each target's committee below a model's folder, with a slash at the end.

    >>> committee_folders(1), committee_folders(2)
    ([''], ['target-0/', 'target-1/'])
    """
    return [""] if targets == 1 else [f"target-{number}/" for number in range(targets)]


def save_calibration(folder: Path, model: SavedModel) -> None:
    """Write the calibration of each target, in the order of the targets."""
    curves = [None if curve is None else curve._asdict() for curve in model.calibration]
    write_json(folder / CALIBRATION_FILE, {"targets": curves})


def read_started(folder: Path) -> Manifest | None:
    """Return the manifest of a training that was begun in a folder; None if there is none.

    Raises:
        FolderError: The manifest is damaged, the folder is that of a search, or there are checkpoints or members of a
            committee and no manifest: of which data and settings they are is then not known.
    """
    try:
        return read_manifest(folder, kind=MODEL_KIND)
    except FileNotFoundError:
        if (folder / STUDY_FILE).exists():
            raise FolderError(f"{folder} holds a search by `apmax tune`: choose another folder") from None
        for what, pattern in (("a checkpoint", "checkpoint*.pt"), ("members of a committee", "members/*/*.scores.npz")):
            if any(folder.glob(pattern)) or any(folder.glob(f"*-*/{pattern}")):
                raise FolderError(
                    f"{folder} is damaged or was not written by `apmax train`: it holds {what} and no manifest.json"
                ) from None
        return None


def read_started_job(started: Manifest) -> Job | CommitteeJob | None:
    """Return the job of a training that was begun in a folder; None if it was stopped while it wrote the job."""
    if "run.toml" not in started.files:
        return None
    started.verify([name for name in (*JOB_FILES, PLAN_FILE) if name in started.files])
    return job_from_toml(started.read("run.toml"))


def check_unchanged(folder: Path, settings: Iterable[tuple[str, Any, Any]]) -> None:
    """Raise `ValueError` for the first setting, (name, value in the folder's training, value now), that differs."""
    for name, old, new in settings:
        if old != new:
            was, now = setting_text(old), setting_text(new)
            raise ValueError(f"{name} was {was} in {folder} and is {now} now: resume with the same")


def weight_files(job: Job) -> list[str]:
    """Return the files of weights below a model's folder."""
    count = job.run.ensemble
    return ["model.pt"] if count == 1 else [f"member-{number}/model.pt" for number in range(count)]


def load_model(folder: str | os.PathLike[str], *, model: str | Callable[..., nn.Module] | None = None) -> SavedModel:
    """Return the model that `apmax train` left in a folder.

    All files are compared with the checksums in manifest.json before any of them is parsed.

    Args:
        folder: The folder.
        model: The builder of a network of your own, or its "package.module:callable" as it was trained. A folder alone
            never causes your or anyone's code to be imported.

    Raises:
        FileNotFoundError: There is no trained model, or its training is not finished.
        ValueError: A file is damaged or missing (`FolderError`), another version of apmax or of the features, weights
            of another network, or a network of the user's own and no `model`.
    """
    manifest = read_manifest(folder, kind=MODEL_KIND)
    if not manifest.complete:
        raise FileNotFoundError(f"the training in {folder} is not finished: continue it with resume=True")
    manifest.verify()
    encoder, targets = _read_encoder(manifest)
    thresholds = _read_thresholds(manifest, targets.names)
    job = job_from_toml(manifest.read("run.toml"))
    if isinstance(job, CommitteeJob):
        table = _trusted_members(job, model, folder)
        committees = [read_committee(manifest, name, members=table) for name in committee_folders(len(targets.each))]
        frozen = _load_frozen(job, manifest, model) if job.committee.frozen else None
        return replace(SavedCommittee.of(job, encoder, targets, committees, frozen=frozen), thresholds=thresholds)
    calibration = _read_calibration(manifest, len(targets.each))
    builder = _trusted_builder(data_type_of(job.data), job.model.name, model, folder)
    members = [_load_network(job, encoder, manifest, name, builder) for name in weight_files(job)]
    network = members[0] if len(members) == 1 else Ensemble(members)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return SavedNetwork(job, encoder, targets, calibration, network.eval().to(device), thresholds=thresholds)


def open_other_model(
    folder: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    model: str | Callable[..., nn.Module] | None = None,
    options: Mapping[str, Any],
) -> tuple[SavedModel, RowSource]:
    """Return the model that another one is compared with, and the rows of the comparison, as `SavedModel.open` does.

    Errors about `model` say `against_model`.

    Args:
        folder: The folder of the other model.
        data: The file or folder of the rows.
        model: As in `load_model`.
        options: Differences of the rows from the training data of the first; those that the other cannot have are left
            out.
    """
    try:
        other = load_model(folder, model=model)
    except ValueError as error:
        if str(error).startswith(("model: ", "model must ")):  # and not a folder of such a name
            raise ValueError(f"against_{error}".replace("(model=", "(against_model=")) from None
        raise
    return other.open(
        data, **{name: value for name, value in options.items() if name in other.data_type.reading_options}
    )


def _read_encoder(manifest: Manifest) -> tuple[Encoder, Targets]:
    """Return the encoder and the targets in encoder.json.

    Raises:
        ValueError: Another version, or not the content that `save_job` writes.
    """
    file = manifest.folder / "encoder.json"
    content = _read_json(manifest, "encoder.json")
    version = content.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise ValueError(f"{file} was not written by apmax: it has no version")
    if version != FORMAT_VERSION:
        age, advice = ("a newer", "upgrade apmax") if version > FORMAT_VERSION else ("an older", "train again")
        raise ValueError(f"{manifest.folder} was written by {age} apmax: {advice}")
    kind = content.get("kind")
    if kind not in DATA_TYPES:
        raise ValueError(f"{file} was not written by apmax: kind must be one of {', '.join(DATA_TYPES)}, got {kind!r}")
    part = "targets"
    try:
        targets = Targets.from_table(content["targets"])
        part = "encoder"
        return DATA_TYPES[kind].restore_encoder(content["encoder"]), targets
    except (LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{file} was not written by apmax: its {part} cannot be read ({reason})") from None


def _read_calibration(manifest: Manifest, targets: int) -> tuple[PlattCurve | None, ...]:
    """Return the curve of each target in calibration.json.

    Raises:
        ValueError: Not the content that `save_calibration` writes.
    """
    entries = _read_json(manifest, CALIBRATION_FILE).get("targets")
    try:
        curves = tuple(None if entry is None else PlattCurve(**entry) for entry in entries or ())
        good = all(math.isfinite(value) for curve in curves if curve is not None for value in curve)
    except TypeError:
        curves, good = (), False
    if not good or len(curves) != targets:
        file = manifest.folder / CALIBRATION_FILE
        raise ValueError(f"{file} was not written by apmax: it has no curve of slope and intercept for every target")
    return curves


def read_targets(manifest: Manifest) -> Targets:
    """Return the targets of a model's folder, without its network.

    Raises:
        ValueError: As `load_model`.
    """
    return _read_encoder(manifest)[1]


def _read_thresholds(manifest: Manifest, names: Sequence[str]) -> dict[str, float]:
    """Return the thresholds in decision.json; none without that file.

    Raises:
        ValueError: Not the content that `apmax decide` writes.
    """
    if DECISION_FILE not in manifest.files:
        return {}
    entries = _read_json(manifest, DECISION_FILE).get("targets")
    try:
        found = {name: float(entry["threshold"]) for name, entry in (entries or {}).items()}
        good = all(map(math.isfinite, found.values())) and set(found) <= set(names)
    except (TypeError, ValueError, LookupError, AttributeError):
        found, good = {}, False
    if not good:
        file = manifest.folder / DECISION_FILE
        raise ValueError(f"{file} was not written by apmax: it must have a threshold for some of the targets")
    return found


def _read_json(manifest: Manifest, name: str) -> dict[str, Any]:
    """Return the table in a JSON file; an empty one where there is another thing in it."""
    content = manifest.read(name)
    try:
        table = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def _trusted_members(
    job: CommitteeJob, model: str | Callable[..., nn.Module] | None, folder: str | os.PathLike[str]
) -> Mapping[str, Member] | None:
    """Return members that read networks of the user's own; None where the committee has none."""
    name, data_type = job.committee.backbone, data_type_of(job.data)
    if name is None:
        if model is not None:
            raise ValueError(f"model: {folder} holds a committee, which has no network of your own")
        return None
    builder = _trusted_builder(data_type, name, model, folder)
    own = name not in data_type.models or callable(model)
    # The members of a committee on a frozen network are not networks.
    return data_type.saved_members(name, builder) if own and not job.committee.frozen else None


def _load_frozen(
    job: CommitteeJob, manifest: Manifest, model: str | Callable[..., nn.Module] | None
) -> FrozenImageType:
    """Return the data type with the frozen network of a committee."""
    data_type = data_type_of(job.data)
    assert isinstance(job.data, ImageData)
    name = job.committee.backbone or next(iter(data_type.models))
    builder = _trusted_builder(data_type, name, model, manifest.folder)
    network = data_type.build_model(ImageEncoder(job.data.input_size), name, {}, builder=builder)
    _load_weights(network, manifest, BACKBONE_FILE, name)
    return FrozenImageType(job.data, network)


def _trusted_builder(
    data_type: DataType[Any],
    name: str,
    model: str | Callable[..., nn.Module] | None,
    folder: str | os.PathLike[str],
) -> Callable[..., nn.Module]:
    """Return the builder of the network; code outside of apmax is imported only if `model` names it."""
    if callable(model):
        return model
    if model is not None and model != name:
        raise ValueError(f"model must be {name!r}, the network that {folder} was trained with, got {model!r}")
    if model is None and name not in data_type.models:
        raise ValueError(
            f"model: {folder} was trained with the network {name}, which is code outside of apmax: "
            f"to import it, name it again (model={name})"
        )
    return data_type.find_builder(name)


def _load_network(
    job: Job, encoder: Encoder, manifest: Manifest, name: str, builder: Callable[..., nn.Module]
) -> nn.Module:
    network = data_type_of(job.data).build_model(encoder, job.model.name, job.model.options, builder=builder)
    options = "".join(f", {key} = {value}" for key, value in job.model.options.items())
    _load_weights(network, manifest, name, job.model.name + options)
    return network


def _load_weights(network: nn.Module, manifest: Manifest, name: str, described: str) -> None:
    """Load a file of weights into a network that is described in run.toml.

    Raises:
        ValueError: Weights of another network, or none.
    """
    content = manifest.read(name)
    try:
        network.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    except Exception as error:  # the type that torch raises for a damaged file depends on its first bytes
        lines = [line.strip() for line in str(error).splitlines()]
        reason = lines[min(1, len(lines) - 1)] if lines else type(error).__name__
        raise ValueError(
            f"{manifest.folder / name} does not hold the weights of the network in run.toml ({described}): {reason}"
        ) from None
