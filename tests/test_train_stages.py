"""Stages: averaging, selection, new and frozen parts, the exact head, ensembles."""

import dataclasses

import pytest
import torch
from apmax.train.averaging import Average
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from apmax import metrics
from apmax.train import Ensemble, building, epochs, fit, predict
from apmax.train.config import ExactHead, Optimizer, Stage
from apmax.train.selection import Candidate, Selection, is_over, smoothed
from small_training import FEATURES, TRAIN, VALID, network, run_of, same, train, weights


def test_the_average_is_the_recursion_by_hand_buffers_included():
    model = nn.BatchNorm1d(1)
    average = Average(model, decay=0.3)
    expected, current = 0.0, 0.0
    for step in range(4):
        current = 1.0 + step
        model.running_mean.fill_(current)
        average.update()
        decay = min(0.3, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * current
    with average.applied():
        assert model.running_mean.item() == pytest.approx(expected)
    assert model.running_mean.item() == current


def test_with_averaging_the_average_is_evaluated_and_chosen():
    stage = Stage(epochs=1, ema=0.9, optimizer=Optimizer(lr=0.1))
    model = network(norm=True)
    record = train(model, run_of(stage))[0]
    assert metrics.average_precision(predict(model, VALID), VALID.tensors[1]).item() == pytest.approx(record.valid.ap)
    plain = network(norm=True)
    train(plain, run_of(dataclasses.replace(stage, ema=None)))
    assert not same(weights(model), weights(plain))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.sampled_from([1, 3, 5]))
def test_the_chosen_epoch_is_the_first_with_the_best_smoothed_value(values, window):
    selection = Selection(window)
    for epoch, value in enumerate(values, 1):
        selection.add(Candidate(0, epoch, None, {}), float(value))
        assert len(selection.waiting) <= window // 2
    means = smoothed([float(value) for value in values], window)
    assert selection.close().epoch == means.index(max(means)) + 1


def test_a_candidate_from_before_wins_unless_it_is_beaten():
    before = Candidate(0, 3, 0.5, {})
    for value, stage in ((0.4, 0), (0.5, 0), (0.6, 1)):
        selection = Selection(1, before)
        selection.add(Candidate(1, 1, None, {}), value)
        assert selection.close().stage == stage


def test_without_validation_the_last_epoch_is_chosen():
    model = network()
    seen = [weights(model) for _ in epochs(model, (TRAIN, None), run_of())]
    assert same(weights(model), seen[-1])


def test_a_stage_stops_after_patience_epochs_without_gain():
    assert not is_over([1, 3, 2], window=1, patience=2)
    assert is_over([1, 3, 2, 3], window=1, patience=2)
    stage = Stage(epochs=50, patience=2, smooth=1, optimizer=Optimizer(lr=0.3))
    records = train(network(), run_of(stage))
    aps = [record.valid.ap for record in records]
    assert len(records) < 50
    assert len(aps) - 1 - aps.index(max(aps)) == 2


def test_the_model_ends_with_the_chosen_weights_in_evaluation_mode():
    model = network()
    stage = Stage(epochs=6, smooth=1, optimizer=Optimizer(lr=0.3))
    seen = [(record.valid.ap, weights(model)) for record in epochs(model, (TRAIN, VALID), run_of(stage))]
    best = max(seen, key=lambda pair: pair[0])[1]
    assert same(weights(model), best)
    assert not model.training


def test_a_caller_who_leaves_the_loop_has_the_best_weights_so_far(tmp_path):
    stage = Stage(epochs=50, smooth=1, optimizer=Optimizer(lr=0.3))
    model, seen = network(), []
    for record in epochs(model, (TRAIN, VALID), run_of(stage), directory=tmp_path):
        seen.append((record.valid.ap, weights(model)))
        if len(seen) == 6:
            break
    assert same(weights(model), max(seen, key=lambda pair: pair[0])[1])
    assert same(torch.load(tmp_path / "model.pt", weights_only=True), weights(model))
    assert next(epochs(model, (TRAIN, VALID), run_of(stage), directory=tmp_path, resume=True)).epoch == 7


def test_reset_gives_a_new_head_and_leaves_the_body():
    tiny = Optimizer(name="sgd", lr=1e-12)
    first = Stage(epochs=1, optimizer=tiny)
    model, start = network(), weights(network())
    train(model, run_of(first, Stage(epochs=1, optimizer=tiny, reset=("head",), keep=False)))
    after = weights(model)
    assert torch.equal(after["0.weight"], start["0.weight"])
    assert not torch.isclose(after["4.weight"], start["4.weight"]).any()


def test_the_head_may_be_named_by_the_model():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Sequential(nn.Linear(FEATURES, 3), nn.ReLU(), nn.Linear(3, 1))

        def forward(self, inputs):
            return self.head(inputs)

    model = Named()
    start = weights(model)
    train(model, run_of(Stage(epochs=1, optimizer=Optimizer(name="sgd", lr=1e-12), reset=("head",))))
    assert not any(torch.isclose(value, start[name]).any() for name, value in weights(model).items())


