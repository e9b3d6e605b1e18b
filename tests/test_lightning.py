"""The mix-in for Lightning, as a user would write it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from apmax.integrations.lightning import RankingMixin
from apmax.losses import LOSSES
from apmax.metrics import average_precision

lightning = pytest.importorskip("lightning.pytorch")
# Lightning warns of loaders without workers and of much else that is not the mix-in's.
pytestmark = pytest.mark.filterwarnings("ignore")


def split(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 4, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] + 0.5 * torch.randn(rows, generator=generator) > 1.2).float())


TRAIN, VALID = split(300, 1), split(200, 2)


class Model(RankingMixin, lightning.LightningModule):
    def __init__(self, loss="ap"):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.loss = LOSSES[loss](TRAIN.tensors[1])
        self.told = []
        self.loss.set_epoch = self.told.append

    def train_dataloader(self):
        return self.positive_batches(TRAIN, batch_size=32, num_pos=4, seed=3)

    def training_step(self, batch, _):
        inputs, labels, index = batch
        return self.ranking_loss(self.net(inputs), labels, index)

    def configure_optimizers(self):
        return torch.optim.Adam(self.ranking_groups(lr=0.02))


def trained(epochs, directory, *, loss="ap", resume=None):
    model = Model(loss)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=directory,
        enable_checkpointing=True,
    )
    trainer.fit(model, ckpt_path=resume)
    trainer.save_checkpoint(directory / f"{epochs}.ckpt")
    return model


def test_a_lightning_module_learns_with_the_loss(tmp_path):
    model = trained(5, tmp_path)
    with torch.no_grad():
        assert average_precision(model.net(VALID.tensors[0]), VALID.tensors[1]) > 0.7


def test_the_losss_state_is_in_the_checkpoint(tmp_path):
    model = trained(2, tmp_path)
    saved = torch.load(tmp_path / "2.ckpt", weights_only=True)["state_dict"]
    state = {f"loss.{name}": value for name, value in model.loss.state_dict().items()}
    assert state
    assert all(torch.equal(saved[name], value) for name, value in state.items())
    fresh = Model().loss.state_dict()
    assert any(not torch.equal(value, fresh[name.removeprefix("loss.")]) for name, value in state.items())


@pytest.mark.parametrize("loss", ["ap", "auc_m"])
def test_resumed_after_an_epoch_the_weights_and_the_losss_state_are_the_same(loss, tmp_path):
    whole = trained(4, tmp_path / "whole", loss=loss)
    trained(2, tmp_path / "half", loss=loss)
    resumed = trained(4, tmp_path / "half", loss=loss, resume=tmp_path / "half" / "2.ckpt")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_the_loss_is_told_every_epoch(tmp_path):
    assert trained(3, tmp_path).told == [0, 1, 2]


def test_dual_variables_ascend():
    model = Model("auc_m")
    ascending = [group for group in model.ranking_groups(lr=0.1) if group.get("maximize")]
    assert [parameter for group in ascending for parameter in group["params"]] == [model.loss.alpha]
    counted = [parameter for group in model.ranking_groups() for parameter in group["params"]]
    assert len(counted) == len(set(counted)) == len(list(model.parameters()))


@pytest.mark.slow
def test_one_and_two_processes_give_the_same_weights_and_state(tmp_path):
    script, results = Path(__file__).with_name("lightning_script.py"), []
    for devices in ("1", "2"):
        command = [sys.executable, str(script), devices, str(tmp_path / devices)]
        subprocess.run(
            command, check=True, timeout=300, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        results.append(torch.load(tmp_path / devices, weights_only=True))
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=1e-5, atol=1e-5)
