"""Storage of a committee in a folder: members in forms whose reading executes no code, listed in the manifest.

committee.json                  members, encodings, alignment, blend, calibration and leaderboard
members/NAME/fold-K.txt         a LightGBM model as its own text
members/NAME/fold-K.npz         a forest or a linear model as arrays
members/NAME/fold-K.pt          a network, read by `torch.load(weights_only=True)`
members/NAME/final.*            a member fitted to all rows, where the folds' models are not averaged
members/NAME/fold-K.scores.npz  its scores of the held-out rows, from which an interrupted fit continues
manifest.json                   checksums of all files that loading needs, written last
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from apmax import validation
from apmax.blend import Blend
from apmax.committee.crossfit import Committee, FoldModels
from apmax.committee.features import FEATURE_FORMATS
from apmax.committee.leaderboard import CROSS_FITTED, HELD_OUT, Leaderboard, LeaderboardRow, LossVerdict
from apmax.committee.members import EFFORTS, Member, find_members
from apmax.committee.tasks import FINAL, FitResult, FitTask
from apmax.data.archives import npz_content, read_npz
from apmax.folders import FolderError, Manifest, read_manifest, write_atomic, write_manifest
from apmax.metrics import Difference, Interval
from apmax.train import PlattCurve, nan_to_none

_T = TypeVar("_T")
COMMITTEE_KIND = "committee"
CONTENT_FILE = "committee.json"
_VERSION = 2


def save_result(folder: Path, result: FitResult, member: Member) -> None:
    """Write a fitted member and its held-out scores; the scores last, so that their presence says "finished"."""
    path = folder / _member_file(result.task.name, result.task.fold, member.suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = result.model.to_bytes()
    write_atomic(path, content)
    scores = npz_content(
        scores=result.scores, seconds=np.array(result.seconds), sha256=_digest(content), origin=np.array(result.origin)
    )
    write_atomic(path.with_suffix(".scores.npz"), scores)


def load_results(folder: Path, members: Mapping[str, Member], folds: int) -> dict[tuple[int, str], FitResult]:
    """Return the results of an interrupted fit; files that are damaged or missing are fitted again."""
    found = {}
    for name, member in members.items():
        for fold in (*range(folds), FINAL):
            path = folder / _member_file(name, fold, member.suffix)
            try:
                arrays = read_npz(path.with_suffix(".scores.npz"), ("scores", "seconds", "sha256", "origin"))
                content = path.read_bytes()
                if not np.array_equal(arrays["sha256"], _digest(content)):
                    continue
                assert member.read is not None
                model = member.read(content)
            except (OSError, ValueError):
                continue
            seconds, origin = float(arrays["seconds"]), str(arrays["origin"])
            found[fold, name] = FitResult(FitTask(fold, name), model, arrays["scores"], seconds, origin)
    return found


def _digest(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.sha256(content).digest(), np.uint8)


def save_committee(folder: str | os.PathLike[str], committee: Committee) -> None:
    """Write a committee into a folder, the manifest last.

    Raises:
        ValueError: A member is a user's own estimator, which cannot be saved without pickle.
    """
    write_manifest(Path(folder), write_committee(Path(folder), committee), kind=COMMITTEE_KIND)


def write_committee(folder: Path, committee: Committee) -> list[str]:
    """Write the files of a committee without a manifest, and return their names.

    Raises:
        ValueError: A member is a user's own estimator, which cannot be saved without pickle.
    """
    contents = {
        _member_file(name, number, member.suffix): fold.members[name].to_bytes()
        for name, member in committee.table.items()
        for number, fold in _numbered(committee.folds)
    }
    formats = {value: key for key, value in FEATURE_FORMATS.items()}
    table = {
        "version": _VERSION,
        "members": list(committee.table),
        "effort": max((member.effort for member in committee.table.values()), key=EFFORTS.index),
        "features": formats[type(committee.folds[0].features)],  # type: ignore[index]
        "folds": [
            {"features": fold.features.to_table(), "location": dict(fold.location), "scale": dict(fold.scale)}
            for fold in committee.folds
        ],
        "blend": nan_to_none(_without_arrays(dataclasses.asdict(committee.blend))),
        "calibration": None if committee.calibration is None else list(committee.calibration),
        "leaderboard": nan_to_none(dataclasses.asdict(committee.leaderboard)),
    }
    contents[CONTENT_FILE] = (json.dumps(table, indent=1) + "\n").encode()
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, content)
    return list(contents)


def load_committee(folder: str | os.PathLike[str]) -> Committee:
    """Return the committee that `save_committee` wrote.

    All files are compared with their checksums before any is parsed, and none of them can execute code.

    Raises:
        FileNotFoundError: There is no committee.
        FolderError: A file is missing, damaged, of another program or of a newer apmax.
    """
    manifest = read_manifest(folder, kind=COMMITTEE_KIND)
    manifest.verify()
    return read_committee(manifest)


def read_committee(manifest: Manifest, folder: str = "", *, members: Mapping[str, Member] | None = None) -> Committee:
    """Return the committee in the files of a manifest, each compared with its checksum.

    Args:
        manifest: The manifest.
        folder: Its folder below that of the manifest, with a slash at the end; empty for the same.
        members: Members by name that read the files, instead of those of the kind of data.

    Raises:
        FolderError: A file is missing, damaged, of another program or of a newer apmax.
    """
    try:
        return _parse(manifest, folder, members)
    except FolderError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise FolderError(f"{manifest.folder} does not hold a committee of this apmax: {error}") from None


def _parse(manifest: Manifest, folder: str, readers: Mapping[str, Member] | None) -> Committee:
    table = json.loads(manifest.read(folder + CONTENT_FILE))
    if table["version"] != _VERSION:
        raise ValueError(f"its format is {table['version']}, this apmax reads {_VERSION}")
    encoding = FEATURE_FORMATS[table["features"]]
    members = find_members(table["members"], effort=table["effort"], kind=encoding.kind, table=readers)
    folds = []
    for number, entry in _numbered(table["folds"]):
        models = {}
        for name, member in members.items():
            assert member.read is not None
            models[name] = member.read(manifest.read(folder + _member_file(name, number, member.suffix)))
        folds.append(FoldModels(encoding.from_table(entry["features"]), models, entry["location"], entry["scale"]))
    blend = table["blend"]
    arrays = {name: np.array(blend[name], np.float64) for name in ("weights", "location", "scale")}
    if any(values.shape != (len(members),) for values in arrays.values()):
        raise ValueError("its blend has another number of weights than members")
    return Committee(
        members,
        folds,
        Blend(**arrays, method=tuple(blend["method"]), reason=tuple(blend["reason"]), ap=tuple(blend["ap"])),
        None if table["calibration"] is None else PlattCurve(*map(float, table["calibration"])),
        _leaderboard(table["leaderboard"]),
    )


def _member_file(name: str, fold: int, suffix: str) -> str:
    return f"members/{name}/{'final' if fold == FINAL else f'fold-{fold}'}{suffix}"


def _numbered(folds: Sequence[_T]) -> Iterator[tuple[int, _T]]:
    """Yield the folds with their numbers; a single one holds the final models."""
    return zip([FINAL] if len(folds) == 1 else range(len(folds)), folds, strict=True)


def _leaderboard(table: Mapping[str, Any]) -> Leaderboard:
    def interval(values: Mapping[str, Any], kind: type[Interval] = Interval) -> Any:
        return kind(**{key: math.nan if value is None else value for key, value in values.items()})

    def row(values: Mapping[str, Any]) -> LeaderboardRow:
        return LeaderboardRow(**{**values, "ap": interval(values["ap"])})

    def verdict(values: Mapping[str, Any]) -> LossVerdict:
        return LossVerdict(**{**values, "difference": interval(values["difference"], Difference)})

    notes = tuple(str(note) for note in table["notes"])
    verdicts = tuple(map(verdict, table["verdicts"]))
    # Version 0.2 called the rows of one split cross-fitted, too, and did not store what they were.
    part = validation.choice("part", table.get("part", CROSS_FITTED), (CROSS_FITTED, HELD_OUT))
    return Leaderboard(tuple(map(row, table["rows"])), row(table["blend"]), verdicts, notes, part)


def _without_arrays(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in table.items()}
