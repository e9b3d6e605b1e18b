"""The command line itself: help, misuse, documentation, error messages and imports."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apmax.cli import main
from apmax.cli._console import FLAGS, error_text
from commands import run

PAGES = sorted((Path(__file__).parent.parent / "docs").rglob("*.md"))


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
    message_line = capsys.readouterr().err
    assert message in message_line
    assert message_line.count("\n") == 1


def test_debug_shows_the_traceback(tmp_path, capsys):
    assert run("train", tmp_path / "no.csv", "--target", "y", "--out", tmp_path / "r", "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


def test_methods_lists_every_loss(capsys):
    from apmax.losses import LOSSES

    assert run("methods") == 0
    shown = capsys.readouterr().out
    assert all(f"\n{name} " in shown for name in LOSSES)


def test_sentences_of_methods_are_one_line_each_in_redirected_output(capsys):
    from apmax.losses import LOSSES

    assert run("methods") == 0
    *_, sums, surrogates, table, molecules, images = capsys.readouterr().out.splitlines()
    assert sums.endswith("All losses but ce_mined have the option prevalence, too.")
    assert all("prevalence" in inspect.signature(loss).parameters for loss in LOSSES.values())
    assert surrogates.startswith("surrogates: ")
    assert all(line.endswith("or your own as package.module:callable") for line in (table, molecules, images))


@functools.cache
def help_of(command):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert run(command, "--help") == 0
    return shown.getvalue()


@pytest.mark.parametrize("command", main.COMMANDS)
def test_help_of_every_command_has_examples(command):
    assert f"apmax {command}" in help_of(command).split("Examples")[1]


def test_help_does_not_import_torch():
    code = (
        "import sys; from apmax.cli.main import main\ntry: main(['--help'])\nfinally: sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False).returncode == 0


def documented_commands():
    lines = [line for page in PAGES for line in re.findall(r"^\$ (apmax .+)$", page.read_text(), re.MULTILINE)]
    for command in main.COMMANDS.values():
        lines += re.findall(r"^(apmax .+)$", main.sys.modules[command.__module__].EXAMPLES, re.MULTILINE)
    return lines


@pytest.mark.parametrize("line", documented_commands())
def test_documented_command_has_its_options(line):
    _, command, *words = line.split()
    known = help_of(command)
    for option in (word for word in words if word.startswith("--")):
        assert f" {option} " in known, f"{command} has no option {option}"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("smiles: there is no column 'x'", "--smiles: there is no column 'x'"),
        ("test_share must lie in [0, 1), got 2", "--test-share must lie in [0, 1), got 2"),
        ("columns is for data of kind table", "--column is for data of kind table"),
        ("train: a data file is needed", "DATA: a data file is needed"),
        ("valid and time exclude each other: no time", "--valid and --time exclude each other: no time"),
        ("say where paths begin (root=DIR)", "say where paths begin (--root DIR)"),
        ("out is not empty: continue with resume=True", "--out is not empty: continue with --resume"),
        ("name the positive value (positive=...)", "name the positive value (--positive VALUE)"),
        ("budget needs cost=(FP, FN)", "--budget needs --cost FP:FN"),
        ("leave it out: columns={'fee 1': 'drop'}", "leave it out: --column 'fee 1=drop'"),
        ("leave it out: columns={'fee($}': 'drop'}", "leave it out: --column 'fee($}=drop'"),
        ("""leave it out: columns={"it's": 'drop'}""", """leave it out: --column 'it'"'"'s=drop'"""),
        ("smiles='a;b' does", "--smiles 'a;b' does"),
        ("settings={'stages.0.lr': nan}: no", "--set stages.0.lr=nan: no"),
        ("settings={'model.name': 'a:b'}: no", "--set model.name=a:b: no"),
        ("there is no stage '7'", "there is no stage '7'"),
        ("model/x.pt does not hold the weights", "model/x.pt does not hold the weights"),
        ("time.csv has no rows", "time.csv has no rows"),
    ],
)
def test_error_of_the_library_is_translated_into_flags(message, expected):
    assert error_text(message) == expected


def test_every_flag_of_the_translation_exists():
    shown = "".join(map(help_of, ("train", "predict", "evaluate", "report", "decide", "tune")))
    assert [flag for flag in FLAGS.values() if flag not in shown] == []


@pytest.mark.parametrize("command", ["train", "tune"])
def test_settings_of_a_network_are_for_a_job_that_an_example_makes(command):
    lines = re.findall(r"^(apmax .+)$", main.sys.modules[main.COMMANDS[command].__module__].EXAMPLES, re.MULTILINE)
    made = {}
    for line in lines:
        words = line.split()
        made.setdefault(words[words.index("--out") + 1], words)
    jobs = [line.split()[2].removesuffix("/run.toml") for line in lines if "/run.toml --" in line]
    assert jobs
    for folder in jobs:
        words = made[folder]
        assert words[1] == "tune" or "--model" in words or words[2] == "tuned/run.toml", folder
