"""Bit-identical resuming in one process, interrupted at every step."""

import dataclasses
import random
import signal
import time

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from apmax.losses import LOSSES
from apmax.train import (
    CheckpointError,
    Checkpoints,
    ExactHead,
    Optimizer,
    Run,
    Sampler,
    Schedule,
    Stage,
    Terminated,
    epochs,
    fit,
    load_checkpoint,
    read_records,
)
from apmax.train.checkpoints import CheckpointSchedule
from small_training import same


def split(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 4, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] + torch.randn(rows, generator=generator) > 1.2).float())


TRAIN, VALID = split(96, 1), split(60, 2)
POSITIVE = Sampler(name="positive", batch_size=32, num_pos=4)


class Network(nn.Module):
    """A network with state and random numbers that is interrupted at a given training step."""

    def __init__(self, stop_at=None, stop=KeyboardInterrupt):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(6, 1)
        self.stop_at, self.stop, self.steps = stop_at, stop, 0

    def forward(self, inputs):
        if self.training:
            self.steps += 1
            if self.steps == self.stop_at:
                if self.stop is not KeyboardInterrupt:
                    self.stop()
                else:
                    raise KeyboardInterrupt
        return self.head(self.body(inputs))


def two_stages(loss="smooth_ap", every_steps=1, **fields):
    first = Stage(epochs=2, ema=0.9, optimizer=Optimizer(lr=0.01), schedule=Schedule(name="cosine"))
    first = dataclasses.replace(first, sampler=Sampler(batch_size=32))
    second = Stage(
        loss={loss: 1.0, "ce": 1.0} if loss != "ce" else "ce",
        epochs=2,
        optimizer=Optimizer(name="sgd", lr=0.05, momentum=0.9, proximal=0.1, proximal_every=1),
        sampler=POSITIVE,
        reset=("head",),
    )
    return Run(stages=(first, second), accelerator="cpu", checkpoints=Checkpoints(every_steps=every_steps), **fields)


def finished(run, directory, model=None, resume=True):
    """Return the selected weights, and the last ones with the state of the loss."""
    model = model or Network()
    list(epochs(model, (TRAIN, VALID), run, directory=directory, resume=resume))
    return {**model.state_dict(), **last(directory)}


def last(directory):
    state = load_checkpoint(directory / "checkpoint.pt")
    return {f"{part}.{name}": value for part in ("model", "loss") for name, value in state.get(part, {}).items()}


def without_time(records):
    return [dataclasses.replace(record, seconds=0.0) for record in records]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted")
    return finished(two_stages(), directory, resume=False), without_time(read_records(directory))


@pytest.mark.parametrize("every_steps", [1, 4])
@pytest.mark.parametrize("stop_at", range(1, 13))
def test_interrupted_at_any_step_and_resumed_weights_and_records_are_the_same(
    stop_at, every_steps, uninterrupted, tmp_path
):
    run = two_stages(every_steps=every_steps)
    with pytest.raises(KeyboardInterrupt):
        finished(run, tmp_path, Network(stop_at))
    weights, records = uninterrupted
    assert same(finished(run, tmp_path), weights)
    assert without_time(read_records(tmp_path)) == records


def test_the_interruption_tests_cover_every_step(uninterrupted):
    assert uninterrupted[1][-1].step == 12


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_resumes_bit_for_bit(loss, tmp_path):
    run = two_stages(loss)
    with pytest.raises(KeyboardInterrupt):
        finished(run, tmp_path / "stopped", Network(12))
    assert same(finished(run, tmp_path / "stopped"), finished(run, tmp_path / "whole"))


def test_a_run_resumes_after_many_interruptions(uninterrupted, tmp_path):
    run = two_stages(every_steps=2)
    for _ in range(20):
        model = Network(4)
        try:
            weights = finished(run, tmp_path, model)
            break
        except KeyboardInterrupt:
            continue
    assert same(weights, uninterrupted[0])


