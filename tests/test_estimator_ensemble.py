"""`APEnsembleClassifier`: scikit-learn's contract around a committee."""

from __future__ import annotations

import joblib
import numpy as np
import pytest

pytest.importorskip("lightgbm")

from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.ensemble import StackingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GroupKFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

from apmax.estimator import APEnsembleClassifier, ensemble
from apmax.metrics import average_precision


def table(seed: int = 0, rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < 0.15).astype(int)
    X = rng.normal(size=(rows, 3))
    X[:, 0] += 1.5 * y
    return X, y


@pytest.mark.slow
@parametrize_with_checks([APEnsembleClassifier(["linear", "linear_ce"], cv=2, random_state=0)])
def test_linear_committee_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tree_committee_passes_the_checks_but_weight_equivalence():
    from sklearn.utils.estimator_checks import check_estimator

    model = APEnsembleClassifier(["gbdt", "forest", "trees", "linear"], cv=2, random_state=0)
    results = check_estimator(model, on_fail=None, on_skip=None)
    failed = {result["check_name"] for result in results if result["status"] == "failed"}
    # Bootstrap samples and random splits of a forest depend on repeated rows, by scikit-learn's own account.
    assert failed <= {"check_sample_weight_equivalence_on_dense_data"}


def test_it_ranks_new_rows_and_says_how_the_members_did():
    X, y = table(1, 600)
    model = APEnsembleClassifier(["gbdt", "linear"], random_state=0).fit(X[:300], y[:300])
    assert average_precision(model.decision_function(X[300:]), y[300:]).item() > 0.35
    assert sum(model.weights_.values()) == pytest.approx(1)
    assert {row.name for row in model.leaderboard_.rows} == {"gbdt", "linear"}


def test_own_estimators_are_members_like_any_other():
    X, y = table(2)
    model = APEnsembleClassifier([("logistic", LogisticRegression()), "linear"], cv=3, random_state=0).fit(X, y)
    assert set(model.weights_) == {"logistic", "linear"}
    assert model.predict_proba(X).sum(1) == pytest.approx(1)


def test_data_frame_of_texts_and_numbers():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    color = rng.choice(["red", "green", "blue"], size=400)
    y = np.where((color == "blue") & (rng.random(400) < 0.7), "yes", "no")
    X = pd.DataFrame({"color": color, "x": rng.normal(size=400)})
    model = APEnsembleClassifier(["gbdt", "linear"], cv=3, random_state=0).fit(X, y)
    assert model.feature_names_in_.tolist() == ["color", "x"]
    assert average_precision(model.predict_proba(X)[:, 1], (y == "yes").astype(int)).item() > 0.5
    with pytest.raises(ValueError, match="X must be a data frame with the columns of training"):
        model.predict(np.zeros((2, 2)))


def test_splitters_of_scikit_learn_and_groups():
    X, y = table(3)
    groups = np.arange(300) // 10
    by_number = APEnsembleClassifier(["linear"], cv=3, random_state=0).fit(X, y, groups=groups)
    by_splitter = APEnsembleClassifier(["linear"], cv=GroupKFold(3), random_state=0).fit(X, y, groups=groups)
    stratified = APEnsembleClassifier(["linear"], cv=StratifiedKFold(4), random_state=0).fit(X, y)
    assert [len(model.committee_.folds) for model in (by_number, by_splitter, stratified)] == [3, 3, 4]


def test_pos_label_turns_the_ranking_around():
    X, y = table(4)
    first = APEnsembleClassifier(["linear_ce"], cv=2, pos_label=0, random_state=0).fit(X, y)
    second = APEnsembleClassifier(["linear_ce"], cv=2, random_state=0).fit(X, y)
    assert np.corrcoef(first.decision_function(X), second.decision_function(X))[0, 1] > 0.99


def test_rows_of_weight_zero_are_left_out():
    X, y = table(5)
    weight = np.ones(300)
    weight[:50] = 0
    folds = [(np.arange(50, 200), np.arange(200, 300)), (np.arange(200, 300), np.arange(50, 200))]
    own = [(train - 50, test - 50) for train, test in folds]
    weighted = APEnsembleClassifier(["linear"], cv=folds, random_state=0).fit(X, y, sample_weight=weight)
    without = APEnsembleClassifier(["linear"], cv=own, random_state=0).fit(X[50:], y[50:])
    assert weighted.decision_function(X) == pytest.approx(without.decision_function(X))


