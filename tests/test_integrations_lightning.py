"""The mix-in for Lightning modules."""

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

# Lightning warns of loaders without workers and of much else that the mix-in does not control.
pytestmark = pytest.mark.filterwarnings("ignore")


def split(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 4, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] + 0.5 * torch.randn(rows, generator=generator) > 1.2).float())


TRAIN, VALID = split(300, 1), split(200, 2)


@pytest.fixture(scope="module")
def lightning():
    return pytest.importorskip("lightning.pytorch")


@pytest.fixture(scope="module")
def make_model(lightning):
    class Model(RankingMixin, lightning.LightningModule):
        def __init__(self, loss="ap"):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
            self.loss = LOSSES[loss](TRAIN.tensors[1])
            self.epochs = []
            self.loss.set_epoch = self.epochs.append

        def train_dataloader(self):
            return self.positive_batches(TRAIN, batch_size=32, num_pos=4, seed=3)

        def training_step(self, batch, _):
            inputs, labels, index = batch
            return self.ranking_loss(self.net(inputs), labels, index)

        def configure_optimizers(self):
            return torch.optim.Adam(self.ranking_groups(lr=0.02))

    return Model


def test_the_mix_in_after_the_base_class_is_refused(lightning):
    with pytest.raises(TypeError, match=r"put RankingMixin first: class Wrong\(RankingMixin, LightningModule\)"):
        type("Wrong", (lightning.LightningModule, RankingMixin), {})


@pytest.fixture
def fit_model(lightning, make_model):
    def fit(epochs, directory, *, loss="ap", resume=None):
        model = make_model(loss)
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

    return fit


def test_a_lightning_module_learns_with_the_loss(fit_model, tmp_path):
    model = fit_model(5, tmp_path)
    with torch.no_grad():
        assert average_precision(model.net(VALID.tensors[0]), VALID.tensors[1]) > 0.7


def test_the_state_of_the_loss_is_in_the_checkpoint(fit_model, make_model, tmp_path):
    model = fit_model(2, tmp_path)
    saved = torch.load(tmp_path / "2.ckpt", weights_only=True)["state_dict"]
    state = {f"loss.{name}": value for name, value in model.loss.state_dict().items()}
    assert state
    assert all(torch.equal(saved[name], value) for name, value in state.items())
    fresh = make_model().loss.state_dict()
    assert any(not torch.equal(value, fresh[name.removeprefix("loss.")]) for name, value in state.items())


@pytest.mark.parametrize("loss", ["ap", "auc_m"])
def test_resumed_after_an_epoch_weights_and_loss_state_are_the_same(loss, fit_model, tmp_path):
    whole = fit_model(4, tmp_path / "whole", loss=loss)
    fit_model(2, tmp_path / "half", loss=loss)
    resumed = fit_model(4, tmp_path / "half", loss=loss, resume=tmp_path / "half" / "2.ckpt")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_resumed_from_a_checkpoint_of_the_callback_batches_go_on(lightning, make_model, tmp_path):
    """`ModelCheckpoint` writes before its epoch has ended."""

    def fit(epochs, name, resume=None):
        model, seen = make_model(), []
        model.on_train_batch_start = lambda batch, _: seen.append((model.current_epoch, batch[2].tolist()))
        callback = lightning.callbacks.ModelCheckpoint(dirpath=tmp_path / name, save_last=True)
        options = {
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": False,
            "callbacks": [callback],
        }
        trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, **options)
        trainer.fit(model, ckpt_path=resume)
        return seen, callback.last_model_path

    whole, _ = fit(4, "whole")
    half, path = fit(2, "half")
    rest, _ = fit(4, "rest", resume=path)
    assert half + rest == whole


@pytest.mark.parametrize("options", [{}, {"limit_train_batches": 4}], ids=["whole", "limited"])
def test_resumed_within_an_epoch_weights_and_loss_state_are_the_same(options, lightning, make_model, tmp_path):
    def fit(resume=None):
        model, seen = make_model(), []
        model.on_train_batch_start = lambda batch, _: seen.append(batch[2].tolist())
        callback = lightning.callbacks.ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1, save_top_k=-1)
        trainer = lightning.Trainer(
            max_epochs=3,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback] if resume is None else [],
            enable_checkpointing=resume is None,
            **options,
        )
        trainer.fit(model, ckpt_path=resume)
        return seen, model.state_dict()

    whole, state = fit()
    paths = sorted(tmp_path.iterdir(), key=lambda path: int(path.stem.split("=")[-1]))
    assert len(paths) == len(whole)
    for step in range(1, len(whole), 3):
        path = paths[step - 1]
        rest, resumed = fit(path)
        assert rest == whole[step:], path.name
        assert all(torch.equal(value, resumed[name]) for name, value in state.items()), path.name


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_after_validation_within_or_at_the_end_of_an_epoch_batches_go_on(
    workers, lightning, make_model, tmp_path
):
    def fit(resume=None):
        model, seen = make_model(), []
        model.train_dataloader = lambda: model.positive_batches(TRAIN, batch_size=32, num_pos=4, num_workers=workers)
        model.on_train_batch_start = lambda batch, _: seen.append(batch[2].tolist())
        model.val_dataloader = lambda: torch.utils.data.DataLoader(VALID, batch_size=100)
        model.validation_step = lambda batch: model.log("score", model.net(batch[0]).mean())
        callback = lightning.callbacks.ModelCheckpoint(dirpath=tmp_path, monitor="score", save_top_k=-1)
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_train_batches=8,
            val_check_interval=4,
            callbacks=[callback] if resume is None else [],
            enable_checkpointing=resume is None,
        )
        trainer.fit(model, ckpt_path=resume)
        return seen

    whole, lengths = fit(), set()
    for path in list(tmp_path.iterdir()):
        rest = fit(path)
        lengths.add(len(rest))
        assert rest == whole[len(whole) - len(rest) :], path.name
    assert lengths == {0, 4, 8, 12}


def test_set_epoch_of_the_loss_is_called_in_every_epoch(fit_model, tmp_path):
    assert fit_model(3, tmp_path).epochs == [0, 1, 2]


def test_dual_variables_are_maximised(make_model):
    model = make_model("auc_m")
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
