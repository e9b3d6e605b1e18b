"""The training loop: a generator of records. Logging, plotting and stopping are the caller's loop body."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from apmax.train.checkpoints import load_checkpoint, previous_checkpoint
from apmax.train.config import ExactHead, Run, Stage
from apmax.train.data import Data
from apmax.train.display import RunMonitor
from apmax.train.exact_head import check_exact_head, train_exact_head
from apmax.train.processes import from_first, shared_errors
from apmax.train.randomness import preserved_generators
from apmax.train.records import Record, parse_records
from apmax.train.selection import Candidate, Selection, stops_early
from apmax.train.stage import check_gradient_stage, start_gradient_stage, train_epoch
from apmax.train.state import RunState, SeenBatches, StageState
from apmax.train.toml import run_from_table
from apmax.train.weights import model_tensors, restore_weights

_MAY_CHANGE = ("epochs", "patience", "name")
"""Fields that may differ in a resumed stage; later stages may differ in all fields, finished ones in none."""


def epochs(
    model: nn.Module,
    data: Data | tuple[Any, ...],
    run: Run,
    *,
    directory: str | os.PathLike[str] | None = None,
    resume: bool | str = False,
    progress: bool | str | RunMonitor = False,
    fabric: Any = None,
    member: int = 0,
) -> Iterator[Record]:
    """Train `model` in place and yield a record after every epoch.

    During the loop the model holds the weights being trained. When the loop ends, or the caller leaves it, the model
    holds the selected weights (best smoothed validation AP) and is in evaluation mode. With `run.devices > 1` Fabric
    starts the other processes by running the program again, and every process goes through the same loop.

    Args:
        model: Any module that returns one score per example, or one per task.
        data: `Data`, or (train, valid) datasets.
        run: The configuration.
        directory: Folder for configuration, records, checkpoints and selected weights; None writes nothing.
        resume: Continue from the directory's checkpoint, if there is one; "previous": from the one before it.
        progress: Show the progress: one display in place on a terminal, about ten lines elsewhere; "epochs" adds a line
            per epoch. All lines are in the directory's log.txt. The members of an ensemble share a `RunMonitor`.
        fabric: A launched `lightning_fabric.Fabric` to use instead of one made from `run`.
        member: The model's number in an ensemble, for the records.

    Raises:
        DivergedError: Scores, loss or weights are not finite.
        Terminated: The process received SIGTERM; the run is checkpointed.
        FileExistsError: The directory holds a run and `resume` is not set.
        ValueError: Data, model, configuration and checkpoint do not match.
        TypeError: `model` is no module, `data` neither `Data` nor a tuple, or `run` no `Run`.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> x = torch.linspace(-1, 1, 64)[:, None]
    >>> split = TensorDataset(x, (x[:, 0] > 0.5).float())
    >>> run = Run(stages=(Stage(epochs=3),), accelerator="cpu")
    >>> [record.epoch for record in epochs(nn.Linear(1, 1), (split, split), run)]
    [1, 2, 3]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; fit takes a function that builds one, too"
        )
    data = _checked_data(data)
    check_run(run)
    if resume and resume is not True and resume != "previous":
        raise ValueError(f"resume must be True, False or 'previous', got {resume!r}")
    if run.ensemble > 1:
        raise ValueError(f"run.ensemble is {run.ensemble}: call fit, which trains all models and joins them")
    run_state = RunState(model, data, run, directory=directory, progress=progress, member=member, fabric=fabric)
    # Errors in the arguments are raised now; training starts when the first record is requested.
    saved = _load_resumed(run_state, resume)
    with shared_errors(run_state.world_size):
        if saved is not None:
            _check_same_run(saved, run_state)
        _check_stages(run_state)
        if run_state.files is not None:
            run_state.files.create()
    return _train_stages(run_state, saved)


def check_run(run: Any) -> None:
    """Raise for what is no configuration of a run."""
    if not isinstance(run, Run):
        raise TypeError(f"run must be a Run, such as Run(stages=(Stage(),)), got {type(run).__name__}")