@pytest.mark.parametrize(
    ("settings", "y", "message"),
    [
        ({"members": ["gbtd"]}, [0, 1] * 10, "members"),
        ({"cv": 1}, [0, 1] * 10, "cv must be at least 2"),
        ({"pos_label": 7}, [0, 1] * 10, "pos_label must be one of"),
        ({}, [0] * 19 + [1], "two rows of each class"),
        ({}, [0] * 20, "one class only"),
        ({"members": "linear"}, [0, 1] * 10, "members must be a list of names and of pairs .* got 'linear'"),
        (
            {"members": [LogisticRegression()]},
            [0, 1] * 10,
            r"members must be names and pairs .* got LogisticRegression",
        ),
        ({"members": [("a", LogisticRegression(), 1)]}, [0, 1] * 10, "members must be names and pairs"),
        ({"members": [("a", LinearRegression())]}, [0, 1] * 10, "LinearRegression has neither decision_function nor"),
        ({"n_jobs": 0}, [0, 1] * 10, "n_jobs == 0 .* has no meaning"),
    ],
)
def test_wrong_settings_are_named(settings, y, message):
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises((ValueError, TypeError), match=message):
        APEnsembleClassifier(**{"members": ["linear"], **settings}).fit(X, y)


@pytest.mark.parametrize(("n_jobs", "expected"), [(None, 1), (2, 2), (-1, joblib.cpu_count())])
def test_n_jobs_has_the_meaning_of_scikit_learn(n_jobs, expected, monkeypatch):
    given = []
    monkeypatch.setattr(ensemble, "fit_committee", lambda *_, n_jobs, **__: given.append(n_jobs))
    with pytest.raises(AttributeError):  # of the result
        APEnsembleClassifier(["linear"], n_jobs=n_jobs).fit(*table())
    assert given == [expected]


def test_folds_of_cv_none_are_stratified():
    X, y = table()
    order = np.argsort(y)
    model = APEnsembleClassifier(["linear"], cv=None, random_state=0).fit(X[order], y[order])
    again = APEnsembleClassifier(["linear"], cv=StratifiedKFold(5), random_state=0).fit(X[order], y[order])
    assert np.array_equal(model.decision_function(X), again.decision_function(X))


def test_an_estimator_of_estimators_is_a_member():
    X, y = table()
    stacking = StackingClassifier([("a", LogisticRegression())], cv=2)  # it has predict_proba once it is fitted
    assert APEnsembleClassifier([("stack", stacking)], cv=2, random_state=0).fit(X, y).weights_ == {"stack": 1.0}


def test_a_failed_fit_leaves_a_fitted_committee_as_it_was():
    X, y = table(6)
    model = APEnsembleClassifier(["linear", "linear_ce"], cv=2, random_state=0).fit(X, y)
    fitted, scores = dict(vars(model)), model.decision_function(X)
    one_positive = np.arange(300) == 7
    with pytest.raises(ValueError, match="two rows of each class"):
        model.set_params(pos_label="a").fit(np.hstack([X, X]), np.where(one_positive, "a", "b"))
    assert vars(model) == {**fitted, "pos_label": "a"}
    assert np.array_equal(model.decision_function(X), scores)
    pd = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="two rows of each class"):
        model.fit(pd.DataFrame({"color": ["red", "blue"] * 150, "x": X[:, 0]}), np.where(one_positive, "a", "b"))
    assert vars(model) == {**fitted, "pos_label": "a"}
    assert np.array_equal(model.decision_function(X), scores)


