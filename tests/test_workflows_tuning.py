"""Hyperparameter search: spaces, study, result."""

from __future__ import annotations

import inspect
import json
import shutil

import numpy as np
import pytest

from apmax.losses import LOSSES
from apmax.train import RECIPES, DivergedError, Run, Stage
from apmax.workflows import Overrides, plan_job, tuning
from apmax.workflows.tuning import LOSS_SPACES, claim_space, default_space, open_study, parse_space, search_result
from commands import run

SPACE = ["--space", "stages.1.lr=1e-3,1e-2", "--space", "model.hidden=[4];[8,8]"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 3))
    y = (x[:, 0] + generator.normal(0, 0.5, 200) > 1).astype(int)
    file = tmp_path_factory.mktemp("tune") / "a.csv"
    np.savetxt(file, np.c_[x, y], delimiter=",", header="a,b,c,y", comments="", fmt="%.5f")
    return file


def tune(data, out, *more):
    return run("tune", data, "--target", "y", "--set", "stages.0.epochs=1", "--epochs", 1, *SPACE, "--out", out, *more)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_option_of_the_default_space_is_one_of_its_loss(loss):
    assert set(LOSS_SPACES[loss]) <= set(inspect.signature(LOSSES[loss]).parameters)


@pytest.mark.parametrize("loss", LOSSES)
def test_default_space_is_of_the_last_stage_and_can_be_resolved(loss, data):
    plan = plan_job({"data": {"train": str(data), "target": "y"}}, Overrides(loss=loss))
    size = {"rows": 1000, "positives": 100}
    space = default_space(plan.resolve(plan.data, **size).run)
    for path, values in space.items():
        for value in values:
            changed = plan.resolve(plan.data, **size, settings={path: value}).run
            keys = path.split(".")
            stage = changed.stages[int(keys[1])]
            assert stage is changed.stages[-1]
            parts = (stage, stage.optimizer, stage.sampler)
            found = [getattr(part, keys[-1]) for part in parts if hasattr(part, keys[-1])]
            found += [stage.options.get(loss, {}).get(keys[-1])]
            assert value in found


def test_number_of_positives_is_searched_only_where_the_sampler_has_one():
    assert "stages.1.num_pos" in default_space(Run(stages=RECIPES["default"]()))
    assert "stages.0.num_pos" not in default_space(Run(stages=(Stage(),)))


@pytest.mark.parametrize("text", ["lr", "stages.1.lr=1e-3", "=1,2", "stages.1.lr=1,,2"])
def test_malformed_space_is_refused(text):
    with pytest.raises(ValueError, match="with two values or more"):
        parse_space([text])


def test_best_trial_is_written_as_a_job_that_gives_its_value(data, tmp_path, capsys):
    assert tune(data, tmp_path / "t", "--trials", 3) == 0
    shown = capsys.readouterr().out
    best = search_result(open_study(tmp_path / "t" / "study.db"), parse_space(SPACE[1::2]))
    assert f"{best.trials[0][1]:.4f}" in shown
    assert best.trials[0][1] == max(value for _, value, _ in best.trials)
    assert (tmp_path / "t" / "study.png").stat().st_size > 10_000
    assert run("train", tmp_path / "t" / "run.toml", "--out", tmp_path / "r") == 0
    assert json.loads((tmp_path / "r" / "results.json").read_text())["valid"]["ap"]["estimate"] == pytest.approx(
        best.trials[0][1], abs=1e-9
    )


def test_study_is_in_the_folder_whatever_its_name(data, tmp_path, capsys):
    folder = tmp_path / "a?b #{1}%20"
    assert tune(data, folder, "--trials", 1) == 0
    assert [file.name for file in tmp_path.iterdir()] == [folder.name]
    assert f"apmax train '{folder / 'run.toml'}' --out DIR" in capsys.readouterr().out
    assert tune(data, folder, "--trials", 2, "--resume") == 0
    assert len(open_study(folder / "study.db").trials) == 2


def test_search_without_a_terminal_has_a_line_for_each_trial(data, tmp_path, capsys):
    assert tune(data, tmp_path / "t", "--trials", 2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" trials, best AP ")[0] for line in lines if " trials, best AP 0." in line] == [
        "1 of 2",
        "2 of 2",
    ]


@pytest.mark.slow
def test_study_is_resumed(data, tmp_path):
    assert tune(data, tmp_path, "--trials", 2) == 0
    assert tune(data, tmp_path, "--trials", 5) == 1
    assert len(open_study(tmp_path / "study.db").trials) == 2
    assert tune(data, tmp_path, "--trials", 5, "--resume") == 0
    assert len(open_study(tmp_path / "study.db").trials) == 5


