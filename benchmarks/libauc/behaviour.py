"""What LibAUC's AP loss and sampler and ours do in the same situations, each run here.

    PYTHONPATH=src:. ENVIRONMENT/bin/python -m benchmarks.libauc.behaviour

The environment is that of results/libauc/README.md. The table is printed, and written to results/libauc/behaviour.md.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from libauc.losses import APLoss as PeerLoss
from libauc.sampler import DualSampler
from torch import Tensor

from apmax import APLoss, PositiveBatchSampler, average_precision
from apmax.functional import ap_objective
from benchmarks.markdown import markdown_table
from benchmarks.origin import benchmark_commit

ROWS, POSITIVES, BATCH_SIZE, PASSES = 5000, 50, 64, 10
MARGIN = 1.0
WEAK, GOOD = (1.0, 1.0), (3.0, 2.0)
"""Scores by separation in standard deviations, and scale: of a model that ranks little, and of a good one."""


def training_labels() -> Tensor:
    """Return labels with 1 % positives."""
    labels = torch.zeros(ROWS)
    labels[torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))[:POSITIVES]] = 1
    return labels


def made_scores(kind: tuple[float, float] = WEAK) -> Tensor:
    """Return normal scores of which the positives' are higher."""
    separation, scale = kind
    noise = torch.randn(ROWS, generator=torch.Generator().manual_seed(1))
    return scale * (noise + separation * (training_labels() - 0.5))


def peer_loss(rows: int = ROWS, **options: Any) -> Any:
    """Return LibAUC's loss with its defaults."""
    return PeerLoss(rows, margin=MARGIN, device=torch.device("cpu"), **options)


def paper_surrogate_loss(labels: Tensor) -> APLoss:
    """Return our loss with LibAUC's surrogate."""
    return APLoss(labels, surrogate="squared_hinge", sigmoid=True, margin=MARGIN, gamma=0.1)


def peer_batches(labels: Tensor, sampling_rate: float) -> list[Tensor]:
    """Return the batches of a pass of LibAUC's sampler."""
    sampler = DualSampler(None, BATCH_SIZE, labels=labels.numpy(), sampling_rate=sampling_rate)
    return [rows for _ in range(PASSES) for rows in torch.tensor([int(row) for row in sampler]).split(BATCH_SIZE)]


def own_batches(labels: Tensor, sampling_rate: float) -> list[Tensor]:
    """Return the batches of as many passes of our sampler."""
    sampler = PositiveBatchSampler(labels, BATCH_SIZE, num_pos=round(sampling_rate * BATCH_SIZE))
    batches = []
    for epoch in range(PASSES):
        sampler.set_epoch(epoch)
        batches += [torch.as_tensor(rows) for rows in sampler]
    return batches


def tracked_ap(kind: tuple[float, float], sampling_rate: float, peer: bool) -> str:
    """Return the AP that the memory of a loss has of scores that do not change, with the same surrogate."""
    labels, scores = training_labels(), made_scores(kind)
    if peer:
        loss, positives = peer_loss(gamma=0.1), labels == 1
        for rows in peer_batches(labels, sampling_rate):
            loss(scores[rows].sigmoid(), labels[rows], rows)
        return f"{(loss.u_pos[positives] / loss.u_all[positives]).mean():.3f}"
    own = paper_surrogate_loss(labels)
    values = [float(own(scores[rows], labels[rows], rows)) for rows in own_batches(labels, sampling_rate)]
    return f"{1 - np.mean(values[-len(values) // PASSES :]):.3f}"


def gradient_cosine(kind: tuple[float, float], sampling_rate: float, peer: bool) -> str:
    """Return the cosine of the mean gradient of a loss, in later passes, and the exact gradient of its objective."""
    labels, scores = training_labels(), made_scores(kind)
    loss = peer_loss(gamma=0.1) if peer else paper_surrogate_loss(labels)
    batches = (peer_batches if peer else own_batches)(labels, sampling_rate)
    total = torch.zeros(ROWS)
    for number, rows in enumerate(batches):
        leaf = scores[rows].requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf.sigmoid() if peer else leaf, labels[rows], rows), leaf)
        if number >= len(batches) // 2:
            total.index_add_(0, rows, gradient)
    whole = scores.clone().requires_grad_()
    (exact,) = torch.autograd.grad(ap_objective(whole.sigmoid(), labels, "squared_hinge", MARGIN), whole)
    return f"{torch.cosine_similarity(total, exact, dim=0):.3f}"