@pytest.mark.parametrize("groups", [np.arange(309) // 3, np.arange(291) // 3, np.zeros((300, 2))])
@pytest.mark.parametrize("cv", [3, GroupKFold(3)])
def test_groups_of_other_rows_are_refused(groups, cv):
    X, y = table(3)
    with pytest.raises(ValueError, match=r"groups must have one entry per row, shape \(300,\), got \("):
        APEnsembleClassifier(["linear"], cv=cv, random_state=0).fit(X, y, groups=groups)


def mixed_frame(rows: int = 300):
    """Return a data frame of numbers, texts, categories and dates, and labels that depend on two of the columns."""
    pd = pytest.importorskip("pandas")
    X, y = table(7, rows)
    rng = np.random.default_rng(8)
    city = np.where((y == 1) & (rng.random(rows) < 0.7), "Rome", rng.choice(["Paris", "Quito"], rows))
    frame = pd.DataFrame({"x": X[:, 0], "city": city, "z": X[:, 1]}, index=np.arange(rows) + 1000)
    frame["kind"] = pd.Categorical(rng.choice(["u", "v"], rows))
    frame["day"] = pd.date_range("2020-01-01", periods=rows)
    return frame, y


def by_name(*texts: str, numbers: str):
    """Return a pipeline that selects columns of texts and one of numbers by their names."""
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), list(texts)), ("passthrough", [numbers]))
    return make_pipeline(columns, LogisticRegression())


def test_values_that_cannot_be_read_are_warned_of_and_new_categories_are_not(recwarn):
    X, y = mixed_frame()
    model = APEnsembleClassifier(["linear"], cv=2, random_state=0).fit(X, y)
    model.decision_function(X.assign(city="elsewhere"))
    assert not recwarn.list
    with pytest.warns(UserWarning, match="column 'x': 300 of 300 values could not be read .*: 'large'"):
        model.predict_proba(X.assign(x="large"))


def test_columns_that_are_left_out_are_warned_of_unless_they_are_constant(recwarn):
    pd = pytest.importorskip("pandas")
    X, y = mixed_frame()
    APEnsembleClassifier(["linear"], cv=2, random_state=0).fit(X.assign(same="a", none=None), y)
    assert not recwarn.list
    more = {"age": pd.cut(X["x"], 3), "wait": pd.to_timedelta(np.arange(300), unit="h"), "name": X.index.astype(str)}
    with pytest.warns(
        UserWarning, match=r"^columns are left out: 'age' \(of type .*interval.* not supported\);"
    ) as found:
        APEnsembleClassifier(["linear"], cv=2, random_state=0).fit(X.assign(**more), y)
    assert found[0].filename == __file__
    assert "'wait' (of type duration" in str(found[0].message)
    own = ("logistic", by_name("city", "kind", numbers="x"))
    recwarn.clear()
    APEnsembleClassifier([own], cv=2, random_state=0).fit(X.assign(**more), y)
    assert not recwarn.list


class FrameWatcher(ClassifierMixin, BaseEstimator):
    """A classifier that only reads one form of rows, and ranks by a column."""

    def __init__(self, form=None, column="x"):
        self.form = form
        self.column = column

    def fit(self, X, y):
        assert type(X) is self.form
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X):
        assert type(X) is self.form
        return np.asarray(X[self.column], float)


@pytest.mark.parametrize("others", [[], ["linear", "gbdt"]])
def test_own_estimators_read_the_columns_of_a_mixed_frame_by_name(others):
    X, y = mixed_frame()
    model = APEnsembleClassifier([("own", by_name("city", "kind", numbers="x")), *others], cv=3, random_state=0)
    weight = np.ones(300)
    weight[:30] = 0
    scores = model.fit(X, y, sample_weight=weight).decision_function(X)
    assert average_precision(model.committee_.score(X, member="own"), y).item() > 0.6
    assert np.array_equal(model.decision_function(X[:7]), scores[:7])
    if others:
        # The other members are those of a committee without it.
        alone = APEnsembleClassifier(others, cv=3, random_state=0).fit(X, y, sample_weight=weight)
        assert np.array_equal(model.committee_.score(X, member="gbdt"), alone.committee_.score(X, member="gbdt"))


def test_own_estimators_read_the_columns_of_a_frame_of_numbers_by_name():
    pd = pytest.importorskip("pandas")
    X, y = table(9)
    frame = pd.DataFrame(X, columns=["x", "y", "z"], index=np.arange(300) + 5)
    own = make_pipeline(make_column_transformer(("passthrough", ["x", "z"])), LogisticRegression())
    model = APEnsembleClassifier(["linear", ("own", own)], cv=3, random_state=0).fit(frame, y)
    by_place = make_pipeline(make_column_transformer(("passthrough", [0, 2])), LogisticRegression())
    expected = APEnsembleClassifier(["linear", ("own", by_place)], cv=3, random_state=0).fit(X, y)
    assert model.decision_function(frame) == pytest.approx(expected.decision_function(X))


