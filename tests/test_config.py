"""A run as a value: TOML in and out, and mistakes that are explained."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apmax.train import config
from apmax.train.config import Checkpoints, ExactHead, Objective, Optimizer, Run, Sampler, Schedule, Stage

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


def test_every_field_survives_toml():
    assert config.loads(config.dumps(FULL)) == FULL


def test_defaults_survive_toml():
    assert config.loads(config.dumps(Run())) == Run()


@given(st.floats(min_value=1e-300, max_value=1e300), st.floats(min_value=0, max_value=1e300))
def test_numbers_survive_toml_to_the_bit(lr, decay):
    run = Run(stages=(Stage(optimizer=Optimizer(lr=lr, weight_decay=decay)),))
    assert config.loads(config.dumps(run)) == run


def test_the_resolved_text_names_every_field_with_a_value():
    text = config.dumps(FULL)
    for part in (FULL, FULL.stages[0], FULL.stages[0].optimizer, FULL.stages[0].schedule, FULL.checkpoints):
        for field in dataclasses.fields(part):
            assert field.name in text or field.name == "stages"


def test_a_file_is_read(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(config.dumps(FULL), encoding="utf-8")
    assert config.load(path) == FULL


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
        config.loads(text)


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
def test_a_mistaken_value_is_explained(text, message):
    with pytest.raises(ValueError, match=message):
        config.loads(text)


def test_a_wrong_type_is_a_type_error():
    with pytest.raises(TypeError, match="lr must be a number, got 'fast'"):
        config.loads("[[stage]]\noptimizer = { lr = 'fast' }")


def test_a_run_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.seed = 4


def test_the_table_a_stage_was_built_from_is_not_shared():
    loss = {"ce": 1.0}
    stage = Stage(loss=loss)
    loss["focal"] = 1.0
    assert stage.weights == {"ce": 1.0}


def test_the_default_recipe_keeps_the_head_and_takes_a_third_of_the_rate():
    first, second = config.loads("recipe = 'default'\nrecipe_options = { lr = 0.3, epochs = 8 }").stages
    assert (first.weights, first.epochs, first.ema is None, first.optimizer.lr) == ({"ce": 1.0}, 8, False, 0.3)
    assert (second.weights, second.reset, second.keep, second.start) == ({"ap": 1.0, "ce": 1.0}, (), True, "best")
    assert (second.optimizer.lr, second.schedule.name, second.smooth) == (pytest.approx(0.1), "cosine", 3)


def test_the_paper_recipe_resets_the_head_and_takes_the_method_alone():
    first, second = config.loads("recipe = 'paper'\nrecipe_options = { method = 'smooth_ap' }").stages
    assert first.weights == {"ce": 1.0}
    assert (second.weights, second.reset, second.keep, second.smooth) == ({"smooth_ap": 1.0}, ("head",), False, 1)


def test_without_tomli_w_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tomli_w", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install apmax\[train\]"):
        config.dumps(Run())
