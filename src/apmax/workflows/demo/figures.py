"""Precision over recall, averaged over cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from apmax import extras
from apmax.workflows.demo.cells import TASKS

Curve = tuple[Tensor, Tensor]


def draw(path: Path, curves: Mapping[str, Mapping[str, Sequence[Curve]]]) -> None:
    """Draw a panel for each task: each method's mean curve with its standard error, and the no-skill line.

    Args:
        path: A picture file.
        curves: By task and method the (precision, recall) of every cell.
    """
    extras.load("matplotlib", "report").use("Agg")
    plt = extras.load("matplotlib.pyplot", "report")
    figure, panels = plt.subplots(
        1, len(curves), figsize=(5.2 * len(curves), 4.2), layout="constrained", sharey=True, squeeze=False
    )
    grid = torch.linspace(0, 1, 201)
    for axes, (task, methods) in zip(panels[0], curves.items(), strict=True):
        for name, of_cells in methods.items():
            # The best precision at this recall or more: the curve as a reader would use it.
            lines = torch.stack([torch.stack([p[r >= x].max() for x in grid]) for p, r in of_cells])
            (line,) = axes.plot(grid, lines.mean(0), label=name, linewidth=2)
            spread = lines.std(0) / len(of_cells) ** 0.5
            axes.fill_between(grid, lines.mean(0) - spread, lines.mean(0) + spread, color=line.get_color(), alpha=0.15)
        axes.axhline(TASKS[task].prevalence, color="grey", linestyle="--", linewidth=1, label="no skill")
        axes.set(xlabel="recall", xlim=(0, 1), ylim=(0, 1.02), title=f"{TASKS[task].title}: mean test curve")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("precision")
    panels[0][0].legend(frameon=False, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
