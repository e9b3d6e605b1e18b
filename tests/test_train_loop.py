"""The training loop in one process: results, records, divergence."""

import dataclasses
import inspect
import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from apmax.losses import LOSSES
from apmax.train import (
    Checkpoints,
    Data,
    DivergedError,
    ExactHead,
    Objective,
    Optimizer,
    Run,
    Sampler,
    Schedule,
    Stage,
    compute_metrics,
    embed,
    epochs,
    fit,
    load_checkpoint,
    predict,
    save_checkpoint,
)
from apmax.train.config import OPTIMIZERS
from apmax.train.data import ShuffledBatches
from apmax.train.records import latest_scores
from apmax.train.stage import build_loss, build_sampler, lr_factor
from apmax.train.state import _CHECK_EVERY
from apmax.train.weights import all_finite
from small_training import FEATURES, POSITIVE, TRAIN, VALID, network, run_of, same, train, weights


def test_an_epoch_yields_a_record_with_all_metrics_of_both_splits():
    first, second = train(network(), run_of())
    assert (first.epoch, second.epoch, first.stage, second.step) == (1, 2, "ce", 8)
    for record in (first, second):
        for values in (record.train, record.valid):
            assert all(math.isfinite(value) for value in dataclasses.asdict(values).values())
            assert -1 <= values.objective <= 0


def test_the_weights_are_bit_for_bit_those_of_a_handwritten_loop():
    stage = Stage(epochs=3, optimizer=Optimizer(name="sgd", lr=0.5, momentum=0.9), sampler=POSITIVE, smooth=1)
    model, by_hand = network(), network()
    train(model, run_of(stage, seed=5), data=(TRAIN, None))
    from apmax.losses import CrossEntropyLoss
    from apmax.samplers import PositiveBatchSampler

    inputs, labels = TRAIN.tensors
    loss = CrossEntropyLoss(labels)
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.5, momentum=0.9)
    sampler = PositiveBatchSampler(labels, 32, num_pos=4, seed=5)
    for _ in range(3):
        for rows in sampler:
            optimizer.zero_grad()
            loss(by_hand(inputs[rows])[:, 0], labels[rows], torch.tensor(rows)).backward()
            optimizer.step()
    assert same(weights(model), weights(by_hand))


def test_a_model_that_ends_in_a_sigmoid_gives_one_warning():
    with pytest.warns(UserWarning, match="leave out its last sigmoid") as caught:
        train(nn.Sequential(network(), nn.Sigmoid()), run_of(Stage(epochs=60)))
    assert len(caught) == 1


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_of_the_table_trains(name):
    stage = Stage(loss=name, epochs=8, optimizer=Optimizer(lr=0.02), sampler=POSITIVE)
    start = compute_metrics(predict(network(), VALID), VALID.tensors[1])
    end = train(network(), run_of(stage))[-1].valid
    assert end.auroc > 0.8
    assert end.ap > start.ap + 0.2


@pytest.mark.parametrize("name", OPTIMIZERS)
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


def test_shuffled_batches_are_not_corrected_for_prevalence_and_positive_batches_are():
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
def test_schedules_have_the_documented_factors(schedule, expected):
    assert [lr_factor(schedule, epoch, 4) for epoch in range(4)] == pytest.approx(expected)


def test_the_learning_rate_follows_the_position_in_the_stage():
    stage = Stage(epochs=2, schedule=Schedule(name="cosine"), optimizer=Optimizer(lr=1e-2))
    first, second = train(network(), run_of(stage))
    assert first.lr == pytest.approx(1e-2 * (1 + math.cos(math.pi * 3 / 8)) / 2)
    assert second.lr == pytest.approx(1e-2 * (1 + math.cos(math.pi * 7 / 8)) / 2)


