"""Configuration of runs: checks, plain tables, TOML, recipes."""

import dataclasses
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apmax.losses import PAPER_OPTIONS, APLoss
from apmax.train import (
    RECIPES,
    Checkpoints,
    ExactHead,
    Objective,
    Optimizer,
    Run,
    Sampler,
    Schedule,
    Stage,
    config_to_table,
    read_run,
    run_from_table,
    run_from_toml,
    run_to_table,
    run_to_toml,
    stage_from_table,
    stage_to_table,
)
from small_training import POSITIVE, network, run_of, train

FULL = Run(
    stages=(
        Stage(
            loss={"ce": 1.0, "focal": 0.5},
            options={"focal": {"focusing": 2.0}},
            epochs=7,
            optimizer=Optimizer(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4),
            schedule=Schedule(name="step", milestones=(3, 5), factor=0.2, warmup=0.5),
            sampler=Sampler(name="positive", batch_size=32, num_pos=2),
            start="last",
            keep=False,
            reset=("head",),
            freeze=("body",),
            ema=0.99,
            patience=3,
            smooth=1,
            name="first",
        ),
        ExactHead(l2=(0.1, 1.0), max_iter=5),
    ),
    seed=3,
    ensemble=2,
    train_metrics="full",
    objective=Objective(surrogate="squared_hinge", margin=0.5, sigmoid=True),
    checkpoints=Checkpoints(every_epochs=2, every_steps=10, every_seconds=1.5),
    workers=1,
    precision="64-true",
)


def test_every_field_survives_toml_and_plain_tables():
    assert run_from_toml(run_to_toml(FULL)) == FULL
    assert run_from_table(run_to_table(FULL)) == FULL
    assert [stage_from_table(stage_to_table(stage)) for stage in FULL.stages] == list(FULL.stages)


def test_a_table_is_what_toml_would_give():
    tomllib = pytest.importorskip("tomllib")
    assert run_to_table(FULL) == tomllib.loads(run_to_toml(FULL))


def test_a_table_is_made_without_toml(monkeypatch):
    for module in ("tomli_w", "tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, module, None)
    assert run_from_table(run_to_table(FULL)) == FULL


def test_changing_a_table_does_not_change_the_run():
    table = run_to_table(FULL)
    table["stage"][0]["options"]["focal"]["focusing"] = 9.0
    table["stage"][0]["loss"]["ce"] = 9.0
    assert FULL.stages[0].options == {"focal": {"focusing": 2.0}}
    assert FULL.stages[0].weights["ce"] == 1.0


def test_defaults_survive_toml():
    assert run_from_toml(run_to_toml(Run())) == Run()


@given(st.floats(min_value=1e-300, max_value=1e300), st.floats(min_value=0, max_value=1e300))
def test_numbers_survive_toml_bit_for_bit(lr, decay):
    run = Run(stages=(Stage(optimizer=Optimizer(lr=lr, weight_decay=decay)),))
    assert run_from_toml(run_to_toml(run)) == run


def test_the_toml_text_names_every_field():
    text = run_to_toml(FULL)
    for part in (FULL, FULL.stages[0], FULL.stages[0].optimizer, FULL.stages[0].schedule, FULL.checkpoints):
        for field in dataclasses.fields(part):
            assert field.name in text or field.name == "stages"


def test_a_file_is_read(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(run_to_toml(FULL), encoding="utf-8")
    assert read_run(path) == FULL


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        ("sed = 1", "sed", "seed"),
        ("[[stages]]", "stages", "stage"),
        ("[[stage]]\nepoch = 3", "epoch", "epochs"),
        ("[[stage]]\noptimizer = { learning_rate = 1.0, llr = 1 }", "learning_rate", "known are"),
        ("[[stage]]\noptimizer = { weigth_decay = 1.0 }", "weigth_decay", "weight_decay"),
        ("[[stage]]\nsampler = { batchsize = 8 }", "batchsize", "batch_size"),
        ("[[stage]]\nloss = 'focal'\noptions = { focal = { focussing = 1.0 } }", "focussing", "focusing"),
        ("[[stage]]\nloss = 'ce'\noptions = { c = { validate = false } }", "c", "ce"),
        ("checkpoints = { every_step = 3 }", "every_step", "every_steps"),
        ("recipe = 'default'\nrecipe_options = { epoch = 3 }", "epoch", "epochs"),
    ],
)
def test_an_unknown_key_is_an_error_that_suggests_the_right_one(text, wrong, right):
    with pytest.raises(ValueError, match=f"unknown key '{wrong}'.*{right}"):
        run_from_toml(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[stage]]\nloss = 'cee'", "did you mean 'ce'"),
        ("[[stage]]\noptimizer = { name = 'adm' }", "did you mean 'adam'"),
        ("[[stage]]\nschedule = { name = 'cosin' }", "did you mean 'cosine'"),
        ("recipe = 'defalt'", "did you mean 'default'"),
        ("[[stage]]\nkind = 'exact_hed'", "did you mean 'exact_head'"),
        ("[[stage]]\nloss = { ce = 0.0 }", "loss.ce must lie in"),
        ("[[stage]]\nepochs = 0", "epochs must be at least 1"),
        ("[[stage]]\nsmooth = 2", "smooth must be odd"),
        ("[[stage]]\nschedule = { name = 'step' }", "needs milestones"),
        ("[[stage]]\nsampler = { name = 'positive', batch_size = 4, num_pos = 4 }", "num_pos must be below"),
        ("[[stage]]\nema = 1.0", "ema must lie in"),
        ("recipe = 'default'\n[[stage]]\n", "exclude each other"),
        ("recipe_options = { lr = 1.0 }", "need a recipe"),
        ("devices = 0", "devices must be at least 1"),
        ("this is not toml", "not valid TOML"),
    ],
)
def test_an_invalid_value_is_explained(text, message):
    with pytest.raises(ValueError, match=message):
        run_from_toml(text)


