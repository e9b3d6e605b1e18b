"""Ways to train a small network on rare digits: cross-entropy, the exact AP objective, and APLoss.

Each cell takes one digit of scikit-learn's 8×8 images against the rest, thins it to 2 % of the data, and cuts the rest
into training, validation and test parts. All methods start from the same weights and take the same number of steps;
the step with the best validation AP counts; test AP is what the table shows. Cross-entropy is there twice, so that what
the sampler does is not credited to the loss.

    python examples/demo.py              # ten digits, a minute or two
    python examples/demo.py --quick      # two digits
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from apmax import APLoss, PositiveBatchSampler, average_precision
from apmax.functional import ap_objective
from apmax.losses import CrossEntropy, Loss
from apmax.metrics import precision_recall_curve

PREVALENCE, BATCH, NUM_POS, STEPS, CHECK_EVERY = 0.02, 64, 4, 500, 20
Step = Callable[[nn.Module], Tensor]


@dataclass
class Cell:
    """One digit against the rest, in three parts of (features, labels)."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def make_cell(digit: int, seed: int) -> Cell:
    """Thin the digit to 2 % and cut the data, each class apart, 40/20/40."""
    images, digits = load_digits(return_X_y=True)
    features, is_digit = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(digits == digit)
    generator = torch.Generator().manual_seed(1000 * seed + digit)
    negatives, positives = (
        rows[torch.randperm(len(rows), generator=generator)]
        for rows in ((~is_digit).nonzero()[:, 0], is_digit.nonzero()[:, 0])
    )
    positives = positives[: round(len(negatives) * PREVALENCE / (1 - PREVALENCE))]
    parts = []
    for low, high in ((0, 0.4), (0.4, 0.6), (0.6, 1)):
        rows = torch.cat([kind[round(low * len(kind)) : round(high * len(kind))] for kind in (positives, negatives)])
        parts.append((features[rows], is_digit[rows].float()))
    return Cell(*parts)


def cross_entropy(cell: Cell, seed: int) -> Iterator[Step]:
    """Shuffled batches, binary cross-entropy."""
    features, labels = cell.train
    generator = torch.Generator().manual_seed(seed)
    while True:
        for rows in torch.randperm(len(labels), generator=generator).split(BATCH):
            yield lambda model, rows=rows: nn.functional.binary_cross_entropy_with_logits(
                model(features[rows])[:, 0], labels[rows]
            )


def exact_objective(cell: Cell, seed: int) -> Iterator[Step]:  # noqa: ARG001 - nothing is drawn
    """The exact objective over all training rows at every step."""
    features, labels = cell.train
    while True:
        yield lambda model: ap_objective(model(features), labels, "smooth_step")


def sampled(kind: type[Loss]) -> Callable[[Cell, int], Iterator[Step]]:
    """A loss of apmax on batches that each hold a few positives."""

    def steps(cell: Cell, seed: int) -> Iterator[Step]:
        features, labels = cell.train
        loss = kind(labels)
        sampler = PositiveBatchSampler(labels, batch_size=BATCH, num_pos=NUM_POS, seed=seed)
        for epoch in range(10**9):
            sampler.set_epoch(epoch)
            for batch in sampler:
                rows = torch.tensor(batch)
                yield lambda model, rows=rows: loss(model(features[rows]), labels[rows].unsqueeze(1), rows)

    return steps


METHODS = {
    "cross-entropy": cross_entropy,
    "… with the sampler": sampled(CrossEntropy),
    "exact AP objective": exact_objective,
    "APLoss (SOAP)": sampled(APLoss),
}


def train(cell: Cell, method: Callable[[Cell, int], Iterator[Step]], seed: int) -> Tensor:
    """Return the test scores of the network that was best on the validation part."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    steps, best, chosen = method(cell, seed), -1.0, model
    for number in range(1, STEPS + 1):
        optimizer.zero_grad()
        next(steps)(model).backward()
        optimizer.step()
        if number % CHECK_EVERY == 0:
            with torch.no_grad():
                reached = average_precision(model(cell.valid[0])[:, 0], cell.valid[1]).item()
            if reached > best:
                best, chosen = reached, copy.deepcopy(model)
    with torch.no_grad():
        return chosen(cell.test[0])[:, 0]


def show(console: Console, results: dict[str, list[float]]) -> None:
    """Print test AP with its spread, and each method's difference to cross-entropy over the same cells."""
    base = results["cross-entropy"]
    table = Table(title=f"Test average precision over {len(base)} cells (no skill: {PREVALENCE:.2f})")
    for column in ("method", "AP: mean ± std", "difference to cross-entropy", "cells won"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, values in results.items():
        row = [name, f"{mean(values):.3f} ± {stdev(values):.3f}", "", ""]
        if name != "cross-entropy":
            paired = [own - other for own, other in zip(values, base, strict=True)]
            row[2] = f"{mean(paired):+.3f} ± {stdev(paired) / len(paired) ** 0.5:.3f} (s.e.)"
            row[3] = f"{sum(d > 0 for d in paired)} of {len(paired)}"
        table.add_row(*row)
    console.print(table)


def draw(path: Path, curves: dict[str, list[tuple[Tensor, Tensor]]]) -> None:
    """Draw each method's precision over recall, averaged over the cells."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    grid = torch.linspace(0, 1, 201)
    for name, of_cells in curves.items():
        # The best precision at this recall or more: the curve as a reader would use it.
        lines = torch.stack([torch.stack([p[r >= x].max() for x in grid]) for p, r in of_cells])
        (line,) = axes.plot(grid, lines.mean(0), label=name, linewidth=2)
        spread = lines.std(0) / len(of_cells) ** 0.5
        axes.fill_between(grid, lines.mean(0) - spread, lines.mean(0) + spread, color=line.get_color(), alpha=0.15)
    axes.axhline(PREVALENCE, color="grey", linestyle="--", linewidth=1, label="no skill")
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02), title="Rare digits: mean test PR curve")
    axes.legend(frameon=False, loc="lower left")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Run all methods on all cells, print the table, draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cells instead of twenty")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture (default: out)")
    options = parser.parse_args()
    cells = [(digit, seed) for seed in range(1 if options.quick else 2) for digit in range(2 if options.quick else 10)]
    results: dict[str, list[float]] = {name: [] for name in METHODS}
    curves: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in METHODS}
    console = Console()
    # The network is so small that a second thread costs more than it brings.
    torch.set_num_threads(1)
    for digit, seed in track(cells, description="Training", console=console):
        cell = make_cell(digit, seed)
        for name, method in METHODS.items():
            scores = train(cell, method, seed)
            results[name].append(average_precision(scores, cell.test[1]).item())
            precision, recall, _ = precision_recall_curve(scores, cell.test[1])
            curves[name].append((precision, recall))
    show(console, results)
    picture = options.out / "demo_pr_curves.png"
    draw(picture, curves)
    console.print(f"Precision–recall curves: {picture}")


if __name__ == "__main__":
    main()
