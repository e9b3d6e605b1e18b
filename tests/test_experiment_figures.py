"""Figures show what there is, say what is missing and invent nothing."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from scipy import stats

from apmax.reproduce import curves, grid
from apmax.reproduce.drawing import spaced_out
from apmax.reproduce.figures import CURVES, dots, draw, is_drawn
from apmax.reproduce.summary import summarise
from small_results import history, runs

mpl.use("Agg")
NARROW = ("cifar10", "narrow")


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def summary(item, lines, **asked):
    return summarise(grid(), grid().items[item], lines, **asked)


def words(figure) -> str:
    """Return all that is written in a figure."""
    return "\n".join(text.get_text() for text in figure.findobj(mpl.text.Text))


def some(item):
    """Return a little of what an item needs: results and histories."""
    if item == "pr-curves":
        curve = [[0.0, 1.0], [0.5, 0.6], [1.0, 0.02]]
        return runs(*NARROW, "ce", {0: 0.5}, curve=curve), {}
    if item == "consistency":
        lines = runs(*NARROW, "soap_consistency", {0: 0.5, 1: 0.6})
        each = zip(lines.values(), ([-0.1, -0.2, -0.3], [-0.2, -0.3]), strict=True)
        return lines, {
            line["key"]: history(line, train_objective=values, train_ap=[-2 * v for v in values])
            for line, values in each
        }
    lines = runs(*NARROW, "soap", {0: 0.5, 1: 0.7})
    return lines, {line["key"]: history(line, test_auprc=[0.3, 0.4, 0.5]) for line in lines.values()}


@pytest.mark.parametrize("item", [*CURVES, "table6"])
def test_figure_of_partial_results_is_drawn_the_same_each_time(item, tmp_path):
    lines, histories = some(item) if item in CURVES else (runs("aicures", "gine", "soap", {"fold0": 0.5}), {})
    found = summary(item, lines)
    assert is_drawn(found, histories)
    (one,), (two,) = draw(found, tmp_path / "one", histories), draw(found, tmp_path / "two", histories)
    assert one.suffix == ".png"
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("item", grid().items)
def test_nothing_is_drawn_of_nothing(item, tmp_path):
    assert draw(summary(item, {}), tmp_path / "none", {}) == []
    assert not is_drawn(summary(item, {}), {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("item", ["convergence", "consistency", "pr-curves"])
def test_results_without_epochs_or_curves_draw_no_curves(item, tmp_path):
    lines = {**runs(*NARROW, "soap", {0: 0.5}), **runs(*NARROW, "soap_consistency", {0: 0.5})}
    assert draw(summary(item, lines), tmp_path / "none", {}) == []
    assert not is_drawn(summary(item, lines), {})


def test_dots_stand_at_the_means_and_diamonds_at_the_papers():
    lines = {
        **runs("aicures", "gine", "ce", {"fold0": 0.2, "fold1": 0.4}),
        **runs("aicures", "gine", "apmax", {"fold0": 0.5}),
        **runs("aicures", "mpnn", "soap", {"fold0": 0.8}),
    }
    # MinMaxLoss, of which nothing was run, has no line; SOAP has one, for the sake of the other network.
    figure = dots(summary("table6", lines, rows=["ce", "minmax", "soap", "apmax"]), {})
    axes, other = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["apmax (default recipe)", "SOAP", "CE"]
    assert axes.get_xlim() == other.get_xlim()
    marks = {line.get_marker(): [] for line in axes.lines}
    for line in axes.lines:
        marks[line.get_marker()] += [(round(float(x), 4), round(float(y), 2)) for x, y in line.get_xydata()]
    assert sorted(marks["o"]) == [(0.3, 2.0), (0.5, 0.0)]
    assert sorted(marks["D"]) == [(0.5037, 2.22), (0.6639, 1.22)]
    assert sorted(marks["|"]) == [(0.2, 2.0), (0.4, 2.0), (0.5, 0.0)]


def test_dots_say_what_was_not_run():
    lines = {**runs("aicures", "gine", "ce", {"fold0": 0.2}), **runs("aicures", "mpnn", "soap", {"fold0": 0.2})}
    figure = dots(summary("table6", lines, rows=["ce", "soap"]), {})
    assert "1 of 10" in words(figure)
    assert "not run" in words(figure)


def test_convergence_is_the_mean_over_the_epochs_that_all_runs_have():
    lines = runs(*NARROW, "soap", {0: 0.5, 1: 0.7})
    each = zip(lines.values(), ([0.1, 0.2, 0.9], [0.3, 0.6]), strict=True)
    histories = {line["key"]: history(line, test_auprc=values) for line, values in each}
    figure = curves.convergence(summary("convergence", lines), histories)
    (line,) = figure.axes[0].lines
    assert line.get_xydata().tolist() == [[1, pytest.approx(0.2)], [2, pytest.approx(0.4)]]
    assert "SOAP (2)" in words(figure)
    assert "not run: SmoothAP; FastAP; MinMax" in words(figure)


def test_run_whose_epochs_were_not_all_kept_is_left_out():
    lines = runs(*NARROW, "soap", {0: 0.5, 1: 0.7})
    each = zip(lines.values(), ([0.1, None], [0.3, 0.6]), strict=True)
    histories = {line["key"]: history(line, test_auprc=values) for line, values in each}
    figure = curves.convergence(summary("convergence", lines), histories)
    assert figure.axes[0].lines[0].get_ydata().tolist() == [0.3, 0.6]
    assert "SOAP (1)" in words(figure)


def test_batch_sizes_stand_at_the_sizes_that_the_grid_says():
    lines = {**runs(*NARROW, "soap_16", {0: 0.5}), **runs(*NARROW, "soap_512", {0: 0.6, 1: 0.8})}
    figure = curves.batch_sizes(summary("batch-size", lines), {})
    means = next(line for line in figure.axes[0].lines if line.get_marker() == "o")
    assert means.get_xydata().tolist() == [[16, 0.5], [512, pytest.approx(0.7)]]
    assert "SOAP, batch 1024" in words(figure)


def test_consistency_draws_ap_and_minus_the_objective_and_says_how_well_they_agree():
    figure = curves.consistency(summary("consistency", some("consistency")[0]), some("consistency")[1])
    left, right = (axes.lines[0].get_ydata() for axes in figure.axes)
    assert right.tolist() == pytest.approx([0.15, 0.25])
    assert left.tolist() == pytest.approx([0.3, 0.5])
    assert "rank correlation 1.00, 2 runs" in words(figure)


def test_no_skill_line_is_the_share_of_positives():
    lines, _ = some("pr-curves")
    figure = curves.precision_recall(summary("pr-curves", lines), {})
    grey = next(line for line in figure.axes[0].lines if line.get_color() == "grey")
    assert set(grey.get_ydata()) == {4 / 200}


def test_rank_correlation_is_spearmans():
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 9, 30).tolist(), generator.integers(0, 9, 30).tolist()
    got = curves.correlation(curves.ranks(a), curves.ranks(b))
    assert got == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


def test_labels_are_moved_apart_and_no_further_than_needed():
    generator = np.random.default_rng(1)
    for _ in range(200):
        places = generator.random(generator.integers(1, 8)).round(2).tolist()
        got = spaced_out(places, 0.06)
        order = sorted(range(len(places)), key=lambda k: (places[k], got[k]))
        gaps = np.diff([got[k] for k in order])
        assert (gaps >= 0.06 - 1e-9).all()
        assert sum(got) == pytest.approx(sum(places))
    assert spaced_out([0.1, 0.5, 0.9], 0.06) == [0.1, 0.5, 0.9]
