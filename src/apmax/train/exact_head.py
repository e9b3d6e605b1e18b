"""A stage that re-trains only the last linear layer, by the exact objective over all training rows."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from apmax import functional, metrics
from apmax.train.averaging import snapshot
from apmax.train.config import ExactHead
from apmax.train.heads import last_linear
from apmax.train.records import Record, measure
from apmax.train.scoring import score_rows
from apmax.train.selection import Candidate
from apmax.train.session import Session
from apmax.train.work import Work


class Split(NamedTuple):
    """What the head is given of each row, (n, d), the labels, and the weights if there are any."""

    features: Tensor
    labels: Tensor
    sample_weight: Tensor | None


class Trial(NamedTuple):
    """A head's weight and the validation AP it reaches (the training AP without validation)."""

    weight: Tensor
    ap: float


def retrain_head(session: Session, work: Work, stage: ExactHead) -> Record:
    """Compute the embeddings once, fit the head for each strength of L2, and keep what validation AP likes best.

    Raises:
        ValueError: Several strengths and no validation, or scores that are not the last linear layer's output.
    """
    if session.valid_labels is None and len(stage.l2) > 1:
        raise ValueError("exact_head chooses l2 on the validation split: give one, or a single strength")
    started = time.monotonic()
    head = last_linear(session.model)
    module = session.fabric.setup(session.model)
    splits = [Split(embed(session, module, head, session.data.train), session.labels, session.weight)]
    if session.valid_labels is not None:
        features = embed(session, module, head, session.data.valid)
        splits.append(Split(features, session.valid_labels, session.valid_weight))
    known = splits[0]._replace(labels=session.label_table)
    bias = 0.0 if head.bias is None else head.bias.detach().double()

    def trial(weight: Tensor) -> Trial:
        features, labels, sample_weight = splits[-1]
        scores = one_or_more(features @ weight.T + bias)
        return Trial(weight, float(metrics.average_precision(scores, labels, sample_weight=sample_weight).nanmean()))

    begin = head.weight.detach().double().clone()
    heads = [fit_head(known, begin, bias, strength, stage) for strength in stage.l2]
    chosen = max(map(trial, [begin, *heads] if stage.keep else heads), key=lambda each: each.ap)
    objective = surrogate_loss(known, chosen.weight, bias, stage)
    with torch.no_grad():
        head.weight.copy_(chosen.weight)
    train, *held_out = (
        measure(one_or_more(x @ chosen.weight.T + bias), y, objective=session.run.objective, sample_weight=w)
        for x, y, w in splits
    )
    valid = held_out[0] if held_out else None
    work.epoch += 1
    candidate = Candidate(work.number, work.epoch, None, snapshot(session.model))
    work.selection.add(candidate, None if valid is None else valid.ap)
    record = Record(
        stage=stage.name,
        stage_number=work.number,
        epoch=work.epoch,
        step=session.step,
        lr=0.0,
        loss=float(objective),
        train=train,
        valid=valid,
        seconds=time.monotonic() - started,
        member=session.member,
    )
    session.add(record)
    return record


def fit_head(split: Split, begin: Tensor, bias: Tensor | float, l2: float, stage: ExactHead) -> Tensor:
    """Return the weight (tasks, d) that minimises `P(w) + l2·|w|²` from `begin` by L-BFGS.

    AP does not see a shift of all scores, so the bias stays what it was.
    """
    weight = begin.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([weight], max_iter=stage.max_iter, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimizer.zero_grad()
        value = surrogate_loss(split, weight, bias, stage) + l2 * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(closure)
    return weight.detach()


def surrogate_loss(split: Split, weight: Tensor, bias: Tensor | float, stage: ExactHead) -> Tensor:
    """Return the exact objective P of the head's scores."""
    scores = one_or_more(split.features @ weight.T + bias)
    return functional.ap_objective(
        scores, split.labels, stage.surrogate, stage.margin, sample_weight=split.sample_weight
    )


def embed(session: Session, module: nn.Module, head: nn.Linear, dataset: Any) -> Tensor:
    """Return the inputs of `head` for every row of `dataset`, (n, d) in float64; every process computes all."""
    kept: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0].detach().double()))
    session.before_loading()
    try:
        scores = score_rows(
            module,
            dataset,
            list(range(len(dataset))),
            batch_size=session.run.eval_batch_size,
            seed=session.run.seed,
            device=session.device,
            workers=session.run.workers,
            collate=session.data.collate,
        )
    finally:
        hook.remove()
    features = torch.cat(kept)
    bias = 0.0 if head.bias is None else head.bias.double()
    if features.ndim != 2 or len(features) != len(scores):
        raise ValueError("exact_head needs a model that calls its last linear layer once, with one row per example")
    again = one_or_more(features @ head.weight.double().T + bias)
    if again.shape != scores.shape or not torch.allclose(again, scores.double(), rtol=1e-3, atol=1e-3):
        raise ValueError("exact_head needs a model whose scores are the output of its last linear layer")
    return features


def one_or_more(scores: Tensor) -> Tensor:
    """Return scores of one task as (n,)."""
    return scores[:, 0] if scores.shape[1] == 1 else scores