def _checked_data(data: Any) -> Data:
    """Return the data of a run.

    Raises:
        TypeError: Neither `Data` nor a tuple.
        ValueError: A tuple of more than training and validation data, or of none.
    """
    if isinstance(data, Data):
        return data
    if not isinstance(data, (tuple, list)):
        raise TypeError(f"data must be a Data or a tuple (train, valid) of data sets, got {type(data).__name__}")
    if len(data) not in (1, 2):
        raise ValueError(
            f"data must be a tuple (train, valid), got {len(data)} elements: test data take no part in training, and "
            "labels or weights are named, as in Data(train, valid, labels=labels)"
        )
    return Data(*data)


def _check_stages(run_state: RunState) -> None:
    """Raise for a stage that could not begin, before any stage is trained; what is built for that is discarded."""
    # Losses and samplers of the library draw nothing, but a loss of one's own may.
    with preserved_generators(run_state.device):
        for stage in run_state.run.stages:
            if isinstance(stage, ExactHead):
                check_exact_head(run_state, stage)
            else:
                check_gradient_stage(run_state, stage)


def _train_stages(run_state: RunState, saved: dict[str, Any] | None) -> Iterator[Record]:
    """Train the stages from the beginning, or from the position of the checkpoint `saved`."""
    stages = run_state.run.stages
    if saved is not None:
        restore_weights(run_state.model, saved["model"])
        run_state.step = run_state.schedule.step = saved["step"]
        run_state.extend_records(parse_records(saved["records"]))
        run_state.monitor.restore(run_state.records)
    trainable = {parameter: parameter.requires_grad for parameter in run_state.model.parameters()}
    best: Candidate | None = None
    with run_state.opened():
        run_state.start_files()
        for number in range(0 if saved is None else saved["stage"], len(stages)):
            with preserved_generators(run_state.device):
                state = _start_stage(run_state, number, best, saved)
            saved = None
            run_state.monitor.start_stage(run_state.member, number, state.epoch)
            while state.epoch < state.stage.epochs and not _stops_early(state):
                with preserved_generators(run_state.device):
                    record = _train_one_epoch(run_state, state)
                run_state.after_step(state)
                try:
                    yield record
                except GeneratorExit:
                    # The caller has left its loop: select among the epochs so far.
                    _finish(run_state, state, trainable)
                    return
            run_state.monitor.end_stage()
            if number + 1 < len(stages):
                best = state.selection.finish()
                _restore_trainable(trainable)
        _finish(run_state, state, trainable)


def _start_stage(run_state: RunState, number: int, best: Candidate | None, saved: dict[str, Any] | None) -> StageState:
    """Return the stage's state, from the end of the previous stage or from the checkpoint `saved`."""
    stage = run_state.run.stages[number]
    if best is not None and stage.start == "best":
        restore_weights(run_state.model, best.weights)
    window = stage.smooth if isinstance(stage, Stage) else 1
    state = StageState(number, stage, Selection(window, best if stage.keep else None))
    if isinstance(stage, Stage):
        state.gradient = start_gradient_stage(run_state, number, stage, resumed=saved is not None)
    if saved is not None:
        state.epoch, state.batch, state.seconds = saved["epoch"], saved["batch"], saved["seconds"]
        state.selection.load_state_dict(saved["selection"])
        state.seen = SeenBatches.restored(
            saved["seen"], run_state.device, rank=run_state.rank, world_size=run_state.world_size
        )
        if state.gradient is not None:
            state.gradient.load_state_dict(saved)
    return state


def _train_one_epoch(run_state: RunState, state: StageState) -> Record:
    """Train one epoch of a stage of either kind."""
    if isinstance(state.stage, ExactHead):
        return train_exact_head(run_state, state, state.stage)
    assert state.gradient is not None
    return train_epoch(run_state, state, state.stage, state.gradient)


def _stops_early(state: StageState) -> bool:
    patience = state.stage.patience if isinstance(state.stage, Stage) else None
    return stops_early(state.selection.values, window=state.selection.window, patience=patience)


