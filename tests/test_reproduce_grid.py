"""The grid of experiments: every entry of `grid.toml` can be run, and budgets are what they say."""

from __future__ import annotations

import inspect

import pytest

from apmax import APLoss
from apmax.reproduce import Trial, load_grid, plan_searches
from apmax.reproduce.grid import candidate_settings, parse_grid, resolve_settings, tuned_settings
from apmax.reproduce.schemes import SCHEMES
from small_experiments import PAPER_METHODS, trial


@pytest.mark.parametrize("data", load_grid().data)
def test_every_run_of_a_data_set_has_valid_stages(data):
    grid = load_grid()
    cells = [(cell, row) for item in grid.items.values() for cell in grid.cells(item) for row in item.rows]
    for cell, row in dict.fromkeys(each for each in cells if each[0][0] == data):
        # The splits of a data set have the same settings.
        search = plan_searches(grid, [cell], [row], budget=grid.budgets["quick"])[0]
        # The authors' weights are the only ones that are not trained.
        assert all((each.stages or row == "ce_authors") and each.key for each in search.tuning)


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4", "table5", "table6"])
def test_tables_of_the_paper_are_there(name):
    assert load_grid().items[name].paper


def test_items_are_those_of_the_paper():
    wanted = {*(f"table{k}" for k in range(1, 7)), "convergence", "batch-size", "consistency", "pr-curves"}
    assert wanted <= set(load_grid().items)


def test_tables_have_the_nine_methods_then_ours():
    rows = load_grid().items["table2"].rows
    assert rows[:9] == PAPER_METHODS
    assert all(load_grid().methods[row].ours for row in rows[9:])
    assert not any(load_grid().methods[row].ours for row in PAPER_METHODS)


def test_published_settings_of_soap():
    soap = trial().stages[0]
    options = {"surrogate": "squared_hinge", "sigmoid": True, "prevalence": "batch", "floor": 0.0}
    assert soap.options["ap"] == {**options, "margin": 10.0, "gamma": 0.9}
    assert (soap.optimizer.name, soap.optimizer.lr, soap.epochs, soap.patience) == ("adam", 5e-4, 150, 50)
    assert (soap.sampler.name, soap.sampler.batch_size, soap.sampler.num_pos) == ("positive", 64, 1)
    assert soap.reset == ("head",)
    image = trial("cifar10", "resnet18", split=None).stages[0]
    assert (image.optimizer.name, image.optimizer.lr, image.optimizer.momentum) == ("sgd", 1e-4, 0.9)
    assert (image.options["ap"]["margin"], image.options["ap"]["gamma"], image.sampler.num_pos) == (0.6, 0.999, 2)


@pytest.mark.parametrize(
    ("data", "model", "published"),
    [
        ("cifar10", "resnet18", (1e-4, 2, 0.6, 0.999)),
        ("cifar10", "resnet34", (1e-2, 3, 0.5, 0.99)),
        ("cifar100", "resnet18", (1e-4, 2, 0.6, 0.999)),
        ("cifar100", "resnet34", (1e-3, 3, 0.6, 0.999)),
        ("melanoma", "resnet18", (1e-4, 1, 5.0, 0.999)),
    ],
)
def test_soap_on_images_has_the_published_settings_of_its_place(data, model, published):
    stage = trial(data, model, split=None).stages[0]
    options = stage.options["ap"]
    assert (stage.optimizer.lr, stage.sampler.num_pos, options["margin"], options["gamma"]) == published


def test_sampler_is_the_same_for_every_method_of_a_cell():
    found = {trial("cifar10", "resnet34", method, None).stages[0].sampler for method in PAPER_METHODS[1:]}
    assert len(found) == 1


@pytest.mark.parametrize("method", ["ce", "soap"])
def test_adam_on_melanoma_is_never_given_a_rate_of_sgd(method):
    for settings in candidate_settings(load_grid(), "melanoma", "resnet18", method, 36):
        stages = [Trial(load_grid(), "melanoma", "resnet18", method, None, 0, settings)]
        stages = [stage for each in (stages[0], stages[0].first) if each is not None for stage in each.stages]
        assert all((stage.optimizer.name, stage.optimizer.lr <= 1e-2) == ("adam", True) for stage in stages)


