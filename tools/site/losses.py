"""Generated parts of the pages of losses: tables of cost and pictures of gradients.

A page has the lines `<!-- cost: ap -->` and `<!-- gradient: ap -->`, with the key of the loss in `LOSSES`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tools.site.figures import COLOURS, as_svg

COSTS = Path(__file__).parents[2] / "results" / "losses" / "costs.json"
COST = re.compile(r"^<!-- cost: (\w+) -->$", re.MULTILINE)
GRADIENT = re.compile(r"^<!-- gradient: (\w+) -->$", re.MULTILINE)
NEGATIVES, POSITIVES = 200, 10


def fill_costs(markdown: str) -> str:
    """Return a page with the mark of costs replaced by the measured table."""
    return COST.sub(lambda match: cost_table(match[1]), markdown)


def cost_table(key: str) -> str:
    """Return the measured cost of a loss as a table in Markdown."""
    table = json.loads(COSTS.read_text(encoding="utf-8"))
    rows = [row for row in table["rows"] if row["loss"] == key]
    if not rows:
        raise ValueError(f"{COSTS} has no row of the loss {key!r}; run: python -m benchmarks.speed.loss_costs")
    lines = ["| batch | time of a step / `BCEWithLogitsLoss` | extra memory |", "|---|---:|---:|"]
    for row in rows:
        size = f"{row['positives']:,} positives in {row['examples']:,}"
        lines.append(f"| {size} | {float(format(row['time'], '.2g')):,g} | {_memory(row['mebibytes'])} |")
    source = f"torch {table['torch']}, one thread: `python -m benchmarks.speed.loss_costs`"
    return "\n".join(lines) + f"\n\nForward and backward pass with checks, measured in one run ({source})."


def _memory(mebibytes: float) -> str:
    """Return a size in a readable unit.

    >>> _memory(0.5), _memory(1.26), _memory(1020.3)
    ('512 KiB', '1.3 MiB', '1,020 MiB')
    """
    if mebibytes < 1:
        return f"{mebibytes * 1024:.3g} KiB"
    return f"{mebibytes:.1f} MiB" if mebibytes < 10 else f"{mebibytes:,.0f} MiB"


def fill_gradients(markdown: str, folder: Path) -> str:
    """Return a page with the mark of a gradient replaced by a picture, which is written into `folder`."""

    def picture(match: re.Match[str]) -> str:
        (folder / f"{match[1]}-gradient.svg").write_bytes(gradient_picture(match[1]))
        return f"![Gradient of the loss by the score]({match[1]}-gradient.svg)"

    return GRADIENT.sub(picture, markdown)


def gradients(key: str) -> tuple[Any, Any, Any]:
    """Return scores, labels and the gradient of a loss for a batch of 200 negatives and 10 positives.

    Scores are spread evenly over [-4, 4] (negatives) and [-2, 3.5] (positives). Parameters of min-max losses are where
    a hundred steps of gradient descent and ascent on this batch leave them.
    """
    import torch

    from apmax.losses import LOSSES
    from apmax.optim import param_groups

    labels = torch.cat([torch.zeros(NEGATIVES), torch.ones(POSITIVES)])
    scores = torch.cat([torch.linspace(-4, 4, NEGATIVES), torch.linspace(-2, 3.5, POSITIVES)]).requires_grad_()
    loss = LOSSES[key](labels)
    rows = torch.arange(len(labels))
    if loss.ascend:
        optimizer = torch.optim.Adam(param_groups(torch.nn.Identity(), loss, lr=0.05), lr=0.05)
        for _ in range(100):
            optimizer.zero_grad()
            loss(scores.detach(), labels, rows).backward()
            optimizer.step()
    loss(scores, labels, rows).backward()
    return scores.detach().numpy(), labels.numpy(), scores.grad.numpy()  # type: ignore[union-attr]


def gradient_picture(key: str) -> bytes:
    """Return the picture of a gradient as SVG: minus the gradient of every example, by its score."""
    scores, labels, slope = gradients(key)

    def draw(figure: Any) -> None:
        parts = ((1, "positives", COLOURS[1]), (0, "negatives", COLOURS[0]))
        for axes, (value, name, colour) in zip(figure.subplots(1, 2), parts, strict=True):
            chosen = labels == value
            axes.axhline(0, color="0.8", linewidth=0.8)
            axes.plot(scores[chosen], -slope[chosen], ".-", color=colour, markersize=4, linewidth=0.8)
            axes.set(title=name, xlabel="score", ylabel="− gradient")
            axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))

    return as_svg(f"gradient-{key}", draw, size=(6.8, 2.8))