def test_seen_training_metrics_use_the_score_in_the_last_batch_of_each_row():
    often = Sampler(name="positive", batch_size=32, num_pos=8)
    stage = Stage(epochs=1, optimizer=Optimizer(name="sgd", lr=1e-12), sampler=often)
    model = network()
    record = train(model, run_of(stage))[0]
    expected = compute_metrics(predict(model, TRAIN), TRAIN.tensors[1])
    assert record.train.ap == pytest.approx(expected.ap, abs=1e-6)
    assert record.train.objective == pytest.approx(expected.objective, abs=1e-5)


def test_full_training_metrics_are_recomputed_after_the_epoch():
    model = network()
    stage = Stage(epochs=1, optimizer=Optimizer(lr=0.1))
    full = train(model, run_of(stage, train_metrics="full"))[0].train
    assert full.ap == pytest.approx(compute_metrics(predict(model, TRAIN), TRAIN.tensors[1]).ap)
    assert train(network(), run_of(stage))[0].train.ap != full.ap


def test_without_training_metrics_the_weights_and_other_metrics_are_the_same():
    stage = Stage(epochs=2, optimizer=Optimizer(lr=0.1))
    seen, none = (train(network(), run_of(stage, train_metrics=choice)) for choice in ("seen", "none"))
    assert [record.train for record in none] == [None, None]
    assert [(record.loss, record.valid) for record in none] == [(record.loss, record.valid) for record in seen]


def test_the_latest_score_of_a_row_counts():
    rows, scores = latest_scores(
        torch.tensor([3, 1, 3, 0]), torch.tensor([[1.0], [2], [3], [4]]), torch.tensor([0, 0, 1, 1])
    )
    assert rows.tolist() == [0, 1, 3]
    assert scores.tolist() == [[4.0], [2.0], [3.0]]


def test_records_report_the_configured_objective():
    from apmax.functional import ap_objective

    model = network()
    objective = Objective(surrogate="squared_hinge", margin=0.5, sigmoid=True)
    record = train(model, run_of(Stage(epochs=1), objective=objective))[0]
    expected = ap_objective(predict(model, VALID).sigmoid(), VALID.tensors[1], "squared_hinge", 0.5)
    assert record.valid.objective == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (nn.Linear(2, 1), TRAIN, r"data must be a Data or a tuple \(train, valid\) of data sets, got TensorDataset"),
        (nn.Linear(2, 1), {"train": TRAIN}, "data must be a Data .* got dict"),
        (lambda: nn.Linear(2, 1), (TRAIN, VALID), "model must be a torch.nn.Module, got function"),
    ],
)
def test_data_and_models_of_a_wrong_type_are_named(model, data, message):
    with pytest.raises(TypeError, match=message):
        epochs(model, data, Run(stages=(Stage(epochs=1),), accelerator="cpu"))


@pytest.mark.parametrize("data", [(TRAIN, VALID, VALID), ()])
def test_a_tuple_of_data_is_training_and_validation(data):
    with pytest.raises(ValueError, match=rf"tuple \(train, valid\), got {len(data)} elements: test data"):
        epochs(nn.Linear(2, 1), data, run_of(Stage(epochs=1)))


@pytest.mark.parametrize("begin", [epochs, fit])
@pytest.mark.parametrize("run", [None, Stage(epochs=1)])
def test_a_run_of_a_wrong_type_is_named(begin, run):
    with pytest.raises(TypeError, match=rf"run must be a Run, .* got {type(run).__name__}"):
        begin(nn.Linear(2, 1), (TRAIN, VALID), run)


def test_stages_that_are_no_tuple_are_named():
    with pytest.raises(TypeError, match="stages must be a tuple of stages, got NoneType"):
        Run(stages=None)


def test_a_stage_alone_is_no_tuple_of_stages():
    with pytest.raises(TypeError, match="stages must be a tuple of stages"):
        Run(stages=Stage(epochs=1))


def test_no_argument_takes_a_test_split():
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


