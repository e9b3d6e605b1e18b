"""The trainer in one process: what it computes, what it reports, what it leaves alone."""

import dataclasses
import inspect
import io
import json
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from apmax import checkpoint, config, metrics
from apmax.config import Checkpoints, ExactHead, Objective, Optimizer, Run, Sampler, Schedule, Stage
from apmax.losses import LOSSES
from apmax.train import Data, DivergedError, Ensemble, Record, epochs, fit, measure, predict, read_records
from apmax.train.averaging import Average
from apmax.train.building import build_loss, lr_factor
from apmax.train.display import Bar, display_for
from apmax.train.loading import ShuffledBatches, batches
from apmax.train.randomness import mix
from apmax.train.records import last_met
from apmax.train.selection import Candidate, Selection, is_over, smoothed

FEATURES = 4


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny tensors gain nothing from threads, and lose much where others compute too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def split(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, FEATURES, generator=generator)
    noise = 0.5 * torch.randn(rows, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] + noise > 1.2).float())


TRAIN, VALID = split(200, 1), split(120, 2)
POSITIVE = Sampler(name="positive", batch_size=32, num_pos=4)


def network(seed=0, *, width=8, dropout=0.0, norm=False):
    torch.manual_seed(seed)
    layers = [nn.Linear(FEATURES, width), nn.BatchNorm1d(width) if norm else nn.Identity(), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(width, 1))


def run_of(*stages, **fields):
    return Run(stages=stages or (Stage(epochs=2),), accelerator="cpu", **fields)


def train(model, run, data=(TRAIN, VALID), **options):
    return list(epochs(model, data, run, **options))


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_an_epoch_yields_a_record_with_all_metrics_of_both_splits():
    first, second = train(network(), run_of())
    assert (first.epoch, second.epoch, first.stage, second.step) == (1, 2, "ce", 8)
    for record in (first, second):
        for values in (record.train, record.valid):
            assert all(math.isfinite(value) for value in dataclasses.asdict(values).values())
            assert -1 <= values.objective <= 0


def test_it_computes_what_a_hand_written_loop_computes_to_the_bit():
    stage = Stage(epochs=3, optimizer=Optimizer(name="sgd", lr=0.5, momentum=0.9), sampler=POSITIVE, smooth=1)
    model, by_hand = network(), network()
    train(model, run_of(stage, seed=5), data=(TRAIN, None))
    from apmax.losses import CrossEntropy
    from apmax.samplers import PositiveBatchSampler

    inputs, labels = TRAIN.tensors
    loss = CrossEntropy(labels)
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.5, momentum=0.9)
    sampler = PositiveBatchSampler(labels, 32, num_pos=4, seed=5)
    for _ in range(3):
        for rows in sampler:
            optimizer.zero_grad()
            loss(by_hand(inputs[rows])[:, 0], labels[rows], torch.tensor(rows)).backward()
            optimizer.step()
    assert same(weights(model), weights(by_hand))


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_of_the_table_trains(name):
    stage = Stage(loss=name, epochs=8, optimizer=Optimizer(lr=0.02), sampler=POSITIVE)
    start = measure(predict(network(), VALID), VALID.tensors[1])
    end = train(network(), run_of(stage))[-1].valid
    assert end.auroc > 0.8
    assert end.ap > start.ap + 0.2


@pytest.mark.parametrize("name", config.parts.OPTIMIZERS)
def test_every_optimiser_trains(name):
    rate = 0.5 if name == "sgd" else 0.02
    stage = Stage(epochs=6, optimizer=Optimizer(name=name, lr=rate), sampler=POSITIVE)
    assert train(network(), run_of(stage))[-1].valid.auroc > 0.8


def test_a_weighted_sum_of_losses_trains_with_its_options():
    stage = Stage(loss={"ce": 1.0, "focal": 2.0}, options={"focal": {"focusing": 1.0}}, epochs=2, sampler=POSITIVE)
    loss = build_loss(stage, TRAIN.tensors[1])
    scores, labels = torch.linspace(-1, 1, 4), torch.tensor([0.0, 1.0, 0.0, 1.0])
    ce, focal = (
        build_loss(Stage(loss=n, sampler=POSITIVE, options=o), TRAIN.tensors[1])
        for n, o in (("ce", {}), ("focal", {"focal": {"focusing": 1.0}}))
    )
    expected = ce(scores, labels) + 2 * focal(scores, labels)
    torch.testing.assert_close(loss(scores, labels), expected)
    assert len(train(network(), run_of(stage))) == 2


