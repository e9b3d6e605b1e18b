"""Sample weights in the loss, the metrics and resumed runs; the proximal term."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from apmax.losses import LOSSES, AUCMLoss
from apmax.samplers import PositiveBatchSampler
from apmax.train import Checkpoints, Data, ExactHead, Optimizer, Sampler, Stage, compute_metrics, epochs, predict
from apmax.train.display import Display, RunMonitor
from apmax.train.run_directory import data_fingerprint
from small_training import (
    FEATURES,
    POSITIVE,
    TRAIN,
    VALID,
    StoppingNetwork,
    interrupt,
    network,
    run_of,
    same,
    train,
    weights,
)

GENERATOR = torch.Generator().manual_seed(0)
COUNTS = torch.randint(1, 4, (len(TRAIN),), generator=GENERATOR)
VALID_COUNTS = torch.randint(1, 4, (len(VALID),), generator=GENERATOR)
ALL_AT_ONCE = Sampler(batch_size=1000)


def repeated(split, counts):
    return TensorDataset(*(part.repeat_interleave(counts, 0) for part in split.tensors))


def weighted(**fields):
    return Data(TRAIN, VALID, sample_weight=COUNTS, valid_sample_weight=VALID_COUNTS, **fields)


@pytest.mark.parametrize("name", LOSSES)
def test_the_weights_are_those_of_a_handwritten_loop_with_a_weighted_loss(name):
    stage = Stage(loss=name, epochs=2, optimizer=Optimizer(name="sgd", lr=0.05), sampler=POSITIVE, smooth=1)
    model, by_hand = network(), network()
    train(model, run_of(stage, seed=5), data=Data(TRAIN, None, sample_weight=COUNTS))
    inputs, labels = TRAIN.tensors
    loss = LOSSES[name](labels, sample_weight=COUNTS)
    ascend = [parameter for own, parameter in loss.named_parameters() if own in loss.ascend]
    descend = [parameter for own, parameter in loss.named_parameters() if own not in loss.ascend]
    groups = [{"params": [*by_hand.parameters(), *descend]}, {"params": ascend, "maximize": True}]
    optimizer = torch.optim.SGD([group for group in groups if group["params"]], lr=0.05)
    sampler = PositiveBatchSampler(labels, 32, num_pos=4, seed=5)
    for epoch in range(2):
        loss.set_epoch(epoch)
        for rows in sampler:
            optimizer.zero_grad()
            loss(by_hand(inputs[rows])[:, 0], labels[rows], torch.tensor(rows)).backward()
            optimizer.step()
    for own, value in weights(model).items():
        torch.testing.assert_close(value, weights(by_hand)[own], rtol=1e-5, atol=1e-6)


def test_a_weight_of_two_equals_a_repeated_row():
    stage = Stage(epochs=5, optimizer=Optimizer(name="sgd", lr=0.5), sampler=ALL_AT_ONCE)
    models = [network(), network()]
    run = run_of(stage, precision="64-true")
    records = train(models[0], run, data=weighted())
    twice = train(models[1], run, data=(repeated(TRAIN, COUNTS), repeated(VALID, VALID_COUNTS)))
    for name, value in weights(models[0]).items():
        torch.testing.assert_close(value, weights(models[1])[name], rtol=1e-12, atol=1e-12)
    for one, other in zip(records, twice, strict=True):
        for split in ("train", "valid"):
            expected = dataclasses.asdict(getattr(other, split))
            assert dataclasses.asdict(getattr(one, split)) == pytest.approx(expected, abs=1e-9)


def test_in_an_exact_head_a_weight_of_two_equals_a_repeated_row():
    run = run_of(ExactHead(l2=(1e-3, 1e-2), max_iter=8), precision="64-true")
    models = [nn.Linear(FEATURES, 1), nn.Linear(FEATURES, 1)]
    models[1].load_state_dict(models[0].state_dict())
    one = train(models[0], run, data=weighted())
    other = train(models[1], run, data=(repeated(TRAIN, COUNTS), repeated(VALID, VALID_COUNTS)))
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-7, atol=1e-9)
    assert one[0].valid.ap == pytest.approx(other[0].valid.ap, abs=1e-9)


@pytest.mark.parametrize("loss", ["ce", {"ap": 1.0, "ce": 1.0}])
def test_a_row_of_weight_zero_has_no_effect(loss):
    inputs = torch.cat([TRAIN.tensors[0], 100 * TRAIN.tensors[0][:50]])
    labels = torch.cat([TRAIN.tensors[1], 1 - TRAIN.tensors[1][:50]])
    weight = (torch.arange(250) < 200).float()
    stage = Stage(loss=loss, epochs=5, optimizer=Optimizer(name="sgd", lr=0.5), sampler=ALL_AT_ONCE)
    models = [network(), network()]
    run = run_of(stage, precision="64-true")
    train(models[0], run, data=Data(TensorDataset(inputs, labels), VALID, sample_weight=weight))
    train(models[1], run)
    for name, value in weights(models[0]).items():
        torch.testing.assert_close(value, weights(models[1])[name], rtol=1e-9, atol=1e-9)


def test_full_metrics_of_training_are_weighted():
    model = network()
    record = train(model, run_of(Stage(epochs=1), train_metrics="full"), data=weighted())[0]
    scores, labels = predict(model, TRAIN), TRAIN.tensors[1]
    assert record.train.ap == pytest.approx(compute_metrics(scores, labels, sample_weight=COUNTS).ap)
    assert record.train.ap != pytest.approx(compute_metrics(scores, labels).ap)


def test_the_running_ap_of_the_display_is_weighted():
    estimates = []

    class EstimatingDisplay(Display):
        def batch(self, progress, estimate):
            estimates.append(estimate())

    run = run_of(Stage(epochs=1, sampler=ALL_AT_ONCE))
    record = train(network(), run, data=weighted(), progress=RunMonitor(run, [EstimatingDisplay()]))[0]
    assert estimates == [pytest.approx(record.train.ap)]


def test_a_weighted_run_resumes_bit_for_bit(tmp_path):
    stage = Stage(loss={"ap": 1.0, "ce": 1.0}, epochs=2, sampler=POSITIVE)
    run = run_of(stage, checkpoints=Checkpoints(every_steps=1))
    whole, resumed = StoppingNetwork(), StoppingNetwork()
    train(whole, run, data=weighted())
    with pytest.raises(KeyboardInterrupt):
        train(StoppingNetwork(9, interrupt), run, data=weighted(), directory=tmp_path)
    train(resumed, run, data=weighted(), directory=tmp_path, resume=True)
    assert same(weights(resumed), weights(whole))


@pytest.mark.parametrize("other", [{}, {"sample_weight": COUNTS + 1}, {"valid_sample_weight": VALID_COUNTS + 1}])
def test_a_run_with_other_sample_weights_cannot_be_resumed(other, tmp_path):
    train(network(), run_of(), data=weighted(), directory=tmp_path)
    data = dataclasses.replace(weighted(), **other) if other else (TRAIN, VALID)
    with pytest.raises(ValueError, match="other data"):
        epochs(network(), data, run_of(), directory=tmp_path, resume=True)


def test_the_fingerprint_without_sample_weights_is_stable():
    data = Data(TensorDataset(torch.arange(6.0).reshape(3, 2)), None, labels=[0, 1, 0])
    labels, _ = data.label_tensors()
    assert data_fingerprint(data, (labels, None), (None, None))[:16] == "2bb3b41f32e3dd6c"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sample_weight": [1.0, 2.0]}, r"sample_weight must have shape \(200,\), got \(2,\)"),
        ({"sample_weight": -torch.ones(200)}, "sample_weight must not be negative"),
        ({"valid_sample_weight": 1 - VALID.tensors[1]}, "valid_sample_weight must leave at least one positive"),
        ({"valid": None, "valid_sample_weight": [1.0]}, "valid_sample_weight was given without valid"),
    ],
)
def test_invalid_sample_weights_are_refused_before_anything_is_written(fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        epochs(network(), Data(**{"train": TRAIN, "valid": VALID, **fields}), run_of(), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def auc_m_by_hand(pull, every, count):
    """Train AUC-M by plain SGD with a proximal term whose reference point is renewed every `every` epochs."""
    model, (inputs, labels) = network(), TRAIN.tensors
    loss = AUCMLoss(labels)
    down = [*model.parameters(), *(p for name, p in loss.named_parameters() if name not in loss.ascend)]
    up = [p for name, p in loss.named_parameters() if name in loss.ascend]
    sampler = PositiveBatchSampler(labels, 32, num_pos=4, seed=0)
    for epoch in range(count):
        if epoch % every == 0:
            reference = [p.detach().clone() for p in down]
        for rows in sampler:
            value = loss(model(inputs[rows])[:, 0], labels[rows], torch.tensor(rows))
            gradients = torch.autograd.grad(value, [*down, *up])
            with torch.no_grad():
                for p, gradient, point in zip(down, gradients, reference, strict=False):
                    p.sub_(0.05 * (gradient + pull * (p - point)))
                for p, gradient in zip(up, gradients[len(down) :], strict=True):
                    p.add_(0.05 * gradient)
    return weights(model)


def test_the_reference_point_is_renewed_by_epochs_and_not_by_steps():
    rule = Optimizer(name="sgd", lr=0.05, proximal=6.0, proximal_every=2)
    stage = Stage(loss="auc_m", epochs=5, optimizer=rule, sampler=POSITIVE, smooth=1)
    model = network()
    train(model, run_of(stage), data=(TRAIN, None))
    expected = auc_m_by_hand(6.0, 2, 5)
    for name, value in weights(model).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
    for other in (1, 3, 5):
        assert (expected["0.weight"] - auc_m_by_hand(6.0, other, 5)["0.weight"]).abs().max() > 1e-3
