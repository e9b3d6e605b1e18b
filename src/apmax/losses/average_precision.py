"""SOAP: a stochastic estimate of average precision whose memory u makes small batches enough."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apmax import functional, surrogates, validation
from apmax.exact import kernel
from apmax.functional import ALL, POS, Correction
from apmax.losses.base import Batch, Loss
from apmax.losses.memory import Memory
from apmax.losses.weighing import PerAnchor, Uniform, shares

_MAX_MAPS = 256
"""Batches of so many shapes are remembered, then forgotten together."""
_FEW = 256
"""Up to this many rows a set finds a repeated one sooner than a sort."""
_UNBOUNDED = ("squared_hinge", "hinge", "smoothed_hinge", "logistic", "exponential")
PAPER_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "surrogate": "squared_hinge",
        "margin": 1.0,
        "gamma": 0.9,
        "sigmoid": True,
        "prevalence": "batch",
        "floor": 0.0,
    }
)
"""The options of `APLoss` with which it is the paper's own estimator."""


class APLoss(Loss):
    """One minus the surrogate average precision, estimated from mini-batches by SOAP (the paper's Algorithms 1 and 2).

    Every training positive i keeps a running estimate `u_i` of (g¹_i, g²_i): how much of the surrogate's mass above it
    belongs to positives, and how much in all. The value is `1 - mean u¹/u²` over the batch's positives, a number in
    [0, 1] that can be plotted; its gradient is the paper's equation 6 (second derivatives there are none).

    Args:
        labels: The training labels, (n,) or (n, tasks) of 0/1; NaN in a table of tasks means "not measured".
        surrogate: A name in `SURROGATES`.
        margin: Its margin m, or its scale c.
        gamma: Weight of the new value in the moving average, in (0, 1]; 1 is no memory.
        sigmoid: Apply a sigmoid to the scores first, as the paper does.
        prevalence: None takes AP at the prevalence of `labels`, whatever the sampler does; a number at another one;
            "batch" takes every batch as it is.
        floor: The paper's u₀, below which u² is not let; None: what an anchor's pair with itself contributes.
        start: "estimate": u begins at the first batch's value (the paper's Lemma 3); "zero": at 0 (its code).
        sample_weight: A weight for each training row, (n,).
        num_pos: The number of positives in every batch, if the sampler guarantees it: makes all shapes static, so
            that nothing waits for a GPU. For several tasks: the largest number any task may have.
        validate: Check every batch; costs one host synchronisation.

    >>> labels = torch.tensor([0., 0., 0., 1.])
    >>> loss = APLoss(labels)
    >>> scores = torch.tensor([-1.0, 2.0, 0.0, 1.0], requires_grad=True)
    >>> round(loss(scores, labels, torch.arange(4)).item(), 4)
    0.6667
    """

    _floor_rate: Tensor

    def __init__(
        self,
        labels: Any,
        *,
        surrogate: str = "smooth_step",
        margin: float = 1.0,
        gamma: float = 0.5,
        sigmoid: bool = False,
        prevalence: float | str | None = None,
        floor: float | None = None,
        start: str = "estimate",
        sample_weight: Any = None,
        num_pos: int | None = None,
        validate: bool = True,
    ) -> None:
        labels = validation.label_array(labels)
        super().__init__(labels, prevalence=prevalence, sample_weight=sample_weight, validate=validate)
        self.surrogate = validation.choice("surrogate", surrogate, surrogates.SURROGATES)
        self.self_pair = surrogates.get(surrogate, margin).at_zero(margin)
        self.margin, self.sigmoid = float(margin), sigmoid
        self.gamma = validation.interval("gamma", gamma, 0, 1, closed="right")
        self.floor = None if floor is None else validation.interval("floor", floor, 0, closed="left")
        self.start = validation.choice("start", start, ["estimate", "zero"])
        self.num_pos = None if num_pos is None else validation.whole("num_pos", num_pos, 1)
        self.memory = Memory(labels)
        share = self.total_positive / self.total_weight if self.prevalence is None else self.prevalence
        rate = self.self_pair * share / self.total_positive.clamp_min(torch.finfo(torch.float64).tiny)
        self.register_buffer("_floor_rate", rate, persistent=False)
        # For one task these are numbers on the host, and of them come the maps of `_uniform`.
        self._numbers = (0.0,) * 3 if self.tasks else (float(share), float(self.total_positive), float(rate))
        self._maps: dict[tuple[int, int, torch.dtype], Uniform] = {}
        self._corrected = self.prevalence is not None
        self._said_no_positive = False
        # What checking has shown of the batch in hand, if its rows all differ.
        self._met: _Met | None = None
        if surrogate in _UNBOUNDED and not sigmoid:
            warnings.warn(
                f"surrogate {surrogate!r} measures average precision on scores in [0, 1] only: "
                "pass sigmoid=True, or take 'smooth_step'",
                stacklevel=2,
            )

    @classmethod
    def as_in_paper(
        cls,
        labels: Any,
        *,
        surrogate: str = PAPER_OPTIONS["surrogate"],
        margin: float = PAPER_OPTIONS["margin"],
        gamma: float = PAPER_OPTIONS["gamma"],
        start: str = "estimate",
        floor: float = PAPER_OPTIONS["floor"],
    ) -> APLoss:
        """Return the paper's own estimator (`PAPER_OPTIONS`): sigmoid scores, uncorrected batches, no floor.

        The batch's positives are the anchors. Algorithm 1 draws anchors and batch separately; `functional.inner`
        allows that.
        """
        chosen = {"surrogate": surrogate, "margin": margin, "gamma": gamma, "floor": floor, "start": start}
        return cls(labels, **{**PAPER_OPTIONS, **chosen})

    @property
    def u(self) -> Tensor:
        """The estimates of (g¹, g²) of all training positives, (n₊, 2); 0 where never visited."""
        return self.memory.u

    def check(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> None:
        """Raise `ValueError` for a batch that is not sound or whose rows' labels are not those of the training set."""
        met = None
        if self.training and index is not None and labels.ndim == 1 and _on_host(index):
            met = self._meet(scores, labels, index)
        if met is None:
            super().check(scores, labels, index)
        self._met = met

    def faults(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """Return a scalar that is 0 if the batch is sound and its rows' labels are those of the training set."""
        fault = super().faults(scores, labels, self._rows_in_use(index))
        if self.training and index is not None:
            fault = fault + self._differ(labels, index).sum()
        if self.training and self.num_pos is not None:
            count = (labels == 1).sum(0)
            fault = fault + ((count > self.num_pos) if labels.ndim == 2 else (count != self.num_pos)).sum()
        return fault

    def explain(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> None:
        """Raise `ValueError` for what is wrong with a batch."""
        super().explain(scores, labels, self._rows_in_use(index))
        if not self.training:
            return
        count = int((labels == 1).sum(0).max())
        if self.num_pos is not None and (count > self.num_pos or (labels.ndim == 1 and count < self.num_pos)):
            raise ValueError(f"labels hold {count} positives in a batch where num_pos={self.num_pos} was promised")
        if index is not None:
            wrong = self._differ(labels, index).nonzero()
            if wrong.numel():
                where = int(wrong[0, -1])
                raise ValueError(
                    f"labels differ from the training set's at row {int(index[where])} (position {where} of the "
                    "batch): index must hold rows of the labels this loss was built from"
                )

    def compute(self, batch: Batch) -> Tensor:
        """Return the estimated 1 - AP of a checked batch."""
        if self.training and batch.rows is None and self.gamma < 1:
            raise ValueError(
                "index is needed for gamma < 1: the training-set row of every example (wrap the data set in "
                "apmax.Indexed), or pass gamma=1 for a loss without memory"
            )
        met = self._met if self._met is not None and self._met.rows is batch.rows else None
        self._met = first = None
        if self.training and batch.rows is not None and met is None:
            first = _first_occurrence(batch.rows)
        if first is not None and self._corrected:
            batch = batch._replace(positive=batch.positive * first, negative=batch.negative * first)
        if met is not None and batch.plain:
            where, place = met.where, met.place
        else:
            size = batch.scores.shape[-1]
            promised = min(self.num_pos, size) if self.training and self.num_pos is not None else None
            where, place = functional.positives_of(batch.positive, promised), None
        if where.shape[-1] == 0:
            return self._nothing(batch)
        return _with_gradient(batch.scores, *self._value_and_gradient(batch, where, place, first))

    def _value_and_gradient(
        self, batch: Batch, where: Tensor, place: Tensor | None, first: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        # `functional.compose` written out: both are known at once, which spares autograd's bookkeeping.
        scores = batch.scores.detach()
        if self.sigmoid:
            scores = scores.sigmoid()
        classes = torch.stack([batch.positive, batch.negative]).detach()
        surrogate = surrogates.SURROGATES[self.surrogate]
        pairs = kernel.pairs(scores, scores.gather(-1, where), classes, surrogate, self.margin)
        sums = pairs.sums()
        weighing: PerAnchor | Uniform
        weight = complete = None
        if batch.plain and first is None and where.shape[-1] < scores.shape[-1] and _on_host(scores):
            weighing = self._uniform(where.shape[-1], scores.shape[-1], sums.dtype)
        else:
            weight = classes[0].gather(-1, where)
            weighing = PerAnchor(self._correction(classes, weight), shares(weight))
            complete = (classes[1] > 0).any(-1, keepdim=True) if self._corrected else None
        u = g = weighing.g(sums)
        if self.training and batch.rows is not None:
            held = None
            if place is None:
                place, key = self.memory.find(batch.rows.take(where))
                held = self.memory.holds(place, key)
                if weight is not None:
                    held = held & (weight > 0)
            u = self._remember(g, place, held, weight, complete, None if first is None else first[where])
        value, cotangent = weighing.objective(u)
        gradient, of_anchors = pairs.pull(cotangent)
        gradient.scatter_add_(-1, where, of_anchors)
        if self.sigmoid:
            gradient = gradient * (scores * (1 - scores))
        return value, gradient

    def _uniform(self, count: int, size: int, dtype: torch.dtype) -> Uniform:
        """Return how sums become g in a batch of `size` where each of `count` positives, and all else, weighs 1."""
        known = self._maps.get((count, size, dtype))
        if known is None:
            correction = Correction(1 / size, 0.0, 1 / size)
            if self._corrected:
                share, population, _ = self._numbers
                correction = functional.prevalence_correction(
                    1.0, count, size - count, prevalence=share, total_positive=population, self_pair=self.self_pair
                )
            if len(self._maps) >= _MAX_MAPS:
                self._maps.clear()
            known = self._maps[count, size, dtype] = Uniform.of(correction, count, dtype)
        return known

    def _correction(self, classes: Tensor, weight: Tensor) -> Correction:
        """Return how sums become g in a batch whose classes weigh (2, ..., B) and its anchors (..., k)."""
        positive, negative = classes.sum(-1, keepdim=True).unbind(0)
        if self.prevalence is None:
            everything = positive + negative
            scale = 1 / torch.where(everything > 0, everything, 1)
            return Correction(scale, 0.0, scale)
        return functional.prevalence_correction(
            weight,
            positive,
            negative,
            prevalence=self.prevalence.to(weight.dtype).unsqueeze(-1),
            # A call's own weights need not fit the training set: one anchor cannot weigh more than all of them.
            total_positive=torch.maximum(
                self.total_positive.to(weight.dtype).unsqueeze(-1), weight.amax(-1, keepdim=True)
            ),
            self_pair=self.self_pair,
        )

    def _remember(
        self,
        g: Tensor,
        place: Tensor,
        held: Tensor | None,
        weight: Tensor | None,
        complete: Tensor | None,
        first: Tensor | None,
    ) -> Tensor:
        """Renew u of the anchors by the moving average and return it, (2, ..., k).

        Args:
            g: (2, ..., k) of this batch.
            place: (..., k) where the memory has the anchors' training rows.
            held: (..., k) whether it has them, None if all: padding and, without checks, a row of no positive are used
                by themselves, never stored.
            weight: (..., k) their weights, 0 for padding; None if all weigh 1.
            complete: (..., 1) whether the batch has negatives; None if it has, or is taken as it is.
            first: (..., k) whether a row is met in the batch for the first time; None if all are.
        """
        memory = self.memory
        old = memory.read(place).to(g.dtype)
        allowed = first
        if held is None:
            visited = old[ALL].bool()
        else:
            visited = torch.logical_and(old[ALL], held)
            allowed = held if first is None else held & first
        seen = g
        if complete is not None:
            # Without negatives in the batch, what is known of them stays; an anchor not yet seen stays unseen.
            negatives = torch.where(visited, old[ALL] - old[POS], 0)
            seen = torch.where(complete, g, torch.stack([g[POS], g[POS] + negatives]))
            stored = complete | visited
            allowed = stored if allowed is None else allowed & stored
        old = torch.where(visited, old, seen if self.start == "estimate" else 0)
        # `functional.moving_average`, with the two components in front.
        new = torch.lerp(old, seen, self.gamma)
        new[ALL].clamp_(min=self._floor(weight))
        memory.write(place, new, allowed)
        return new

    def _floor(self, weight: Tensor | None) -> Tensor | float:
        if self.floor is not None:
            return self.floor
        if weight is None:
            return self._numbers[2]
        return weight * self._floor_rate.to(weight.dtype).unsqueeze(-1)

    def _meet(self, scores: Tensor, labels: Tensor, index: Tensor) -> _Met | None:
        """Return where the batch's positives are if nothing is wrong with it and all rows differ; otherwise None."""
        found = self.memory.meet(index.numpy())
        if found is None or not np.isfinite(scores.numpy()).all():
            return None
        (where, place), given = found, labels.numpy()
        # Where the training set has a positive the label is 1, and nowhere else is it other than 0.
        if not (given.take(where) == 1).all() or np.count_nonzero(given != 0) != len(where):
            return None
        if self.num_pos is not None and len(where) != self.num_pos:
            return None
        return _Met(index, torch.from_numpy(where), torch.from_numpy(place))

    def _differ(self, labels: Tensor, index: Tensor) -> Tensor:
        """Return (..., B): whether a batch label is positive and the training label is not, or the other way round."""
        memory = self.memory
        held = memory.holds(*memory.find(index))
        return held != (labels if labels.ndim == 1 else labels.mT == 1)

    def _rows_in_use(self, index: Tensor | None) -> Tensor | None:
        """Return the rows if anything is looked up by them: evaluation may be of other data."""
        return index if self.training or self.row_weight is not None else None

    def _nothing(self, batch: Batch) -> Tensor:
        if not self._said_no_positive:
            self._said_no_positive = True
            warnings.warn(
                "a batch held no positive, and nothing can be learnt from it: draw batches with "
                "apmax.PositiveBatchSampler (this is said once)",
                stacklevel=6,
            )
        return (batch.scores * 0).sum()


class _Met(NamedTuple):
    """The rows of a batch, all different; where among them positives are, and their places in the memory."""

    rows: Tensor
    where: Tensor
    place: Tensor


def _with_gradient(scores: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """Return `value` as a function of `scores` with this gradient."""
    gradient = gradient.to(scores.dtype)
    result = torch.dot(scores, gradient) if scores.ndim == 1 else (scores * gradient).sum()
    # A linear function has the gradient, whatever its own value.
    result.detach().copy_(value)
    return result


def _on_host(tensor: Tensor) -> bool:
    """Return whether looking at numbers costs nothing; elsewhere it would wait for a device or break a graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _first_occurrence(rows: Tensor) -> Tensor | None:
    """Return whether each row is met in the batch for the first time; None if that is known of all of them."""
    if _on_host(rows) and not _any_twice(rows):
        return None
    ordered, order = rows.sort(stable=True)
    return torch.ones_like(rows, dtype=torch.bool).scatter_(0, order[1:], ordered[1:] != ordered[:-1])


def _any_twice(rows: Tensor) -> bool:
    if len(rows) <= _FEW:
        return len(set(rows.tolist())) < len(rows)
    ordered = np.sort(rows.numpy())
    return bool((ordered[1:] == ordered[:-1]).any())
