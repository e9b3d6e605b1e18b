"""`APLoss`: stochastic average precision with a moving average per positive (SOAP)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apmax import functional, surrogates, validation
from apmax.exact import kernel, search
from apmax.functional import ALL, POS, Correction
from apmax.losses.base import Batch, Loss, one_if_zero
from apmax.losses.memory import Memory

_MAX_CACHED_CORRECTIONS = 256
"""Corrections are cached for this many batch shapes; then the cache is emptied."""
_PROBABILITY_BATCHES = 10
"""After this many training batches with all scores in [0, 1] the loss warns that it was given probabilities."""
_FEW_ROWS = 256
"""Up to this many rows a set finds a repeated one faster than a sort."""
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

    Every training positive i keeps a running estimate `u_i` of (g¹_i, g²_i): the surrogate's mass above it that
    belongs to positives, and the mass in all. The value is `1 - mean u¹/u²` over the batch's positives, a number in
    [0, 1] that can be plotted; its gradient is the paper's equation 6. The formulas are those of `apmax.functional`.
    It has no second derivative: a penalty of its gradient (`create_graph=True`) raises when it is differentiated.

    Args:
        labels: The training labels, (n,) or (n, tasks) of 0/1; NaN in a table of tasks means "not measured".
        surrogate: A name in `SURROGATES`.
        margin: Its margin m, or its scale c.
        gamma: Weight of the new value in the moving average, in (0, 1]; 1 is no memory.
        sigmoid: Apply a sigmoid to the scores first, as the paper does.
        prevalence: None takes AP at the prevalence of `labels`, whatever the sampler does; a number at another one;
            "batch" at that of each batch.
        floor: The paper's u₀, the lower bound of u²; None: the contribution of an anchor's pair with itself.
        start: "estimate": u begins at the first batch's value (the paper's Lemma 3); "zero": at 0 (its code).
        sample_weight: A weight for each training row, (n,).
        num_pos: The number of positives in every batch, if the sampler guarantees it: makes all shapes static, so
            that no step synchronises with a GPU. For several tasks: the largest number of any task.
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
        formula = surrogates.get(surrogate, margin)
        self.self_pair = formula.at_zero(margin)
        self._score_limit = _score_limit(formula, float(margin), sigmoid=sigmoid)
        self.margin, self.sigmoid = float(margin), sigmoid
        self.gamma = validation.interval("gamma", gamma, 0, 1, closed="right")
        self.floor = None if floor is None else validation.interval("floor", floor, 0, closed="left")
        self.start = validation.choice("start", start, ["estimate", "zero"])
        self.num_pos = None if num_pos is None else validation.whole("num_pos", num_pos, 1)
        self.memory = Memory(labels)
        share = self.total_positive / self.total_weight if self.prevalence is None else self.prevalence
        rate = self.self_pair * share / self.total_positive.clamp_min(torch.finfo(torch.float64).tiny)
        self.register_buffer("_floor_rate", rate, persistent=False)
        # Numbers on the host, of one task only, from which `_uniform_correction` is computed.
        self._host_share, self._host_positive, self._host_floor = (
            (0.0,) * 3 if self.tasks else (float(share), float(self.total_positive), float(rate))
        )
        self._corrections: dict[tuple[int, int, torch.dtype], tuple[Correction, Tensor, Tensor]] = {}
        self._corrected = self.prevalence is not None
        self._warned_no_positive = False
        # Training batches so far with all scores in [0, 1]; None once the scores are known to be on another scale.
        self._probability_batches: int | None = None if sigmoid else 0
        # Found by the checks of the current batch, if all its rows differ.
        self._checked: _CheckedBatch | None = None
        if not formula.bounded and not sigmoid:
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
        """Raise `ValueError` for an invalid batch, or one whose labels are not those of its training rows."""
        checked, extremes, measure = None, None, self.counts_probabilities()
        if self.training and index is not None and labels.ndim == 1 and search.on_host(index):
            checked = self._check_on_host(scores, labels, index)
        if checked is None:
            extremes = self._check_and_measure(scores, labels, index, measure=measure)
        elif measure and scores.numel():
            extremes = float(scores.min()), float(scores.max())
        self._checked = checked
        if extremes is not None:
            self.count_probabilities(*extremes)

    def score_limit(self, dtype: torch.dtype) -> float:  # noqa: ARG002
        """Return the magnitude up to which the pair sums, and the memory in float32, are finite."""
        return self._score_limit

    def counts_probabilities(self) -> bool:
        """Return whether the scores of this batch may be probabilities, which `count_probabilities` is to find out."""
        return self.training and self._probability_batches is not None

    def count_probabilities(self, low: float, high: float) -> None:
        """Warn once if the scores of several training batches, here from `low` to `high`, all lie in [0, 1]."""
        if self._probability_batches is None or low == high:
            return
        self._probability_batches = self._probability_batches + 1 if low >= 0 and high <= 1 else None
        if self._probability_batches == _PROBABILITY_BATCHES:
            self._probability_batches = None
            warnings.warn(
                f"all scores of {_PROBABILITY_BATCHES} training batches lie in [0, 1], as probabilities do: pass raw "
                "scores (logits), the model's output without a sigmoid (this warning is given once)",
                stacklevel=6,
            )

    def faults(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """Return a scalar that is 0 if the batch is valid and its labels are those of its training rows."""
        fault = super().faults(scores, labels, index)
        if self.training and index is not None:
            fault = fault + self._differ(labels, index).sum()
        if self.training and self.num_pos is not None:
            count = (labels == 1).sum(0)
            fault = fault + ((count > self.num_pos) if labels.ndim == 2 else (count != self.num_pos)).sum()
        return fault

    def explain(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> None:
        """Raise the `ValueError` that describes an invalid batch."""
        super().explain(scores, labels, index)
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
        checked = self._checked if self._checked is not None and self._checked.rows is batch.rows else None
        self._checked = first = None
        if self.training and batch.rows is not None and checked is None:
            first = _first_occurrence(batch.rows)
        if first is not None and self._corrected:
            batch = batch._replace(positive=batch.positive * first, negative=batch.negative * first)
        if checked is not None and not batch.weighted:
            where, slots = checked.where, checked.slots
        else:
            size = batch.scores.shape[-1]
            promised = min(self.num_pos, size) if self.training and self.num_pos is not None else None
            where, slots = functional.positions_of_positives(batch.positive, promised), None
        if where.shape[-1] == 0:
            return self._without_positives(batch)
        return _with_gradient(batch.scores, *self._value_and_gradient(batch, where, slots, first))

    def _value_and_gradient(
        self, batch: Batch, where: Tensor, slots: Tensor | None, first: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the value and its gradient in the scores: both are known at once, without autograd's bookkeeping.

        Args:
            batch: The batch.
            where: (..., k) positions of the anchors in it.
            slots: (..., k) slots of the anchors in the memory, where known already.
            first: (B,) whether a row occurs for the first time; None if all rows differ.
        """
        scores = batch.scores.detach()
        if self.sigmoid:
            scores = scores.sigmoid()
        classes = torch.stack([batch.positive, batch.negative]).detach()
        if batch.weighted:
            # The share of a heavy anchor is subtracted from its sums; in float32 little of the others' would remain.
            scores, classes = scores.double(), classes.double()
        surrogate = surrogates.SURROGATES[self.surrogate]
        pairs = kernel.pair_kernel(scores, scores.gather(-1, where), classes, surrogate, self.margin)
        sums = pairs.sums()
        weight = complete = None
        alike = not batch.weighted and scores.ndim == 1 and first is None
        if alike and where.shape[-1] < scores.shape[-1] and search.on_host(scores):
            correction, share, factor = self._uniform_correction(where.shape[-1], scores.shape[-1], sums.dtype)
        else:
            weight = classes[0].gather(-1, where)
            correction, share = self._correction(classes, weight, sums.dtype), functional.anchor_shares(weight)
            factor = correction.scale * share
            complete = (classes[1] > 0).any(-1, keepdim=True) if self._corrected else None
        g = functional.corrected_inner(sums, correction)
        if batch.weighted and self.prevalence is not None and weight is not None:
            # An anchor far lighter than all positives together may lose its pair with itself to rounding even so.
            own = self.self_pair * self.prevalence.unsqueeze(-1) * weight / one_if_zero(self._total_beside(weight))
            g = g + (own - g[POS]).clamp_min(0)
        u = g
        if self.training and batch.rows is not None:
            found = None
            if slots is None:
                slots, key = self.memory.find(batch.rows.take(where))
                found = self.memory.holds(slots, key)
                if weight is not None:
                    found = found & (weight > 0)
            u = self._remember(g, slots, found, weight, complete, None if first is None else first[where])
        if weight is not None:
            # A task without a measured label in the batch has nothing to divide by.
            u = torch.stack([u[POS], torch.where(u[ALL] > 0, u[ALL], 1)])
        lost, slope = functional.outer_slope(u)
        gradient, of_anchors = pairs.pull(slope.mul_(factor))
        gradient.scatter_add_(-1, where, of_anchors)
        if self.sigmoid:
            gradient = gradient * (scores * (1 - scores))
        return (lost * share).sum(), gradient

    def _uniform_correction(self, count: int, size: int, dtype: torch.dtype) -> tuple[Correction, Tensor, Tensor]:
        """Return `_correction`, the anchors' share and scale·share for `size` rows that all weigh 1, `count` positive.

        Small batches spend their time in the number of operations, so these constants are computed once.
        """
        known = self._corrections.get((count, size, dtype))
        if known is None:
            one = torch.ones(1, dtype=torch.float64)
            correction = functional.batch_mean(size * one)
            if self._corrected:
                correction = functional.prevalence_correction(
                    one,
                    count * one,
                    (size - count) * one,
                    prevalence=self._host_share,
                    total_positive=self._host_positive,
                    self_pair=self.self_pair,
                )
            if len(self._corrections) >= _MAX_CACHED_CORRECTIONS:
                self._corrections.clear()
            scale, offset, share = (part.to(dtype) for part in (*correction, one / count))
            known = Correction(scale, offset), share, scale * share
            self._corrections[count, size, dtype] = known
        return known

    def _correction(self, classes: Tensor, weight: Tensor, dtype: torch.dtype) -> Correction:
        """Return the map from sums to g for a batch with class weights (2, ..., B) and anchor weights (..., k)."""
        positive, negative = classes.sum(-1, keepdim=True).unbind(0)
        if self.prevalence is None:
            correction = functional.batch_mean(positive + negative)
        else:
            correction = functional.prevalence_correction(
                weight,
                positive,
                negative,
                prevalence=self.prevalence.to(weight.dtype).unsqueeze(-1),
                total_positive=self._total_beside(weight),
                self_pair=self.self_pair,
            )
        return Correction(*(part.to(dtype) for part in correction))

    def _total_beside(self, weight: Tensor) -> Tensor:
        """Return W₊, (..., 1), for anchors of these weights, (..., k)."""
        # The weights of a single call need not fit the training set: no anchor may weigh more than all of it.
        return torch.maximum(self.total_positive.to(weight.dtype).unsqueeze(-1), weight.amax(-1, keepdim=True))

    def _remember(
        self,
        g: Tensor,
        slots: Tensor,
        found: Tensor | None,
        weight: Tensor | None,
        complete: Tensor | None,
        first: Tensor | None,
    ) -> Tensor:
        """Update u of the anchors by the moving average and return it, (2, ..., k).

        Args:
            g: (2, ..., k) of this batch.
            slots: (..., k) slots of the anchors' training rows in the memory.
            found: (..., k) whether the memory holds them, None if all: padding and, without checks, the row of a
                negative are used but never stored.
            weight: (..., k) their weights, 0 for padding; None if all weigh 1.
            complete: (..., 1) whether the batch has negatives; None if it has, or if there is no correction.
            first: (..., k) whether a row occurs in the batch for the first time; None if all do.
        """
        memory = self.memory
        old = memory.read(slots).to(g.dtype)
        storable = first
        if found is None:
            visited = old[ALL].bool()
        else:
            visited = torch.logical_and(old[ALL], found)
            storable = found if first is None else found & first
        if complete is not None:
            # Without negatives in the batch, the estimate for them stays; an anchor never visited stays so.
            negatives = torch.where(visited, old[ALL] - old[POS], 0)
            g = torch.where(complete, g, torch.stack([g[POS], g[POS] + negatives]))
            known = complete | visited
            storable = known if storable is None else storable & known
        old = torch.where(visited, old, g if self.start == "estimate" else 0)
        new = functional.moving_average(old, g, self.gamma, floor=self._floor(weight))
        memory.write(slots, new, storable)
        return new

    def _floor(self, weight: Tensor | None) -> Tensor | float:
        if self.floor is not None:
            return self.floor
        if weight is None:
            return self._host_floor
        return weight * self._floor_rate.to(weight.dtype).unsqueeze(-1)

    def _check_on_host(self, scores: Tensor, labels: Tensor, index: Tensor) -> _CheckedBatch | None:
        """Return the batch's positives if the batch is valid and all rows differ; otherwise None."""
        found = self.memory.positives_among(index.numpy())
        values = scores.numpy()
        if found is None or not np.isfinite(values).all():
            return None
        if self._score_limit < math.inf and (np.abs(values) > self._score_limit).any():
            return None
        (where, slots), given = found, labels.numpy()
        # Where the training set has a positive the label is 1, and nowhere else is it other than 0.
        if not (given.take(where) == 1).all() or np.count_nonzero(given != 0) != len(where):
            return None
        if self.num_pos is not None and len(where) != self.num_pos:
            return None
        return _CheckedBatch(index, torch.from_numpy(where), torch.from_numpy(slots))

    def _differ(self, labels: Tensor, index: Tensor) -> Tensor:
        """Return (..., B): whether a batch label is positive and the training label is not, or the other way round."""
        memory = self.memory
        return memory.holds(*memory.find(index)) != (labels if labels.ndim == 1 else labels.mT == 1)

    def _without_positives(self, batch: Batch) -> Tensor:
        """Return a zero that back-propagates, with a warning the first time."""
        if not self._warned_no_positive:
            self._warned_no_positive = True
            warnings.warn(
                "a batch held no positive, and nothing can be learnt from it: draw batches with "
                "apmax.PositiveBatchSampler (this warning is given once)",
                stacklevel=6,
            )
        return (batch.scores * 0).sum()


