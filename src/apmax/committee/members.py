"""Members of a committee: the table of models that it may hold, with their cost and what an effort makes of them."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax import validation
from apmax.committee.features import Matrix
from apmax.committee.fold_data import FittedMember, FoldData
from apmax.committee.image_networks import NO_SECONDS, ImageTraining, SecondsPerRow
from apmax.committee.network_members import (
    GRAPH_NETWORK,
    PERCEPTRON,
    NetworkDesign,
    NetworkMember,
    fit_head,
    fit_network_member,
)
from apmax.committee.table_members import (
    USUAL_TREES,
    LinearMember,
    OneHotForest,
    fit_forest_member,
    fit_gbdt_member,
    fit_linear_member,
    fit_own_member,
)
from apmax.committee.trees import MOST_FOREST_ROWS, Boosting
from apmax.data.archives import npz_content, read_npz
from apmax.train import MINED_STAGE

_Array = NDArray[np.float64]


EFFORTS = ("quick", "standard", "best")
"""How much a committee may take: one member on one split; all on several folds; more folds, trees and seeds."""


@dataclass(frozen=True)
class Cost:
    """Time of one fit and the scoring of its held-out rows, measured on one core; for plans.

    Attributes:
        fixed: Seconds of any fit.
        per_row: Seconds for each row.
        per_value: Seconds for each row and column.
        most_rows: Number of rows that take this long, since a fit samples rows or has a number of steps.
        per_further_row: Seconds for each row beyond that.
    """

    fixed: float
    per_row: float
    per_value: float
    most_rows: float = math.inf
    per_further_row: float = 0.0

    def seconds(self, rows: float, columns: int) -> float:
        """Return the estimated time for this many training rows.

        >>> Cost(1.0, 0.1, 0.0, most_rows=100, per_further_row=0.01).seconds(300, columns=5)
        13.0
        """
        further = max(rows - self.most_rows, 0.0) * self.per_further_row
        return self.fixed + min(rows, self.most_rows) * (self.per_row + columns * self.per_value) + further

    def times(self, factor: float) -> Cost:
        """Return the cost of so many fits."""
        return Cost(
            factor * self.fixed,
            factor * self.per_row,
            factor * self.per_value,
            self.most_rows,
            factor * self.per_further_row,
        )


@dataclass(frozen=True)
class Member:
    """An entry of the table of members.

    Attributes:
        fit: Fits the member to one fold.
        read: Restores a fitted one from its bytes; None for a user's own estimators.
        suffix: Of its files.
        cost: Estimated time of one fit.
        raw: Whether it scores rows in their original form.
        serial: Whether its fits are Python code, which threads do not speed up, or seed global generators.
        effort: The effort that `fit` makes and `read` expects.
        beside: The member whose first stage it shares in every fold; `cost` is what it adds to that one's.
        refit: Whether a model of one split is fitted once more, to all rows.
        least_effort: The least effort that has it where no members are named; "quick" has the first of "standard".
    """

    fit: Callable[[FoldData], FittedMember]
    read: Callable[[bytes], FittedMember] | None
    suffix: str
    cost: Cost
    raw: bool = False
    serial: bool = False
    effort: str = "standard"
    beside: str = ""
    refit: bool = True
    least_effort: str = "standard"


@dataclass(frozen=True)
class SeedAverage:
    """A member that was fitted several times with different seeds; its score is the mean."""

    parts: tuple[FittedMember, ...]

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds of the first part."""
        return self.parts[0].rounds

    def score(self, matrix: Matrix) -> _Array:
        """Return the mean of the parts' scores."""
        mean: _Array = np.mean([part.score(matrix) for part in self.parts], axis=0)
        return mean

    def to_bytes(self) -> bytes:
        """Return the bytes of the parts as arrays of an .npz file."""
        parts = {f"part{number}": np.frombuffer(part.to_bytes(), np.uint8) for number, part in enumerate(self.parts)}
        return npz_content(**parts)

    @staticmethod
    def from_bytes(content: bytes, *, read: Callable[[bytes], FittedMember]) -> SeedAverage:
        """Return the member that `to_bytes` wrote; `read` restores a part."""
        names = [f"part{number}" for number in range(_BEST_SEEDS)]
        arrays = read_npz(io.BytesIO(content), names)
        return SeedAverage(tuple(read(arrays[name].astype(np.uint8).tobytes()) for name in names))


