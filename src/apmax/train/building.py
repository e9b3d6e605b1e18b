"""From the words of a configuration to torch's objects: tables, no branches by method."""

from __future__ import annotations

import bisect
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from apmax import optim
from apmax.losses import LOSSES, Loss, WeightedLoss
from apmax.losses.pointwise import Pointwise
from apmax.samplers import MultiTaskBatchSampler, PositiveBatchSampler
from apmax.train.config import Optimizer, Sampler, Schedule, Stage
from apmax.train.loading import ShuffledBatches

Batches = PositiveBatchSampler | MultiTaskBatchSampler | ShuffledBatches


def build_loss(stage: Stage, labels: Tensor, sample_weight: Tensor | None = None) -> Loss:
    """Return the stage's loss, or the weighted sum of its losses, for training rows of these labels and weights.

    With plain shuffling a batch is a fair sample already, and many batches miss the positives: class means would then
    be biased. So the losses that are sums over examples take such batches as they are, unless `prevalence` is
    set in the stage's options. Checks of every batch are left out, unless `validate` is set: labels and rows come from
    checked tables, and the trainer looks at scores and loss itself. A loss that can make use of it is told how many
    positives the sampler puts into every batch.
    """
    sure = stage.sampler.name == "positive" and labels.ndim == 1
    options: dict[str, dict[str, Any]] = {}
    for name in stage.weights:
        options[name] = {"validate": False, **stage.options.get(name, {})}
        if stage.sampler.name == "shuffle" and issubclass(LOSSES[name], Pointwise):
            options[name].setdefault("prevalence", "batch")
        if sure and "num_pos" in inspect.signature(LOSSES[name]).parameters:
            options[name].setdefault("num_pos", stage.sampler.num_pos)
    if len(stage.weights) == 1 and next(iter(stage.weights.values())) == 1:
        name = next(iter(stage.weights))
        return LOSSES[name](labels, sample_weight=sample_weight, **options[name])
    validate = any(own["validate"] for own in options.values())
    return WeightedLoss(labels, stage.weights, options=options, sample_weight=sample_weight, validate=validate)


def build_sampler(config: Sampler, labels: Tensor, *, seed: int, rank: int, world_size: int) -> Batches:
    """Return the batch sampler of this process."""
    share = {"seed": seed, "rank": rank, "world_size": world_size}
    if config.name == "shuffle":
        return ShuffledBatches(len(labels), config.batch_size, **share)
    kind = PositiveBatchSampler if labels.ndim == 1 else MultiTaskBatchSampler
    return kind(labels, config.batch_size, num_pos=config.num_pos, **share)


def _sgd(groups: Any, config: Optimizer) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)


def _adam(
    kind: Callable[..., torch.optim.Optimizer], *, has_fused: bool = True
) -> Callable[[Any, Optimizer], torch.optim.Optimizer]:
    def build(groups: Any, config: Optimizer) -> torch.optim.Optimizer:
        # On a CPU torch makes a dozen passes over every parameter unless asked for one, a quarter of a small network's
        # step. On a GPU its own choice stays: there the fused one would take the scaling of gradients upon itself.
        fused = {"fused": True} if has_fused and all(on_cpu(group["params"]) for group in groups) else {}
        return kind(
            groups,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            amsgrad=config.amsgrad,
            **fused,
        )

    return build


def on_cpu(parameters: Sequence[Tensor]) -> bool:
    """Tell whether all parameters are real numbers in the CPU's memory."""
    return all(each.device.type == "cpu" and each.is_floating_point() for each in parameters)


BUILDERS: dict[str, Callable[[Any, Optimizer], torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam(torch.optim.Adam),
    "adamw": _adam(torch.optim.AdamW),
    "paper_adam": _adam(optim.PaperAdam, has_fused=False),
}


def build_optimizer(config: Optimizer, model: nn.Module, loss: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser over the model's trainable parameters and the loss's own."""
    return BUILDERS[config.name](optim.param_groups(model, loss, lr=config.lr), config)


def build_proximal(config: Optimizer, optimizer: torch.optim.Optimizer, batches: int) -> optim.Proximal | None:
    """Return the optimiser's pull towards a reference point, if the configuration asks for one."""
    if config.proximal == 0:
        return None
    return optim.proximal(optimizer, config.proximal, every=config.proximal_every * batches)


def _constant(_: Schedule, __: float, ___: float) -> float:
    return 1.0


def _step(schedule: Schedule, epoch: float, _: float) -> float:
    return schedule.factor ** bisect.bisect_right(sorted(schedule.milestones), epoch)


def _cosine(schedule: Schedule, epoch: float, epochs: float) -> float:
    return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * min(epoch / epochs, 1))) / 2


COURSES: dict[str, Callable[[Schedule, float, float], float]] = {
    "constant": _constant,
    "step": _step,
    "cosine": _cosine,
}


def lr_factor(schedule: Schedule, epoch: float, epochs: float) -> float:
    """Return the factor of the learning rate at a moment of the stage, in epochs (with fractions) from its start.

    >>> lr_factor(Schedule(name="cosine"), 5.0, 10)
    0.5
    """
    warm = min(1.0, epoch / schedule.warmup) if schedule.warmup else 1.0
    return warm * COURSES[schedule.name](schedule, epoch, epochs)


def set_lr(optimizer: torch.optim.Optimizer, base: Sequence[float], factor: float) -> None:
    """Set every group's learning rate to its base times `factor`."""
    for group, lr in zip(optimizer.param_groups, base, strict=True):
        group["lr"] = lr * factor
