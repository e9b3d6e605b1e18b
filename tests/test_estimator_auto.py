"""loss="auto": which loss, and why."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from sklearn.model_selection import KFold

from apmax.estimator import APClassifier
from apmax.estimator.choosing import explain


def unfit_for_a_line(rows=1500, seed=0):
    """Return a table whose clearest positives cross-entropy gives up for many doubtful ones."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 2))
    return X, (X[:, 0] > 2) | ((X[:, 1] > 1) & (rng.random(rows) < 0.2))


def test_average_precision_is_chosen_where_a_line_cannot_fit():
    model = APClassifier(loss="auto").fit(*unfit_for_a_line())
    assert model.loss_ == "ap"
    assert model.loss_scores_["ap"].mean() > model.loss_scores_["ce"].mean()


def test_chosen_loss_is_what_is_fitted():
    X, y = unfit_for_a_line()
    chosen = APClassifier(loss="auto").fit(X, y)
    np.testing.assert_array_equal(chosen.coef_, APClassifier(loss=chosen.loss_).fit(X, y).coef_)


def test_ties_go_to_cross_entropy():
    X = np.arange(40.0)[:, None]
    model = APClassifier(loss="auto").fit(X, X[:, 0] >= 30)
    assert model.loss_ == "ce"
    assert model.loss_reason_.startswith("ce: mean average precision 1.0000 against 1.0000 with ap over 5 folds")


def test_scores_are_those_of_the_rows_left_out():
    X, y = unfit_for_a_line(400)
    cut = KFold(3)
    model = APClassifier(loss="auto", cv=cut).fit(X, y)
    for fold, (train, test) in enumerate(cut.split(X)):
        alone = APClassifier(loss="ce").fit(X[train], y[train])
        expected = average_precision_score(y[test], alone.decision_function(X[test]))
        assert model.loss_scores_["ce"][fold] == pytest.approx(expected, abs=1e-12)


def test_choice_is_reproducible():
    X, y = unfit_for_a_line(400)
    first, second = (APClassifier(loss="auto").fit(X, y) for _ in range(2))
    assert first.loss_reason_ == second.loss_reason_


def test_choice_is_said_aloud_when_verbose(capsys):
    model = APClassifier(loss="auto", verbose=1).fit(*unfit_for_a_line(400))
    assert capsys.readouterr().out == f"APClassifier(loss='auto') chose {model.loss_reason_}\n"


def test_nothing_is_said_otherwise(capsys):
    APClassifier(loss="auto").fit(*unfit_for_a_line(400))
    assert capsys.readouterr().out == ""


def test_single_positive_leaves_no_choice():
    X = np.arange(20.0)[:, None]
    model = APClassifier(loss="auto").fit(X, X[:, 0] == 19)
    assert (model.loss_, model.loss_scores_) == ("ce", {})
    assert "nothing to compare" in model.loss_reason_


def test_rare_positives_limit_the_folds():
    X = np.arange(40.0)[:, None]
    model = APClassifier(loss="auto").fit(X, X[:, 0] >= 37)
    assert len(model.loss_scores_["ap"]) == 3


def test_network_chooses_too():
    X, y = unfit_for_a_line(300)
    settings = {"solver": "adam", "hidden": (8,), "epochs": 2, "accelerator": "cpu", "random_state": 0, "cv": 2}
    model = APClassifier(loss="auto", **settings).fit(X, y)
    assert model.loss_ in ("ap", "ce")
    assert [*dict.fromkeys(r.stage for r in model.records_)] == (["ce"] if model.loss_ == "ce" else ["ce", "ap + ce"])


def test_difference_is_reported_from_the_winners_side():
    choice = explain({"ap": np.array([0.2, 0.4]), "ce": np.array([0.5, 0.5])})
    assert choice.loss == "ce"
    assert "difference +0.2000 ± 0.1000" in choice.reason