def nan_at_row(row):
    inputs = TRAIN.tensors[0].clone()
    inputs[row, 0] = float("nan")
    return TensorDataset(inputs, TRAIN.tensors[1])


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_nan_scores_stop_the_run_with_step_row_and_advice(name, validate):
    stage = Stage(loss=name, epochs=1, options={name: {"validate": validate}}, sampler=POSITIVE)
    message = r"the scores are not finite at step \d, training rows 17;.*lower"
    with pytest.raises(DivergedError, match=message) as caught:
        train(network(), run_of(stage), data=(nan_at_row(17), VALID))
    sampler = build_sampler(POSITIVE, TRAIN.tensors[1], seed=0, rank=0, world_size=1)
    assert caught.value.rows == [17]
    assert 17 in list(sampler)[caught.value.step - 1]


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
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    assert state["step"] == 5
    assert all(value.isfinite().all() for value in state["model"].values())


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_model_with_another_number_of_scores_than_labels_have_columns_is_named(outputs):
    x = torch.randn(40, 4)
    labels = (torch.arange(80).reshape(40, 2) % 7 == 0).float()
    data = Data(TensorDataset(x, labels), TensorDataset(x, labels))
    shape = r"\(8,\)" if outputs == 1 else r"\(8, 3\)"
    message = (
        rf"^the model must return .* score for each column of the labels: got scores of shape {shape} for .*\(8, 2\)"
    )
    run = Run(stages=(Stage(epochs=1, sampler=Sampler(batch_size=8)),))
    with pytest.raises(ValueError, match=message):
        fit(nn.Linear(4, outputs), data, run)


@pytest.mark.parametrize("every", [1, 2, 3, 16])
def test_divergence_has_its_step_however_seldom_losses_are_checked(every, monkeypatch):
    monkeypatch.setitem(_CHECK_EVERY, "cpu", every)
    stage = Stage(loss={"ce": 1e5}, epochs=3, optimizer=Optimizer(name="sgd", lr=1e-9))
    with pytest.raises(DivergedError, match="the loss is inf at step 6") as caught:
        train(Exploding(FEATURES, 1), run_of(stage))
    sampler = ShuffledBatches(200, 64)
    sampler.set_epoch(1)
    assert (caught.value.step, caught.value.rows) == (6, list(sampler)[1])


class NaNOnce(nn.Linear):
    """A network with a score of NaN at training step 6, whose gradient does not reach the weights."""

    calls = 0

    def forward(self, inputs):
        scores = super().forward(inputs)
        self.calls += self.training
        bad = torch.zeros_like(scores, dtype=torch.bool)
        bad[3] = self.training and self.calls == 6
        return scores.masked_fill(bad, float("nan"))


SMALL_BATCHES = Stage(epochs=1, optimizer=Optimizer(name="sgd", lr=1e-3), sampler=Sampler(batch_size=16))


@pytest.mark.parametrize("every", [1, 4, 16])
def test_no_checkpoint_is_written_after_divergence_however_seldom_losses_are_checked(every, monkeypatch, tmp_path):
    monkeypatch.setitem(_CHECK_EVERY, "cpu", every)
    run = run_of(SMALL_BATCHES, checkpoints=Checkpoints(every_steps=1))
    with pytest.raises(DivergedError, match="the scores are not finite at step 6, training rows") as caught:
        train(NaNOnce(FEATURES, 1), run, directory=tmp_path)
    assert caught.value.rows == [list(ShuffledBatches(200, 16))[5][3]]
    assert load_checkpoint(tmp_path / "checkpoint.pt")["step"] == 5


def test_divergence_before_a_checkpoint_in_mid_epoch_has_its_step_and_rows(monkeypatch, tmp_path):
    run = run_of(SMALL_BATCHES, checkpoints=Checkpoints(every_steps=1))
    with pytest.raises(DivergedError):
        train(NaNOnce(FEATURES, 1), run, directory=tmp_path)
    # As a version wrote it that did not check the losses before.
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    state["seen"]["losses"][2] = float("inf")
    save_checkpoint(tmp_path / "checkpoint.pt", state)
    monkeypatch.setitem(_CHECK_EVERY, "cpu", 16)
    with pytest.raises(DivergedError, match="the loss is inf at step 3") as caught:
        train(nn.Linear(FEATURES, 1), run, directory=tmp_path, resume=True)
    assert caught.value.rows == list(ShuffledBatches(200, 16))[2]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", range(3))