def test_plain_shuffling_takes_batches_as_they_are_and_the_positive_sampler_corrects_them():
    labels = TRAIN.tensors[1]
    assert build_loss(Stage(), labels).prevalence is None
    assert build_loss(Stage(sampler=POSITIVE), labels).prevalence.item() == pytest.approx(labels.mean().item())
    chosen = Stage(options={"ce": {"prevalence": 0.3}})
    assert build_loss(chosen, labels).prevalence.item() == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), [1, 1, 1, 1]),
        (Schedule(name="cosine"), [1, (1 + math.cos(math.pi / 4)) / 2, 0.5, (1 - math.cos(math.pi / 4)) / 2]),
        (Schedule(name="cosine", final=1.0), [1, 1, 1, 1]),
        (Schedule(name="step", milestones=(1, 3), factor=0.5), [1, 0.5, 0.5, 0.25]),
        (Schedule(warmup=2.0), [0, 0.5, 1, 1]),
    ],
)
def test_a_schedule_has_the_rates_it_says(schedule, expected):
    assert [lr_factor(schedule, epoch, 4) for epoch in range(4)] == pytest.approx(expected)


def test_the_rate_of_a_step_is_that_of_its_place_in_the_stage():
    stage = Stage(epochs=2, schedule=Schedule(name="cosine"), optimizer=Optimizer(lr=1e-2))
    first, second = train(network(), run_of(stage))
    assert first.lr == pytest.approx(1e-2 * (1 + math.cos(math.pi * 3 / 8)) / 2)
    assert second.lr == pytest.approx(1e-2 * (1 + math.cos(math.pi * 7 / 8)) / 2)


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


def test_training_metrics_are_those_of_the_scores_when_last_met():
    often = Sampler(name="positive", batch_size=32, num_pos=8)
    stage = Stage(epochs=1, optimizer=Optimizer(name="sgd", lr=1e-12), sampler=often)
    model = network()
    record = train(model, run_of(stage))[0]
    expected = measure(predict(model, TRAIN), TRAIN.tensors[1])
    assert record.train.ap == pytest.approx(expected.ap, abs=1e-6)
    assert record.train.objective == pytest.approx(expected.objective, abs=1e-5)


def test_full_training_metrics_are_recomputed_after_the_epoch():
    model = network()
    stage = Stage(epochs=1, optimizer=Optimizer(lr=0.1))
    full = train(model, run_of(stage, train_metrics="full"))[0].train
    assert full.ap == pytest.approx(measure(predict(model, TRAIN), TRAIN.tensors[1]).ap)
    assert train(network(), run_of(stage))[0].train.ap != full.ap


def test_the_last_score_of_a_row_counts():
    rows, scores = last_met(
        torch.tensor([3, 1, 3, 0]), torch.tensor([[1.0], [2], [3], [4]]), torch.tensor([0, 0, 1, 1])
    )
    assert rows.tolist() == [0, 1, 3]
    assert scores.tolist() == [[4.0], [2.0], [3.0]]


def test_the_objective_of_the_records_is_the_one_asked_for():
    from apmax.functional import ap_objective

    model = network()
    asked = Objective(surrogate="squared_hinge", margin=0.5, sigmoid=True)
    record = train(model, run_of(Stage(epochs=1), objective=asked))[0]
    expected = ap_objective(predict(model, VALID).sigmoid(), VALID.tensors[1], "squared_hinge", 0.5)
    assert record.valid.objective == pytest.approx(expected.item())


def test_there_is_no_place_for_a_test_split():
    names = {field.name for field in dataclasses.fields(Data)} | set(inspect.signature(epochs).parameters)
    assert not any("test" in name for name in names)


def test_several_tasks_with_missing_labels_train():
    labels = torch.stack([TRAIN.tensors[1], (TRAIN.tensors[0][:, 1] > 1).float()], 1)
    labels[::7, 1] = float("nan")
    data = TensorDataset(TRAIN.tensors[0], labels)
    model = nn.Linear(FEATURES, 2)
    stages = [
        Stage(loss=loss, epochs=5, optimizer=Optimizer(lr=0.05), sampler=POSITIVE) for loss in ("ce", "smooth_ap")
    ]
    records = train(model, run_of(*stages, ExactHead(l2=(1e-3,), max_iter=10)), data=(data, data))
    assert records[-1].valid.ap > 0.7


@pytest.mark.parametrize("workers", [0, 2])
def test_random_numbers_of_an_example_depend_on_seed_epoch_and_row_alone(workers):
    def drawn(order, epoch, seed=3):
        loader = batches(Noise(), order, seed=seed, epoch=epoch, workers=workers)
        return {
            row: value for inputs, rows in loader for row, value in zip(rows.tolist(), inputs.tolist(), strict=True)
        }

    one, other = drawn([[0, 1, 2], [3]], epoch=1), drawn([[3, 2], [0], [1]], epoch=1)
    assert one == other
    assert len({tuple(value) for value in one.values()}) == 4
    assert all(drawn([[0, 1, 2, 3]], epoch=2)[row] != one[row] for row in range(4))
    assert all(drawn([[0, 1, 2, 3]], epoch=1, seed=4)[row] != one[row] for row in range(4))


