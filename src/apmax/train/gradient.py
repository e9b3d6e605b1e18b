"""A stage of gradient steps: how it begins, and one epoch of it."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from apmax import metrics
from apmax.distributed import Gathered
from apmax.train import building, heads
from apmax.train.averaging import Average, snapshot
from apmax.train.config import Stage
from apmax.train.failures import DivergedError
from apmax.train.loading import batches, has_positive
from apmax.train.randomness import mix, seed_torch
from apmax.train.records import Metrics, Record, last_met, measure
from apmax.train.scoring import in_order, move, padded_share, score_rows, scores_of
from apmax.train.selection import Candidate
from apmax.train.session import Session
from apmax.train.work import Gradient, Seen, Work

RESET = 1
# Looking whether the loss is finite costs a host synchronisation, which a CPU does not feel.
CHECK_EVERY = {"cpu": 1}
ESTIMATE_FROM = 2**14


def prepare(session: Session, number: int, stage: Stage, *, resumed: bool) -> Gradient:
    """Build the stage's loss, optimiser and sampler around the model, whose parts are re-initialised and frozen."""
    model, run = session.model, session.run
    if not resumed:
        heads.reset(model, stage.reset, seed=mix(run.seed, RESET, number))
    frozen = heads.freeze(model, stage.freeze)
    module = session.fabric.setup(model)
    loss = building.build_loss(stage, session.labels, session.weight).to(session.device)
    if any(parameter.dtype == torch.float64 for parameter in model.parameters()):
        # The loss's memory then has the model's precision; below float32 it never goes.
        loss = loss.double()
    optimizer = building.build_optimizer(stage.optimizer, model, loss)
    sampler = building.build_sampler(
        stage.sampler, session.labels, seed=run.seed, rank=session.rank, world_size=session.world_size
    )
    return Gradient(
        module=module,
        criterion=Gathered(loss) if session.world_size > 1 else loss,
        loss=loss,
        optimizer=optimizer,
        stepper=session.fabric.setup_optimizers(optimizer),
        base_lr=[group["lr"] for group in optimizer.param_groups],
        sampler=sampler,
        average=None if stage.ema is None else Average(model, decay=stage.ema),
        proximal=building.build_proximal(stage.optimizer, optimizer, len(sampler)),
        frozen=frozen,
    )


def one_epoch(session: Session, work: Work, stage: Stage, parts: Gradient) -> Record:
    """Train an epoch, or the rest of one, evaluate it and return its record."""
    started = time.monotonic() - work.seconds
    epoch = len(session.records)
    parts.module.train()
    for module in parts.frozen:
        module.eval()
    parts.loss.train()
    parts.loss.set_epoch(work.epoch)
    parts.sampler.set_position(epoch, work.batch)
    session.before_loading()
    loader = batches(
        session.data.train,
        parts.sampler,
        seed=session.run.seed,
        epoch=epoch,
        workers=session.run.workers,
        collate=session.data.collate,
        pin=session.device.type == "cuda",
    )
    for inputs, rows in loader:
        seed_torch(mix(session.run.seed, epoch, work.batch, session.rank), session.device)
        moment = work.epoch + work.batch / len(parts.sampler)
        building.set_lr(parts.optimizer, parts.base_lr, building.lr_factor(stage.schedule, moment, stage.epochs))
        one_step(session, work, parts, move(inputs, session.device), rows.to(session.device))
        work.batch += 1
        session.step += 1
        work.seconds = time.monotonic() - started
        session.display.batch(
            stage.name, work.epoch + 1, work.batch, len(parts.sampler), lambda: running_ap(session, work)
        )
        session.after_step(work)
    record = finish_epoch(session, work, stage, parts, started)
    session.add(record)
    return record


def one_step(session: Session, work: Work, parts: Gradient, inputs: object, rows: Tensor) -> None:
    """Take one optimiser step.

    Raises:
        DivergedError: The scores or the loss are not finite.
    """
    parts.stepper.zero_grad()
    scores = scores_of(parts.module, inputs)
    try:
        value = parts.criterion(scores, session.label_table[rows], rows)
    except (ValueError, RuntimeError) as error:
        if bool(scores.detach().isfinite().all()):
            raise
        raise diverged(session, work, session.step + 1, float("nan"), rows, scores.detach()) from error
    session.fabric.backward(value)
    parts.stepper.step()
    if parts.average is not None:
        parts.average.update()
    scores = scores.detach()
    # The sum is 0 unless a score is not finite: a loss need not show that.
    work.seen.add(work.batch, rows, scores, value.detach() + (scores * 0).sum())
    every = CHECK_EVERY.get(session.device.type, 16)
    if len(work.seen.losses) % every == 0:
        check_finite(session, work, every)