def test_a_single_non_finite_number_is_found_in_any_tensor(place, bad):
    values = [torch.full((5,), 3e38), torch.zeros(3, dtype=torch.float64), torch.ones(2, 2, dtype=torch.bfloat16)]
    others = [torch.empty(0), torch.tensor([1, 2])]
    assert all_finite([*values, *others])
    values[place].view(-1)[1] = bad
    assert not all_finite([*values, *others])


def test_non_finite_weights_are_never_checkpointed(tmp_path):
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


class Masked(nn.Module):
    """A network with attention to all features but the last, whose mask is infinite on purpose."""

    def __init__(self, *, as_parameter=False):
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 1)
        mask = torch.tensor([0.0] * (FEATURES - 1) + [-math.inf])
        if as_parameter:
            self.mask = nn.Parameter(mask, requires_grad=False)
        else:
            self.register_buffer("mask", mask)

    def forward(self, inputs):
        return self.last(inputs * (self.attention(inputs) + self.mask).softmax(1))


@pytest.mark.parametrize("ema", [None, 0.9])
@pytest.mark.parametrize("as_parameter", [False, True])
def test_a_mask_of_infinity_is_checkpointed_averaged_and_resumed(as_parameter, ema, tmp_path):
    stage = Stage(epochs=2, ema=ema, sampler=Sampler(batch_size=64))
    run = run_of(stage, checkpoints=Checkpoints(every_steps=1))
    model = Masked(as_parameter=as_parameter)
    for record in epochs(model, (TRAIN, VALID), run, directory=tmp_path):
        assert math.isfinite(record.valid.ap)
        break
    resumed, alone = Masked(as_parameter=as_parameter), Masked(as_parameter=as_parameter)
    train(resumed, run, directory=tmp_path, resume=True)
    train(alone, run)
    assert same(weights(resumed), weights(alone))
    assert resumed.mask.tolist() == [0.0] * (FEATURES - 1) + [-math.inf]


TASKS = TensorDataset(TRAIN.tensors[0], TRAIN.tensors[1][:, None].repeat(1, 2))
MINED = Sampler(name="mined", batch_size=32, num_pos=4)


@pytest.mark.parametrize(
    ("stage", "data", "message"),
    [
        (Stage(loss="focal", options={"focal": {"focusing": -1}}), (TRAIN, VALID), "focusing"),
        (Stage(sampler=Sampler(name="positive", batch_size=300, num_pos=150)), (TRAIN, VALID), "lower num_pos"),
        (Stage(reset=("haed",)), (TRAIN, VALID), "reset must name sub-modules"),
        (Stage(freeze=("haed",)), (TRAIN, VALID), "freeze must name sub-modules"),
        (Stage(freeze=("head", "body")), (TRAIN, VALID), "leaves nothing to train"),
        (Stage(optimizer=Optimizer(name="paper_adam", eps=0)), (TRAIN, VALID), "eps"),
        (Stage(sampler=MINED), (TASKS, TASKS), "'mined' is for one task"),
        (ExactHead(l2=(1e-3, 1e-2)), (TRAIN,), "exact_head selects l2 on the validation split"),
    ],
)
@pytest.mark.parametrize("position", [0, 1])
def test_an_invalid_stage_is_an_error_before_anything_is_trained_or_written(stage, data, message, position, tmp_path):
    stages = [Stage(epochs=1)]
    stages.insert(position, stage)
    model = network()
    model[4] = nn.Linear(8, 1 if data[0] is TRAIN else 2)
    start, drawn = weights(model), torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        epochs(model, data, run_of(*stages), directory=tmp_path / "new" / "run")
    assert same(weights(model), start)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not (tmp_path / "new").exists()


