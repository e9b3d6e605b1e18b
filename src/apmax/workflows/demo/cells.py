"""The data: scikit-learn's own, thinned until positives are rare, and cut anew for every cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from apmax import extras

Part = tuple[Tensor, Tensor]
CUTS = ((0.0, 0.4), (0.4, 0.6), (0.6, 1.0))


@dataclass(frozen=True)
class Cell:
    """One draw of a task, in three parts of (features, labels)."""

    train: Part
    valid: Part
    test: Part


@dataclass(frozen=True)
class Task:
    """A question that is asked of several cells.

    Args:
        title: For people.
        prevalence: The share of positives, which is the AP of a random ranking.
        cells: Makes the cells, a few of them if asked to be quick.
    """

    title: str
    prevalence: float
    cells: Callable[[bool], list[Callable[[], Cell]]]


def thinned(features: Tensor, positive: Tensor, prevalence: float, *, seed: int) -> Cell:
    """Return a cell: positives thinned to `prevalence`, each class cut 40/20/40.

    >>> cell = thinned(torch.rand(1000, 2), torch.arange(1000) < 500, 0.02, seed=0)
    >>> [(len(labels), int(labels.sum())) for _, labels in (cell.train, cell.valid, cell.test)]
    [(204, 4), (102, 2), (204, 4)]
    """
    generator = torch.Generator().manual_seed(seed)
    positives, negatives = (
        rows[torch.randperm(len(rows), generator=generator)]
        for rows in (positive.nonzero()[:, 0], (~positive).nonzero()[:, 0])
    )
    positives = positives[: round(len(negatives) * prevalence / (1 - prevalence))]
    chosen = [
        torch.cat([rows[round(low * len(rows)) : round(high * len(rows))] for rows in (positives, negatives)])
        for low, high in CUTS
    ]
    return Cell(*((features[rows], positive[rows].float()) for rows in chosen))


def standardised(cell: Cell) -> Cell:
    """Return the cell with features whose mean is 0 and whose deviation is 1 in the training part."""
    known = cell.train[0]
    centre, scale = known.mean(0), known.std(0)
    return Cell(*(((features - centre) / scale, labels) for features, labels in (cell.train, cell.valid, cell.test)))


def digit_cells(quick: bool) -> list[Callable[[], Cell]]:
    """Each digit against the rest, two draws of each."""
    images, digits = extras.load("sklearn.datasets", "sklearn").load_digits(return_X_y=True)
    features = torch.tensor(images, dtype=torch.float32) / 16

    def cell(digit: int, seed: int) -> Callable[[], Cell]:
        return lambda: thinned(features, torch.tensor(digits == digit), 0.02, seed=1000 * seed + digit)

    return [cell(digit, seed) for seed in range(1 if quick else 2) for digit in range(2 if quick else 10)]


def tumour_cells(quick: bool) -> list[Callable[[], Cell]]:
    """Malignant tumours among benign ones, by thirty measurements of a biopsy."""
    measured, benign = extras.load("sklearn.datasets", "sklearn").load_breast_cancer(return_X_y=True)
    features = torch.tensor(measured, dtype=torch.float32)

    def cell(seed: int) -> Callable[[], Cell]:
        return lambda: standardised(thinned(features, torch.tensor(benign == 0), 0.05, seed=seed))

    return [cell(seed) for seed in range(2 if quick else 10)]


TASKS = {
    "digits": Task("rare digits", 0.02, digit_cells),
    "tumours": Task("rare tumours", 0.05, tumour_cells),
}
