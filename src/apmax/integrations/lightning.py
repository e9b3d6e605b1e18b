"""Lightning: a mix-in for a `LightningModule` that trains with a loss of apmax.

The module does not import Lightning, so it works with both `lightning` and `pytorch_lightning`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from apmax.data.indexed import Indexed
from apmax.distributed import Gathered
from apmax.optim import param_groups
from apmax.samplers import MultiTaskBatchSampler, PositiveBatchSampler, labels_of
from apmax.samplers.batches import EpochSampler

if TYPE_CHECKING:
    from apmax.losses import Loss


class RankingMixin:
    """Mix-in for a `LightningModule` with an attribute `loss` (any of `LOSSES`).

    As a sub-module the loss is saved in every checkpoint with its state, and moves with the model. The mix-in adds
    what Lightning does not do: it calls `set_epoch` of the loss, gathers the batches of all processes for the loss,
    and builds a loader whose sampler takes the share of the process. A run that is resumed, also from a checkpoint
    within an epoch, goes on with the batch after the last one that was trained on.
    Put it before the base class:

        class Model(RankingMixin, lightning.LightningModule):
            def __init__(self, train_set):
                super().__init__()
                self.train_set = train_set
                self.net = ...
                self.loss = APLoss(train_set.labels)

            def train_dataloader(self):
                return self.positive_batches(self.train_set, batch_size=128, num_pos=16)

            def training_step(self, batch, _):
                inputs, labels, index = batch
                return self.ranking_loss(self.net(inputs), labels, index)

            def configure_optimizers(self):
                return torch.optim.Adam(self.ranking_groups(lr=1e-3))

    With several processes pass `use_distributed_sampler=False` to the `Trainer`: these batches are split already.
    """

    loss: Loss
    current_epoch: int
    trainer: Any

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise `TypeError` where the mix-in comes after the base class, whose hooks would replace its own."""
        super().__init_subclass__(**options)
        before = cls.__mro__[: cls.__mro__.index(RankingMixin)]
        if any(base.__name__ == "LightningModule" for base in before):
            raise TypeError(f"put RankingMixin first: class {cls.__name__}(RankingMixin, LightningModule)")

    def on_train_epoch_start(self) -> None:
        """Call `set_epoch` of the loss and of the samplers."""
        inherited = getattr(super(), "on_train_epoch_start", None)
        if inherited is not None:
            inherited()
        self.loss.set_epoch(self.current_epoch)
        # Not left to the samplers: a loader with workers draws from an iterator that Lightning may replace unused.
        for loader in tree_leaves(self.trainer.train_dataloader):
            sampler = getattr(loader, "batch_sampler", None)
            if isinstance(sampler, EpochSampler):
                sampler.set_epoch(self.trainer.fit_loop.epoch_progress.current.processed)

    def ranking_loss(self, scores: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """Return the loss of the joined batches of all processes; scores have shape (B,), (B, 1) or (B, tasks)."""
        if self.trainer.world_size == 1:
            return self.loss(scores, labels, index)  # type: ignore[no-any-return]
        return Gathered(self.loss)(scores, labels, index)  # type: ignore[no-any-return]

    def ranking_groups(self, *, lr: float | None = None) -> list[dict[str, Any]]:
        """Return parameter groups for a torch optimiser; dual variables of the loss have `maximize=True`."""
        return param_groups(self, self.loss, lr=lr)  # type: ignore[arg-type]

    def positive_batches(
        self,
        dataset: Any,
        *,
        batch_size: int = 64,
        num_pos: int = 4,
        seed: int = 0,
        labels: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
    ) -> DataLoader[Any]:
        """Return a loader of (input, label, row) batches with `num_pos` positives each; sizes are global.

        Args:
            dataset: A map-style dataset of (input, label) items, wrapped in `Indexed` or not.
            batch_size: Rows in a joined batch of all processes.
            num_pos: Positives among them.
            seed: Seed of the sampler.
            labels: Labels of the dataset if it has no attribute for them.
            num_workers: As in torch's `DataLoader`.
            collate_fn: As in torch's `DataLoader`.
        """
        table = labels_of(dataset) if labels is None else labels_of(labels)
        kind = PositiveBatchSampler if table.ndim == 1 else MultiTaskBatchSampler
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        sampler = kind(table, batch_size=batch_size, num_pos=num_pos, seed=seed, rank=rank, world_size=world_size)
        sampler.set_position(*self._next_batch())
        items = dataset if isinstance(dataset, Indexed) else Indexed(dataset)
        return DataLoader(items, batch_sampler=sampler, num_workers=num_workers, collate_fn=collate_fn)

    def _next_batch(self) -> tuple[int, int]:
        """Return the epoch and the number of the batch that training goes on with.

        `current_epoch` would be that of the checkpoint, which `ModelCheckpoint` may write before the end of its epoch.
        """
        loop = self.trainer.fit_loop
        epochs, batches = loop.epoch_progress.current, loop.epoch_loop.batch_progress
        if epochs.started == epochs.processed:
            return epochs.processed, 0
        return (epochs.processed + 1, 0) if batches.is_last_batch else (epochs.processed, batches.current.processed)