def _finish(run_state: RunState, state: StageState, trainable: dict[nn.Parameter, bool]) -> None:
    """Write the last checkpoint, and put the selected weights into the model and the run directory."""
    if run_state.path is not None:
        # Before the pending epochs are compared, so that the run can be resumed with more epochs.
        run_state.save(state)
    best = state.selection.finish()
    _restore_trainable(trainable)
    if best is not None:
        restore_weights(run_state.model, best.weights)
        if run_state.files is not None:
            chosen = {"stage": best.stage, "epoch": best.epoch, "smoothed_valid_ap": best.value}
            run_state.files.finish(best.weights, chosen)
    run_state.model.eval()


def _restore_trainable(trainable: dict[nn.Parameter, bool]) -> None:
    """Undo the freezing of a stage."""
    for parameter, requires_grad in trainable.items():
        parameter.requires_grad_(requires_grad)


def _load_resumed(run_state: RunState, resume: bool | str) -> dict[str, Any] | None:
    """Return the checkpoint to continue from, or None to start at the beginning.

    Raises:
        FileExistsError: The directory holds a run and `resume` is not set.
        ValueError: The checkpoint is damaged.
    """
    if run_state.path is None:
        if resume:
            raise ValueError("resume needs the run's directory")
        return None
    # Only the first process writes the directory, and the others may be on machines that do not have it.
    return from_first(partial(_read_checkpoint, run_state.path, resume), run_state.world_size)


def _read_checkpoint(directory: Path, resume: bool | str) -> dict[str, Any] | None:
    """Return the checkpoint in a run's directory that `resume` asks for, or None to start at the beginning."""
    path = directory / "checkpoint.pt"
    found = path.exists() or previous_checkpoint(path).exists()
    if not resume:
        if found:
            raise FileExistsError(f"{directory} holds a run already: pass resume=True or choose another directory")
        return None
    if not found:
        return None
    return load_checkpoint(previous_checkpoint(path) if resume == "previous" else path)


def _check_same_run(saved: dict[str, Any], run_state: RunState) -> None:
    """Raise `ValueError` unless the checkpoint is of this run, up to fields that may change."""
    # It is of the first process: others may have encoded the inputs to other last bits, and have compared their labels.
    if run_state.rank == 0 and saved["data"] != run_state.fingerprint:
        raise ValueError(
            f"the checkpoint in {run_state.path} was trained on other data: resume with the same, or choose another "
            "directory"
        )
    old, new = run_from_table(saved["config"]), run_state.run
    for name in ("seed", "precision"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            raise ValueError(f"{name} was {before} in the checkpoint and is {after} now: resume with the same {name}")
    _check_same_model(saved["model"], run_state)
    current = saved["stage"]
    if len(new.stages) <= current:
        raise ValueError(f"the checkpoint is in stage {current + 1}, but the run has only {len(new.stages)}")
    for number in range(current + 1):
        differences = _stage_differences(
            old.stages[number], new.stages[number], _MAY_CHANGE if number == current else ()
        )
        if differences:
            raise ValueError(
                f"stage {number + 1} ({new.stages[number].name}) differs from the checkpoint's: "
                f"{'; '.join(differences)}. A stage that has begun may change only in {', '.join(_MAY_CHANGE)}, a "
                "finished one in nothing"
            )


def _check_same_model(weights: dict[str, Tensor], run_state: RunState) -> None:
    """Raise `ValueError` unless the weights are of this model: copying could broadcast a smaller tensor."""
    before, after = (
        {name: f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}" for name, value in each.items()}
        for each in (weights, model_tensors(run_state.model))
    )
    for name in {**before, **after}:
        old, new = before.get(name, "missing"), after.get(name, "missing")
        if old != new:
            raise ValueError(
                f"model is not the one of the checkpoint in {run_state.path}: its {name} was {old} and is {new} now; "
                "resume with the same model, or choose another directory"
            )


def _stage_differences(before: Stage | ExactHead, after: Stage | ExactHead, may_change: Sequence[str]) -> list[str]:
    """Return in words what differs between two stages, fields that may change left out."""
    if type(before) is not type(after):
        return [f"it was {type(before).__name__} and is {type(after).__name__} now"]
    pairs = [(each.name, getattr(before, each.name), getattr(after, each.name)) for each in dataclasses.fields(before)]
    return [f"{name} was {old} and is {new} now" for name, old, new in pairs if old != new and name not in may_change]