@pytest.mark.slow
def test_workers_do_not_change_a_resumed_run(tmp_path):
    class Noisy(Dataset):
        labels = TRAIN.tensors[1]

        def __getitem__(self, row):
            return TRAIN.tensors[0][row] + torch.randn(4), self.labels[row]

        def __len__(self):
            return len(self.labels)

    results = []
    for workers, stop_at in ((0, None), (2, None), (2, 9)):
        run, directory = two_stages(workers=workers), tmp_path / f"{workers}-{stop_at}"
        if stop_at is not None:
            with pytest.raises(KeyboardInterrupt):
                list(epochs(Network(stop_at), (Noisy(), VALID), run, directory=directory))
        model = Network()
        list(epochs(model, (Noisy(), VALID), run, directory=directory, resume=True))
        results.append(model.state_dict())
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_neither_training_nor_resuming_parses_toml(monkeypatch, tmp_path):
    monkeypatch.setattr("apmax.train.toml.parse_toml", lambda _: pytest.fail("TOML was parsed"))
    with pytest.raises(KeyboardInterrupt):
        finished(two_stages(), tmp_path, Network(5))
    finished(two_stages(), tmp_path)


def test_resuming_with_more_epochs_trains_them(tmp_path):
    def run(count):
        stage = Stage(epochs=count, ema=0.9, sampler=POSITIVE)
        return Run(stages=(stage,), accelerator="cpu")

    finished(run(2), tmp_path / "more")
    weights = finished(run(5), tmp_path / "more")
    assert [record.epoch for record in read_records(tmp_path / "more")] == [1, 2, 3, 4, 5]
    assert same(weights, finished(run(5), tmp_path / "whole"))


def test_resuming_a_finished_run_trains_nothing_and_gives_the_same_model(uninterrupted, tmp_path):
    first = finished(two_stages(), tmp_path)
    model = Network()
    assert list(epochs(model, (TRAIN, VALID), two_stages(), directory=tmp_path, resume=True)) == []
    assert same({**model.state_dict(), **last(tmp_path)}, first)
    assert same(first, uninterrupted[0])


def test_an_added_stage_is_trained(tmp_path):
    run = two_stages()
    finished(run, tmp_path)
    longer = dataclasses.replace(run, stages=(*run.stages, ExactHead(l2=(1e-3,), max_iter=5)))
    finished(longer, tmp_path)
    assert [record.stage for record in read_records(tmp_path)][-1] == "exact head"
    assert len(read_records(tmp_path)) == 5


def test_a_stage_that_stopped_early_continues_with_more_patience(tmp_path):
    def run(patience):
        stage = Stage(epochs=12, patience=patience, smooth=1, optimizer=Optimizer(lr=0.5))
        return Run(stages=(stage,), accelerator="cpu")

    finished(run(1), tmp_path / "patient")
    early = len(read_records(tmp_path / "patient"))
    assert early < 12
    weights = finished(run(12), tmp_path / "patient")
    assert len(read_records(tmp_path / "patient")) == 12
    assert same(weights, finished(run(12), tmp_path / "whole"))


