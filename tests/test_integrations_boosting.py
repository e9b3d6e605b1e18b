"""Average precision as objective and metric of LightGBM and XGBoost."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import references
from apmax.functional import ap_newton_terms, ap_objective
from apmax.integrations.boosting import APObjective, boosting_average_precision
from apmax.integrations.lightgbm import lightgbm_average_precision
from apmax.integrations.xgboost import xgboost_average_precision


@st.composite
def problems(draw, most=12):
    size = draw(st.integers(2, most))
    labels = [1, *draw(st.lists(st.integers(0, 1), min_size=size - 1, max_size=size - 1))]
    scores = draw(st.lists(st.integers(-6, 6).map(lambda k: k / 4), min_size=size, max_size=size))
    weight = draw(st.none() | st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=size, max_size=size))
    return np.array(scores), np.array(labels), weight if weight is None else np.array(weight)


def terms(scores, labels, weight=None, margin=1.0, **options):
    weight = None if weight is None else torch.tensor(weight)
    found = ap_newton_terms(torch.tensor(scores), torch.tensor(labels), margin, sample_weight=weight, **options)
    return tuple(each.numpy() for each in found)


@settings(max_examples=50)
@given(problems(), st.sampled_from([0.5, 1.0, 2.5]), st.sampled_from([None, 0.1]), st.sampled_from(["dense", "bucket"]))
def test_gradient_and_curvature_are_those_of_loops_over_pairs(problem, margin, prevalence, method):
    scores, labels, weight = problem
    found = terms(scores, labels, weight, margin, prevalence=prevalence, damping=0.3, method=method)
    expected = references.newton_terms(scores, labels, margin, weight, prevalence=prevalence, damping=0.3)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-12)


@settings(max_examples=25)
@given(problems())
def test_the_gradient_is_that_of_the_exact_objective_times_the_weight_of_the_positives(problem):
    scores, labels, weight = problem
    leaf = torch.tensor(scores, requires_grad=True)
    total = (labels * (1 if weight is None else weight)).sum()
    value = ap_objective(leaf, torch.tensor(labels), sample_weight=None if weight is None else torch.tensor(weight))
    (value * total).backward()
    np.testing.assert_allclose(terms(scores, labels, weight)[0], leaf.grad.numpy(), rtol=1e-9, atol=1e-12)


@settings(max_examples=25)
@given(problems(), st.sampled_from([0.5, 1.0, 3.0]))
def test_a_newton_step_of_any_leaf_is_at_most_a_margin_long(problem, margin):
    gradient, curvature = terms(*problem, margin, damping=1e-6)
    assert (curvature > 0).all()
    assert (np.abs(gradient) <= margin * curvature).all()


@settings(max_examples=25)
@given(problems(), st.permutations(range(12)), st.sampled_from([-2.0, 0.25, 8.0]), st.sampled_from([0.5, 4.0]))
def test_order_shift_scale_of_scores_and_scale_of_weights(problem, order, shift, factor):
    scores, labels, weight = problem
    gradient, curvature = terms(scores, labels, weight)
    assert gradient.sum() == pytest.approx(0, abs=1e-12)
    order = [row for row in order if row < len(scores)]
    again = terms(scores[order], labels[order], None if weight is None else weight[order])
    np.testing.assert_allclose(again, (gradient[order], curvature[order]), atol=1e-12)
    np.testing.assert_allclose(terms(scores + shift, labels, weight), (gradient, curvature), atol=1e-12)
    scaled = terms(factor * scores, labels, weight, margin=factor, damping=0.1 / factor**2)
    np.testing.assert_allclose(scaled, (gradient / factor, curvature / factor**2), atol=1e-12)
    weight = np.ones(len(scores)) if weight is None else weight
    np.testing.assert_allclose(terms(scores, labels, 1000 * weight), (1000 * gradient, 1000 * curvature), rtol=1e-9)


@settings(max_examples=25)
@given(problems(most=8), st.data())
def test_a_row_of_weight_2_is_two_rows_and_one_of_weight_0_none(problem, data):
    scores, labels, _ = problem
    counts = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(scores), max_size=len(scores))))
    counts[0] = max(1, counts[0])
    gradient, curvature = terms(scores, labels, counts.astype(float))
    of_copies = terms(np.repeat(scores, counts), np.repeat(labels, counts))
    row = np.repeat(np.arange(len(scores)), counts)
    sums, curvatures = (np.bincount(row, values, minlength=len(scores)) for values in of_copies)
    np.testing.assert_allclose(gradient, sums, atol=1e-12)
    # Copies of a positive push each other, too.
    assert (curvature <= curvatures + 1e-12).all()
    alone = (labels == 0) | (counts < 2)
    np.testing.assert_allclose(curvature[alone], curvatures[alone], atol=1e-12)
    assert (curvature[counts == 0] == 0).all()


def test_large_problems_need_at_most_four_sorts_of_which_one_is_of_all_scores(monkeypatch):
    sizes, argsort, sort = [], np.argsort, np.sort
    monkeypatch.setattr(np, "argsort", lambda values, *a, **k: sizes.append(len(values)) or argsort(values, *a, **k))
    monkeypatch.setattr(np, "sort", lambda values, *a, **k: sizes.append(len(values)) or sort(values, *a, **k))
    for name in ("sort", "argsort"):
        monkeypatch.setattr(torch, name, lambda *_, **__: pytest.fail("sorted by torch"))
        monkeypatch.setattr(torch.Tensor, name, lambda *_, **__: pytest.fail("sorted by torch"))
    generator = np.random.default_rng(0)
    labels = (np.arange(20_000) < 300).astype(float)
    APObjective()(labels, generator.normal(size=20_000) + labels)
    assert 1 <= len(sizes) <= 4
    assert sum(size == 20_000 for size in sizes) <= 1


def test_arguments_out_of_range_are_refused():
    for name, value in (("margin", 0.0), ("damping", 0.0), ("prevalence", 1.0)):
        with pytest.raises(ValueError, match=name):
            APObjective(**{name: value})
    with pytest.raises(ValueError, match="labels"):
        APObjective()(np.array([0.0, 2.0]), np.zeros(2))
    with pytest.raises(ValueError, match="at least one positive"):
        APObjective()(np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="scores"):
        APObjective()(np.array([0.0, 1.0]), np.array([0.0, np.nan]))


def test_the_objective_can_be_pickled_and_compared():
    objective = APObjective(margin=2.0, prevalence=0.1)
    assert pickle.loads(pickle.dumps(objective)) == objective


def table(rows=400, seed=0):
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, 4))
    labels = (features[:, 0] * features[:, 1] + 0.3 * generator.normal(size=rows) > 1.3).astype(int)
    return features, labels, generator.uniform(0.5, 2.0, size=rows)


PARAMETERS = {"num_threads": 1, "verbosity": -1, "seed": 0, "learning_rate": 0.1, "min_data_in_leaf": 5}


def test_lightgbm_trains_by_average_precision_and_saved_boosters_need_no_apmax():
    lightgbm = pytest.importorskip("lightgbm")
    features, labels, weight = table()
    data = lightgbm.Dataset(features, labels, weight=weight, free_raw_data=False)
    history = {}
    booster = lightgbm.train(
        {**PARAMETERS, "objective": APObjective(), "metric": "none"},
        data,
        30,
        valid_sets=[data],
        feval=lightgbm_average_precision,
        callbacks=[lightgbm.record_evaluation(history)],
    )
    scores = booster.predict(features, raw_score=True)
    assert history["training"]["ap"][-1] == pytest.approx(references.average_precision(scores, labels, weight))
    assert history["training"]["ap"][-1] > history["training"]["ap"][0]
    text = booster.model_to_string()
    assert "apmax" not in text
    np.testing.assert_array_equal(lightgbm.Booster(model_str=text).predict(features, raw_score=True), scores)


# LightGBM 4.3, the lowest version, knows no other argument.
@pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")
def test_lightgbms_classifier_gets_the_same_booster_as_train_and_weights_count():
    lightgbm = pytest.importorskip("lightgbm")
    features, labels, weight = table()
    options = {"n_estimators": 10, "n_jobs": 1, "verbosity": -1, "min_child_samples": 5, "random_state": 0}

    def classifier(**fit_options):
        model = lightgbm.LGBMClassifier(objective=APObjective(), **options)
        model.fit(
            features,
            labels,
            eval_set=[(features[::2], labels[::2])],
            eval_metric=lightgbm_average_precision,
            **fit_options,
        )
        return model.predict(features, raw_score=True), model.evals_result_

    weighted, history = classifier(sample_weight=weight)
    data = lightgbm.Dataset(features, labels, weight=weight)
    train = lightgbm.train({**PARAMETERS, "objective": APObjective()}, data, 10)
    np.testing.assert_allclose(weighted, train.predict(features, raw_score=True))
    assert history["valid_0"]["ap"][-1] == pytest.approx(references.average_precision(weighted[::2], labels[::2]))
    assert not np.allclose(weighted, classifier()[0])


@pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")
def test_lightgbms_classifier_without_its_metric_is_stopped_by_average_precision_alone():
    lightgbm = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1000, 5))
    labels = (features[:, 0] + features[:, 1] * features[:, 2] + rng.normal(size=1000) > 2).astype(float)
    model = lightgbm.LGBMClassifier(objective=APObjective(), metric="none", n_estimators=100, n_jobs=1, verbosity=-1)
    stop = lightgbm.early_stopping(10, verbose=False)
    held_out = [(features[700:], labels[700:])]
    model.fit(features[:700], labels[:700], eval_set=held_out, eval_metric=lightgbm_average_precision, callbacks=[stop])
    assert list(model.evals_result_["valid_0"]) == ["ap"]
    history = model.evals_result_["valid_0"]["ap"]
    assert model.best_iteration_ == np.argmax(history) + 1 == len(history) - 10
    scores = model.predict(features[700:], raw_score=True)
    assert max(history) == pytest.approx(references.average_precision(scores, labels[700:]))


def test_average_precision_rounds_can_follow_log_loss_rounds():
    lightgbm = pytest.importorskip("lightgbm")
    features, labels, _ = table()

    def data():
        return lightgbm.Dataset(features, labels, free_raw_data=False)

    first = lightgbm.train({**PARAMETERS, "objective": "binary"}, data(), 5)
    both = lightgbm.train({**PARAMETERS, "objective": APObjective()}, data(), 5, init_model=first)
    assert both.num_trees() == 10
    start = first.predict(features, raw_score=True)
    np.testing.assert_allclose(both.predict(features, raw_score=True, num_iteration=5), start)
    assert boosting_average_precision(labels, both.predict(features, raw_score=True)) > boosting_average_precision(
        labels, start
    )


@pytest.fixture
def xgboost():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("xgboost")


XGBOOST = {"nthread": 1, "eta": 0.1, "min_child_weight": 0.01, "max_depth": 4}


def test_xgboost_trains_by_average_precision_and_saved_boosters_need_no_apmax(xgboost):
    features, labels, weight = table()
    data = xgboost.DMatrix(features, labels, weight=weight, nthread=1)
    history = {}
    booster = xgboost.train(
        {**XGBOOST, "disable_default_eval_metric": True},
        data,
        30,
        obj=APObjective(),
        evals=[(data, "train")],
        custom_metric=xgboost_average_precision,
        evals_result=history,
        verbose_eval=False,
    )
    scores = booster.predict(data, output_margin=True)
    assert history["train"]["ap"][-1] == pytest.approx(references.average_precision(scores, labels, weight))
    assert history["train"]["ap"][-1] > history["train"]["ap"][0]
    raw = booster.save_raw("json")
    assert b"apmax" not in raw
    again = xgboost.Booster({"nthread": 1})
    again.load_model(raw)
    np.testing.assert_array_equal(again.predict(data, output_margin=True), scores)


def test_xgboosts_classifier_gets_the_same_booster_as_train_and_weights_count(xgboost):
    features, labels, weight = table()
    options = {"n_jobs": 1, "learning_rate": 0.1, "min_child_weight": 0.01, "max_depth": 4}

    def classifier(**fit_options):
        model = xgboost.XGBClassifier(
            objective=APObjective(), eval_metric=xgboost_average_precision, n_estimators=10, **options
        )
        held = {"sample_weight_eval_set": [fit_options["sample_weight"]]} if fit_options else {}
        model.fit(features, labels, eval_set=[(features, labels)], verbose=False, **fit_options, **held)
        return model.predict(features, output_margin=True), model.evals_result()

    weighted, history = classifier(sample_weight=weight)
    train = xgboost.train(XGBOOST, xgboost.DMatrix(features, labels, weight=weight, nthread=1), 10, obj=APObjective())
    expected = train.predict(xgboost.DMatrix(features, nthread=1), output_margin=True)
    # The libraries' starting scores may differ by a constant, which ranks nothing.
    np.testing.assert_allclose(weighted - weighted.mean(), expected - expected.mean(), atol=1e-5)
    value = history["validation_0"]["xgboost_average_precision"][-1]
    assert value == pytest.approx(references.average_precision(weighted, labels, weight))
    assert not np.allclose(weighted, classifier()[0])


@settings(max_examples=25)
@given(problems())
def test_the_metric_is_exact_under_ties_and_weights(problem):
    scores, labels, weight = problem
    expected = references.average_precision(scores, labels, weight)
    assert boosting_average_precision(labels, scores, weight) == pytest.approx(expected)
    assert lightgbm_average_precision(labels, scores, weight) == ("ap", pytest.approx(expected), True)
    assert xgboost_average_precision(labels, scores, weight) == pytest.approx(expected)