def _fit_seeds(data: FoldData, *, fit: Callable[[FoldData], FittedMember]) -> FittedMember:
    # Seeds of the folds are consecutive; these stay apart from them.
    return SeedAverage(tuple(fit(replace(data, seed=data.seed + 1000 * number)) for number in range(_BEST_SEEDS)))


_COSTS = {
    "gbdt": Cost(0.2, 5e-6, 1.7e-6),
    "forest": Cost(0.3, 3e-4, 1e-5, MOST_FOREST_ROWS),
    "trees": Cost(0.2, 5e-5, 2e-6, MOST_FOREST_ROWS),
    "linear": Cost(0.05, 2e-6, 1e-7),
    "mlp": Cost(1.1, 6e-5, 0.0),
    "linear_ce": Cost(0.01, 5e-7, 2e-8),
    "mlp_ce": Cost(0.3, 1.6e-5, 0.0),
    "mlp_mined": Cost(0.4, 1.8e-5, 0.0),
}


def _network(design: NetworkDesign, loss: str, cost: Cost, *, beside: str = "") -> Member:
    """Return a network that is trained by cross-entropy first, then by a loss; by mined negatives with "best" only."""
    return Member(
        partial(fit_network_member, loss=loss, design=design),
        partial(NetworkMember.from_bytes, design=design),
        ".pt",
        cost,
        raw=design is not PERCEPTRON,
        serial=True,
        beside=beside,
        least_effort="best" if loss == MINED_STAGE else "standard",
    )


MEMBERS: dict[str, Member] = {
    "gbdt": Member(fit_gbdt_member, Boosting.from_bytes, ".txt", _COSTS["gbdt"]),
    "forest": Member(partial(fit_forest_member, kind="forest"), OneHotForest.from_bytes, ".npz", _COSTS["forest"]),
    "trees": Member(partial(fit_forest_member, kind="trees"), OneHotForest.from_bytes, ".npz", _COSTS["trees"]),
    "linear": Member(partial(fit_linear_member, loss="ap"), LinearMember.from_bytes, ".npz", _COSTS["linear"]),
    "mlp": _network(PERCEPTRON, "ap", _COSTS["mlp"]),
    "linear_ce": Member(partial(fit_linear_member, loss="ce"), LinearMember.from_bytes, ".npz", _COSTS["linear_ce"]),
    "mlp_ce": _network(PERCEPTRON, "ce", _COSTS["mlp_ce"], beside="mlp"),
    "mlp_mined": _network(PERCEPTRON, MINED_STAGE, _COSTS["mlp_mined"], beside="mlp"),
}
"""Members for tables by name."""

# Measured on 33,530 molecules of HIV; the columns are always the same.
MOLECULE_MEMBERS: dict[str, Member] = {
    "gbdt": replace(MEMBERS["gbdt"], cost=Cost(0.5, 1.5e-4, 0.0)),
    "forest": replace(MEMBERS["forest"], cost=Cost(0.5, 6e-4, 0.0, MOST_FOREST_ROWS)),
    "trees": replace(MEMBERS["trees"], cost=Cost(0.5, 7e-4, 0.0, MOST_FOREST_ROWS)),
    "gine": _network(GRAPH_NETWORK, "ap", Cost(2.0, 1.3e-2, 0.0, 4500, 7e-4)),
    "gine_ce": _network(GRAPH_NETWORK, "ce", Cost(1.0, 1e-3, 0.0, 4500, 2e-4), beside="gine"),
    "gine_mined": _network(GRAPH_NETWORK, MINED_STAGE, Cost(2.0, 3.5e-3, 0.0, 4500, 2e-4), beside="gine"),
}
"""Members for molecules by name: trees on Morgan counts and properties, and a graph network."""


def image_members(training: ImageTraining, seconds: SecondsPerRow = NO_SECONDS) -> dict[str, Member]:
    """Return the members for images by name: a network, its cross-entropy twins, and its last layer fitted exactly.

    Args:
        training: How the networks are built and trained.
        seconds: Their estimated time, from `ImageTraining.seconds_per_row`; members that are only read need none.

    >>> training = ImageTraining("resnet10", {"width": 16, "stem": "small"}, size=8, anneal=True)
    >>> members = image_members(training, training.seconds_per_row(1000))
    >>> list(members), 5 < members["network"].cost.seconds(1000, columns=1) < 20
    (['network', 'network_ce', 'head', 'network_mined'], True)
    """
    # Negatives are scored four times an epoch, which takes as long as its steps.
    mined = Cost(0.5, 2 * seconds.second + seconds.scoring, 0.0)
    # Embeddings, and a linear fit of a few hundred columns.
    head = Cost(0.5, 2 * seconds.scoring + 2e-4, 0.0)
    members = {
        "network": _network(training, "ap", Cost(1.0, seconds.first + seconds.second + seconds.scoring, 0.0)),
        "network_ce": _network(training, "ce", Cost(0.5, seconds.second + seconds.scoring, 0.0), beside="network"),
        "head": replace(_network(training, "ap", head, beside="network"), fit=partial(fit_head, design=training)),
        "network_mined": _network(training, MINED_STAGE, mined, beside="network"),
    }
    return {name: replace(member, refit=False) for name, member in members.items()}


