"""The look that the figures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Okabe and Ito's colours, which the colour-blind tell apart.
BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
BLACK, GREY = "#222222", "#767676"
PAPERS, OURS = BLUE, ORANGE


def tidy(axes: Any) -> None:
    """Take away what carries no number, and let faint lines lead the eye to the scale."""
    axes.grid(axis="both", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]], *, gap: float = 0.05) -> None:
    """Write each line's name beside its end, moved apart where they would overlap.

    Args:
        axes: The panel; its limits must stand.
        ends: Of each line x, y, name and colour.
        gap: The least distance between two names, as a share of the panel's height.
    """
    low, high = axes.get_ylim()
    placed = spaced_out([(y - low) / (high - low) for _, y, _, _ in ends], gap)
    for (x, y, name, colour), share in zip(ends, placed, strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=(1.02, share),
            textcoords="axes fraction",
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.6, "shrinkA": 0, "shrinkB": 0},
        )


def spaced_out(places: Sequence[float], gap: float) -> list[float]:
    """Return the places moved apart to at least `gap`, in their order, around where they were.

    >>> [round(place, 3) for place in spaced_out([0.5, 0.9, 0.5], 0.1)]
    [0.45, 0.9, 0.55]
    """
    # Neighbours that are too near form a group, which is set evenly around its mean; groups that then meet join.
    order = sorted(range(len(places)), key=lambda k: places[k])
    groups: list[list[int]] = []
    for k in order:
        groups.append([k])
        while len(groups) > 1 and start(groups[-1], places, gap) < end(groups[-2], places, gap) + gap - 1e-12:
            last = groups.pop()
            groups[-1] += last
    result = [0.0] * len(places)
    for group in groups:
        for number, k in enumerate(group):
            result[k] = start(group, places, gap) + number * gap
    return result


def start(group: Sequence[int], places: Sequence[float], gap: float) -> float:
    """Return the lowest place of a group that is set evenly around its mean."""
    return sum(places[k] for k in group) / len(group) - gap * (len(group) - 1) / 2


def end(group: Sequence[int], places: Sequence[float], gap: float) -> float:
    """Return its highest place."""
    return start(group, places, gap) + gap * (len(group) - 1)