class _CheckedBatch(NamedTuple):
    """The rows of a valid batch, all different; the positions of its positives, and their slots in the memory."""

    rows: Tensor
    where: Tensor
    slots: Tensor


def _score_limit(surrogate: surrogates.Surrogate, margin: float, *, sigmoid: bool) -> float:
    """Return the magnitude of scores up to which sums of ℓ over 2³² pairs are finite in float32.

    Raises:
        ValueError: The margin is so large that this holds for no scores.
    """
    # The exponential surrogate is held constant beyond its largest exponent and summed in float64.
    if surrogate.bounded or surrogate.name == "exponential":
        return math.inf
    largest = torch.finfo(torch.float32).max / 2**32
    exponents = torch.arange(128, dtype=torch.float64)
    # A difference of two scores is up to twice as large, or at most 1 after the sigmoid.
    values = surrogate.value_and_slope(2 * 2**exponents, margin)[0]
    finite = int((values <= largest).sum())
    if finite == 0:
        raise ValueError(f"margin must be smaller for surrogate {surrogate.name!r}, which overflows at {margin:g}")
    return math.inf if sigmoid else 2.0 ** (finite - 1)


def _with_gradient(scores: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """Return `value` as a function of `scores` with this gradient."""
    gradient = gradient.to(scores.dtype)
    result = torch.dot(scores, gradient) if scores.ndim == 1 else (scores * gradient).sum()
    # A linear function has the gradient, whatever its own value.
    result.detach().copy_(value)
    if result.requires_grad and not torch.compiler.is_compiling():  # compiled code refuses to be differentiated twice
        result.register_hook(lambda incoming: _once_differentiable(incoming, scores))
    return result


def _once_differentiable(incoming: Tensor, scores: Tensor) -> Tensor | None:
    """Make a gradient that is itself recorded an error to differentiate: the linear function would give 0."""
    if not torch.is_grad_enabled():  # no `create_graph`, as in every usual step
        return None
    marked: Tensor = _NoSecondDerivative.apply(incoming, scores)
    return marked


class _NoSecondDerivative(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(incoming: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG004
        return incoming.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        raise RuntimeError(
            "APLoss has no second derivative: leave it out of the loss whose gradient is differentiated again "
            "(create_graph=True), or use apmax.losses.CrossEntropyLoss there"
        )

    jvp = backward


def _first_occurrence(rows: Tensor) -> Tensor | None:
    """Return whether each row occurs in the batch for the first time; None if all are known to differ."""
    if search.on_host(rows) and not _has_repeats(rows):
        return None
    ordered, order = rows.sort(stable=True)
    return torch.ones_like(rows, dtype=torch.bool).scatter_(0, order[1:], ordered[1:] != ordered[:-1])


def _has_repeats(rows: Tensor) -> bool:
    if len(rows) <= _FEW_ROWS:
        return len(set(rows.tolist())) < len(rows)
    ordered = np.sort(rows.numpy())
    return bool((ordered[1:] == ordered[:-1]).any())
