"""A stage of gradient steps: its loss, optimiser, schedule and sampler, and the training of one epoch."""

from __future__ import annotations

import bisect
import inspect
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from apmax import metrics, optim
from apmax.distributed import Gathered
from apmax.losses import LOSSES, Loss, WeightedLoss
from apmax.losses.pointwise import Pointwise
from apmax.optim.eager_steps import eager
from apmax.samplers import MinedBatchSampler, MultiTaskBatchSampler, PositiveBatchSampler
from apmax.train.config import MINING_DEFAULTS, Optimizer, Sampler, Schedule, Stage
from apmax.train.data import BatchSampler, ShuffledBatches, has_positive, load_batches
from apmax.train.randomness import mix_seed, seed_torch
from apmax.train.records import EpochMetrics, Record, compute_metrics, latest_scores
from apmax.train.scoring import (
    forward_scores,
    move_to_device,
    nonfinite_rows,
    padded_rows,
    restore_row_order,
    score_rows,
)
from apmax.train.selection import Candidate
from apmax.train.state import GradientState, RunState, SeenBatches, StageState
from apmax.train.weights import (
    WeightAverage,
    copy_weights,
    find_frozen,
    find_reset,
    freeze_modules,
    reset_modules,
)

_RESET_SEED = 1
_ESTIMATE_ROWS = 2**14
"""Number of latest rows that the running AP of the display is computed from."""
_FIRST_STEPS = 100
"""Before that many steps the scores of a network may all lie in [0, 1] by chance."""


def check_gradient_stage(run_state: RunState, stage: Stage) -> None:
    """Raise what `start_gradient_stage` would raise for this stage, and change nothing.

    Raises:
        ValueError: Values of the loss's options, a sampler that the labels do not suffice for, unknown modules, or an
            optimiser that cannot be built.
    """
    find_reset(run_state.model, stage.reset)
    find_frozen(run_state.model, stage.freeze)
    loss = build_loss(stage, run_state.labels, run_state.weight)
    build_optimizer(stage.optimizer, run_state.model, loss)
    build_sampler(
        stage.sampler,
        run_state.labels,
        seed=run_state.run.seed,
        rank=run_state.rank,
        world_size=run_state.world_size,
    )


def start_gradient_stage(run_state: RunState, number: int, stage: Stage, *, resumed: bool) -> GradientState:
    """Re-initialise and freeze parts of the model, and build the stage's loss, optimiser and sampler."""
    model, run = run_state.model, run_state.run
    if not resumed:
        reset_modules(model, stage.reset, seed=mix_seed(run.seed, _RESET_SEED, number))
    frozen = freeze_modules(model, stage.freeze)
    module = run_state.fabric.setup(model)
    loss = build_loss(stage, run_state.labels, run_state.weight).to(run_state.device)
    if any(parameter.dtype == torch.float64 for parameter in model.parameters()):
        # The state of the loss then has the model's precision; it is never below float32.
        loss = loss.double()
    optimizer = build_optimizer(stage.optimizer, model, loss)
    sampler = build_sampler(
        stage.sampler, run_state.labels, seed=run.seed, rank=run_state.rank, world_size=run_state.world_size
    )
    return GradientState(
        module=module,
        criterion=Gathered(loss) if run_state.world_size > 1 else loss,
        loss=loss,
        optimizer=optimizer,
        stepper=run_state.fabric.setup_optimizers(optimizer),
        base_lr=[group["lr"] for group in optimizer.param_groups],
        sampler=sampler,
        average=None if stage.ema is None else WeightAverage(model, decay=stage.ema),
        proximal=build_proximal(stage.optimizer, optimizer, len(sampler)),
        frozen=frozen,
    )


