"""A picture of a search: every trial as a line through its settings, and how much each setting mattered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apmax import extras
from apmax.workflows.tuning.outcome import Best
from apmax.workflows.tuning.spaces import Space


def draw(path: Path, best: Best, space: Space) -> None:
    """Draw parallel coordinates, coloured by validation AP, above the settings' importances."""
    extras.load("matplotlib", "report").use("Agg")
    plt = extras.load("matplotlib.pyplot", "report")
    figure, (lines, bars) = plt.subplots(
        2, 1, figsize=(max(7.0, 1.7 * (len(space) + 1)), 7), layout="constrained", height_ratios=(3, 1.6)
    )
    values = [value for _, value, _ in best.trials]
    low, high = min(values), max(values)
    colours = plt.get_cmap("viridis")
    for _, value, settings in reversed(best.trials):  # the best on top
        share = (value - low) / (high - low) if high > low else 1.0
        heights = [place(settings[name], space[name]) for name in space] + [share]
        lines.plot(range(len(heights)), heights, color=colours(share), alpha=0.25 + 0.75 * share, linewidth=1.5)
    for number, name in enumerate(space):
        lines.axvline(number, color="grey", linewidth=0.5)
        for value in space[name]:
            lines.annotate(
                str(value), (number, place(value, space[name])), fontsize=8, xytext=(3, 2), textcoords="offset points"
            )
    lines.axvline(len(space), color="grey", linewidth=0.5)
    for share, value in ((0, low), (1, high)):
        lines.annotate(f"{value:.3f}", (len(space), share), fontsize=8, xytext=(3, 2), textcoords="offset points")
    lines.set_xticks(range(len(space) + 1), [*(short(name) for name in space), "validation AP"], fontsize=9)
    lines.set(ylim=(-0.05, 1.1), yticks=[], title=f"{len(best.trials)} finished trials")
    lines.spines[["top", "right", "left", "bottom"]].set_visible(False)
    ordered = sorted(best.importance.items(), key=lambda each: each[1])
    bars.barh([short(name) for name, _ in ordered], [share for _, share in ordered], color="tab:blue")
    bars.set(title="How much each setting mattered" if ordered else "Too few trials to tell what mattered", xlim=(0, 1))
    bars.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def place(value: Any, values: tuple[Any, ...]) -> float:
    """Return a value's height between 0 and 1 among the values of its setting."""
    return values.index(value) / max(1, len(values) - 1)


def short(path: str) -> str:
    """Return the end of a path, with its loss where it is an option of one.

    >>> short("stages.1.options.ap.gamma"), short("stages.1.lr")
    ('ap.gamma', 'lr')
    """
    keys = path.split(".")
    return ".".join(keys[-2:]) if "options" in keys else keys[-1]