def test_a_model_is_not_resumed_as_a_search_nor_a_search_as_a_training(data, tmp_path, capsys):
    model, search = tmp_path / "model", tmp_path / "search"
    train = ("train", data, "--target", "y", "--effort", "quick", "--no-report", "--resume", "--out")
    assert run(*train, model) == 0
    assert tune(data, search, "--trials", 1, "--resume") == 0
    before = [(folder / "run.toml").read_bytes() for folder in (model, search)]
    capsys.readouterr()
    assert tune(data, model, "--trials", 1, "--resume") == 1
    assert "model is not empty: it holds no search to continue; choose another folder" in capsys.readouterr().err
    assert run(*train, search) == 1
    assert "holds a search by `apmax tune`: choose another folder" in capsys.readouterr().err
    assert [(folder / "run.toml").read_bytes() for folder in (model, search)] == before


@pytest.fixture(scope="module")
def searched(data, tmp_path_factory):
    """A folder with a search of one trial."""
    folder = tmp_path_factory.mktemp("searched") / "t"
    assert tune(data, folder, "--trials", 1) == 0
    return folder


def test_a_finished_search_is_resumed_with_the_same_data_and_settings(data, searched, tmp_path):
    shutil.copytree(searched, tmp_path / "t")
    assert tune(data, tmp_path / "t", "--trials", 2, "--resume") == 0
    assert len(open_study(tmp_path / "t" / "study.db").trials) == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--seed", 5), "on other training or validation rows: resume it with the same data"),
        (("--share", 0.3), "on other training or validation rows"),
        (("--set", "stages.0.lr=0.5"), "with another model or other stages: resume it with the same settings"),
    ],
)
def test_study_is_not_resumed_on_other_rows_or_by_another_job(data, searched, capsys, more, message):
    before = (searched / "study.db").read_bytes()
    assert tune(data, searched, "--trials", 2, "--resume", *more) == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert (searched / "study.db").read_bytes() == before


def test_an_interrupted_trial_is_no_traceback_and_does_not_count(data, tmp_path, capfd, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tuning, "_validation_ap", interrupt)
        assert tune(data, tmp_path, "--trials", 1) == 130
    assert "Traceback" not in capfd.readouterr().err
    assert tune(data, tmp_path, "--trials", 1, "--resume") == 0
    assert "1 trial finished, 0 stopped early, 0 diverged" in " ".join(capfd.readouterr().out.split())


def test_a_diverged_trial_counts(data, tmp_path, capfd, monkeypatch):
    def diverge_first(job, prepared, trial):
        if trial.number == 0:
            raise DivergedError("the loss is nan", step=1, rows=[], lr=1.0)
        return 0.5

    monkeypatch.setattr(tuning, "_validation_ap", diverge_first)
    assert tune(data, tmp_path, "--trials", 2) == 0
    assert "1 trial finished, 0 stopped early, 1 diverged" in " ".join(capfd.readouterr().out.split())


def test_value_of_a_trial_is_weighted_like_the_metrics_of_its_job(data, tmp_path):
    lines = data.read_text().splitlines()
    weights = np.random.default_rng(1).exponential(size=len(lines) - 1)
    rows = [f"{line},{weight:.4f}" for line, weight in zip(lines[1:], weights, strict=True)]
    file = tmp_path / "weighted.csv"
    file.write_text("\n".join([f"{lines[0]},w", *rows]))
    assert run(
        "tune", file, "--target", "y", "--weight", "w", "--loss", "ce", "--epochs", 2,
        "--space", "stages.0.lr=1e-3,1e-2",
        "--trials", 2, "--out", tmp_path / "t",
    ) == 0  # fmt: skip
    best = open_study(tmp_path / "t" / "study.db").best_trial
    assert run("train", tmp_path / "t" / "run.toml", "--out", tmp_path / "r", "--no-report") == 0
    results = json.loads((tmp_path / "r" / "results.json").read_text())
    assert best.value == pytest.approx(results["valid"]["ap"]["estimate"], abs=1e-6)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            ["stages.1.lr=1e-3,1e-1", SPACE[3]],
            "stages.1.lr was searched among 0.001, 0.01 in this study, not 0.001, 0.1",
        ),
        ([SPACE[1], "model.hidden=[8,8];[4]"], "model.hidden was searched among [4], [8, 8] in this study, not [8, 8]"),
        ([SPACE[1]], "model.hidden was searched among [4], [8, 8] in this study, and is not now"),
        ([*SPACE[1::2], "seed=1,2"], "seed was not searched in this study"),
    ],
)
def test_study_is_not_resumed_with_other_values(data, tmp_path, capsys, space, message):
    study = open_study(tmp_path / "study.db")
    claim_space(study, parse_space(SPACE[1::2]))
    before = (tmp_path / "study.db").read_bytes()
    given = [part for each in space for part in ("--space", each)]
    assert run("tune", data, "--target", "y", *given, "--trials", 2, "--resume", "--out", tmp_path) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert message in shown
    assert "search in another folder" in shown
    assert [file.name for file in tmp_path.iterdir()] == ["study.db"]
    assert (tmp_path / "study.db").read_bytes() == before