IMAGE_MEMBERS: dict[str, Member] = image_members(ImageTraining())
"""Members for images by name; to read saved ones: a training makes its own by `image_members`."""

MEMBERS_BY_KIND: dict[str, dict[str, Member]] = {
    "table": MEMBERS,
    "molecules": MOLECULE_MEMBERS,
    "images": IMAGE_MEMBERS,
}
"""Members by name, by kind of data."""
MEMBER_NAMES: tuple[str, ...] = tuple(dict.fromkeys(name for table in MEMBERS_BY_KIND.values() for name in table))
"""Names of all members."""

LOSS_PAIRS = (
    ("linear", "linear_ce"),
    ("mlp", "mlp_ce"),
    ("mlp", "mlp_mined"),
    ("gine", "gine_ce"),
    ("gine", "gine_mined"),
    ("network", "network_ce"),
    ("network", "network_mined"),
)
"""Members that differ in their loss only: average precision against cross-entropy, or against it on mined negatives."""
MINED_SUFFIX = "_mined"
"""End of the names of members that are trained by cross-entropy on mined negatives."""


_OWN_COST = Cost(1.0, 1e-5, 1e-5)
_BEST_SEEDS, _BEST_TREES = 3, 400


def _at_best(name: str, member: Member) -> Member:
    """Return a member with more trees or, where chance decides, the mean of several seeds."""
    if name in ("forest", "trees"):
        fit = partial(fit_forest_member, kind=name, trees=_BEST_TREES)
        return replace(member, fit=fit, cost=member.cost.times(_BEST_TREES / USUAL_TREES), effort="best")
    if name in ("linear", "linear_ce"):
        return replace(member, effort="best")
    assert member.read is not None
    return replace(
        member,
        fit=partial(_fit_seeds, fit=member.fit),
        read=partial(SeedAverage.from_bytes, read=member.read),
        suffix=".npz",
        cost=member.cost.times(_BEST_SEEDS),
        effort="best",
    )


def find_members(
    members: Any, *, effort: str = "standard", kind: str = "table", table: Mapping[str, Member] | None = None
) -> dict[str, Member]:
    """Return members by name.

    Args:
        members: None for those of the kind of data that the effort has; or a list of names and of pairs (name,
            estimator).
        effort: One of `EFFORTS`. With "best", forests have 400 trees instead of 100, and gradient boosting and
            networks are the mean of three seeds.
        kind: The kind of data, a key of `MEMBERS_BY_KIND`.
        table: Members by name instead of those of the kind, such as `image_members` makes them.

    Raises:
        TypeError: Neither names nor pairs.
        ValueError: An unknown name, one twice, or none at all.
    """
    validation.choice("effort", effort, EFFORTS)
    kind = validation.choice("kind", kind, MEMBERS_BY_KIND)
    table = MEMBERS_BY_KIND[kind] if table is None else table
    found: dict[str, Member] = {}
    own = [name for name, member in table.items() if effort == "best" or member.least_effort != "best"]
    if isinstance(members, (str, Mapping)):
        raise TypeError(f"members must be a list of names and of pairs (name, estimator), got {members!r}")
    for entry in own if members is None else members:
        if isinstance(entry, str):
            name = validation.choice("members", entry, table)
            member = _at_best(name, table[name]) if effort == "best" else table[name]
        elif isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str):
            name, member = entry[0], Member(partial(fit_own_member, estimator=entry[1]), None, "", _OWN_COST, raw=True)
        else:
            raise TypeError(f"members must be names and pairs (name, estimator), got {entry!r}")
        if name in found:
            raise ValueError(f"members must have different names, got {name!r} twice")
        found[name] = member
    if not found:
        raise ValueError("members must name at least one member, got none")
    return found
