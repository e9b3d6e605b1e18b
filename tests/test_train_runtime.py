"""Tests of runtimes: one process on the CPU without Fabric gives the weights and records of Fabric, bit for bit."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from apmax.optim import PaperAdam
from apmax.optim.eager_steps import eager
from apmax.train import ExactHead, Optimizer, Run, Sampler, Stage, epochs
from apmax.train.runtime import LocalRuntime, launch_runtime, runs_locally

STAGES = (
    Stage(epochs=2, optimizer=Optimizer(lr=0.01), ema=0.9),
    Stage(
        loss={"ap": 1.0, "ce": 1.0},
        epochs=2,
        optimizer=Optimizer(lr=0.01, proximal=0.1),
        sampler=Sampler(name="positive", batch_size=32, num_pos=4),
    ),
    ExactHead(),
)


def splits() -> tuple[TensorDataset, TensorDataset]:
    rng = np.random.default_rng(0)
    labels = (rng.random(400) < 0.15).astype(np.float32)
    inputs = (rng.normal(size=(400, 5)) + labels[:, None]).astype(np.float32)
    rows = TensorDataset(torch.from_numpy(inputs), torch.from_numpy(labels))
    return TensorDataset(*rows[:300]), TensorDataset(*rows[300:])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))


def trained(run: Run, **options: object) -> tuple[dict[str, torch.Tensor], list[object]]:
    model = network()
    records = list(epochs(model, splits(), run, **options))
    return model.state_dict(), [dataclasses.replace(record, seconds=0.0) for record in records]


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "paper_adam"])
def test_a_process_alone_trains_as_fabric_does(optimizer):
    fabric = pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1)
    changed = [dataclasses.replace(s, optimizer=dataclasses.replace(s.optimizer, name=optimizer)) for s in STAGES[:2]]
    run = Run(stages=(*changed, STAGES[2]), accelerator="cpu")
    weights, records = trained(run)
    expected_weights, expected = trained(run, fabric=fabric)
    assert records == expected
    assert all(torch.equal(weights[name], value) for name, value in expected_weights.items())


def test_a_run_that_fabric_began_is_continued_without_it(tmp_path):
    fabric = pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1)
    run = Run(stages=STAGES[:1], accelerator="cpu")
    short = dataclasses.replace(run, stages=(dataclasses.replace(STAGES[0], epochs=1),))
    trained(short, directory=tmp_path, fabric=fabric)
    weights, _ = trained(run, directory=tmp_path, resume=True)
    expected, _ = trained(run)
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    "change",
    [{"devices": 2}, {"num_nodes": 2}, {"precision": "64-true"}, {"strategy": "ddp"}, {"tensorboard": True}],
)
def test_fabric_runs_what_asks_for_more_than_one_process_on_the_cpu(change):
    assert runs_locally(Run(accelerator="cpu"))
    assert not runs_locally(Run(accelerator="cpu", **change))


def test_settings_of_fabrics_command_line_are_left_to_fabric(monkeypatch):
    monkeypatch.setenv("LT_PRECISION", "64-true")
    assert not runs_locally(Run(accelerator="cpu"))


def test_the_device_auto_is_fabrics_where_there_is_an_accelerator(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert isinstance(launch_runtime(Run(), None), LocalRuntime)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert not runs_locally(Run())
    assert runs_locally(Run(accelerator="cpu"))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, PaperAdam])
def test_eager_optimisers_make_the_steps_of_torch(kind):
    results = []
    for made in (kind, eager(kind)):
        weight = nn.Parameter(torch.linspace(-1, 1, 7))
        optimizer = made([weight], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            weight.pow(4).sum().backward()
            optimizer.step()
        again = made([nn.Parameter(weight.detach().clone())], lr=0.1)
        again.load_state_dict(optimizer.state_dict())
        results.append((weight.detach(), again.state_dict()))
    (weight, state), (eager_weight, eager_state) = results
    assert torch.equal(weight, eager_weight)
    assert str(state) == str(eager_state)


@pytest.mark.slow
def test_a_committee_of_arrays_imports_neither_fabric_nor_compiler_nor_arrow():
    program = """
import sys
import numpy as np

class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pandas":  # scikit-learn imports it, and with it pyarrow
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Hidden)
from apmax.committee import ArrayFeatures, TrainingRows, find_members, fit_committee
X = np.random.default_rng(0).normal(size=(200, 3))
y = (X[:, 0] > 1).astype(float)
committee = fit_committee(TrainingRows(ArrayFeatures(X), y, np.ones(200)), find_members(None), folds=2, n_jobs=2)
committee.score(X)
heavy = ("lightning_fabric", "lightning", "torch._dynamo", "sympy", "pyarrow")
print([name for name in heavy if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert found.stdout.strip() == "[]"


def started_by_torchrun(monkeypatch, processes, nodes):
    for name, value in {
        "TORCHELASTIC_RUN_ID": "none",
        "WORLD_SIZE": processes,
        "GROUP_WORLD_SIZE": nodes,
        "RANK": 1,
    }.items():
        monkeypatch.setenv(name, str(value))


def test_a_run_of_fewer_processes_than_torchrun_started_is_refused(monkeypatch, tmp_path):
    started_by_torchrun(monkeypatch, processes=4, nodes=2)
    with pytest.raises(ValueError, match=r"devices=1 and num_nodes=1 make 1 of the 4 .* set devices=2 and num_nodes=2"):
        trained(Run(stages=STAGES[:1], accelerator="cpu"), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_a_folder_every_process_of_torchrun_may_train_alone(monkeypatch):
    started_by_torchrun(monkeypatch, processes=2, nodes=1)
    assert isinstance(launch_runtime(Run(accelerator="cpu"), None), LocalRuntime)
