"""Errors and hints of the commands: they name the argument as it was written, and what to do."""

from __future__ import annotations

import pytest

from commands import run
from small_files import client_rows, write_csv


@pytest.fixture(scope="module")
def committee(tmp_path_factory):
    """Return a folder with train.csv and the committee `run`."""
    folder = tmp_path_factory.mktemp("messages")
    write_csv(folder / "train.csv", client_rows(300))
    data = [folder / "train.csv", "--target", "bought", "--effort", "quick"]
    assert run("train", *data, "--quiet", "--no-report", "--out", folder / "run") == 0
    return folder


def error_of(capsys, *arguments: object, code: int = 1) -> str:
    """Return the message of a command that fails."""
    capsys.readouterr()
    assert run(*arguments) == code
    return capsys.readouterr().err


class TestJobOfACommittee:
    @pytest.mark.parametrize(
        ("options", "name"),
        [
            (["--set", "stages.1.lr=1e-4"], "--set"),
            (["--set", "model.hidden=[8]"], "--set"),
            (["--epochs", 3], "--epochs"),
            (["--effort", "best", "--model", "mlp"], "--model"),
        ],
    )
    def test_settings_of_a_network_are_refused(self, committee, tmp_path, capsys, options, name):
        file = committee / "run" / "run.toml"
        shown = error_of(capsys, "train", file, *options, "--out", tmp_path / "r")
        assert f"{name} is for one network, and {file} is the job of a committee" in shown
        assert f"{committee / 'train.csv'}, and a network (--model mlp)" in shown
        assert list(tmp_path.iterdir()) == []

    def test_it_is_not_tuned(self, committee, tmp_path, capsys):
        file = committee / "run" / "run.toml"
        shown = error_of(capsys, "tune", file, "--space", "stages.1.lr=1e-4,1e-3", "--out", tmp_path / "t")
        assert f"tune is for one network, and {file} is the job of a committee" in shown
        assert "(--model mlp)" in shown
        assert list(tmp_path.iterdir()) == []

    def test_flags_that_exclude_each_other_are_named(self, committee, tmp_path, capsys):
        data = [committee / "train.csv", "--target", "bought", "--effort", "quick"]
        shown = error_of(capsys, "train", *data, "--set", "stages.1.lr=1e-4", "--out", tmp_path / "r")
        assert "--effort and --set exclude each other: the latter is for one network" in shown