class Noise(Dataset):
    def __getitem__(self, row):
        return torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()])  # noqa: NPY002

    def __len__(self):
        return 4


def test_a_subset_of_a_random_dataset_is_seeded_by_row_too():
    values = [next(batches(Subset(Noise(), [2, 0, 1]), [rows], seed=0, epoch=0))[0] for rows in ([0, 1], [1, 0])]
    assert torch.equal(values[0], values[1].flip(0))


def test_a_dataset_is_told_the_epoch():
    class Told(Dataset):
        heard = ()

        def set_epoch(self, epoch):
            self.heard = (*self.heard, epoch)

        def __getitem__(self, row):
            return TRAIN[row]

        def __len__(self):
            return len(TRAIN)

    data = Told()
    train(network(), run_of(), data=Data(data, None, labels=TRAIN.tensors[1]))
    assert data.heard == (0, 1)


def test_the_callers_generators_are_left_alone():
    labels = TRAIN.tensors[1]
    model, data = network(dropout=0.5), Data(Items(), Items(), labels=labels, valid_labels=labels)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    for _ in epochs(model, data, run_of(Stage(epochs=2), Stage(epochs=1, reset=("head",)))):
        assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]


class Items(Dataset):
    def __getitem__(self, row):
        return TRAIN.tensors[0][row] + torch.rand(())

    def __len__(self):
        return len(TRAIN)


def test_the_same_seed_gives_the_same_weights_and_another_gives_others():
    results = []
    for seed in (1, 1, 2):
        model = network(dropout=0.5)
        train(model, run_of(seed=seed))
        results.append(weights(model))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 3), st.integers(1, 3))
def test_shuffled_batches_cover_every_row_once_and_do_not_depend_on_the_processes(rows, size, epoch, world):
    alone = ShuffledBatches(rows, size, seed=1)
    alone.set_epoch(epoch)
    joined = list(alone)
    assert sorted(row for batch in joined for row in batch) == list(range(rows))
    assert max(map(len, joined)) - min(map(len, joined)) <= 1
    assert max(map(len, joined)) <= size
    assert len(joined) == len(alone)
    if min(map(len, joined)) >= world:
        for rank in range(world):
            share = ShuffledBatches(rows, size, seed=1, rank=rank, world_size=world)
            share.set_position(epoch, 1)
            assert list(share) == [batch[rank::world] for batch in joined[1:]]


