"""A weighted sum of losses, which is itself a loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from apmax import validation
from apmax.losses.ap_loss import APLoss
from apmax.losses.base import Batch, Loss


class WeightedLoss(Loss):
    """The sum of several losses of `LOSSES`, each times its weight: `Σ_k weight_k · loss_k(scores, labels, index)`.

    The losses are in the attribute `terms` under their names; their state and parameters are in `state_dict` as
    `terms.ap.…`, and `ascend` names theirs.

    Args:
        labels: The training labels, (n,) or (n, tasks), for every term.
        terms: The weight of each loss, by its name in `LOSSES`; at least one, all above 0.
        options: Hyper-parameters of a term by its name, as `{"ap": {"margin": 0.5}}`.
        prevalence: For every term that does not set its own in `options`; see `Loss`.
        sample_weight: See `Loss`.
        validate: See `Loss`.

    Raises:
        ValueError: No terms, a name that is not in `LOSSES`, a weight that is not positive, options for no term or with
            a `sample_weight` of their own.
        TypeError: A hyper-parameter that its loss does not have.

    >>> import torch
    >>> loss = WeightedLoss([0, 0, 0, 1], {"ce": 1.0, "focal": 0.5}, options={"focal": {"balance": None}})
    >>> round(loss(torch.zeros(2), torch.tensor([0., 1.])).item(), 4)
    0.7798
    """

    table: ClassVar[Mapping[str, type[Loss]]] = {}
    """The losses that `terms` may name; the package sets it to `LOSSES`, which lists this module's siblings."""

    def __init__(
        self,
        labels: Any,
        terms: Mapping[str, float],
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        prevalence: float | str | None = None,
        sample_weight: Any = None,
        validate: bool = True,
    ) -> None:
        super().__init__(labels, prevalence=prevalence, sample_weight=sample_weight, validate=validate)
        if not terms:
            raise ValueError(f"terms must name at least one of {', '.join(self.table)}, got {terms!r}")
        for name in terms:
            validation.choice("terms", name, self.table)
        options = options or {}
        for name, own in options.items():
            validation.choice("options", name, terms)
            if own.get("sample_weight") is not None:
                raise ValueError(
                    f"options[{name!r}] must not hold sample_weight: the terms share their rows' weights; "
                    "pass sample_weight= to WeightedLoss"
                )
        self.weights = {
            name: validation.interval(f"terms[{name!r}]", weight, 0, closed="neither") for name, weight in terms.items()
        }
        shared = {"prevalence": prevalence, "sample_weight": sample_weight, "validate": validate}
        self.terms = nn.ModuleDict(
            {name: self.table[name](labels, **{**shared, **options.get(name, {})}) for name in terms}
        )
        self.ascend = tuple(f"terms.{name}.{own}" for name, term in self._terms() for own in term.ascend)  # type: ignore[misc]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of every term."""
        for _, term in self._terms():
            term.set_epoch(epoch)

    def score_limit(self, dtype: torch.dtype) -> float:
        """Return the magnitude up to which the sum of cross-entropies with these weights is finite."""
        return torch.finfo(dtype).max / (4 * max(1.0, sum(self.weights.values())))

    def check(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> None:
        """Raise `ValueError` for a batch that is invalid for one of the terms."""
        watching = [term for _, term in self._terms() if isinstance(term, APLoss) and term.counts_probabilities()]
        extremes = self._check_and_measure(scores, labels, index, measure=self.training and bool(watching))
        if extremes is not None:
            for term in watching:
                term.count_probabilities(*extremes)

    def faults(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """Return a scalar that is 0 if the batch is valid for every term, before any of them changes its state."""
        # Losses that share a check make it once, with the scores of the one that overflows first.
        terms = sorted((term for _, term in self._terms()), key=lambda term: -term.score_limit(scores.dtype))
        distinct = {type(term).faults: term for term in terms}
        faults = [term.faults(scores, labels, index).double() for term in distinct.values()]
        too_large = (scores.abs() > self.score_limit(scores.dtype)).count_nonzero()
        return torch.stack([*faults, too_large.double()]).sum()

    def explain(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> None:
        """Raise the error of the first term for which the batch is invalid."""
        for _, term in self._terms():
            term.explain(scores, labels, index)
        validation.within(scores, self.score_limit(scores.dtype))

    def compute(self, batch: Batch) -> Tensor:
        """Return the weighted sum of the terms."""
        values = [self.weights[name] * term.compute(batch) for name, term in self._terms()]
        return sum(values[1:], start=values[0])

    def _terms(self) -> list[tuple[str, Loss]]:
        return [(name, term) for name, term in self.terms.items() if isinstance(term, Loss)]