def test_the_check_of_the_stages_leaves_random_generators_as_they_were(monkeypatch):
    class Drawing(LOSSES["ce"]):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            torch.rand(3)

    monkeypatch.setitem(LOSSES, "ce", Drawing)
    model = network()
    drawn = torch.get_rng_state()
    epochs(model, (TRAIN, VALID), run_of(Stage(epochs=1)))
    assert torch.equal(torch.get_rng_state(), drawn)


HUGE = Optimizer(name="sgd", lr=1e38)


@pytest.mark.parametrize("fields", [{}, {"train_metrics": "full"}])
@pytest.mark.parametrize("data", [(TRAIN, VALID), (TRAIN,)])
def test_weights_that_the_last_step_of_an_epoch_made_infinite_are_divergence(fields, data):
    stage = Stage(epochs=1, optimizer=HUGE, sampler=Sampler(batch_size=200))
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Linear(8, 1))
    data = tuple(TensorDataset(part.tensors[0] * 1e3, part.tensors[1]) for part in data)
    with pytest.raises(DivergedError, match="the weights are not finite at step 1, training rows") as caught:
        train(model, run_of(stage, **fields), data=data)
    assert caught.value.step == 1
    assert sorted(caught.value.rows) == list(range(200))


def overflowing(rows):
    inputs = VALID.tensors[0].clone()
    inputs[rows] = 3e38
    return TensorDataset(inputs, VALID.tensors[1])


def ones():
    model = nn.Linear(FEATURES, 1)
    nn.init.ones_(model.weight)
    return model


@pytest.mark.parametrize("stage", [Stage(epochs=1), ExactHead(l2=(1e-3,))])
def test_infinite_validation_scores_are_divergence_that_names_the_rows(stage):
    message = r"the scores of validation rows 3, 5 are not finite at step \d; look for NaN"
    with pytest.raises(DivergedError, match=message) as caught:
        train(ones(), run_of(stage), data=(TRAIN, overflowing([3, 5])))
    assert caught.value.rows == []


def test_infinite_scores_of_all_training_rows_are_divergence():
    class Overflowing(nn.Linear):
        def forward(self, inputs):
            scores = super().forward(inputs)
            return scores if self.training else scores * float("inf")

    run = run_of(Stage(epochs=1), train_metrics="full")
    with pytest.raises(DivergedError, match=r"the scores are not finite at step 4, training rows 0, 1, .*, …"):
        train(Overflowing(FEATURES, 1), run, data=(TRAIN,))


def test_infinite_scores_in_mining_are_divergence():
    negative = int((TRAIN.tensors[1] == 0).nonzero()[7])
    with pytest.raises(DivergedError, match=f"the scores are not finite at step 0, training rows {negative};"):
        train(network(), run_of(Stage(epochs=1, sampler=MINED)), data=(nan_at_row(negative), VALID))


@pytest.mark.parametrize("l2", [(1e-3,), (1e-3, 1e-2)])
def test_infinite_scores_of_the_exact_head_are_divergence(l2):
    with pytest.raises(
        DivergedError, match=r"training rows 17;.*lower the learning rate of the stages before"
    ) as caught:
        train(network(), run_of(ExactHead(l2=l2)), data=(nan_at_row(17), VALID))
    assert caught.value.rows == [17]


def test_scores_of_a_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"scores of shape \(B,\)"):
        train(nn.Sequential(nn.Linear(FEATURES, 1), nn.Unflatten(1, (1, 1))), run_of())


def test_double_precision_scores_reach_the_loss_unrounded():
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


@pytest.mark.parametrize("function", [predict, embed])
def test_scoring_an_empty_dataset_is_an_error_that_names_it(function):
    model = network().train()
    with pytest.raises(ValueError, match="dataset must hold at least one example"):
        function(model, TensorDataset(torch.empty(0, FEATURES)))
    assert model.training