def build_loss(stage: Stage, labels: Tensor, sample_weight: Tensor | None = None) -> Loss:
    """Return the stage's loss, or the weighted sum of its losses, for training rows of these labels and weights.

    With plain shuffling a batch is an unbiased sample, and many batches have no positives: class means over the
    batches that have some would be biased. So the losses that are sums over examples get `prevalence="batch"` then,
    unless the stage's options set `prevalence`. Mined negatives are no sample of the negatives, so with them every loss
    takes the batch as it is. Batches are not validated, unless the options set `validate`: labels
    and rows were checked once, and the trainer checks scores and loss itself. A loss that accepts `num_pos` gets the
    number of positives that the sampler puts into every batch.
    """
    fixed_num_pos = stage.sampler.has_positives and labels.ndim == 1
    options: dict[str, dict[str, Any]] = {}
    for name in stage.weights:
        options[name] = {"validate": False, **stage.options.get(name, {})}
        if stage.sampler.name == "mined" or (stage.sampler.name == "shuffle" and issubclass(LOSSES[name], Pointwise)):
            options[name].setdefault("prevalence", "batch")
        if fixed_num_pos and "num_pos" in inspect.signature(LOSSES[name]).parameters:
            options[name].setdefault("num_pos", stage.sampler.num_pos)
    if len(stage.weights) == 1 and next(iter(stage.weights.values())) == 1:
        name = next(iter(stage.weights))
        return LOSSES[name](labels, sample_weight=sample_weight, **options[name])
    validate = any(values["validate"] for values in options.values())
    return WeightedLoss(labels, stage.weights, options=options, sample_weight=sample_weight, validate=validate)


def build_sampler(config: Sampler, labels: Tensor, *, seed: int, rank: int, world_size: int) -> BatchSampler:
    """Return the batch sampler of this process."""
    share = {"seed": seed, "rank": rank, "world_size": world_size}
    if config.name == "shuffle":
        return ShuffledBatches(len(labels), config.batch_size, **share)
    if config.name == "mined":
        if labels.ndim == 2:
            raise ValueError(f"the sampler 'mined' is for one task, got labels of {labels.shape[1]}; use 'positive'")
        mining = {name: getattr(config, name) for name in MINING_DEFAULTS}
        return MinedBatchSampler(labels, config.batch_size, num_pos=config.num_pos, **mining, **share)
    kind = PositiveBatchSampler if labels.ndim == 1 else MultiTaskBatchSampler
    return kind(labels, batch_size=config.batch_size, num_pos=config.num_pos, **share)


_OPTIMIZERS = {
    "sgd": eager(torch.optim.SGD),
    "adam": eager(torch.optim.Adam),
    "adamw": eager(torch.optim.AdamW),
    "paper_adam": eager(optim.PaperAdam),
}


