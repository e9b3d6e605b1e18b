"""Displays: their numbers against metrics and scipy, and what they draw."""

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

from apmax import metrics, plot
from apmax.committee.leaderboard import Leaderboard, LeaderboardRow
from apmax.metrics import Interval
from apmax.metrics.bands import precision_band

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    matplotlib.pyplot.close("all")


def sample(rows=500, seed=0):
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < 0.1).astype(int)
    return y, rng.normal(size=rows) + 1.5 * y


def test_the_curve_is_that_of_the_metrics_and_lies_in_its_band():
    y, scores = sample()
    display = plot.PrecisionRecallDisplay.from_predictions(y, scores).plot()
    curve = metrics.precision_recall_curve(scores, y)
    assert np.array_equal(display.precision[::-1], curve.precision[:-1].numpy())
    assert display.ap == metrics.average_precision_interval(scores, y)
    recall, low, high = display.band
    precision = display.precision[
        np.searchsorted(display.recall, np.maximum(recall, display.recall[display.recall > 0][0]) - 1e-12)
    ]
    assert ((low <= precision) & (precision <= high)).all()
    expected = precision_band(scores, y)
    assert (low.tolist(), high.tolist()) == (list(expected.low), list(expected.high))
    assert display.ax_.get_xlabel() == "recall"
    assert display.figure_ is display.ax_.figure


def test_two_curves_share_axes_and_one_line_of_no_skill():
    y, scores = sample()
    first = plot.PrecisionRecallDisplay.from_predictions(y, scores, name="a").plot()
    plot.PrecisionRecallDisplay.from_predictions(y, -scores, name="b").plot(first.ax_)
    labels = [text.get_text().split(":")[0] for text in first.ax_.get_legend().get_texts()]
    assert sorted(labels) == ["a", "b", "no skill"]


def test_displays_of_an_estimator_are_those_of_its_predictions():
    y, scores = sample()
    names = np.array(["no", "yes"])[y]
    model = LogisticRegression().fit(scores[:, None], names)
    curve = plot.PrecisionRecallDisplay.from_estimator(model, scores[:, None], names)
    assert curve.ap.estimate == pytest.approx(metrics.average_precision(scores, y).item())
    assert curve.name == "LogisticRegression"
    calibration = plot.CalibrationDisplay.from_estimator(model, scores[:, None], names)
    expected = plot.CalibrationDisplay.from_predictions(y, model.predict_proba(scores[:, None])[:, 1])
    assert np.array_equal(calibration.observed, expected.observed)


def test_calibration_bins_hold_all_rows_and_the_exact_intervals():
    y = np.repeat([0, 1, 0, 1], [40, 10, 20, 30])
    probability = np.repeat([0.2, 0.6], [50, 50])
    display = plot.CalibrationDisplay.from_predictions(y, probability, n_bins=2).plot()
    assert display.observed.tolist() == [0.2, 0.6]
    np.testing.assert_allclose(display.low, stats.beta.ppf(0.025, [10, 30], [41, 21]), rtol=1e-9)
    np.testing.assert_allclose(display.high, stats.beta.ppf(0.975, [11, 31], [40, 20]), rtol=1e-9)


def test_the_leaderboard_is_drawn_best_first():
    y, scores = sample()
    display = plot.LeaderboardDisplay.from_predictions(y, {"bad": -scores, "good": scores}).plot()
    assert [text.get_text() for text in display.ax_.get_yticklabels()] == ["good", "bad"]
    low, high = display.ax_.get_ylim()
    assert low > high


def test_the_blend_is_drawn_of_several_members_only():
    interval = Interval(0.5, 0.4, 0.6, 0.95)
    linear, trees, blend = (LeaderboardRow(name, interval, 1.0, 1.0) for name in ("linear", "trees", "blend"))
    for rows, names in (((linear,), ["linear"]), ((linear, trees), ["blend", "linear", "trees"])):
        assert plot.LeaderboardDisplay.from_leaderboard(Leaderboard(rows, blend, ())).plot().names == names


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="y_true must have a positive row"):
        plot.PrecisionRecallDisplay.from_predictions([0, 0], [1.0, 2.0])
    with pytest.raises(ValueError, match="y_prob must be 2 probabilities"):
        plot.CalibrationDisplay.from_predictions([0, 1], [0.5, 1.5])
    with pytest.raises(ValueError, match="estimator must be a fitted APEnsembleClassifier"):
        plot.LeaderboardDisplay.from_estimator(LogisticRegression())