def test_a_wrong_type_is_a_type_error():
    with pytest.raises(TypeError, match="lr must be a number, got 'fast'"):
        run_from_toml("[[stage]]\noptimizer = { lr = 'fast' }")


def test_a_run_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.seed = 4


def test_the_table_a_stage_was_built_from_is_not_shared():
    loss = {"ce": 1.0}
    stage = Stage(loss=loss)
    loss["focal"] = 1.0
    assert stage.weights == {"ce": 1.0}


def test_the_default_recipe_keeps_the_head_and_takes_a_third_of_the_rate():
    first, second = run_from_toml("recipe = 'default'\nrecipe_options = { lr = 0.3, epochs = 8 }").stages
    assert (first.weights, first.epochs, first.ema is None, first.optimizer.lr) == ({"ce": 1.0}, 8, False, 0.3)
    assert (second.weights, second.reset, second.keep, second.start) == ({"ap": 1.0, "ce": 1.0}, (), True, "best")
    assert (second.optimizer.lr, second.schedule.name, second.smooth) == (pytest.approx(0.1), "cosine", 3)


def test_the_paper_recipe_resets_the_head_and_takes_the_method_alone():
    first, second = run_from_toml("recipe = 'paper'\nrecipe_options = { method = 'smooth_ap' }").stages
    assert first.weights == {"ce": 1.0}
    assert (second.weights, second.reset, second.keep, second.smooth) == ({"smooth_ap": 1.0}, ("head",), False, 1)


def test_without_tomli_w_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tomli_w", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install apmax\[train\]"):
        run_to_toml(Run())


def test_the_paper_recipe_has_the_options_of_the_papers_loss():
    second = RECIPES["paper"]()[1]
    assert second.options == {"ap": dict(PAPER_OPTIONS)}
    labels = [0, 1, 0, 1]
    loss, recipe_loss = APLoss.as_in_paper(labels), APLoss(labels, **second.options["ap"])
    for name in (*PAPER_OPTIONS, "start"):
        assert getattr(loss, name) == getattr(recipe_loss, name), name


def test_options_override_those_of_the_paper():
    second = RECIPES["paper"](options={"gamma": 0.5})[1]
    assert second.options["ap"] == {**PAPER_OPTIONS, "gamma": 0.5}


def test_fields_that_are_none_are_left_out_of_a_table():
    assert "ema" not in config_to_table(Stage())
    assert config_to_table(Stage(ema=0.5))["ema"] == 0.5


@pytest.mark.parametrize(
    ("loss", "option"), [("focal", "balance"), ("ldam", "defer_epoch"), ("ce", "prevalence"), ("ap", "floor")]
)
def test_an_option_that_is_none_survives_tables_toml_and_a_run_directory(loss, option, tmp_path):
    stage = Stage(loss=loss, options={loss: {option: None}}, epochs=1, sampler=POSITIVE)
    run = run_of(stage)
    assert run.stages[0].options[loss] == {option: None}
    assert run_from_table(run_to_table(run)) == run_from_toml(run_to_toml(run)) == run
    train(network(), run, directory=tmp_path)
    assert read_run(tmp_path / "config.toml") == run
    longer = run_of(dataclasses.replace(stage, epochs=2))
    assert len(train(network(), longer, directory=tmp_path, resume=True)) == 1


def test_an_option_that_is_a_text_is_not_read_as_none():
    assert Stage(loss="ap", options={"ap": {"start": "none"}}).options["ap"] == {"start": "none"}


def test_numbers_of_numpy_become_numbers_of_python(tmp_path):
    options = {"ap": {"margin": np.float32(0.5), "num_pos": np.int64(4)}}
    sampler = Sampler(name="positive", batch_size=np.int32(32), num_pos=np.int64(4))
    stage = Stage(loss="ap", options=options, epochs=np.int64(1), smooth=np.int64(1), sampler=sampler)
    checkpoints = Checkpoints(every_epochs=np.int64(1))
    run = run_of(stage, seed=np.int64(1), eval_batch_size=np.uint16(64), checkpoints=checkpoints)
    values = [stage.epochs, stage.smooth, sampler.batch_size, sampler.num_pos, run.seed, run.eval_batch_size]
    assert {type(value) for value in [*values, checkpoints.every_epochs, stage.options["ap"]["num_pos"]]} == {int}
    assert type(stage.options["ap"]["margin"]) is float
    train(network(), run, directory=tmp_path)
    assert read_run(tmp_path / "config.toml") == run
    with pytest.raises(ValueError, match=r"options\.ap\.num_pos must be at most"):
        Stage(loss="ap", options={"ap": {"num_pos": np.int64(10**9)}})