def check_finite(session: Session, work: Work, last: int) -> None:
    """Raise `DivergedError` for the first of the last losses that is not finite."""
    losses = work.seen.losses[-last:]
    if len(losses) == 1 and math.isfinite(losses[0].item()):
        return
    for back, value in zip(range(len(losses), 0, -1), torch.stack(losses).tolist(), strict=True):
        if not math.isfinite(value):
            step = session.step + 2 - back
            raise diverged(session, work, step, value, work.seen.rows[-back], work.seen.scores[-back])


def diverged(session: Session, work: Work, step: int, loss: float, rows: Tensor, scores: Tensor) -> DivergedError:
    """Return the error for a batch: it names the rows without a finite score, or all if only the loss is at fault."""
    bad = ~scores.isfinite()
    bad = bad if bad.ndim == 1 else bad.any(1)
    lr = session.lr(work)
    if bool(bad.any()):
        return DivergedError("the scores are not finite", step=step, rows=rows[bad].tolist(), lr=lr)
    return DivergedError(f"the loss is {loss}", step=step, rows=rows.tolist(), lr=lr)


def finish_epoch(session: Session, work: Work, stage: Stage, parts: Gradient, started: float) -> Record:
    """Evaluate the epoch, hand its weights to the selection and move on to the next."""
    check_finite(session, work, CHECK_EVERY.get(session.device.type, 16))
    seen = work.seen.joined()
    with parts.average.applied() if parts.average is not None else nullcontext():
        valid = evaluate(session, parts.module, "valid")
        if session.run.train_metrics == "full":
            train = evaluate(session, parts.module, "train")
        else:
            rows, scores = last_met(*(session.gather(seen[name]) for name in ("rows", "scores", "order")))
            train = metrics_of(session, scores, session.labels[rows], picked(session.weight, rows))
        candidate = Candidate(work.number, work.epoch + 1, None, snapshot(session.model))
    work.selection.add(candidate, None if valid is None else valid.ap)
    work.epoch, work.batch, work.seen, work.seconds = work.epoch + 1, 0, Seen(), 0.0
    return Record(
        stage=stage.name,
        stage_number=work.number,
        epoch=work.epoch,
        step=session.step,
        lr=session.lr(work),
        loss=float(seen["losses"].mean()),
        train=train,
        valid=valid,
        seconds=time.monotonic() - started,
        member=session.member,
    )


def evaluate(session: Session, module: nn.Module, split: str) -> Metrics | None:
    """Return the metrics of the model as it is on "train" or "valid", or None if there is no such split."""
    dataset = session.data.train if split == "train" else session.data.valid
    labels = session.labels if split == "train" else session.valid_labels
    weight = session.weight if split == "train" else session.valid_weight
    if labels is None:
        return None
    share = padded_share(len(labels), rank=session.rank, world_size=session.world_size)
    session.before_loading()
    scores = score_rows(
        module,
        dataset,
        share,
        batch_size=session.run.eval_batch_size,
        seed=session.run.seed,
        device=session.device,
        workers=session.run.workers,
        collate=session.data.collate,
    )
    scores = in_order(session.gather(scores).unflatten(0, (session.world_size, -1)), len(labels))
    return metrics_of(session, scores, labels, weight)


def metrics_of(session: Session, scores: Tensor, labels: Tensor, weight: Tensor | None) -> Metrics | None:
    """Return the metrics, or None where there is no positive to rank."""
    if not has_positive(labels, weight):
        return None
    return measure(scores, labels, objective=session.run.objective, sample_weight=weight)


def picked(weight: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return the weights of these rows, if rows have weights."""
    return None if weight is None else weight[rows]


def running_ap(session: Session, work: Work) -> float:
    """Return the AP of the latest scores of this epoch."""
    rows, scores, count = [], [], 0
    for one_rows, one_scores in zip(reversed(work.seen.rows), reversed(work.seen.scores), strict=True):
        rows.append(one_rows)
        scores.append(one_scores)
        count += len(one_rows)
        if count >= ESTIMATE_FROM:
            break
    joined = torch.cat(rows).cpu()
    labels, weight = session.labels[joined], picked(session.weight, joined)
    if not has_positive(labels, weight):
        return math.nan
    return float(metrics.average_precision(torch.cat(scores).cpu(), labels, sample_weight=weight).nanmean())