def batch(labels: Tensor, num_pos: int = 4) -> Tensor:
    """Return the rows of a batch."""
    positives, negatives = (torch.nonzero(labels == value)[:, 0] for value in (1, 0))
    return torch.cat([positives[:num_pos], negatives[: BATCH_SIZE - num_pos]])


def loss_values(perfect: bool, peer: bool) -> float:
    """Return the first value of a loss for random or perfect scores."""
    labels = training_labels()
    rows = batch(labels)
    scores = 8 * labels[rows] - 4 if perfect else torch.randn(BATCH_SIZE, generator=torch.Generator().manual_seed(2))
    if peer:
        return float(peer_loss()(scores.sigmoid(), labels[rows], rows))
    return float(APLoss(labels)(scores, labels[rows], rows))


def values_text(peer: bool) -> str:
    """Return both values."""
    # 0.0 + …: no minus sign before a zero
    return ", ".join(f"{0.0 + round(loss_values(perfect, peer), 3):.3f}" for perfect in (False, True))


def resumed(peer: bool) -> str:
    """Tell whether a loss that is saved after training and loaded continues with the same value."""
    labels, scores = training_labels(), made_scores()
    build = peer_loss if peer else (lambda: APLoss(labels))
    first = build()
    batches = own_batches(labels, 1 / 16)
    for rows in batches:
        first(scores[rows].sigmoid() if peer else scores[rows], labels[rows], rows)
    second = build()
    second.load_state_dict(first.state_dict())
    rows, values = batches[0], []
    for loss in (first, second):
        leaf = scores[rows].requires_grad_()
        loss(leaf.sigmoid() if peer else leaf, labels[rows], rows).backward()
        values.append(leaf.grad)
    gap = float((values[0] - values[1]).norm() / values[0].norm())
    return (
        "the same gradient"
        if gap == 0
        else f"{len(first.state_dict())} tensors saved; the gradient differs by {gap:.0%}"
    )


def written_in_eval(peer: bool) -> str:
    """Tell whether the memory is written while a model is evaluated."""
    labels, scores = training_labels(), made_scores()
    rows = batch(labels)
    loss = peer_loss() if peer else APLoss(labels)
    loss.eval()
    before = [loss.u_all.clone()] if peer else [each.clone() for each in loss.state_dict().values()]
    loss(scores[rows].sigmoid() if peer else scores[rows], labels[rows], rows)
    after = [loss.u_all] if peer else list(loss.state_dict().values())
    same = all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    return "not written" if same else "written"


def after_nan(peer: bool) -> str:
    """Tell what a single score that is NaN does."""
    labels, scores = training_labels(), made_scores()
    rows = batch(labels)
    loss = peer_loss() if peer else APLoss(labels)
    broken = scores[rows].clone()
    broken[-1] = float("nan")
    try:
        loss(broken.sigmoid() if peer else broken, labels[rows], rows)
    except ValueError:
        what = "ValueError"
    else:
        what = "no error"
    whole = scores[rows]
    value = loss(whole.sigmoid() if peer else whole, labels[rows], rows)
    return f"{what}; the next good batch has the loss {'nan' if value.isnan() else 'it should have'}"


def outcome(call: Callable[[], Any]) -> str:
    """Return the error that a call ends with, else what it returns."""
    try:
        value = call()
    except Exception as error:
        name, text = type(error).__name__, textwrap.shorten(str(error), 70, placeholder=" …")
        return f"{name}: {text}" if text else name
    return "accepted" if torch.is_tensor(value) and value.isfinite().all() else f"{value}"