def test_frozen_modules_keep_weights_and_statistics():
    model = network(norm=True)
    start = weights(model)
    train(model, run_of(Stage(epochs=2, freeze=("body",), optimizer=Optimizer(lr=0.1, weight_decay=0.1))))
    after = weights(model)
    assert all(torch.equal(after[name], start[name]) for name in start if not name.startswith("4."))
    assert not torch.equal(after["4.weight"], start["4.weight"])
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (Stage(reset=("haed",)), "reset must name sub-modules"),
        (Stage(freeze=("0", "4", "1")), "leaves nothing to train"),
    ],
)
def test_a_part_that_is_not_there_is_an_error(stage, message):
    with pytest.raises(ValueError, match=message):
        train(network(), run_of(stage))


@pytest.mark.parametrize("start", ["best", "last"])
def test_a_stage_starts_from_the_best_or_the_last_of_the_one_before(start):
    first = Stage(epochs=6, smooth=1, optimizer=Optimizer(lr=0.5))
    still = Stage(epochs=1, optimizer=Optimizer(name="sgd", lr=1e-12), start=start, keep=False, name="still")
    model = network()
    seen = [(record.valid.ap, weights(model)) for record in epochs(model, (TRAIN, VALID), run_of(first, still))][:6]
    best = max(range(6), key=lambda epoch: seen[epoch][0])
    assert best != 5, "the case must tell the two apart"
    expected = seen[best if start == "best" else 5][1]
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=1e-9)


def test_validation_may_choose_the_model_the_stage_came_from():
    good = Stage(epochs=8, optimizer=Optimizer(lr=0.02))
    harmful = Stage(epochs=2, reset=("0", "4"), optimizer=Optimizer(name="sgd", lr=1e-12), name="harmful")
    model, other = network(), network()
    train(model, run_of(good, harmful))
    train(other, run_of(good))
    assert same(weights(model), weights(other))
    train(other := network(), run_of(good, dataclasses.replace(harmful, keep=False)))
    assert not same(weights(model), weights(other))


def test_the_exact_head_raises_the_objective_and_touches_nothing_else():
    model = network()
    ce, exact = train(model, run_of(Stage(epochs=1), ExactHead(l2=(1e-4, 1e-2), max_iter=30)))
    assert exact.train.objective < ce.train.objective - 0.05
    assert exact.valid.ap >= ce.valid.ap
    body = network()
    train(body, run_of(Stage(epochs=1)))
    assert torch.equal(weights(model)["0.weight"], weights(body)["0.weight"])
    assert torch.equal(weights(model)["4.bias"], weights(body)["4.bias"])


def test_the_exact_head_is_deterministic():
    results = []
    for _ in range(2):
        model = network()
        train(model, run_of(ExactHead(l2=(1e-3,), max_iter=20)))
        results.append(weights(model))
    assert same(*results)


def test_the_exact_head_chooses_its_strength_on_validation():
    aps = []
    for strength in (1e-4, 1.0):
        model = network()
        aps.append(train(model, run_of(ExactHead(l2=(strength,), max_iter=20, keep=False)))[0].valid.ap)
    both = train(network(), run_of(ExactHead(l2=(1e-4, 1.0), max_iter=20, keep=False)))[0].valid.ap
    assert both == max(aps)
    assert aps[0] != aps[1]


def test_the_exact_head_refuses_a_model_whose_scores_are_not_its_last_layer():
    model = nn.Sequential(nn.Linear(FEATURES, 1), nn.Sigmoid())
    with pytest.raises(ValueError, match="output of its last linear layer"):
        train(model, run_of(ExactHead()))


def test_an_ensemble_averages_models_of_different_seeds():
    run = run_of(Stage(epochs=2, optimizer=Optimizer(lr=0.02)), ensemble=3)
    result = fit(network(), (TRAIN, VALID), run)
    assert isinstance(result.model, Ensemble)
    scores = [predict(member, VALID) for member in result.model.members]
    torch.testing.assert_close(predict(result.model, VALID), sum(scores) / 3)
    assert not torch.allclose(scores[0], scores[1], atol=1e-3)
    assert [record.member for record in result.records] == [0, 0, 1, 1, 2, 2]


def test_the_first_member_is_the_run_without_an_ensemble():
    run = run_of(Stage(epochs=2))
    alone = fit(network(), (TRAIN, VALID), run).model
    together = fit(network(), (TRAIN, VALID), dataclasses.replace(run, ensemble=2)).model
    assert same(weights(alone), weights(together.members[0]))


def test_epochs_refuses_an_ensemble_and_names_fit():
    with pytest.raises(ValueError, match="call fit"):
        epochs(network(), (TRAIN, VALID), run_of(ensemble=2))


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_in_one_pass_is_adam(name):
    config = Optimizer(name=name, lr=0.01, weight_decay=0.1, amsgrad=True)
    torch.manual_seed(0)
    one, other = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()
    other.load_state_dict(one.state_dict())
    fused = building.build_optimizer(config, one, nn.Identity())
    assert fused.defaults["fused"]
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    plain = kind(other.parameters(), lr=0.01, weight_decay=0.1, amsgrad=True, fused=False, foreach=False)
    x = torch.randn(20, 3, dtype=torch.float64)
    for _ in range(5):
        for model, optimizer in ((one, fused), (other, plain)):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(one.weight, other.weight, rtol=1e-12, atol=1e-12)


def test_off_the_cpu_torch_chooses_how_adam_goes_through_the_parameters():
    optimizer = building.build_optimizer(Optimizer(name="adam"), nn.Linear(3, 1, device="meta"), nn.Identity())
    assert not optimizer.defaults["fused"]
