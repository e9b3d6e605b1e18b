"""A weighted sum of losses is a loss: values, names, state, errors."""

from __future__ import annotations

import pytest
import torch

from apmax.losses import LOSSES, AUCMLoss, CrossEntropyLoss, FocalLoss, LDAMLoss, Loss, WeightedLoss

LABELS = torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 0, 0, 0])
SCORES = torch.tensor([1.3, -0.4, 0.2, 0.9, -1.1, 0.5, -2.0, 0.1, -0.7, -0.3], dtype=torch.float64)


def test_the_value_is_the_weighted_sum_of_the_terms():
    loss = WeightedLoss(LABELS, {"ce": 2.0, "focal": 0.5}, options={"focal": {"focusing": 1.0}})
    expected = 2 * CrossEntropyLoss(LABELS)(SCORES, LABELS) + 0.5 * FocalLoss(LABELS, focusing=1.0)(SCORES, LABELS)
    assert loss(SCORES, LABELS).item() == pytest.approx(expected.item(), rel=1e-15)


def test_prevalence_and_weights_reach_every_term():
    weight = torch.linspace(0.5, 2, 10)
    shared = {"prevalence": 0.2, "sample_weight": weight}
    loss = WeightedLoss(LABELS, {"ce": 1.0, "focal": 1.0}, **shared)
    rows = torch.arange(10)
    expected = CrossEntropyLoss(LABELS, **shared)(SCORES, LABELS, rows) + FocalLoss(LABELS, **shared)(
        SCORES, LABELS, rows
    )
    assert loss(SCORES, LABELS, rows).item() == pytest.approx(expected.item(), rel=1e-15)


def test_an_option_of_a_term_goes_before_what_all_share():
    loss = WeightedLoss(LABELS, {"ce": 1.0}, prevalence=0.2, options={"ce": {"prevalence": "batch"}})
    assert loss(SCORES, LABELS) == CrossEntropyLoss(LABELS, prevalence="batch")(SCORES, LABELS)


def test_it_names_the_terms_parameters_to_ascend():
    loss = WeightedLoss(LABELS, {"ce": 1.0, "auc_m": 1.0, "minmax": 1.0})
    assert loss.ascend == ("terms.auc_m.alpha", "terms.minmax.multipliers")


def test_every_term_learns_of_the_epoch():
    loss = WeightedLoss(LABELS, {"ldam": 1.0}, options={"ldam": {"defer_epoch": 2}})
    alone = LDAMLoss(LABELS, defer_epoch=2)
    loss.set_epoch(2)
    alone.set_epoch(2)
    assert loss(SCORES, LABELS) == alone(SCORES, LABELS)


def test_a_batch_that_one_term_refuses_changes_no_term():
    class Strict(CrossEntropyLoss):
        def faults(self, scores, labels, index):
            return super().faults(scores, labels, index) + 1

        def explain(self, scores, labels, index):
            raise ValueError("refused by the second term")

    class Both(WeightedLoss):
        table = {"auc_m": AUCMLoss, "strict": Strict}  # noqa: RUF012

    loss = Both(LABELS, {"auc_m": 1.0, "strict": 1.0})
    loss.terms["auc_m"].alpha.data.fill_(-1.0)
    with pytest.raises(ValueError, match="refused by the second term"):
        loss(SCORES, LABELS)
    assert loss.terms["auc_m"].alpha == -1  # not even projected


def test_evaluation_reaches_every_term():
    loss = WeightedLoss(LABELS, {"auc_m": 1.0}).eval()
    loss.terms["auc_m"].alpha.data.fill_(-1.0)
    loss(SCORES, LABELS)
    assert loss.terms["auc_m"].alpha == -1


def test_it_is_a_loss_over_the_public_table():
    assert issubclass(WeightedLoss, Loss)
    assert WeightedLoss.table is LOSSES


def test_an_unknown_term_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match=r"terms must be one of .*; got 'focall' \(did you mean 'focal'\?\)"):
        WeightedLoss(LABELS, {"focall": 1.0})


def test_options_for_a_loss_that_is_no_term_are_refused():
    with pytest.raises(ValueError, match="options must be one of ce; got 'focal'"):
        WeightedLoss(LABELS, {"ce": 1.0}, options={"focal": {}})


def test_weights_of_one_term_alone_are_refused():
    with pytest.raises(ValueError, match=r"options\['ce'\] must not hold sample_weight.*pass sample_weight="):
        WeightedLoss(LABELS, {"ap": 1.0, "ce": 1.0}, options={"ce": {"sample_weight": torch.linspace(0.5, 2, 10)}})


def test_a_misspelt_option_of_a_term_is_a_type_error():
    with pytest.raises(TypeError, match="focussing"):
        WeightedLoss(LABELS, {"focal": 1.0}, options={"focal": {"focussing": 2.0}})


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_not_positive_and_finite_is_refused(weight):
    with pytest.raises(ValueError, match=r"terms\['ce'\] must lie in \(0, inf\)"):
        WeightedLoss(LABELS, {"ce": weight})


@pytest.mark.parametrize("terms", [{"ce": 1.0, "minmax": 1.0}, {"minmax": 1.0, "ce": 1.0}])
def test_scores_too_large_for_any_of_the_terms_are_refused(terms):
    loss = WeightedLoss(LABELS, terms)
    with pytest.raises(ValueError, match="scores"):
        loss(SCORES.float() * 1e30, LABELS)


@pytest.mark.parametrize("weight", [1e-3, 8.0])
def test_scores_at_the_limit_have_a_finite_value_and_gradient_and_beyond_it_are_refused(weight):
    loss = WeightedLoss(LABELS, {"ce": weight, "focal": weight})
    limit = loss.score_limit(torch.float32)
    scores = torch.where(LABELS == 1, -limit, limit).requires_grad_()
    value = loss(scores, LABELS)
    value.backward()
    assert value.isfinite()
    assert scores.grad.isfinite().all()
    with pytest.raises(ValueError, match="scores"):
        loss(scores.detach() * 1.01, LABELS)


def test_no_terms_are_refused():
    with pytest.raises(ValueError, match="terms must name at least one of"):
        WeightedLoss(LABELS, {})