def test_deferred_weights_of_ldam_come_when_the_rate_drops():
    for data, model in [("aicures", "gine"), ("cifar10", "narrow"), ("cifar10", "resnet18-short")]:
        stage = trial(data, model, "ldam", None).stages[0]
        assert (stage.options["ldam"]["defer_epoch"],) == stage.schedule.milestones


@pytest.mark.parametrize(
    ("method", "name"),
    [("soap_logistic_1", "options.margin"), ("soap_sigmoid_2", "options.margin"), ("soap_512", "num_pos")],
)
def test_setting_that_defines_a_variant_is_not_tuned(method, name):
    published = resolve_settings(load_grid(), "cifar10", "narrow", method)
    found = [
        tuned_settings(each, published) for each in candidate_settings(load_grid(), "cifar10", "narrow", method, 36)
    ]
    assert len(found) == 36
    assert not any(name in choices for choices in found)


def test_first_stage_is_plain_cross_entropy():
    first = trial().first
    assert first is not None
    stage = first.stages[0]
    assert (stage.loss, stage.sampler.name, stage.epochs, stage.optimizer.lr) == ({"ce": 1.0}, "shuffle", 100, 5e-4)
    # The code's decay of 5e-5 stands beside a sum over 64.
    assert stage.optimizer.weight_decay == pytest.approx(5e-5 / 64)


def test_a_method_like_another_overrides_its_field_settings_too():
    options = trial(method="soap_logistic_2").stages[0].options["ap"]
    assert (options["surrogate"], options["margin"], options["gamma"]) == ("logistic", 2.0, 0.9)


def test_corrected_soap_differs_from_soap_in_prevalence_and_floor_alone():
    plain, corrected = (trial(method=name).stages[0].options["ap"] for name in ("soap", "soap_corrected"))
    assert {**corrected, "prevalence": "batch", "floor": 0.0} == plain
    assert not {"prevalence", "floor"} & set(corrected)


@pytest.mark.parametrize("data", ["aicures", "cifar10"])
def test_quick_gives_every_method_of_the_paper_four_configurations(data):
    model = "gine" if data == "aicures" else "narrow"
    assert {len(candidate_settings(load_grid(), data, model, method, 4)) for method in PAPER_METHODS} == {4}


@pytest.mark.parametrize("method", PAPER_METHODS)
def test_configurations_begin_with_the_published_and_never_repeat(method):
    found = candidate_settings(load_grid(), "aicures", "gine", method, 12)
    assert found[0] == resolve_settings(load_grid(), "aicures", "gine", method)
    assert len({repr(settings) for settings in found}) == len(found)


def test_a_larger_budget_keeps_the_runs_of_a_smaller_one():
    small, large = (candidate_settings(load_grid(), "hiv", "gine", "soap", count) for count in (4, 36))
    assert large[:4] == small
    assert len(large) == 36


def test_draws_stay_inside_the_papers_grid():
    for settings in candidate_settings(load_grid(), "hiv", "gine", "soap", 36)[1:]:
        assert settings["lr"] in (1e-5, 1e-4, 1e-3, 1e-2)
        assert settings["options"]["margin"] in (0.5, 1.0, 2.0, 5.0, 10.0)
        assert settings["num_pos"] in range(1, 6)


def test_equal_runs_of_different_tables_are_one():
    keys = [
        {
            search.tuning[0].key
            for search in plan_searches(load_grid(), [("aicures", "gine")], load_grid().items[name].rows)
        }
        for name in ("table3", "table6")
    ]
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1}, {"split": "fold1"}, {"model": "mpnn"}, {"method": "focal"}, {"method": "soap_corrected"},
        {"hidden": 32}, {"lr": 1e-3}, {"first_lr": 1.0},
    ],
    ids=str,
)  # fmt: skip
def test_key_depends_on_everything_that_decides_the_numbers(other):
    changed = trial(**other).key
    if other == {"first_lr": 1.0}:
        # The first stage of a method is the published cross-entropy, whatever that method's settings say.
        assert changed == trial().key
    else:
        assert changed != trial().key