def test_study_without_its_values_is_not_resumed():
    optuna = pytest.importorskip("optuna")
    study, space = optuna.create_study(), {"lr": (0.1, 0.2)}
    study.add_trial(optuna.trial.create_trial(value=0.5))
    with pytest.raises(ValueError, match="does not hold the values"):
        claim_space(study, space)


def test_result_of_a_study_is_not_read_with_other_values():
    study = pytest.importorskip("optuna").create_study()
    claim_space(study, {"lr": (0.1, 0.2)})
    with pytest.raises(ValueError, match=r"among 0\.1, 0\.2"):
        search_result(study, {"lr": (0.1,)})


def drawn(data, file, trials, monkeypatch, seed=0):
    """Return the choices of a study's trials after a search of so many, none of which is trained."""
    monkeypatch.setattr(tuning, "_validation_ap", lambda *_: 0.5)
    job = plan_job({"data": {"train": str(data), "target": "y"}}, Overrides(seed=seed))
    values = tuple(float(value) for value in np.linspace(1e-3, 1e-1, 100))
    tuning.run_search(tuning.SearchPlan(job, {"stages.1.lr": values}, file, trials))
    return [trial.params["stages.1.lr"] for trial in open_study(file).trials]


def test_resumed_search_draws_other_values_than_before(data, tmp_path, monkeypatch):
    first = drawn(data, tmp_path / "a.db", 3, monkeypatch)
    resumed = drawn(data, tmp_path / "a.db", 6, monkeypatch)
    assert resumed[:3] == first
    assert resumed[3:] != first
    # A resumed search is as reproducible as a new one, which has the seed of the job.
    assert drawn(data, tmp_path / "b.db", 3, monkeypatch) == first
    assert drawn(data, tmp_path / "b.db", 6, monkeypatch) == resumed


def test_searches_that_begin_at_the_same_moment_draw_different_values(data, tmp_path, monkeypatch):
    claim, file = tuning.claim_space, tmp_path / "a.db"

    def claim_while_another_joins(study, space):
        claim(study, space)
        monkeypatch.setattr(tuning, "claim_space", claim)
        drawn(data, file, 3, monkeypatch)

    monkeypatch.setattr(tuning, "claim_space", claim_while_another_joins)
    joined = drawn(data, file, 6, monkeypatch)
    assert len(set(joined)) > 3
    assert joined[3:] != joined[:3]


def test_search_takes_any_seed_of_a_job(data, tmp_path, monkeypatch):
    assert len(drawn(data, tmp_path / "a.db", 2, monkeypatch, seed=2**40)) == 2


def test_unknown_setting_is_refused_before_anything_is_trained(data, tmp_path, capsys):
    assert run("tune", data, "--target", "y", "--space", "stages.1.lrr=1,2", "--out", tmp_path / "t") == 1
    assert "did you mean 'lr'" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


@pytest.mark.slow
def test_trial_behind_the_median_is_pruned(data, tmp_path):
    assert run(
        "tune", data, "--target", "y", "--loss", "ce", "--epochs", 6, "--space", "stages.0.lr=1e-9,1e-2",
        "--trials", 14, "--out", tmp_path / "t",
    ) == 0  # fmt: skip
    study = open_study(tmp_path / "t" / "study.db")
    pruned = [trial for trial in study.trials if trial.state.name == "PRUNED"]
    assert pruned
    assert {trial.params["stages.0.lr"] for trial in pruned} == {0}


@pytest.mark.slow
def test_two_processes_share_one_study(data, tmp_path):
    assert tune(data, tmp_path / "t", "--trials", 6, "--processes", 2) == 0
    assert 6 <= len(open_study(tmp_path / "t" / "study.db").trials) <= 7


def test_settings_of_the_data_cannot_be_searched(data, tmp_path, capsys):
    assert run("tune", data, "--target", "y", "--space", "data.share=0.1,0.2", "--out", tmp_path / "t") == 1
    assert "--space: data.share cannot be searched" in capsys.readouterr().err
