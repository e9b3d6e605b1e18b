"""Plan of a committee: members, folds and estimated time, fixed before the work and stored with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from apmax import validation
from apmax.committee.members import EFFORTS, LOSS_PAIRS, MEMBERS_BY_KIND, Member, find_members
from apmax.committee.tasks import serial_lanes

MOST_FOLDS: dict[str, int] = {"quick": 1, "standard": 5, "best": 10}
"""The largest number of folds by effort; 1 is a single split."""
# Blend, intervals and calibration: a fixed part, and one per score.
_BLEND_SECONDS, _BLEND_SECONDS_PER_SCORE = 0.5, 1.2e-5


@dataclass(frozen=True)
class CommitteePlan:
    """What a committee will fit.

    Attributes:
        effort: One of `EFFORTS`; the effort that is carried out, which may be less than was asked for (see `notes`).
        members: Names of the members.
        folds: Number of folds; 1 for a single split.
        seconds: Estimated wall-clock time.
        notes: What was cut from the plan, and why, in one sentence each.
        seed: Of folds, members and blend.

    >>> plan = plan_committee(rows=7000, positives=150, columns=20, possible_folds=5, effort="quick")
    >>> plan.members, plan.folds
    (('gbdt',), 1)
    >>> CommitteePlan.from_table(plan.to_table()) == plan
    True
    """

    effort: str
    members: tuple[str, ...]
    folds: int
    seconds: float
    notes: tuple[str, ...]
    seed: int

    def to_table(self) -> dict[str, Any]:
        """Return the plan as plain values for JSON."""
        return {**asdict(self), "members": list(self.members), "notes": list(self.notes)}

    @staticmethod
    def from_table(table: Mapping[str, Any], *, kind: str = "table") -> CommitteePlan:
        """Return the plan that `to_table` described, for a kind of data.

        Raises:
            ValueError: A value is missing, unknown or of the wrong kind.
        """
        names = {field.name for field in fields(CommitteePlan)}
        if not isinstance(table, Mapping) or set(table) != names:
            raise ValueError(f"not the plan of a committee: it must have {', '.join(sorted(names))}")
        for name in ("members", "notes"):
            if not isinstance(table[name], (list, tuple)) or not all(isinstance(text, str) for text in table[name]):
                raise ValueError(f"not the plan of a committee: {name} must be a list of texts, got {table[name]!r}")
        try:
            effort = validation.choice("effort", table["effort"], EFFORTS)
            return CommitteePlan(
                effort=effort,
                members=tuple(find_members(table["members"], effort=effort, kind=kind)),
                folds=validation.whole("folds", table["folds"], 1),
                seconds=validation.interval("seconds", table["seconds"], 0.0),
                notes=tuple(table["notes"]),
                seed=validation.whole("seed", table["seed"]),
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"not the plan of a committee: {error}") from None


def plan_committee(
    *,
    rows: int,
    positives: int,
    columns: int,
    possible_folds: int,
    effort: str = "standard",
    members: Sequence[str] | None = None,
    time_limit: float | None = None,
    n_jobs: int = 1,
    seed: int = 0,
    kind: str = "table",
    targets: int = 1,
    table: Mapping[str, Member] | None = None,
) -> CommitteePlan:
    """Return the members and folds to fit, and an estimate of the time.

    "quick" is the first member of the kind of data (gradient boosting, for images the network) alone on one split,
    "standard" its members on up to 5 folds, "best" up to 10 folds with more trees or averaged seeds in each member, and
    members of its own (`Member.least_effort`). A time limit cuts the plan, never the run: the members that only "best"
    has, then fewer folds, then fewer members (cross-entropy twins of the verdict first, then those that share another's
    first stage, then the most expensive), at last "quick".

    Args:
        rows: Number of training rows.
        positives: Number of positives among them.
        columns: Number of columns, categories written out.
        possible_folds: The largest number of folds that the rows allow, as `number_of_folds` counts them.
        effort: One of `EFFORTS`.
        members: Names of members; None for the effort's own.
        time_limit: Seconds of wall-clock time that the plan may take; None for no limit.
        n_jobs: Processes that fit members.
        seed: Of folds, members and blend.
        kind: The kind of data, a key of `MEMBERS_BY_KIND`.
        targets: Number of targets, each of which has a committee.
        table: Members by name instead of those of the kind, as in `find_members`.

    Raises:
        ValueError: A wrong argument, or no positives or negatives among the rows.

    >>> plan_committee(rows=900, positives=40, columns=8, possible_folds=3).folds
    3
    >>> plan_committee(rows=900, positives=1, columns=8, possible_folds=1).notes
    ('quick instead of standard: the rows allow 1 fold, cross-fitting needs 2',)
    """
    validation.choice("effort", effort, EFFORTS)
    validation.whole("rows", rows, 2)
    validation.whole("positives", positives, 1)
    validation.whole("columns", columns, 1)
    validation.whole("possible_folds", possible_folds)
    validation.whole("n_jobs", n_jobs, 1)
    validation.whole("seed", seed)
    validation.whole("targets", targets, 1)
    validation.choice("kind", kind, MEMBERS_BY_KIND)
    if positives >= rows:
        raise ValueError(f"positives must be fewer than the {rows} rows, got {positives}")
    if time_limit is not None:
        validation.interval("time_limit", time_limit, 0.0, closed="neither")
    every = MEMBERS_BY_KIND[kind] if table is None else table
    names = tuple(find_members(members, effort=effort, table=every))
    size = _Size(rows, columns, n_jobs, every, targets)
    quick = names[:1] if members is None else names
    notes: list[str] = []
    if effort != "quick" and possible_folds < 2:
        count = f"{possible_folds} fold" + ("s" if possible_folds != 1 else "")
        notes.append(f"quick instead of {effort}: the rows allow {count}, cross-fitting needs 2")
        effort = "quick"
    planned = (effort, quick if effort == "quick" else names, max(1, min(MOST_FOLDS[effort], possible_folds)))
    if time_limit is not None and size.seconds(*planned) > time_limit:
        planned, cut = _cut(planned, quick if members is None else _cheapest(names, size), size, time_limit)
        notes += cut
    effort, names, folds = planned
    return CommitteePlan(effort, names, folds, round(size.seconds(effort, names, folds), 1), tuple(notes), seed)


@dataclass(frozen=True)
class _Size:
    """Numbers of rows, columns, processes and targets, and the members by name."""

    rows: int
    columns: int
    n_jobs: int
    table: Mapping[str, Member]
    targets: int

    def member_seconds(self, name: str, effort: str, folds: int) -> float:
        """Return the estimated time of a member on one fold, without that of a first stage of another member."""
        rows = self.rows if folds == 1 else self.rows * (1 - 1 / folds)
        return find_members([name], effort=effort, table=self.table)[name].cost.seconds(rows, self.columns)

    def seconds(self, effort: str, names: Sequence[str], folds: int) -> float:
        """Return the estimated wall-clock time of a plan."""
        single = {name: self.member_seconds(name, effort, folds) for name in names}
        for owner in {self.table[name].beside for name in names} - {"", *names}:
            # An owner that is left out is not fitted, but its first stage is trained for those that share it.
            sharing = next(name for name in names if self.table[name].beside == owner)
            single[sharing] += self.member_seconds(owner, effort, folds)
        serial = {name: seconds for name, seconds in single.items() if self.table[name].serial}
        lanes = serial_lanes(self.n_jobs, alone=len(serial) == len(single))
        # Whole tasks are shared out; the last one may run alone. Networks do not share the threads of one process, and
        # those of a fold are fitted one after the other.
        work = max(
            sum(single.values()) * folds / self.n_jobs,
            max(single.values()) * math.ceil(folds / self.n_jobs),
            sum(serial.values()) * math.ceil(folds / lanes),
        )
        return (work + _BLEND_SECONDS + _BLEND_SECONDS_PER_SCORE * self.rows * len(names)) * self.targets


_Planned = tuple[str, tuple[str, ...], int]


def _cheapest(names: tuple[str, ...], size: _Size) -> tuple[str, ...]:
    return (min(names, key=lambda name: size.member_seconds(name, "quick", 1)),)


def _cut(planned: _Planned, quick: tuple[str, ...], size: _Size, limit: float) -> tuple[_Planned, list[str]]:
    """Return the largest plan within the limit, and what was cut."""
    for effort, names, folds in _smaller_plans(planned, size):
        if size.seconds(effort, names, folds) <= limit:
            notes = []
            if effort != planned[0]:
                notes.append(f"time_limit {limit:g} s: {effort} instead of {planned[0]}")
            if folds != planned[2]:
                notes.append(f"time_limit {limit:g} s: {folds} folds instead of {planned[2]}")
            left_out = [name for name in planned[1] if name not in names]
            if left_out:
                notes.append(f"time_limit {limit:g} s: without {', '.join(left_out)}")
            return (effort, names, folds), notes
    smallest = ("quick", quick, 1)
    notes = [] if planned == smallest else [f"time_limit {limit:g} s: {quick[0]} alone on one split"]
    seconds = size.seconds(*smallest)
    if seconds > limit:
        notes.append(f"time_limit {limit:g} s: even the smallest plan is estimated to take {seconds:.0f} s")
    return smallest, notes


def _smaller_plans(planned: _Planned, size: _Size) -> Iterator[_Planned]:
    """Yield smaller and smaller plans of two folds or more."""
    effort, names, most = planned
    if effort == "quick":
        return
    names = tuple(name for name in names if size.table[name].least_effort != "best") or names
    if effort == "best":
        for folds in range(most, min(most, MOST_FOLDS["standard"]) - 1, -1):
            yield effort, names, folds
        effort, most = "standard", min(most, MOST_FOLDS["standard"])
    while names:
        for folds in range(most, 1, -1):
            yield effort, names, folds
        names = _without_dearest(names, size)


def _without_dearest(names: tuple[str, ...], size: _Size) -> tuple[str, ...]:
    """Return the members without the most expensive of the twins, or of those beside another one, or of all."""
    twins = [ce for ap, ce in LOSS_PAIRS if ap in names and ce in names]
    beside = [name for name in names if size.table[name].beside in names]
    dearest = max(twins or beside or names, key=lambda name: size.member_seconds(name, "standard", 2))
    return tuple(name for name in names if name != dearest)
