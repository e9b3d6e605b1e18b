"""A Lightning run; arguments are the number of processes and the file for the weights."""

import sys
import warnings

import lightning.pytorch as lightning
import torch
from torch import nn
from torch.utils.data import TensorDataset

from apmax import APLoss
from apmax.integrations.lightning import RankingMixin


class Model(RankingMixin, lightning.LightningModule):
    def __init__(self, train):
        super().__init__()
        self.train_set = train
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.loss = APLoss(train.tensors[1])

    def train_dataloader(self):
        return self.positive_batches(self.train_set, batch_size=32, num_pos=5)

    def training_step(self, batch, _):
        inputs, labels, index = batch
        return self.ranking_loss(self.net(inputs), labels, index)

    def configure_optimizers(self):
        return torch.optim.SGD(self.ranking_groups(lr=0.5))


def main(devices, path):
    torch.manual_seed(0)
    inputs = torch.randn(300, 4)
    model = Model(TensorDataset(inputs, (inputs[:, 0] + torch.randn(300) > 1.2).float()))
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    if trainer.is_global_zero:
        torch.save(model.state_dict(), path)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(int(sys.argv[1]), sys.argv[2])