def test_settings_of_a_result_are_the_tuned_ones():
    published = resolve_settings(load_grid(), "hiv", "gine", "soap")
    settings = candidate_settings(load_grid(), "hiv", "gine", "soap", 2)[1]
    found = tuned_settings(settings, published)
    assert found
    assert all(name in ("lr", "weight_decay", "num_pos", "options.margin", "options.gamma") for name in found)


def test_seeds_of_folds_differ_and_do_not_move_with_more_seeds():
    one = plan_searches(load_grid(), [("aicures", "gine")], ["ce"])
    two = plan_searches(load_grid(), [("aicures", "gine")], ["ce"], seeds=2)
    assert [search.seeds for search in one] == [(fold,) for fold in range(10)]
    assert [search.seeds for search in two] == [(fold, fold + 10) for fold in range(10)]


def test_unknown_names_raise():
    item = load_grid().items["table2"]
    with pytest.raises(ValueError, match="dataset must be one of"):
        load_grid().cells(item, data=["cifar10"])
    with pytest.raises(ValueError, match="do not go together"):
        load_grid().cells(load_grid().items["table3"], data=["aicures"], models=["resnet18"])
    with pytest.raises(ValueError, match="split must be one of those of hiv"):
        plan_searches(load_grid(), [("hiv", "gine")], ["ce"], splits=["fold0"])
    with pytest.raises(ValueError, match="splits must be one of scaffold122"):
        load_grid().cells(item, data=["hiv"], splits=["fold0"])


def test_splits_select_the_data_sets_that_have_them():
    cells = load_grid().cells(load_grid().items["table6"], models=["gine"], splits=["fold0", "fold1"])
    assert cells == [("aicures", "gine")]
    plan = plan_searches(
        load_grid(), [("aicures", "gine"), ("aicures-random", "gine")], ["ce"], splits=["fold0", "random3"]
    )
    assert [(search.data, search.split) for search in plan] == [("aicures", "fold0"), ("aicures-random", "random3")]


def test_with_the_largest_budget_every_row_of_a_table_is_tuned_over_as_many_configurations():
    most = load_grid().budgets["paper"]
    for cell in (("aicures", "gine"), ("cifar10", "narrow")):
        for row in load_grid().items["table1"].rows:
            (search, *_) = plan_searches(load_grid(), [cell], [row], budget=most)
            assert len(search.tuning) == most, row


@pytest.mark.parametrize(
    ("place", "key"),
    [
        (("aicures", "gine", "soap", "fold0"), "5de9388486351d61"),
        (("aicures", "gine", "ce", "fold0"), "317a3ccde35a747a"),
        (("cifar10", "narrow", "apmax", None), "43420834dd24e5a2"),
    ],
    ids=str,
)
def test_keys_of_finished_runs_stay(place, key):
    # A new field of a stage, or another way to write one, would have every run of results/ run again.
    assert trial(*place).key == key


def test_defaults_that_are_not_in_keys_stay():
    # The recipe's AP loss is built from these; another default needs another key.
    names = ("surrogate", "margin", "gamma", "sigmoid", "prevalence", "floor", "start")
    found = {name: inspect.signature(APLoss).parameters[name].default for name in names}
    assert found == {
        "surrogate": "smooth_step",
        "margin": 1.0,
        "gamma": 0.5,
        "sigmoid": False,
        "prevalence": None,
        "floor": None,
        "start": "estimate",
    }


def test_a_data_sets_patience_wins_over_the_networks():
    assert trial("ham10000-mel", "narrow", "focal", None).stages[0].patience == 10


def test_every_scheme_is_used_by_a_method_of_the_grid():
    assert {method.scheme for method in load_grid().methods.values()} == set(SCHEMES)


def test_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match=r"the scheme of new must be one of first, second"):
        parse_grid({"rows": {}, "items": {}, "data": {}, "models": {}, "budgets": {}, "domains": {},
                    "methods": {"new": {"label": "New", "scheme": "third"}}})  # fmt: skip
