"""Figures of partial results: they show the finished runs and name the missing ones."""

from __future__ import annotations

from functools import partial

import matplotlib as mpl
import numpy as np
import pytest
from scipy import stats

from apmax.reproduce import load_grid
from apmax.reproduce.pages import figures, has_figure
from apmax.reproduce.pages.summary import rank_correlation
from small_experiments import TINY_CELL, epoch_values, result_lines, summarise


def words(figure) -> str:
    """Return all texts of a figure."""
    return "\n".join(text.get_text() for text in figure.findobj(mpl.text.Text))


def test_drawing_leaves_the_backend_of_the_session(tmp_path, request):
    request.addfinalizer(partial(mpl.use, mpl.get_backend()))
    mpl.use("svg")
    lines = result_lines("aicures", "gine", "ce", {"fold0": 0.2})
    assert figures.draw_item(summarise("table6", lines, rows=["ce", "soap"]), tmp_path / "a", {})
    assert mpl.get_backend() == "svg"


def partial_results(item):
    """Return some results and histories of an item."""
    if item == "pr-curves":
        curve = [[0.0, 1.0], [0.5, 0.6], [1.0, 0.02]]
        return result_lines(*TINY_CELL, "ce", {0: 0.5}, curve=curve), {}
    if item == "consistency":
        lines = result_lines(*TINY_CELL, "soap_consistency", {0: 0.5, 1: 0.6})
        each = zip(lines.values(), ([-0.1, -0.2, -0.3], [-0.2, -0.3]), strict=True)
        return lines, {
            line["key"]: epoch_values(line, train_objective=values, train_ap=[-2 * v for v in values])
            for line, values in each
        }
    lines = result_lines(*TINY_CELL, "soap", {0: 0.5, 1: 0.7})
    return lines, {line["key"]: epoch_values(line, test_auprc=[0.3, 0.4, 0.5]) for line in lines.values()}