def test_an_ensemble_resumes_in_the_interrupted_member(tmp_path):
    run = dataclasses.replace(two_stages(), ensemble=2)
    whole = fit(Network(), (TRAIN, VALID), run, directory=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(Network(9), (TRAIN, VALID), run, directory=tmp_path / "stopped")
    again = fit(Network(), (TRAIN, VALID), run, directory=tmp_path / "stopped", resume=True)
    assert same(again.model.state_dict(), whole.model.state_dict())
    assert without_time(again.records) == without_time(whole.records)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed was 0"),
        ({"precision": "64-true"}, "precision was 32-true in the checkpoint and is 64-true now"),
        ({"stages": (two_stages().stages[0],)}, "only 1"),
        ({"stages": (Stage(epochs=3), two_stages().stages[1])}, "stage 1 .* differs.* ema was 0.9 and is None now"),
        ({"stages": (two_stages().stages[0], Stage(epochs=2))}, "stage 2 .* differs.* reset was .* now"),
        ({"stages": (two_stages().stages[0], ExactHead())}, "stage 2 .* it was Stage and is ExactHead now"),
    ],
)
def test_another_run_cannot_be_resumed(change, message, tmp_path):
    finished(two_stages(), tmp_path)
    with pytest.raises(ValueError, match=message):
        epochs(Network(), (TRAIN, VALID), dataclasses.replace(two_stages(), **change), directory=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        # Its single hidden unit would be copied to all six, and the state of the optimiser be too short for them.
        (nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1)), r"0.weight was \(1, 4\) float32 and is \(6, 4\) float32 now"),
        (nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 1)).double(), r"0.weight was .* float32 and is .* float64 now"),
        (nn.Linear(4, 1), "0.weight was .* and is missing now"),
        (nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 1), nn.Linear(1, 1)), "2.weight was missing and is"),
    ],
)
def test_another_model_cannot_be_resumed(model, message, tmp_path):
    run = Run(stages=(Stage(epochs=1),), accelerator="cpu")
    fit(nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 1)), (TRAIN, VALID), run, directory=tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=f"model is not the one of the checkpoint.*{message}"):
        epochs(model, (TRAIN, VALID), run, directory=tmp_path, resume=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_a_run_with_a_damaged_run_json_is_resumed(content, uninterrupted, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        finished(two_stages(), tmp_path, Network(10))
    (tmp_path / "run.json").write_bytes(content)
    assert same(finished(two_stages(), tmp_path), uninterrupted[0])


def test_other_data_cannot_be_resumed(tmp_path):
    finished(two_stages(), tmp_path)
    other = TensorDataset(TRAIN.tensors[0] + 1, TRAIN.tensors[1])
    with pytest.raises(ValueError, match="other data"):
        epochs(Network(), (other, VALID), two_stages(), directory=tmp_path, resume=True)


def test_a_damaged_checkpoint_is_refused_and_the_previous_one_gives_the_same_weights(uninterrupted, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        finished(two_stages(), tmp_path, Network(10))
    file = tmp_path / "checkpoint.pt"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"checkpoint\.previous\.pt"):
        epochs(Network(), (TRAIN, VALID), two_stages(), directory=tmp_path, resume=True)
    model = Network()
    list(epochs(model, (TRAIN, VALID), two_stages(), directory=tmp_path, resume="previous"))
    assert same({**model.state_dict(), **last(tmp_path)}, uninterrupted[0])


def test_sigterm_saves_and_exits_with_the_shells_code(uninterrupted, tmp_path):
    run = dataclasses.replace(two_stages(), checkpoints=Checkpoints(every_seconds=1e9))
    before = signal.getsignal(signal.SIGTERM)
    model = Network(6, stop=lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Terminated) as caught:
        finished(run, tmp_path, model)
    assert (caught.value.code, load_checkpoint(tmp_path / "checkpoint.pt")["step"]) == (143, 6)
    assert signal.getsignal(signal.SIGTERM) is before
    assert same(finished(run, tmp_path), uninterrupted[0])


def test_checkpoints_of_any_cost_stay_within_their_share_of_time(monkeypatch):
    now, costs = [0.0], random.Random(0)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    schedule, written = CheckpointSchedule(Checkpoints(share=0.01)), 0
    for step in range(20_000):
        now[0] += 0.1
        if schedule.due(step):
            cost = costs.uniform(0.01, 0.3)
            now[0] += cost
            schedule.saved(step, cost)
            written += 1
        assert schedule.spent <= 0.0101 * now[0] or written == 1
    assert written > 100


def test_checkpoints_are_due_by_steps_or_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    by_steps, by_seconds = (
        CheckpointSchedule(Checkpoints(every_steps=3)),
        CheckpointSchedule(Checkpoints(every_seconds=5)),
    )
    assert [by_steps.due(step) for step in (2, 3)] == [False, True]
    assert not by_seconds.due(100)
    now[0] = 5
    assert by_seconds.due(101)


@pytest.mark.parametrize("resume", ["yes", 1, "Previous"])
def test_another_value_of_resume_is_refused_without_a_checkpoint_too(resume, tmp_path):
    for directory in (None, tmp_path / "new"):
        with pytest.raises(ValueError, match="resume must be True, False or 'previous'"):
            epochs(Network(), (TRAIN, VALID), Run(accelerator="cpu"), directory=directory, resume=resume)
    assert not (tmp_path / "new").exists()