def test_seeds_differ_wherever_a_part_differs():
    seeds = [mix(a, b, c) for a in range(10) for b in range(10) for c in range(10)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


def nan_at_row(row):
    inputs = TRAIN.tensors[0].clone()
    inputs[row, 0] = float("nan")
    return TensorDataset(inputs, TRAIN.tensors[1])


def test_nan_scores_stop_the_run_naming_step_row_and_remedy():
    with pytest.raises(
        DivergedError, match=r"the scores are not finite at step \d, training rows 17;.*lower optimizer.lr"
    ) as caught:
        train(network(), run_of(Stage(epochs=1)), data=(nan_at_row(17), VALID))
    assert caught.value.rows == [17]
    assert 1 <= caught.value.step <= 4


class Exploding(nn.Linear):
    calls = 0

    def forward(self, inputs):
        scores = super().forward(inputs)
        self.calls += self.training
        return scores * 1e35 if self.training and self.calls == 6 else scores


def test_an_infinite_loss_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    stage = Stage(loss={"ce": 1e5}, epochs=3, optimizer=Optimizer(name="sgd", lr=1e-9))
    run = run_of(stage, checkpoints=Checkpoints(every_steps=1))
    with pytest.raises(DivergedError, match="the loss is inf at step 6") as caught:
        train(Exploding(FEATURES, 1), run, directory=tmp_path)
    sampler = ShuffledBatches(200, 64)
    sampler.set_epoch(1)
    assert caught.value.rows == list(sampler)[1]
    state = checkpoint.load(tmp_path / "checkpoint.pt")
    assert state["step"] == 5
    assert all(value.isfinite().all() for value in state["model"].values())


def test_weights_that_are_not_finite_are_never_checkpointed(tmp_path):
    stage = Stage(epochs=1, optimizer=Optimizer(name="sgd", lr=1e38, momentum=0.9))
    run = run_of(stage, checkpoints=Checkpoints(every_steps=1))
    with pytest.raises(DivergedError):
        train(
            nn.Linear(FEATURES, 1),
            run,
            data=(TensorDataset(TRAIN.tensors[0] * 1e5, TRAIN.tensors[1]), VALID),
            directory=tmp_path,
        )
    assert not (tmp_path / "checkpoint.pt").exists()


def test_the_directory_tells_what_was_run(tmp_path):
    run = run_of(Stage(epochs=2), seed=9)
    records = train(network(), run, directory=tmp_path)
    assert config.load(tmp_path / "config.toml") == run
    facts = json.loads((tmp_path / "run.json").read_text())
    assert (facts["seed"], len(facts["data"])) == (9, 64)
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["chosen"]["epoch"] in (1, 2)
    assert read_records(tmp_path) == records


def test_the_saved_model_is_the_chosen_one(tmp_path):
    model = network()
    train(model, run_of(), directory=tmp_path)
    assert same(torch.load(tmp_path / "model.pt", weights_only=True), weights(model))


def test_records_are_strict_json_with_null_for_what_is_undefined():
    values = measure(torch.tensor([0.1, 0.2]), torch.tensor([1.0, 1.0]))
    record = Record("ce", 0, 1, 1, 0.1, 0.5, None, values, 1.0)
    line = json.loads(record.to_json(), parse_constant=pytest.fail)
    assert line["valid"]["auroc"] is None
    assert math.isnan(Record.from_table(line).valid.auroc)


def test_a_used_directory_is_not_overwritten(tmp_path):
    train(network(), run_of(), directory=tmp_path)
    with pytest.raises(FileExistsError, match="resume=True"):
        epochs(network(), (TRAIN, VALID), run_of(), directory=tmp_path)


def test_without_a_terminal_progress_is_a_line_per_epoch(capsys):
    train(network(), run_of(), progress=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["ce 1", "ce 2"]
    assert all("valid AP 0." in line for line in lines)


def test_on_a_terminal_progress_is_a_bar_with_the_running_ap():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    display = display_for(True, stream)
    assert isinstance(display, Bar)
    display.batch("ce", 1, 4, 4, lambda: 0.25)
    display.progress.refresh()
    display.close()
    assert "AP ≈ 0.2500" in stream.getvalue()
    assert "4/4" in stream.getvalue()


def test_tensorboard_gets_the_records(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    records = train(network(), run_of(tensorboard=True), directory=tmp_path)
    reader = events.EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    logged = [scalar.value for scalar in reader.Scalars("valid/ap")]
    assert logged == pytest.approx([record.valid.ap for record in records])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(TRAIN, VALID, labels=[0, 1]), "labels must have one row per example, got 2 for 200"),
        (Data(TRAIN, VALID, valid_labels=[0] * 120), "valid_labels must hold at least one positive"),
    ],
)
def test_labels_that_do_not_fit_are_refused_before_anything_is_written(data, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        epochs(network(), data, run_of(), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_scores_of_a_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"scores of shape \(B,\)"):
        train(nn.Sequential(nn.Linear(FEATURES, 1), nn.Unflatten(1, (1, 1))), run_of())


def test_predict_leaves_every_modules_mode_as_it_was():
    model = network(dropout=0.5).train()
    model[1].eval()
    predict(model, VALID)
    assert (model.training, model[1].training, model[3].training) == (True, False, True)


def test_labels_given_apart_are_used():
    flipped = 1 - TRAIN.tensors[1]
    model = network()
    stage = Stage(epochs=6, optimizer=Optimizer(lr=0.02))
    train(model, run_of(stage), data=Data(TRAIN, TRAIN, labels=flipped, valid_labels=flipped))
    assert measure(predict(model, TRAIN), flipped).auroc > 0.8


def test_double_precision_is_not_rounded_on_the_way_to_the_loss():
    seen = []

    class Watching(nn.Linear):
        def forward(self, inputs):
            seen.append(inputs.dtype)
            return super().forward(inputs)

    torch.manual_seed(0)
    model = Watching(FEATURES, 1)
    inputs, labels = TRAIN.tensors
    by_hand = nn.Linear(FEATURES, 1).double()
    by_hand.load_state_dict(model.state_dict())
    stage = Stage(epochs=1, optimizer=Optimizer(name="sgd", lr=0.5), sampler=Sampler(batch_size=200))
    train(model, run_of(stage, precision="64-true"), data=(TRAIN, None))
    nn.functional.binary_cross_entropy_with_logits(by_hand(inputs.double())[:, 0], labels.double()).backward()
    expected = by_hand.weight.detach() - 0.5 * by_hand.weight.grad
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-13, atol=1e-15)
    assert set(seen) == {torch.float64}
    assert torch.get_default_dtype() == torch.float32
