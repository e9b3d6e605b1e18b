"""The training loop: a generator of records. Logging, plotting and stopping are the caller's loop body."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torch import nn

from apmax.train.averaging import restore
from apmax.train.config import ExactHead, Run, Stage
from apmax.train.exact_head import retrain_head
from apmax.train.gradient import one_epoch, prepare
from apmax.train.loading import Data
from apmax.train.randomness import preserved
from apmax.train.records import Record
from apmax.train.resuming import resume_run, resume_work, saved_state
from apmax.train.selection import Candidate, Selection, is_over
from apmax.train.session import Session
from apmax.train.work import Work


def epochs(
    model: nn.Module,
    data: Data | tuple[Any, ...],
    run: Run,
    *,
    directory: str | os.PathLike[str] | None = None,
    resume: bool | str = False,
    progress: bool = False,
    fabric: Any = None,
    member: int = 0,
) -> Iterator[Record]:
    """Train `model` in place and yield a record after every epoch.

    While it runs the model holds the weights being trained; when it is exhausted, or the caller leaves the loop, the
    chosen ones (those of the best smoothed validation AP) in evaluation mode. With `run.devices > 1` Fabric starts
    the other processes by running the program again, and every process goes through the same loop.

    Args:
        model: Any module that returns one score per example, or one per task.
        data: `Data`, or (train, valid) datasets.
        run: What to do.
        directory: Where configuration, records, checkpoints and the chosen weights go; nothing is written without.
        resume: Go on from the directory's checkpoint, if there is one; "previous": from the one before it.
        progress: Show a bar, or lines where there is no terminal.
        fabric: A launched `lightning_fabric.Fabric` to use instead of one made from `run`.
        member: The model's number in an ensemble, for the records.

    Raises:
        DivergedError: Scores, loss or weights are no longer finite.
        Terminated: SIGTERM came; the run is checkpointed.
        FileExistsError: The directory holds a run and `resume` is not set.
        ValueError: Data, configuration and checkpoint do not fit each other.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> x = torch.linspace(-1, 1, 64)[:, None]
    >>> split = TensorDataset(x, (x[:, 0] > 0.5).float())
    >>> run = Run(stages=(Stage(epochs=3),), accelerator="cpu")
    >>> [record.epoch for record in epochs(nn.Linear(1, 1), (split, split), run)]
    [1, 2, 3]
    """
    data = data if isinstance(data, Data) else Data(*data)
    if run.ensemble > 1:
        raise ValueError(f"run.ensemble is {run.ensemble}: call fit, which trains them all and joins them")
    session = Session(model, data, run, directory=directory, progress=progress, member=member, fabric=fabric)
    # Mistakes are reported now; training begins when the first record is asked for.
    return run_stages(session, saved_state(session, resume))


def run_stages(session: Session, saved: dict[str, Any] | None) -> Iterator[Record]:
    """Go through the stages from the beginning, or from where the checkpoint was written."""
    run = session.run
    if saved is not None:
        resume_run(session, saved)
    trainable = {parameter: parameter.requires_grad for parameter in session.model.parameters()}
    best: Candidate | None = None
    with session.opened():
        session.begin()
        for number in range(0 if saved is None else saved["stage"], len(run.stages)):
            stage = run.stages[number]
            with preserved(session.device):
                work = begin(session, number, best, saved)
            saved = None
            while work.epoch < stage.epochs and not over(work):
                with preserved(session.device):
                    record = advance(session, work)
                session.after_step(work)
                try:
                    yield record
                except GeneratorExit:
                    # The caller has seen enough and left its loop: choose among what there is.
                    end(session, work, trainable)
                    return
            if number + 1 < len(run.stages):
                best = work.selection.close()
                restore_flags(trainable)
        end(session, work, trainable)


def end(session: Session, work: Work, trainable: dict[nn.Parameter, bool]) -> None:
    """Write the last checkpoint, and leave the chosen weights in the model and in the directory."""
    if session.path is not None:
        # Before the choice is made, so that the run can be resumed with more epochs.
        session.save(work)
    best = work.selection.close()
    restore_flags(trainable)
    if best is not None:
        restore(session.model, best.weights)
        if session.files is not None:
            chosen = {"stage": best.stage, "epoch": best.epoch, "smoothed_valid_ap": best.value}
            session.files.finish(best.weights, chosen)
    session.model.eval()


def restore_flags(trainable: dict[nn.Parameter, bool]) -> None:
    """Undo what a stage froze."""
    for parameter, flag in trainable.items():
        parameter.requires_grad_(flag)


def begin(session: Session, number: int, best: Candidate | None, saved: dict[str, Any] | None) -> Work:
    """Return the stage's work, from where the stage before ended or where the checkpoint was written."""
    stage = session.run.stages[number]
    if best is not None and stage.start == "best":
        restore(session.model, best.weights)
    window = stage.smooth if isinstance(stage, Stage) else 1
    work = Work(number, stage, Selection(window, best if stage.keep else None))
    if isinstance(stage, Stage):
        work.gradient = prepare(session, number, stage, resumed=saved is not None)
    if saved is not None:
        resume_work(session, work, saved)
    return work


def advance(session: Session, work: Work) -> Record:
    """Train one epoch of whichever kind of stage it is."""
    if isinstance(work.stage, ExactHead):
        return retrain_head(session, work, work.stage)
    assert work.gradient is not None
    return one_epoch(session, work, work.stage, work.gradient)


def over(work: Work) -> bool:
    """Tell whether the stage stops early."""
    patience = work.stage.patience if isinstance(work.stage, Stage) else None
    return is_over(work.selection.values, window=work.selection.window, patience=patience)
