"""From a checkpoint back to a run under way."""

from __future__ import annotations

import dataclasses
from typing import Any

from apmax.train import checkpoints as checkpoint
from apmax.train import config
from apmax.train.averaging import restore
from apmax.train.records import Record, from_lines
from apmax.train.session import Session
from apmax.train.work import Seen, Work

MAY_CHANGE = ("epochs", "patience", "name")
"""What may differ in the stage that is resumed; all may in later ones, nothing in those that are done."""


def saved_state(session: Session, resume: bool | str) -> dict[str, Any] | None:
    """Return the checkpoint to go on from, or None where the run begins.

    Raises:
        FileExistsError: The directory holds a run that was not asked for.
        ValueError: The checkpoint is of another configuration, seed or data, or is not whole.
    """
    if session.path is None:
        if resume:
            raise ValueError("resume needs the run's directory")
        return None
    path = session.path / "checkpoint.pt"
    found = path.exists() or checkpoint.previous(path).exists()
    session.fabric.barrier()
    if not resume:
        if found:
            raise FileExistsError(f"{session.path} holds a run already: pass resume=True or choose another directory")
        return None
    if not found:
        return None
    if resume is not True and resume != "previous":
        raise ValueError(f"resume must be True, False or 'previous', got {resume!r}")
    state = checkpoint.load(checkpoint.previous(path) if resume == "previous" else path)
    check_same_run(state, session)
    return state


def check_same_run(state: dict[str, Any], session: Session) -> None:
    """Raise unless the checkpoint is of this run, or of this run with fewer epochs."""
    if state["data"] != session.fingerprint:
        raise ValueError(f"the checkpoint in {session.path} was trained on other data: its fingerprint differs")
    old, new = config.loads(state["config"]), session.run
    if old.seed != new.seed:
        raise ValueError(f"seed was {old.seed} in the checkpoint and is {new.seed} now: resume with the same")
    now = state["stage"]
    if len(new.stages) <= now:
        raise ValueError(f"the checkpoint is in stage {now + 1}, but the run has only {len(new.stages)}")
    for number in range(now + 1):
        before, after = old.stages[number], new.stages[number]
        if number == now and type(before) is type(after):
            before = dataclasses.replace(before, **{n: getattr(after, n) for n in MAY_CHANGE if hasattr(before, n)})
        if before != after:
            raise ValueError(
                f"stage {number + 1} ({after.name}) differs from the checkpoint's; a stage that has begun may change "
                f"only in {', '.join(MAY_CHANGE)}, one that is done in nothing"
            )


def resume_run(session: Session, state: dict[str, Any]) -> None:
    """Take over what belongs to the run as a whole."""
    restore(session.model, state["model"])
    session.step = state["step"]
    saved = state["records"]
    # The first version of the format kept tables.
    session.remember(from_lines(saved) if isinstance(saved, str) else [Record.from_table(table) for table in saved])
    session.saver.step = session.step


def resume_work(session: Session, work: Work, state: dict[str, Any]) -> None:
    """Take over what belongs to the stage under way."""
    work.epoch, work.batch, work.seconds = state["epoch"], state["batch"], state["seconds"]
    work.selection.load_state_dict(state["selection"])
    work.seen = Seen.restored(state["seen"], session.device, rank=session.rank, world_size=session.world_size)
    if work.gradient is not None:
        work.gradient.load_state_dict(state)
