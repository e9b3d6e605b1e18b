"""Figures of the explanation pages, computed with the library when the site is built.

A page has a line `<!-- figure: NAME: text for readers who do not see it -->`, with a name in `FIGURES`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from typing import Any

MARK = re.compile(r"^<!-- figure: ([\w-]+): (.+) -->$", re.MULTILINE)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def fill_figures(markdown: str, folder: Path) -> str:
    """Return a page with the marks of figures replaced by pictures, which are written into `folder`."""

    def picture(match: re.Match[str]) -> str:
        (folder / f"{match[1]}.svg").write_bytes(as_svg(match[1], FIGURES[match[1]]))
        return f"![{match[2]}]({match[1]}.svg)"

    return MARK.sub(picture, markdown)


def as_svg(name: str, draw: Callable[[Any], None], size: tuple[float, float] = (6.8, 3.2)) -> bytes:
    """Return a figure as SVG, the same bytes for the same figure.

    Args:
        name: Makes the ids within the file unique.
        draw: Draws into a `matplotlib` figure.
        size: Width and height in inches.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": name, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        target = io.BytesIO()
        figure.savefig(target, format="svg", metadata={"Date": None})
    return target.getvalue()


def draw_buckets(figure: Any) -> None:
    """Draw the default surrogate of three anchors over the line of scores, their knots, and examples in buckets."""
    import torch

    from apmax.surrogates import SURROGATES

    line, margin = torch.linspace(-2, 4.5, 600), 1.0
    anchors = torch.tensor([0.0, 0.9, 2.6])
    negatives = torch.tensor([-1.6, -0.7, -0.35, 0.2, 0.55, 1.3, 1.75, 2.2, 3.1])
    knots = (anchors.unsqueeze(1) + torch.tensor([-margin, 0.0, margin])).flatten().sort().values
    axes = figure.subplots()
    edges = [-2.0, *knots.tolist(), 4.5]
    for number, (left, right) in enumerate(pairwise(edges)):
        axes.axvspan(left, right, color="0.93" if number % 2 else "1", zorder=0)
    for number, (anchor, colour) in enumerate(zip(anchors, COLOURS, strict=False), 1):
        axes.plot(line, SURROGATES["smooth_step"](line - anchor, margin), color=colour, label=f"anchor {number}")
        axes.plot(anchor, -0.12, marker="v", color=colour, clip_on=False)
    axes.plot(negatives, torch.full_like(negatives, -0.12), "|", color="0.3", markersize=10, label="negatives")
    axes.set(xlabel="score s", ylabel="ℓ(s − score of the anchor)", xlim=(-2, 4.5), ylim=(-0.2, 1.05))
    axes.legend(loc="upper left", frameon=False)


def draw_memory(figure: Any) -> None:
    """Draw the estimated AP of fixed scores against the visits of each positive, for three values of gamma."""
    import torch

    from apmax import APLoss
    from apmax.functional import ap_objective

    generator = torch.Generator().manual_seed(0)
    rows, positives, visits = 2000, 20, 30
    labels = (torch.arange(rows) < positives).double()
    scores = torch.randn(rows, generator=generator, dtype=torch.float64) + 1.5 * labels
    axes = figure.subplots()
    for gamma, colour in zip((1.0, 0.5, 0.1), COLOURS, strict=False):
        loss = APLoss(labels, gamma=gamma)
        values = []
        for _ in range(visits):
            for pair in torch.randperm(positives, generator=generator).split(2):
                negatives = torch.randperm(rows - positives, generator=generator)[:30] + positives
                batch = torch.cat([pair, negatives])
                loss(scores[batch], labels[batch], batch)
            values.append(_estimated_ap(loss))
        axes.plot(range(1, visits + 1), values, color=colour, label=f"γ = {gamma:g}")
    axes.axhline(-ap_objective(scores, labels).item(), color="0.4", linestyle="--", label="exact objective")
    axes.set(xlabel="visits of each positive", ylabel="estimated AP", ylim=(0, None))
    axes.legend(frameon=False, ncols=4, loc="lower right")


def _estimated_ap(loss: Any) -> float:
    """Return the mean of u¹/u² over the positives that a loss has seen."""
    visited = loss.u[loss.u[:, 1] > 0].double()
    return float((visited[:, 0] / visited[:, 1]).mean())


def draw_prevalence(figure: Any) -> None:
    """Draw the mean value of `APLoss` against the positives in a batch of 64, with and without the correction."""
    import torch

    from apmax import APLoss, PositiveBatchSampler
    from apmax.functional import ap_objective

    generator = torch.Generator().manual_seed(0)
    rows, positives = 10_000, 100
    labels = (torch.arange(rows) < positives).double()
    scores = torch.randn(rows, generator=generator, dtype=torch.float64) + 1.5 * labels
    counts = (1, 2, 4, 8, 16, 32)
    axes = figure.subplots()
    for prevalence, colour, name in (
        (None, COLOURS[0], "corrected (default)"),
        ("batch", COLOURS[1], 'prevalence="batch"'),
    ):
        values = []
        for count in counts:
            loss = APLoss(labels, prevalence=prevalence, gamma=0.1)
            sampler = PositiveBatchSampler(labels, batch_size=64, num_pos=count, seed=0)
            for batch in islice(chain.from_iterable(repeat(sampler)), 20 * positives // count):
                index = torch.as_tensor(batch)
                loss(scores[index], labels[index], index)
            values.append(_estimated_ap(loss))
        axes.plot(counts, values, "o-", color=colour, label=name)
    axes.axhline(
        -ap_objective(scores, labels).item(), color="0.4", linestyle="--", label="AP objective of the training set"
    )
    axes.set(xlabel="positives in a batch of 64", ylabel="estimated AP", xscale="log", ylim=(0, 1))
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.legend(frameon=False)


FIGURES: dict[str, Callable[[Any], None]] = {
    "exact-buckets": draw_buckets,
    "estimator-memory": draw_memory,
    "prevalence-correction": draw_prevalence,
}