@pytest.mark.parametrize("item", [*figures.CURVE_FIGURES, "table6"])
def test_figure_of_partial_results_is_drawn_the_same_each_time(item, tmp_path):
    lines, histories = (
        partial_results(item)
        if item in figures.CURVE_FIGURES
        else (result_lines("aicures", "gine", "soap", {"fold0": 0.5}), {})
    )
    found = summarise(item, lines)
    assert has_figure(found, histories)
    (one,), (two,) = (
        figures.draw_item(found, tmp_path / "one", histories),
        figures.draw_item(found, tmp_path / "two", histories),
    )
    assert one.suffix == ".png"
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("item", load_grid().items)
def test_item_without_results_has_no_figure(item, tmp_path):
    assert figures.draw_item(summarise(item, {}), tmp_path / "none", {}) == []
    assert not has_figure(summarise(item, {}), {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("item", ["convergence", "consistency", "pr-curves"])
def test_results_without_epochs_or_curves_draw_no_curves(item, tmp_path):
    lines = {**result_lines(*TINY_CELL, "soap", {0: 0.5}), **result_lines(*TINY_CELL, "soap_consistency", {0: 0.5})}
    assert figures.draw_item(summarise(item, lines), tmp_path / "none", {}) == []
    assert not has_figure(summarise(item, lines), {})


def test_dots_stand_at_the_means_and_diamonds_at_the_papers():
    lines = {
        **result_lines("aicures", "gine", "ce", {"fold0": 0.2, "fold1": 0.4}),
        **result_lines("aicures", "gine", "apmax", {"fold0": 0.5}),
        **result_lines("aicures", "mpnn", "soap", {"fold0": 0.8}),
    }
    # MinMax has no run and no line; SOAP has a line because of the other network.
    figure = figures.draw_figure(summarise("table6", lines, rows=["ce", "minmax", "soap", "apmax"]), {})
    axes, other = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["apmax (default recipe)", "SOAP", "CE"]
    assert axes.get_xlim() == other.get_xlim()
    marks = {line.get_marker(): [] for line in axes.lines}
    for line in axes.lines:
        marks[line.get_marker()] += [(round(float(x), 4), round(float(y), 2)) for x, y in line.get_xydata()]
    assert sorted(marks["o"]) == [(0.3, 2.0), (0.5, 0.0)]
    assert sorted(marks["D"]) == [(0.5037, 2.22), (0.6639, 1.22)]
    assert sorted(marks["|"]) == [(0.2, 2.0), (0.4, 2.0), (0.5, 0.0)]


def test_dots_name_missing_runs():
    lines = {
        **result_lines("aicures", "gine", "ce", {"fold0": 0.2}),
        **result_lines("aicures", "mpnn", "soap", {"fold0": 0.2}),
    }
    figure = figures.draw_figure(summarise("table6", lines, rows=["ce", "soap"]), {})
    assert "1 of 10" in words(figure)
    assert "not run" in words(figure)


def test_convergence_is_the_mean_over_the_epochs_that_all_runs_have():
    lines = result_lines(*TINY_CELL, "soap", {0: 0.5, 1: 0.7})
    each = zip(lines.values(), ([0.1, 0.2, 0.9], [0.3, 0.6]), strict=True)
    histories = {line["key"]: epoch_values(line, test_auprc=values) for line, values in each}
    figure = figures.draw_figure(summarise("convergence", lines), histories)
    (line,) = figure.axes[0].lines
    assert line.get_xydata().tolist() == [[1, pytest.approx(0.2)], [2, pytest.approx(0.4)]]
    assert "SOAP (2)" in words(figure)
    assert "not run: SmoothAP; FastAP; MinMax" in words(figure)


def test_run_whose_epochs_were_not_all_kept_is_left_out():
    lines = result_lines(*TINY_CELL, "soap", {0: 0.5, 1: 0.7})
    each = zip(lines.values(), ([0.1, None], [0.3, 0.6]), strict=True)
    histories = {line["key"]: epoch_values(line, test_auprc=values) for line, values in each}
    figure = figures.draw_figure(summarise("convergence", lines), histories)
    assert figure.axes[0].lines[0].get_ydata().tolist() == [0.3, 0.6]
    assert "SOAP (1)" in words(figure)


def test_batch_sizes_stand_at_the_sizes_that_the_grid_says():
    lines = {**result_lines(*TINY_CELL, "soap_16", {0: 0.5}), **result_lines(*TINY_CELL, "soap_512", {0: 0.6, 1: 0.8})}
    figure = figures.draw_figure(summarise("batch-size", lines), {})
    means = next(line for line in figure.axes[0].lines if line.get_marker() == "o")
    assert means.get_xydata().tolist() == [[16, 0.5], [512, pytest.approx(0.7)]]
    assert "SOAP, batch 1024" in words(figure)


def test_consistency_draws_ap_and_minus_the_objective_and_says_how_well_they_agree():
    figure = figures.draw_figure(
        summarise("consistency", partial_results("consistency")[0]), partial_results("consistency")[1]
    )
    left, right = (axes.lines[0].get_ydata() for axes in figure.axes)
    assert right.tolist() == pytest.approx([0.15, 0.25])
    assert left.tolist() == pytest.approx([0.3, 0.5])
    assert "rank correlation 1.00, 2 runs" in words(figure)


def test_no_skill_line_is_the_share_of_positives():
    lines, _ = partial_results("pr-curves")
    figure = figures.draw_figure(summarise("pr-curves", lines), {})
    grey = next(line for line in figure.axes[0].lines if line.get_color() == "grey")
    assert set(grey.get_ydata()) == {4 / 200}


def test_rank_correlation_is_spearmans():
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 9, 30).tolist(), generator.integers(0, 9, 30).tolist()
    got = rank_correlation(a, b)
    assert got == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


def test_labels_are_moved_apart_and_no_further_than_needed():
    generator = np.random.default_rng(1)
    for _ in range(200):
        places = generator.random(generator.integers(1, 8)).round(2).tolist()
        got = figures.spread_out(places, 0.06)
        order = sorted(range(len(places)), key=lambda k: (places[k], got[k]))
        gaps = np.diff([got[k] for k in order])
        assert (gaps >= 0.06 - 1e-9).all()
        assert sum(got) == pytest.approx(sum(places))
    assert figures.spread_out([0.1, 0.5, 0.9], 0.06) == [0.1, 0.5, 0.9]