def one_batch(peer: bool, rows: Tensor, *, index: Tensor | None = None, dtype: torch.dtype = torch.float32) -> str:
    """Return what a loss does with a batch."""
    labels, scores = training_labels(), made_scores().to(dtype)
    loss = peer_loss() if peer else APLoss(labels)
    scores = scores[rows].requires_grad_()
    index = rows if index is None else index

    def call() -> Tensor:
        value: Tensor = loss(scores.sigmoid() if peer else scores, labels[rows], index)
        value.backward()
        return value

    return outcome(call)


def misspelt_option(peer: bool) -> str:
    """Return what a loss does with an option that it does not have."""
    labels, scores = training_labels(), made_scores()
    rows = batch(labels)
    if peer:
        return outcome(lambda: peer_loss()(scores[rows].sigmoid(), labels[rows], rows, wieght=1.0))
    return outcome(lambda: APLoss(labels)(scores[rows], labels[rows], rows, wieght=1.0))  # type: ignore[call-arg]


def global_seed(peer: bool) -> str:
    """Tell whether building a sampler sets the seed of numpy's global generator."""
    labels = training_labels()
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the global generator is what is asked about
    if peer:
        DualSampler(None, BATCH_SIZE, labels=labels.numpy())
    else:
        PositiveBatchSampler(labels, BATCH_SIZE)
    after = np.random.get_state()[1]  # noqa: NPY002
    return "no" if np.array_equal(before, after) else "yes"


def small_data(peer: bool) -> str:
    """Return how many batches of 64 there are of 30 rows, 3 of them positive."""
    labels = torch.zeros(30)
    labels[:3] = 1
    if peer:
        return outcome(lambda: len(list(DualSampler(None, BATCH_SIZE, labels=labels.numpy()))) // BATCH_SIZE)
    return outcome(lambda: len(list(PositiveBatchSampler(labels, BATCH_SIZE))))


def situations() -> dict[str, Callable[[bool], str]]:
    """Return questions, and the function that answers each for LibAUC (True) or apmax."""
    labels = training_labels()
    positives, negatives = (torch.nonzero(labels == value)[:, 0] for value in (1, 0))
    rows = batch(labels)
    both: dict[str, Callable[[bool], str]] = {}
    for kind in (WEAK, GOOD):
        scores = made_scores(kind)
        exact = -float(ap_objective(scores.sigmoid(), labels, "squared_hinge", MARGIN))
        which = f"scores with an AP of {float(average_precision(scores, labels)):.2f}"
        for rate in (0.5, 1 / 16):
            in_batches = f"{which}, {round(rate * BATCH_SIZE)} of {BATCH_SIZE} in batches positive"
            both[f"estimate of the objective, exactly {exact:.3f}; {in_batches}"] = partial(tracked_ap, kind, rate)
            both[f"cosine of its mean gradient and the exact one; {in_batches}"] = partial(gradient_cosine, kind, rate)
    both |= {
        "value of the loss for random scores, for perfect ones": values_text,
        "saved after training and loaded": resumed,
        "memory under `eval()`": written_in_eval,
        "one score of a batch is NaN": after_nan,
        "a batch without positives": lambda peer: one_batch(peer, negatives[:BATCH_SIZE]),
        "a batch without negatives": lambda peer: one_batch(peer, positives[:4]),
        "a batch of one row": lambda peer: one_batch(peer, positives[:1]),
        "scores in float64": lambda peer: one_batch(peer, rows, dtype=torch.float64),
        "rows of negative number": lambda peer: one_batch(peer, rows, index=rows - ROWS),
        "a misspelt option in the call": misspelt_option,
        "sampler: sets numpy's global seed": global_seed,
        "sampler: batches of 64 from 30 rows with 3 positives": small_data,
    }
    return both


def main() -> None:
    """Print the answers, and write them."""
    warnings.simplefilter("ignore")
    from importlib.metadata import version

    rows = [["", f"LibAUC {version('libauc')}", "apmax"]]
    rows += [[question, answer(True), answer(False)] for question, answer in situations().items()]
    head = f"# The same situations\n\nCommit {benchmark_commit()}, torch {torch.__version__}."
    text = f"{head}\n\n{markdown_table(rows)}\n"
    Path("results", "libauc", "behaviour.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
