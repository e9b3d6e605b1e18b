"""A stage that re-trains the last linear layer by the exact objective over all training rows."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from apmax import functional, metrics
from apmax.train.config import ExactHead
from apmax.train.embedding import cached_embeddings, head_inputs
from apmax.train.errors import DivergedError, NonFiniteScoresError
from apmax.train.records import Record, compute_metrics
from apmax.train.scoring import nonfinite_rows, squeeze_single_task
from apmax.train.selection import Candidate
from apmax.train.state import RunState, StageState
from apmax.train.weights import copy_weights, last_linear


class _Embedded(NamedTuple):
    """The inputs of the head for all rows of a split, (n, d), with labels and weights.

    `diverged` returns the error of rows whose scores are not finite.
    """

    features: Tensor
    labels: Tensor
    sample_weight: Tensor | None
    diverged: Callable[[list[int]], DivergedError]

    def scores(self, weight: Tensor, bias: Tensor | float) -> Tensor:
        """Return the scores of a head, or raise `DivergedError` if they are not finite."""
        scores = squeeze_single_task(self.features @ weight.T + bias)
        bad = nonfinite_rows(scores)
        if bad:
            raise self.diverged(bad)
        return scores


def check_exact_head(run_state: RunState, stage: ExactHead) -> None:
    """Raise `ValueError` for several strengths without validation, and for a model without a linear layer."""
    if run_state.valid_labels is None and len(stage.l2) > 1:
        raise ValueError("exact_head selects l2 on the validation split: give valid, or a single strength")
    last_linear(run_state.model)


def train_exact_head(run_state: RunState, state: StageState, stage: ExactHead) -> Record:
    """Compute the embeddings once, fit a head for each strength of L2, and select by validation AP.

    Raises:
        DivergedError: Scores are not finite.
        ValueError: The scores are not the last linear layer's output.
    """
    started = time.monotonic()
    head = last_linear(run_state.model)
    splits = _embedded_splits(run_state, state, head, cache=stage.cache)
    train_split = splits[0]._replace(labels=run_state.device_labels)
    bias = 0.0 if head.bias is None else head.bias.detach().double()

    def selection_ap(weight: Tensor) -> float:
        """Return the validation AP of a head; the training AP without validation."""
        last = splits[-1]
        scores = last.scores(weight, bias)
        return float(metrics.average_precision(scores, last.labels, sample_weight=last.sample_weight).nanmean())

    initial = head.weight.detach().double().clone()
    fitted = [_fit_head(train_split, initial, bias, strength, stage) for strength in stage.l2]
    chosen = max([initial, *fitted] if stage.keep else fitted, key=selection_ap)
    objective = _head_objective(train_split, chosen, bias, stage)
    with torch.no_grad():
        head.weight.copy_(chosen)
    train, *held_out = (
        compute_metrics(
            split.scores(chosen, bias),
            split.labels,
            objective=run_state.run.objective,
            sample_weight=split.sample_weight,
        )
        for split in splits
    )
    valid = held_out[0] if held_out else None
    state.epoch += 1
    candidate = Candidate(state.number, state.epoch, None, copy_weights(run_state.model))
    state.selection.add(candidate, None if valid is None else valid.ap)
    record = Record(
        stage=stage.name,
        stage_number=state.number,
        epoch=state.epoch,
        step=run_state.step,
        lr=0.0,
        loss=float(objective),
        train=train,
        valid=valid,
        seconds=time.monotonic() - started,
        member=run_state.member,
    )
    run_state.add_record(record)
    return record


def _embedded_splits(run_state: RunState, state: StageState, head: nn.Linear, *, cache: bool) -> list[_Embedded]:
    """Return the embeddings of the training split and, if there is one, of the validation split."""
    module = run_state.fabric.setup(run_state.model)
    splits = []
    for name, dataset, labels, row_weight in (
        ("train", run_state.data.train, run_state.labels, run_state.weight),
        ("valid", run_state.data.valid, run_state.valid_labels, run_state.valid_weight),
    ):
        if labels is not None:
            diverged = functools.partial(run_state.diverged_split, state, name)
            try:
                features = _embed(run_state, module, head, dataset, cache=cache)
            except NonFiniteScoresError as error:
                raise diverged(error.rows) from None
            splits.append(_Embedded(features, labels, row_weight, diverged))
    return splits


def _fit_head(split: _Embedded, initial: Tensor, bias: Tensor | float, l2: float, stage: ExactHead) -> Tensor:
    """Return the weight (tasks, d) that minimises `P(w) + l2·|w|²`, by L-BFGS from `initial`.

    AP does not depend on a shift of all scores, so the bias is not changed.
    """
    weight = initial.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([weight], max_iter=stage.max_iter, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimizer.zero_grad()
        value = _head_objective(split, weight, bias, stage) + l2 * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(closure)
    return weight.detach()


def _head_objective(split: _Embedded, weight: Tensor, bias: Tensor | float, stage: ExactHead) -> Tensor:
    """Return the exact objective P of the head's scores."""
    scores = split.scores(weight, bias)
    return functional.ap_objective(
        scores, split.labels, stage.surrogate, stage.margin, sample_weight=split.sample_weight
    )


def _embed(run_state: RunState, module: nn.Module, head: nn.Linear, dataset: Any, *, cache: bool) -> Tensor:
    """Return the inputs of `head` for every row of `dataset`, (n, d) in float64; every process computes all rows."""

    def compute() -> Tensor:
        run_state.before_loading()
        return head_inputs(module, head, dataset, **run_state.loading)

    # With several processes the wrapped network communicates, and the cache may be on some of the machines only.
    cache = cache and hasattr(dataset, "content_hash") and run_state.world_size == 1
    features = cached_embeddings(run_state.model, dataset, compute) if cache else compute()
    return features.to(run_state.device).double()