def build_optimizer(config: Optimizer, model: nn.Module, loss: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser over the trainable parameters of the model and the parameters of the loss."""
    groups = optim.param_groups(model, loss, lr=config.lr)
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        options["momentum"] = config.momentum
    else:
        options |= {"betas": config.betas, "eps": config.eps, "amsgrad": config.amsgrad}
    # On a CPU torch makes a dozen passes over every parameter unless fused, a quarter of a small network's step.
    # On a GPU torch's own choice stays: there the fused version would also handle the scaling of gradients.
    if config.name in ("adam", "adamw") and all(_all_on_cpu(group["params"]) for group in groups):
        options["fused"] = True
    return _OPTIMIZERS[config.name](groups, **options)


def _all_on_cpu(parameters: Sequence[Tensor]) -> bool:
    """Return whether all parameters are floating-point tensors on the CPU."""
    return all(each.device.type == "cpu" and each.is_floating_point() for each in parameters)


def build_proximal(config: Optimizer, optimizer: torch.optim.Optimizer, batches: int) -> optim.Proximal | None:
    """Return the proximal term, if the configuration has one; `batches` is the number of batches in an epoch."""
    if config.proximal == 0:
        return None
    return optim.proximal(optimizer, config.proximal, every=config.proximal_every * batches)


def lr_factor(schedule: Schedule, epoch: float, epochs: float) -> float:
    """Return the factor of the learning rate at `epoch` (with fractions, from the start) of a stage of `epochs`.

    >>> lr_factor(Schedule(name="cosine"), 5.0, 10)
    0.5
    """
    factor = min(1.0, epoch / schedule.warmup) if schedule.warmup else 1.0
    if schedule.name == "step":
        factor *= schedule.factor ** bisect.bisect_right(sorted(schedule.milestones), epoch)
    elif schedule.name == "cosine":
        half_cosine = (1 + math.cos(math.pi * min(epoch / epochs, 1))) / 2
        factor *= schedule.final + (1 - schedule.final) * half_cosine
    return factor


def train_epoch(run_state: RunState, state: StageState, stage: Stage, gradient: GradientState) -> Record:
    """Train an epoch, or the rest of a resumed one, evaluate it and return its record."""
    started = time.monotonic() - state.seconds
    epoch = len(run_state.records)
    gradient.loss.train()
    gradient.loss.set_epoch(state.epoch)
    batches = len(gradient.sampler)
    for inputs, rows in _remaining_batches(run_state, state, gradient, epoch):
        seed_torch(mix_seed(run_state.run.seed, epoch, state.batch, run_state.rank), run_state.device)
        factor = lr_factor(stage.schedule, state.epoch + state.batch / batches, stage.epochs)
        for group, lr in zip(gradient.optimizer.param_groups, gradient.base_lr, strict=True):
            group["lr"] = lr * factor
        _train_step(
            run_state, state, gradient, move_to_device(inputs, run_state.device), move_to_device(rows, run_state.device)
        )
        state.batch += 1
        run_state.step += 1
        state.seconds = time.monotonic() - started
        run_state.monitor.batch(state.batch, batches, lambda: running_ap(run_state, state))
        run_state.after_step(state)
    record = _finish_epoch(run_state, state, stage, gradient, started)
    run_state.add_record(record)
    return record


def _remaining_batches(
    run_state: RunState, state: StageState, gradient: GradientState, epoch: int
) -> Iterator[tuple[Any, Tensor]]:
    """Yield (input, rows) of the batches from `state.batch`, which the caller advances, to the end of the epoch.

    A sampler of mined negatives yields the batches of one round; before each, negatives are scored.
    """
    sampler = gradient.sampler
    while state.batch < len(sampler):
        if isinstance(sampler, MinedBatchSampler) and sampler.starts_round(state.batch):
            _mine_negatives(run_state, state, gradient.module, sampler, epoch)
        gradient.module.train()
        for module in gradient.frozen:
            module.eval()
        sampler.set_position(epoch, state.batch)
        run_state.before_loading()
        yield from load_batches(
            run_state.data.train,
            sampler,
            seed=run_state.run.seed,
            epoch=epoch,
            workers=run_state.run.workers,
            collate=run_state.data.collate,
            pin=run_state.device.type == "cuda",
        )


def _mine_negatives(
    run_state: RunState, state: StageState, module: nn.Module, sampler: MinedBatchSampler, epoch: int
) -> None:
    """Score the pool of the round that begins with the next batch; the sampler keeps the rows of the highest scores.

    Raises:
        DivergedError: The scores are not finite.
    """
    pool = sampler.pool_rows(epoch, state.batch)
    sampler.mine(pool, _score_split(run_state, state, module, "train", pool))


def _train_step(run_state: RunState, state: StageState, gradient: GradientState, inputs: object, rows: Tensor) -> None:
    """Take one optimiser step.

    Raises:
        DivergedError: The scores or the loss are not finite.
        ValueError: The scores have another shape than the labels.
    """
    gradient.stepper.zero_grad()
    scores, labels = forward_scores(gradient.module, inputs), run_state.device_labels[rows]
    if scores.shape != labels.shape:
        raise ValueError(
            f"the model must return a row of scores for each example, with a score for each column of the labels: got "
            f"scores of shape {tuple(scores.shape)} for labels of shape {tuple(labels.shape)}"
        )
    try:
        value = gradient.criterion(scores, labels, rows)
    except (ValueError, RuntimeError) as error:
        if bool(scores.detach().isfinite().all()):
            raise
        raise state.diverged_batch(float("nan"), rows, scores.detach(), step=run_state.step + 1) from error
    run_state.fabric.backward(value)
    gradient.stepper.step()
    if gradient.average is not None:
        gradient.average.update()
    scores = scores.detach()
    # The sum is 0 unless a score is not finite; the loss itself may hide that.
    state.seen.add(state.batch, rows, scores, value.detach() + (scores * 0).sum())
    if len(state.seen.losses) % run_state.check_every == 0:
        run_state.check_losses(state, step=run_state.step + 1)


def _finish_epoch(
    run_state: RunState, state: StageState, stage: Stage, gradient: GradientState, started: float
) -> Record:
    """Evaluate the epoch, add its weights to the selection and advance to the next epoch.

    Raises:
        DivergedError: The losses, the weights or the scores of a split are not finite.
    """
    run_state.check_losses(state, step=run_state.step)
    # The losses are those before the last step.
    run_state.check_weights(state)
    seen = state.seen.joined()
    if run_state.rank == 0 and run_state.step >= _FIRST_STEPS > run_state.step - len(seen["losses"]):
        _warn_of_probabilities(seen["scores"])
    with gradient.average.applied() if gradient.average is not None else nullcontext():
        valid = _evaluate_split(run_state, state, gradient.module, "valid")
        train = None
        if run_state.run.train_metrics == "full":
            train = _evaluate_split(run_state, state, gradient.module, "train")
        elif run_state.run.train_metrics == "seen":
            rows, scores = latest_scores(*(run_state.gather(seen[name]) for name in ("rows", "scores", "order")))
            weight = None if run_state.weight is None else run_state.weight[rows]
            train = _metrics_if_positive(run_state, scores, run_state.labels[rows], weight)
        candidate = Candidate(state.number, state.epoch + 1, None, copy_weights(run_state.model))
    state.selection.add(candidate, None if valid is None else valid.ap)
    state.epoch, state.batch, state.seen, state.seconds = state.epoch + 1, 0, SeenBatches(), 0.0
    return Record(
        stage=stage.name,
        stage_number=state.number,
        epoch=state.epoch,
        step=run_state.step,
        lr=state.lr,
        loss=float(seen["losses"].mean()),
        train=train,
        valid=valid,
        seconds=time.monotonic() - started,
        member=run_state.member,
    )


def _warn_of_probabilities(scores: Tensor) -> None:
    """Warn if the scores of an epoch look like probabilities, from which no loss learns as it should."""
    low, high = scores.aminmax()
    if 0 <= low < high <= 1:
        warnings.warn(
            "all scores of an epoch lie in [0, 1], as probabilities do: the model must return raw scores "
            "(logits); leave out its last sigmoid",
            stacklevel=2,
        )


def _evaluate_split(run_state: RunState, state: StageState, module: nn.Module, split: str) -> EpochMetrics | None:
    """Return the metrics of the current weights on "train" or "valid", or None without such a split."""
    labels = run_state.labels if split == "train" else run_state.valid_labels
    weight = run_state.weight if split == "train" else run_state.valid_weight
    if labels is None:
        return None
    scores = _score_split(run_state, state, module, split, torch.arange(len(labels)))
    return _metrics_if_positive(run_state, scores, labels, weight)


def _score_split(run_state: RunState, state: StageState, module: nn.Module, split: str, rows: Tensor) -> Tensor:
    """Return the scores of these rows of "train" or "valid", each computed by one process, the same on all of them.

    Raises:
        DivergedError: They are not finite.
    """
    share = padded_rows(len(rows), rank=run_state.rank, world_size=run_state.world_size)
    run_state.before_loading()
    scores = score_rows(
        module,
        run_state.data.train if split == "train" else run_state.data.valid,
        rows[share].tolist(),
        **run_state.loading,
    )
    scores = restore_row_order(run_state.gather(scores).unflatten(0, (run_state.world_size, -1)), len(rows))
    bad = nonfinite_rows(scores)
    if bad:
        raise run_state.diverged_split(state, split, rows[bad].tolist())
    return scores


def _metrics_if_positive(
    run_state: RunState, scores: Tensor, labels: Tensor, weight: Tensor | None
) -> EpochMetrics | None:
    """Return the metrics, or None without positives."""
    if not has_positive(labels, weight):
        return None
    return compute_metrics(scores, labels, objective=run_state.run.objective, sample_weight=weight)


def running_ap(run_state: RunState, state: StageState) -> float:
    """Return the AP of the latest scores of the current epoch; NaN without positives among them."""
    rows, scores, count = [], [], 0
    for batch_rows, batch_scores in zip(reversed(state.seen.rows), reversed(state.seen.scores), strict=True):
        rows.append(batch_rows)
        scores.append(batch_scores)
        count += len(batch_rows)
        if count >= _ESTIMATE_ROWS:
            break
    latest = torch.cat(rows).cpu()
    labels, weight = run_state.labels[latest], None if run_state.weight is None else run_state.weight[latest]
    if not has_positive(labels, weight):
        return math.nan
    return float(metrics.average_precision(torch.cat(scores).cpu(), labels, sample_weight=weight).nanmean())
