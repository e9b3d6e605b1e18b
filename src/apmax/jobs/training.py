"""The whole way from files to a model in a directory."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apmax.checkpoint import write_atomic
from apmax.jobs import trained
from apmax.jobs.evaluation import Evaluations, evaluate_targets
from apmax.jobs.rows import prepare
from apmax.jobs.sources import open_source
from apmax.jobs.spec import Job, data_spec, loads, resolve
from apmax.jobs.wishes import Wishes
from apmax.kinds import KINDS, RowReport
from apmax.train import Record, fit, predict

FILES = ("train", "valid", "test")


@dataclass(frozen=True)
class Outcome:
    """How a training ended: the chosen model on the rows it was chosen by and, once, on the test rows."""

    directory: Path
    valid: Evaluations
    test: Evaluations | None
    records: list[Record]
    chosen: list[dict[str, Any]]
    warnings: list[str]


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
    data = data_spec(table, wishes)
    found: dict[str, Any] = {n: str(find(path, places)) for n in FILES if (path := getattr(data, n)) is not None}
    data = dataclasses.replace(data, **found)
    first = is_first_process()
    if first and not resume and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(f"{directory} is not empty: go on with --resume, or choose another directory")
    # Mistakes in the settings come out before the data are read.
    seed = resolve(table, wishes, data, rows=10**6, positives=10**4).run.seed
    prepared = prepare(data, seed=seed)
    job = resolve(table, wishes, data, rows=prepared.train_rows, positives=prepared.train_positives)
    kind = KINDS[data.kind]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(job.run.seed)
        model = kind.build(prepared.encoder, job.model.name, job.model.options)
    begun = (directory / "run.toml").exists()
    if begun:
        check_same_model(directory, job)
    if first:
        tell(prepared.facts, prepared.warnings)
        if not begun:
            trained.save(directory, job, prepared.encoder, prepared.target)
    result = fit(model, prepared.data, job.run, directory=directory, resume=resume, progress=progress)
    if first:
        # Again where it was resumed, and only now: the trainer has agreed that it is the same run, with more epochs.
        trained.save(directory, job, prepared.encoder, prepared.target)
    scorer = trained.Trained(job, prepared.encoder, prepared.target, result.model)
    valid_scores = predict(result.model, prepared.data.valid).numpy()
    valid = evaluate_targets(valid_scores, np.asarray(prepared.data.valid_labels), prepared.target.names)
    test, report = None, RowReport(strict=data.on_error == "raise")
    held = None if prepared.test is None else prepared.test.table
    if data.test is not None:
        held = open_source(data.test, smiles=data.smiles).read()
    if held is not None:
        test = evaluate_targets(scorer.score(held, report), prepared.target.labels(held), prepared.target.names)
    members = [directory] if job.run.ensemble == 1 else [directory / f"member-{k}" for k in range(job.run.ensemble)]
    outcome = Outcome(directory, valid, test, result.records, [chosen_in(m) for m in members], report.lines())
    if first:
        facts = {"valid": valid.to_table(), "test": None if test is None else test.to_table()}
        write_atomic(directory / "results.json", (json.dumps(facts, indent=2) + "\n").encode())
    return outcome


def check_same_model(directory: Path, job: Job) -> None:
    """Raise if the training that stands in `directory` is of another model or target."""
    before = loads((directory / "run.toml").read_text(encoding="utf-8"))
    for what, old, new in (
        ("model", before.model.name, job.model.name),
        ("the model's options", dict(before.model.options), dict(job.model.options)),
        ("target", before.data.target, job.data.target),
        ("kind", before.data.kind, job.data.kind),
        ("ensemble", before.run.ensemble, job.run.ensemble),
    ):
        if old != new:
            raise ValueError(f"{what} was {old} in {directory} and is {new} now: resume with the same")


def chosen_in(directory: Path) -> dict[str, Any]:
    """Return which stage and epoch the weights in a run's directory are of."""
    facts: dict[str, Any] = json.loads((directory / "run.json").read_text(encoding="utf-8"))["chosen"]
    return facts


def find(path: str, places: tuple[Path, ...]) -> Path:
    """Return the file in the current folder, or else in the first of `places` that has it.

    Raises:
        FileNotFoundError: None has it.
    """
    for place in (Path(), *places):
        if (place / path).is_file():
            return (place / path).resolve()
    also = f", nor in {', '.join(map(str, places))}" if places else ""
    raise FileNotFoundError(f"no such file: {path}{also}")


def is_first_process() -> bool:
    """Tell whether this process speaks for all: Fabric and torchrun number the processes they start."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK"))
