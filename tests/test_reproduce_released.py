"""The second stage of the authors' released code."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from apmax.reproduce.grid import load_grid, resolve_settings
from apmax.reproduce.plan import Trial
from apmax.reproduce.released import BatchWideMemoryLoss, ReleasedBatches, ReleasedStage, reset_head, train_released


def loop_loss(batches, *, rows, margin, gamma):
    """Return value and gradient of each batch (scores, index), the positive first, by loops over rows."""
    positive, total = [0.0] * rows, [0.0] * rows
    found = []
    for scores, index in batches:
        shares = 1 / (1 + np.exp(-np.array(scores)))
        gaps = [max(0.0, margin - (shares[0] - share)) for share in shares]
        size, value, gradient = len(shares), 0.0, np.zeros(len(shares))
        for row in index:
            positive[row] = (1 - gamma) * positive[row] + gamma * gaps[0] ** 2 / size
            total[row] = (1 - gamma) * total[row] + gamma * sum(gap**2 for gap in gaps) / size
        for row in index:
            for other in range(size):
                weight = (positive[row] - (total[row] if other == 0 else 0.0)) / total[row] ** 2
                value += weight * gaps[other] ** 2
                gradient[other] += weight * 2 * gaps[other]
                gradient[0] -= weight * 2 * gaps[other]
        found.append((value, gradient * shares * (1 - shares)))
    return found


def test_loss_writes_the_memory_of_every_row_and_sums_over_them():
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=4), index) for index in ([0, 3, 4, 5], [1, 4, 6, 7], [0, 4, 5, 7])]
    loss = BatchWideMemoryLoss(8, margin=0.8, gamma=0.9)
    loss.positive, loss.total = loss.positive.double(), loss.total.double()
    for (scores, index), (value, gradient) in zip(
        batches, loop_loss(batches, rows=8, margin=0.8, gamma=0.9), strict=True
    ):
        tensor = torch.tensor(scores, requires_grad=True)
        result = loss(tensor, torch.tensor(index))
        result.backward()
        assert result.item() == pytest.approx(value, rel=1e-10)
        np.testing.assert_allclose(tensor.grad.numpy(), gradient, rtol=1e-10)
    assert (loss.total[2], loss.positive[2]) == (0, 0)


def test_epoch_is_one_pass_over_the_positives_where_these_need_more_batches():
    labels = torch.tensor([1.0] * 6 + [0.0] * 10)
    batches = ReleasedBatches(labels, batch_size=4, seed=0)
    drawn = [rows.tolist() for _ in range(5) for rows in batches.epoch()]
    assert len(drawn) == 5 * 6
    for first in range(0, 30, 6):
        assert sorted(rows[0] for rows in drawn[first : first + 6]) == list(range(6))
    negatives = [row for rows in drawn for row in rows[1:]]
    assert [sorted(negatives[k : k + 10]) for k in range(0, 90, 10)] == [list(range(6, 16))] * 9


def test_epoch_is_one_pass_over_the_negatives_where_these_need_more_batches():
    labels = torch.tensor([1.0] * 2 + [0.0] * 30)
    drawn = [rows.tolist() for rows in ReleasedBatches(labels, batch_size=4, seed=0).epoch()]
    assert sorted(row for rows in drawn for row in rows[1:]) == list(range(2, 32))
    assert [rows[0] for rows in drawn].count(0) == 5


class Examples(torch.utils.data.Dataset):
    def __init__(self, seed, rows):
        generator = torch.Generator().manual_seed(seed)
        self.labels = (torch.arange(rows) % 5 == 0).float()
        self.x = torch.randn(rows, 3, generator=generator) + self.labels[:, None]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row]

    def __getitems__(self, rows):
        return [self.x[row] for row in rows]

    collate = staticmethod(torch.stack)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body = torch.nn.Linear(3, 4)
        self.head = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    def forward(self, x):
        return self.head(self.body(x).relu())[:, 0]


DATA = SimpleNamespace(train=Examples(0, 60), valid=Examples(1, 40), test=Examples(2, 40))


def test_interrupted_run_continues_to_the_same_numbers(tmp_path):
    stage = ReleasedStage(lr=0.01, batch_size=8, epochs=6)
    whole = train_released(Network(), DATA, stage, seed=1, folder=tmp_path / "whole")

    def interrupt(done, _):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_released(Network(), DATA, stage, seed=1, folder=tmp_path / "part", report=interrupt)
    resumed = train_released(Network(), DATA, stage, seed=1, folder=tmp_path / "part")

    def numbers(result):
        return [{key: value for key, value in record.items() if key != "seconds"} for record in result.records]

    assert numbers(resumed) == numbers(whole)
    assert (resumed.epoch, len(resumed.records)) == (whole.epoch, 6)
    assert all(torch.equal(resumed.scores[part], whole.scores[part]) for part in ("valid", "test"))


def test_result_has_the_best_validation_epoch_and_the_best_test_value_of_all(tmp_path):
    result = train_released(Network(), DATA, ReleasedStage(lr=0.05, batch_size=8, epochs=8), seed=0, folder=tmp_path)
    valid, test = ([record[f"{part}_auprc"] for record in result.records] for part in ("valid", "test"))
    assert result.epoch == valid.index(max(valid)) + 1
    lines = (tmp_path / "released.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == result.records
    assert result.best_test == {"epoch": test.index(max(test)) + 1, "auprc": max(test)}


def test_training_stops_after_epochs_without_a_gain(tmp_path):
    stage = ReleasedStage(lr=1e-12, weight_decay=0.0, batch_size=8, epochs=20, patience=3)
    assert len(train_released(Network(), DATA, stage, seed=0, folder=tmp_path).records) == 1 + 3


def test_new_head_depends_on_the_seed_alone_and_the_body_stays():
    one, two, three = Network(), Network(), Network()
    state = torch.get_rng_state()
    for model, seed in ((one, 0), (two, 0), (three, 1)):
        reset_head(model, seed)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.head[0].weight, two.head[0].weight)
    assert not torch.equal(one.head[0].weight, three.head[0].weight)
    assert not torch.equal(one.head[2].weight, Network().head[2].weight)
    assert torch.equal(one.body.weight, Network().body.weight)


@pytest.mark.parametrize("method", ["ce_authors", "soap_released", "soap_authors_new_head", "soap_authors_head"])
def test_runs_from_the_authors_weights_have_no_first_stage_of_ours(method):
    grid = load_grid()
    settings = resolve_settings(grid, "hiv", "gine", method)
    trial = Trial(grid, "hiv", "gine", method, "scaffold122", 0, settings)
    assert trial.prerequisites == ()
    assert trial.resolved["weights"] == "authors"


def test_published_settings_of_the_released_code():
    grid = load_grid()
    settings = resolve_settings(grid, "hiv", "gine", "soap_released")
    (stage,) = Trial(grid, "hiv", "gine", "soap_released", "scaffold122", 0, settings).stages
    assert stage == ReleasedStage(5e-4, 5e-5, 10.0, 0.9, 64, 150, 50, 50)