@pytest.mark.parametrize("mixed", [False, True])
def test_own_estimators_get_the_frame_itself_in_fits_and_scores(mixed):
    pd = pytest.importorskip("pandas")
    X, y = mixed_frame()
    X = X if mixed else X[["x", "z"]]
    model = APEnsembleClassifier(["linear", ("own", FrameWatcher(pd.DataFrame))], cv=2, random_state=0).fit(X, y)
    assert np.isfinite(model.committee_.score(X, member="own")).all()
    assert np.isfinite(model.decision_function(X)).all()


@pytest.mark.parametrize("mixed", [False, True])
def test_frames_of_polars(mixed):
    polars = pytest.importorskip("polars")
    X, y = mixed_frame()
    X = X if mixed else X[["x", "z"]]
    members = ["linear", "gbdt", ("own", FrameWatcher(polars.DataFrame))]
    frame = polars.DataFrame({name: X[name].tolist() for name in X})
    if mixed:
        frame = frame.with_columns(polars.col("kind").cast(polars.Categorical))
    model = APEnsembleClassifier(members, cv=2, random_state=0).fit(frame, y)
    assert np.isfinite(model.committee_.score(frame, member="own")).all()
    expected = APEnsembleClassifier(members[:2], cv=2, random_state=0).fit(X, y)
    for name in members[:2]:
        assert np.array_equal(model.committee_.score(frame, member=name), expected.committee_.score(X, member=name))


def test_arrays_reach_own_estimators_as_arrays():
    X, y = table(2)
    watcher = FrameWatcher(np.ndarray, column=(slice(None), 0))
    model = APEnsembleClassifier([("own", watcher), "linear"], cv=2, random_state=0).fit(X.tolist(), y)
    assert np.isfinite(model.decision_function(X.tolist())).all()


@pytest.mark.parametrize("members", [["linear", "gbdt"], ["linear", ("own", by_name("city", numbers="x"))]])
def test_other_columns_than_those_of_training_are_named(members):
    X, y = mixed_frame()
    model = APEnsembleClassifier(members, cv=2, random_state=0).fit(X, y)
    for other, message in (
        (X.drop(columns=["x", "day"]), r"same order; missing: 'x', 'day'$"),
        (X.assign(extra=1), r"same order; not in training: 'extra'$"),
        (X.rename(columns={"city": "town"}), r"same order; missing: 'city'; not in training: 'town'$"),
        (X[["city", "x", "z", "kind", "day"]], r"another order: pass X\[list\(model.feature_names_in_\)\]$"),
        (X.drop(columns=["city", "kind", "day"]), r"missing: 'city', 'kind', 'day'$"),
    ):
        with pytest.raises(ValueError, match=message):
            model.decision_function(other)
    assert np.isfinite(model.decision_function(X[list(model.feature_names_in_)])).all()


@pytest.mark.parametrize("members", [["linear"], ["linear", ("own", LogisticRegression())]])
def test_a_frame_of_numbers_must_have_the_columns_of_training(members):
    pd = pytest.importorskip("pandas")
    X, y = table(9)
    frame = pd.DataFrame(X, columns=["x", "y", "z"])
    model = APEnsembleClassifier(members, cv=2, random_state=0).fit(frame, y)
    for other, message in (
        (frame.drop(columns="y"), "yet now missing:\n- y"),
        (frame.assign(extra=1), "unseen at fit time:\n- extra"),
        (frame[["z", "y", "x"]], "same order"),
    ):
        with pytest.raises(ValueError, match=message):
            model.decision_function(other)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        assert model.decision_function(X) == pytest.approx(model.decision_function(frame))


def test_the_largest_random_state_seeds_forests_too():
    X, y = table()
    assert APEnsembleClassifier(["trees"], cv=2, random_state=2**32 - 1).fit(X, y).decision_function(X).shape == (
        len(y),
    )
