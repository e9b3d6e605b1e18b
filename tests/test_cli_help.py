"""The command line itself: help, misuse, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from apmax.cli.main import COMMANDS
from commands import run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Missing argument"),
        (["trian"], "No such command 'trian'"),
        (["train", "a.csv", "--epoch", "3", "--out", "r"], "No such option"),
        (["predict", "a", "b", "--out", "c.csv", "--top", "0"], "--top"),
        (["train", "a.csv", "--out", "r", "--column", "age"], "NAME=TYPE"),
    ],
)
def test_misuse_is_one_line_with_code_2(capsys, arguments, message):
    assert run(*arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_debug_shows_the_traceback(tmp_path, capsys):
    assert run("train", tmp_path / "no.csv", "--target", "y", "--out", tmp_path / "r", "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


def test_methods_lists_every_loss(capsys):
    from apmax.losses import LOSSES

    assert run("methods") == 0
    shown = capsys.readouterr().out
    assert all(f"\n{name} " in shown for name in LOSSES)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_examples(command, capsys):
    assert run(command, "--help") == 0
    shown = capsys.readouterr().out
    assert f"apmax {command}" in shown.split("Examples")[1]


def test_help_does_not_import_torch():
    code = (
        "import sys; from apmax.cli.main import main\ntry: main(['--help'])\nfinally: sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False).returncode == 0


def test_public_names_are_there_when_asked_for():
    code = "import apmax, sys; assert 'torch' not in sys.modules; [getattr(apmax, n) for n in apmax.__all__]"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_public_name_is_an_attribute_error():
    import apmax

    with pytest.raises(AttributeError, match="no attribute 'SOAP'"):
        _ = apmax.SOAP
