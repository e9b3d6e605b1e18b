"""SOAP: a stochastic estimate of average precision whose memory u makes small batches enough."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apmax import functional, surrogates, validation
from apmax.exact import kernel
from apmax.functional import ALL, POS, Correction
from apmax.losses.base import Batch, Loss
from apmax.losses.memory import Memory

_UNBOUNDED = ("squared_hinge", "hinge", "smoothed_hinge", "logistic", "exponential")


class APLoss(Loss):
    """One minus the surrogate average precision, estimated from mini-batches by SOAP (the paper's Algorithms 1 and 2).

    Every training positive i keeps a running estimate `u_i` of (g¹_i, g²_i): how much of the surrogate's mass above it
    belongs to positives, and how much in all. The value is `1 - mean u¹/u²` over the batch's positives, a number in
    [0, 1] that can be plotted; its gradient is the paper's equation 6.

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
        self_pair = surrogates.get(surrogate, margin).at_zero(margin)
        validation.interval("gamma", gamma, 0, 1, closed="right")
        validation.choice("start", start, ["estimate", "zero"])
        labels = validation.label_array(labels)
        super().__init__(labels, prevalence=prevalence, sample_weight=sample_weight, validate=validate)
        self.surrogate, self.margin, self.gamma, self.sigmoid, self.start = surrogate, margin, gamma, sigmoid, start
        self.floor = None if floor is None else validation.interval("floor", floor, 0)
        self.num_pos = None if num_pos is None else validation.whole("num_pos", num_pos, 1)
        self._surrogate, self.self_pair = surrogates.SURROGATES[surrogate], self_pair
        self.memory = Memory(labels)
        share = self.total_positive / self.total_weight if self.prevalence is None else self.prevalence
        rate = self_pair * share / self.total_positive.clamp_min(torch.finfo(torch.float64).tiny)
        self.register_buffer("_floor_rate", rate, persistent=False)
        # For one task these are numbers on the host: arithmetic with them launches nothing.
        self._numbers = (0.0,) * 3 if self.tasks else (float(share), float(self.total_positive), float(rate))
        self._corrected = self.prevalence is not None
        self._said_no_positive = False
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
        surrogate: str = "squared_hinge",
        margin: float = 1.0,
        gamma: float = 0.9,
        start: str = "estimate",
        floor: float = 0.0,
    ) -> APLoss:
        """Return the paper's own estimator: sigmoid scores, batches as they are, the batch's positives as anchors.

        Algorithm 1 draws anchors and batch separately; `functional.inner` allows that.
        """
        return cls(
            labels,
            surrogate=surrogate,
            margin=margin,
            gamma=gamma,
            sigmoid=True,
            prevalence="batch",
            floor=floor,
            start=start,
        )

    @property
    def u(self) -> Tensor:
        """The estimates of (g¹, g²) of all training positives, (n₊, 2); 0 where never visited."""
        return self.memory.u

    def faults(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """Return a scalar that is 0 if the batch is sound and its rows' labels are those of the training set."""
        fault = super().faults(scores, labels, index if self.training else None)
        if self.num_pos is not None:
            count = (labels == 1).sum(0)
            fault = fault + ((count > self.num_pos) if labels.ndim == 2 else (count != self.num_pos)).sum()
        if self.training and index is not None:
            fault = fault + self._disagree(labels, index).sum()
        return fault

    def explain(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> None:
        """Raise `ValueError` for what is wrong with a batch."""
        super().explain(scores, labels, index if self.training else None)
        count = int((labels == 1).sum(0).max())
        if self.num_pos is not None and (count > self.num_pos or (labels.ndim == 1 and count < self.num_pos)):
            raise ValueError(f"labels hold {count} positives in a batch where num_pos={self.num_pos} was promised")
        if self.training and index is not None:
            wrong = self._disagree(labels, index).nonzero()
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
        first = _first_occurrence(batch.rows) if self.training and batch.rows is not None else None
        if first is not None and self._corrected:
            batch = batch._replace(positive=batch.positive * first, negative=batch.negative * first, plain=False)
        where = functional.positives_of(batch.positive, self.num_pos)
        if where.shape[-1] == 0:
            return self._nothing(batch)
        with torch.no_grad():
            value, gradient = self._value_and_gradient(batch, where, first)
        result: Tensor = _Known.apply(batch.scores, value, gradient)
        return result

    def _value_and_gradient(self, batch: Batch, where: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        # `functional.compose` written out: both are known at once, which spares autograd's bookkeeping.
        scores = batch.scores.sigmoid() if self.sigmoid else batch.scores
        weight = None if batch.plain else batch.positive.gather(-1, where)
        classes = torch.stack([batch.positive, batch.negative])
        pairs = kernel.pairs(scores, scores.gather(-1, where), classes, self._surrogate, self.margin)
        (positive_scale, offset, negative_scale), complete = self._correction(batch, where, weight)
        positives, negatives = pairs.sums().unbind(0)
        positives = positives * positive_scale + offset
        g = torch.stack([positives, positives + negatives * negative_scale], -1)
        u = self._remember(g, complete, batch, where, weight, first) if batch.rows is not None and self.training else g
        above, everything = u.unbind(-1)
        if weight is not None:
            # A task without a measured label in the batch has nothing to divide.
            everything = torch.where(everything > 0, everything, 1)
        precision = above / everything
        if weight is None:
            share: Tensor | float = 1 / where.shape[-1]
            value = 1 - precision.mean()
        else:
            share = _shares(weight)
            value = (share * (1 - precision)).sum()
        of_positives = share / everything
        of_all = of_positives * precision
        incoming = torch.stack([(of_all - of_positives) * positive_scale, of_all * negative_scale])
        gradient, of_anchors = pairs.pull(incoming)
        gradient.scatter_add_(-1, where, of_anchors)
        if self.sigmoid:
            gradient = gradient * (scores * (1 - scores))
        return value.to(scores.dtype), gradient.to(scores.dtype)

    def _correction(self, batch: Batch, where: Tensor, weight: Tensor | None) -> tuple[Correction, Tensor | bool]:
        """Return how sums become g, and whether the batch shows both classes, so that all of u is to be renewed."""
        size, count = batch.scores.shape[-1], where.shape[-1]
        if not self._corrected:
            everything: Tensor | float = size
            if weight is not None:
                everything = (batch.positive + batch.negative).sum(-1, keepdim=True)
                everything = torch.where(everything > 0, everything, 1)
            return Correction(1 / everything, 0.0, 1 / everything), True
        if weight is None:
            share, population, _ = self._numbers
            correction = functional.prevalence_correction(
                1.0, count, size - count, prevalence=share, total_positive=population, self_pair=self.self_pair
            )
            return correction, size > count
        assert self.prevalence is not None
        negative = batch.negative.sum(-1, keepdim=True)
        correction = functional.prevalence_correction(
            weight,
            weight.sum(-1, keepdim=True),
            negative,
            prevalence=self.prevalence.to(weight.dtype).unsqueeze(-1),
            total_positive=self.total_positive.to(weight.dtype).unsqueeze(-1),
            self_pair=self.self_pair,
        )
        return correction, negative > 0

    def _remember(
        self,
        g: Tensor,
        complete: Tensor | bool,
        batch: Batch,
        where: Tensor,
        weight: Tensor | None,
        first: Tensor | None,
    ) -> Tensor:
        """Renew u of the anchors by the moving average and return it, (..., k, 2)."""
        assert batch.rows is not None
        memory = self.memory
        slot, key = memory.find(batch.rows[where])
        old = memory.read(slot).to(g.dtype)
        # Padding, a row met before and, without checks, a row of no positive are used by themselves, never stored.
        allowed = None
        if weight is not None or not self.validate:
            allowed = memory.holds(slot, key)
            allowed = allowed if weight is None else allowed & (weight > 0)
            old = torch.where(allowed.unsqueeze(-1), old, 0)
        if first is not None:
            allowed = first[where] if allowed is None else allowed & first[where]
        fresh = old[..., ALL] == 0
        seen = g
        if complete is not True:
            # Without negatives in the batch, what is known of them stays; an anchor not yet seen stays unseen.
            complete = torch.as_tensor(complete, device=g.device)
            negatives = torch.where(complete, g[..., ALL] - g[..., POS], old[..., ALL] - old[..., POS])
            seen = torch.stack([g[..., POS], g[..., POS] + negatives], -1)
            whole = complete | ~fresh
            allowed = whole if allowed is None else allowed & whole
        if self.start == "estimate":
            old = torch.where(fresh.unsqueeze(-1), g, old)
            seen = g if seen is g else torch.where(fresh.unsqueeze(-1), g, seen)
        new = functional.moving_average(old, seen, self.gamma, floor=self._floor(weight))
        finite = new[..., ALL] < torch.inf
        memory.write(slot, new, finite if allowed is None else finite & allowed)
        return new

    def _floor(self, weight: Tensor | None) -> Tensor | float:
        if self.floor is not None:
            return self.floor
        if weight is None:
            return self._numbers[2]
        return weight * self._floor_rate.to(weight.dtype).unsqueeze(-1)

    def _disagree(self, labels: Tensor, index: Tensor) -> Tensor:
        """Return (..., B): a batch label is positive and the training label is not, or the other way round."""
        slot, key = self.memory.find(index)
        return self.memory.holds(slot, key) != ((labels if self.tasks is None else labels.mT) == 1)

    def _nothing(self, batch: Batch) -> Tensor:
        if not self._said_no_positive:
            self._said_no_positive = True
            warnings.warn(
                "a batch held no positive, and nothing can be learnt from it: draw batches with "
                "apmax.PositiveBatchSampler (this is said once)",
                stacklevel=5,
            )
        return batch.scores.sum() * 0


class _Known(torch.autograd.Function):
    """A value whose gradient is already known."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, value: Tensor, gradient: Tensor) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * incoming, None, None


def _shares(weight: Tensor) -> Tensor:
    """Return anchors' weights scaled to sum to 1 over each task's anchors and over the tasks that have any."""
    total = weight.sum(-1, keepdim=True)
    present = total > 0
    return weight / (torch.where(present, total, 1) * present.sum().clamp_min(1))


def _first_occurrence(rows: Tensor) -> Tensor | None:
    """Return whether each row is met in the batch for the first time; None if that is known of all of them."""
    if rows.device.type == "cpu" and not torch.compiler.is_compiling():
        # Looking is free on a CPU; elsewhere it would wait for the device.
        seen = np.sort(rows.numpy())
        if not (seen[1:] == seen[:-1]).any():
            return None
    ordered, order = rows.sort(stable=True)
    return torch.ones_like(rows, dtype=torch.bool).scatter_(0, order[1:], ordered[1:] != ordered[:-1])
