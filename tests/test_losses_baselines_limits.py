"""The eight compared losses: limits in which each is something known, and the state some of them have."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from apmax.losses import (
    AUCMLoss,
    ClassBalancedLoss,
    CrossEntropyLoss,
    FastAPLoss,
    FocalLoss,
    LDAMLoss,
    MinMaxLoss,
    SmoothAPLoss,
)

LABELS = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
LOSSES_HERE = [CrossEntropyLoss, ClassBalancedLoss, FocalLoss, LDAMLoss, AUCMLoss, SmoothAPLoss, FastAPLoss, MinMaxLoss]
SCORES = torch.tensor([1.3, -0.4, 0.2, 0.9, -1.1, 0.5, -2.0, 0.1, -0.7, -0.3], dtype=torch.float64)


def one_minus_ap(scores, labels):
    return 1 - average_precision_score(labels.numpy(), scores.numpy())


@pytest.mark.parametrize(
    "build",
    [CrossEntropyLoss, partial(FocalLoss, focusing=0.0, balance=None), partial(LDAMLoss, max_margin=0.0, scale=1.0)],
    ids=["ce", "focal", "ldam"],
)
def test_the_small_part_of_a_large_loss_is_kept(build):
    value = build([1.0])(torch.tensor([-21.0], dtype=torch.float64), torch.ones(1))
    assert value.item() == pytest.approx(21 + math.exp(-21), rel=1e-14)


@pytest.mark.parametrize("cls", LOSSES_HERE)
@pytest.mark.parametrize("prevalence", [None, 0.3, "batch"])
def test_training_labels_of_one_class_or_none_are_harmless(cls, prevalence):
    nan = float("nan")
    labels = torch.tensor([[1.0, 0, nan, 1], [1, 0, nan, 0], [1, 0, nan, 0]])  # all +, all -, not measured, both
    scores = torch.tensor([[1.0, 0.5, 2.0, 0.0]]).repeat(3, 1).requires_grad_()
    value = cls(labels, prevalence=prevalence)(scores, labels)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(scores.grad).all()


class TestClassBalanced:
    def test_beta_zero_is_cross_entropy(self):
        assert ClassBalancedLoss(LABELS, beta=0.0)(SCORES, LABELS) == CrossEntropyLoss(LABELS)(SCORES, LABELS)

    def test_beta_near_one_gives_both_classes_the_same_say(self):
        loss = ClassBalancedLoss(LABELS, beta=1 - 1e-12)
        positive, negative = torch.nn.functional.softplus(-SCORES[:3]), torch.nn.functional.softplus(SCORES[3:])
        say = 2 * 0.3 * 0.7  # π·α₊ = (1-π)·α₋ with α ∝ 1/n
        assert loss(SCORES, LABELS).item() == pytest.approx(say * (positive.mean() + negative.mean()).item(), rel=1e-9)

    def test_weights_come_from_the_training_labels_and_not_from_the_batch(self):
        loss = ClassBalancedLoss(LABELS, beta=0.9, prevalence=0.5)
        assert loss(SCORES[2:4], LABELS[2:4]) == loss(SCORES[[2, 3, 3]], LABELS[[2, 3, 3]])

    def test_a_task_of_one_class_is_not_reweighted(self):
        loss = ClassBalancedLoss(torch.zeros(5), beta=0.9)
        assert loss(SCORES[:2], torch.zeros(2)) == CrossEntropyLoss(torch.zeros(5))(SCORES[:2], torch.zeros(2))

    @pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e307])
    def test_the_weights_of_extreme_counts_are_their_limits(self, scale):
        loss = ClassBalancedLoss(LABELS, beta=0.9999, sample_weight=torch.full((10,), scale, dtype=torch.float64))
        # An effective number is the count where that is small, and the same for both classes where it is large.
        expected = [0.6, 1.4] if scale < 1 else [1.0, 1.0]
        assert loss.weights.tolist() == pytest.approx(expected, rel=1e-3 if scale < 1e-300 else 1e-9)


class TestFocal:
    def test_focusing_zero_is_cross_entropy(self):
        assert FocalLoss(LABELS, focusing=0.0, balance=None)(SCORES, LABELS) == CrossEntropyLoss(LABELS)(SCORES, LABELS)

    def test_balance_of_one_half_halves_the_loss(self):
        plain, halved = FocalLoss(LABELS, balance=None), FocalLoss(LABELS, balance=0.5)
        assert halved(SCORES, LABELS).item() == pytest.approx(plain(SCORES, LABELS).item() / 2, rel=1e-15)

    @pytest.mark.parametrize("focusing", [0.0, 0.5, 2.0, 5.0])
    @pytest.mark.parametrize("score", [0.0, 90.0, -90.0, 1e30, -1e30, 3e38, -3e38])
    def test_value_and_gradient_are_finite_for_every_finite_logit(self, score, focusing):
        scores = torch.tensor([score], requires_grad=True)
        value = FocalLoss(LABELS, focusing=focusing)(scores, torch.ones(1))
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(scores.grad).all()


class TestLDAM:
    def test_margins_depend_on_the_ratio_of_weights_alone(self):
        weight = torch.linspace(0.5, 1.5, 10, dtype=torch.float64)
        plain, large = (LDAMLoss(LABELS, sample_weight=weight * scale) for scale in (1, 1e308))
        torch.testing.assert_close(large.margins, plain.margins)
        assert plain.margins[1] == 0.5

    def test_no_margin_and_scale_one_is_cross_entropy(self):
        loss = LDAMLoss(LABELS, max_margin=0.0, scale=1.0)
        assert loss(SCORES, LABELS).item() == pytest.approx(CrossEntropyLoss(LABELS)(SCORES, LABELS).item(), rel=1e-15)

    def test_the_rarer_class_has_the_largest_margin(self):
        negative, positive = LDAMLoss([0] * 16 + [1], max_margin=0.4).margins
        assert positive == pytest.approx(0.4)
        assert negative == pytest.approx(0.2)  # 16^(1/4) times smaller

    def test_reweighting_begins_at_the_deferred_epoch(self):
        loss, never = LDAMLoss(LABELS, defer_epoch=3, beta=0.9), LDAMLoss(LABELS, defer_epoch=None)
        values = []
        for epoch in range(5):
            loss.set_epoch(epoch)
            never.set_epoch(epoch)
            values.append(loss(SCORES, LABELS) == never(SCORES, LABELS))
        assert values == [True, True, True, False, False]

    def test_the_epoch_survives_a_restart(self):
        loss, resumed = LDAMLoss(LABELS, defer_epoch=3, beta=0.9), LDAMLoss(LABELS, defer_epoch=3, beta=0.9)
        loss.set_epoch(4)
        resumed.load_state_dict(loss.state_dict())
        assert resumed(SCORES, LABELS) == loss(SCORES, LABELS)

    def test_a_negative_epoch_is_refused(self):
        with pytest.raises(ValueError, match="epoch must be at least 0"):
            LDAMLoss(LABELS).set_epoch(-1)


class TestAUCM:
    @staticmethod
    def at_saddle(labels, **options):
        """The loss with a, b and α at their optimum for SCORES."""
        loss = AUCMLoss(labels, **options).double()
        h = SCORES.sigmoid()
        loss.a.data = h[LABELS == 1].mean()
        loss.b.data = h[LABELS == 0].mean()
        loss.alpha.data = (loss.margin + loss.b - loss.a).clamp_min(0).data
        return loss

    @pytest.mark.parametrize("prevalence", [None, 0.1, "batch"])
    def test_the_saddle_value_is_the_squared_auc_surrogate(self, prevalence):
        loss = self.at_saddle(LABELS, margin=0.8, prevalence=prevalence)
        share = 0.1 if prevalence == 0.1 else 0.3
        h = SCORES.sigmoid()
        pairs = (0.8 - h[:3].unsqueeze(1) + h[3:]) ** 2
        assert loss(SCORES, LABELS).item() == pytest.approx(share * (1 - share) * pairs.mean().item(), rel=1e-12)

    def test_the_saddle_is_stationary_in_the_auxiliary_variables(self):
        loss = self.at_saddle(LABELS, margin=0.8)
        loss(SCORES, LABELS).backward()
        assert max(parameter.grad.abs().item() for parameter in loss.parameters()) < 1e-15

    def test_alpha_does_not_move_in_a_batch_of_one_class(self):
        loss = AUCMLoss(LABELS)
        loss(SCORES[:3], LABELS[:3]).backward()
        assert loss.alpha.grad == 0

    def test_alpha_leaves_zero_when_that_raises_the_value(self):
        loss = AUCMLoss(LABELS)
        loss(SCORES, LABELS).backward()
        assert loss.alpha.grad > 0


class TestMinMax:
    def test_anchors_divide_the_precisions_from_the_prevalence_to_one(self):
        np.testing.assert_allclose(MinMaxLoss([0, 0, 0, 1], anchors=2).precisions, [0.5, 0.75], rtol=1e-15)
        np.testing.assert_allclose(MinMaxLoss([0, 0, 0, 1], anchors=1, prevalence=0.5).precisions, [0.75], rtol=1e-15)

    def test_without_multipliers_only_the_positives_count(self):
        loss = MinMaxLoss(LABELS, anchors=3).double()
        loss.multipliers.data.zero_()
        hinge = (1 - SCORES[:3]).clamp_min(0).mean()
        assert loss(SCORES, LABELS).item() == pytest.approx((0.3 * 3 * 0.7 / 4 * hinge).item(), rel=1e-14)

    def test_a_perfect_ranking_with_a_margin_leaves_only_the_slack_of_the_constraint(self):
        loss = MinMaxLoss(LABELS, anchors=3).double()
        value = loss(4 * LABELS - 2, LABELS)
        assert value.item() == pytest.approx(-0.3 * 3 * 0.7 / 4, rel=1e-14)  # -Σ Δ·π·λ


@pytest.mark.parametrize(("cls", "name"), [(AUCMLoss, "alpha"), (MinMaxLoss, "multipliers")])
class TestProjection:
    def test_a_training_call_puts_negative_values_back_to_zero(self, cls, name):
        loss = cls(LABELS)
        getattr(loss, name).data.fill_(-3.0)
        loss(SCORES, LABELS)
        assert (getattr(loss, name) == 0).all()

    def test_evaluation_takes_them_as_zero_and_writes_nothing(self, cls, name):
        loss, at_zero = cls(LABELS).eval(), cls(LABELS).eval()
        getattr(loss, name).data.fill_(-3.0)
        getattr(at_zero, name).data.fill_(0.0)
        assert loss(SCORES, LABELS) == at_zero(SCORES, LABELS)
        assert (getattr(loss, name) == -3).all()

    @pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
    def test_they_are_never_negative_in_a_call_under_an_adversarial_optimiser(self, cls, name, optimizer):
        loss = cls(LABELS)
        values = getattr(loss, name)
        descent = optimizer([values], lr=5.0)  # descending on what should ascend, with a huge step
        seen = []
        for _ in range(5):
            descent.zero_grad()
            value = loss(torch.where(LABELS == 1, -3.0, 3.0), LABELS)
            seen.append(values.min().item())
            value.backward()
            descent.step()
        assert min(seen) == 0
        assert values.min() < 0  # the optimiser did try, and the next call would have put it back

    def test_two_calls_before_one_backward_are_allowed(self, cls, name):
        loss = cls(LABELS)
        (loss(SCORES, LABELS) + loss(-SCORES, LABELS)).backward()
        assert torch.isfinite(getattr(loss, name).grad).all()


class TestSmoothAP:
    @pytest.mark.parametrize("sigmoid", [False, True])
    @pytest.mark.parametrize("prevalence", [None, "batch"])
    def test_zero_temperature_is_one_minus_ap(self, prevalence, sigmoid):
        loss = SmoothAPLoss(LABELS, temperature=1e-5, sigmoid=sigmoid, prevalence=prevalence)
        assert loss(SCORES, LABELS).item() == pytest.approx(one_minus_ap(SCORES, LABELS), rel=1e-12)

    def test_zero_temperature_is_weighted_ap_with_weights(self):
        weight = torch.linspace(0.5, 2, 10, dtype=torch.float64)
        loss = SmoothAPLoss(LABELS, temperature=1e-5, sample_weight=weight)
        expected = 1 - average_precision_score(LABELS, SCORES, sample_weight=weight)
        assert loss(SCORES, LABELS, torch.arange(10)).item() == pytest.approx(expected, rel=1e-12)

    def test_the_whole_training_set_gives_the_same_in_both_modes(self):
        corrected, plain = (
            SmoothAPLoss(LABELS, temperature=0.1),
            SmoothAPLoss(LABELS, temperature=0.1, prevalence="batch"),
        )
        assert corrected(SCORES, LABELS).item() == pytest.approx(plain(SCORES, LABELS).item(), rel=1e-12)

    def test_repeating_the_negatives_of_a_batch_changes_nothing(self):
        loss = SmoothAPLoss(LABELS, temperature=0.1)
        scores, labels = torch.cat([SCORES, SCORES[3:]]), torch.cat([LABELS, LABELS[3:]])
        assert loss(scores, labels).item() == pytest.approx(loss(SCORES, LABELS).item(), rel=1e-12)

    def test_a_lone_positive_stands_for_the_average_one(self):
        loss = SmoothAPLoss(LABELS, temperature=1e-5)
        value = loss(torch.tensor([0.0, 1.0, -1.0]), torch.tensor([1.0, 0.0, 0.0]))
        # itself and half of the two other positives, against half of the seven negatives
        assert value.item() == pytest.approx(3.5 / (2 + 3.5), rel=1e-6)


class TestFastAP:
    def test_scores_on_bin_centres_give_one_minus_ap_with_ties(self):
        centres = torch.tensor([6, 2, 4, 5, 1, 4, 3, 3, 1, 2]) / 8
        loss = FastAPLoss(LABELS, bins=8)
        assert loss(torch.logit(centres.double()), LABELS).item() == pytest.approx(
            one_minus_ap(centres, LABELS), rel=1e-12
        )

    def test_many_bins_exceed_one_minus_ap_by_less_than_a_quarter_over_the_rank(self):
        value = FastAPLoss(LABELS, bins=2**16)(SCORES, LABELS).item()
        ranks = [1 + (score < SCORES).sum().item() for score in SCORES[:3]]
        excess = value - one_minus_ap(SCORES, LABELS)
        assert 0 < excess < sum(1 / (4 * rank) for rank in ranks) / 3

    def test_one_bin_at_equal_scores_is_one_minus_prevalence(self):
        assert FastAPLoss(LABELS, bins=1)(torch.zeros(10), LABELS).item() == pytest.approx(0.7, rel=1e-6)

    @pytest.mark.parametrize("score", [-69.0, -200.0])  # a sigmoid of 1e-30, whose square underflows, and of 0
    def test_gradient_is_finite_where_the_highest_bin_holds_next_to_nothing(self, score):
        scores = torch.full((10,), score, requires_grad=True)
        FastAPLoss(LABELS, bins=1)(scores, LABELS).backward()
        assert torch.isfinite(scores.grad).all()


@pytest.mark.parametrize("cls", [SmoothAPLoss, FastAPLoss])
class TestTasksWithoutPositives:
    def test_one_is_left_out_of_the_mean(self, cls):
        labels = torch.stack([LABELS, LABELS.flip(0)], 1)
        batch = labels.clone()
        batch[:, 1] = 0
        loss, alone = cls(labels), cls(LABELS)
        assert loss(torch.stack([SCORES, SCORES], 1), batch) == alone(SCORES, LABELS)

    def test_a_batch_without_any_gives_zero_and_zero_gradient(self, cls):
        scores = SCORES.clone().requires_grad_()
        value = cls(LABELS)(scores, torch.zeros(10))
        value.backward()
        assert value == 0
        assert (scores.grad == 0).all()
