"""Output of `apmax train` on a terminal and in a pipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commands import run
from small_files import client_rows, write_csv

LONG = ["--set", "stages.0.epochs=60", "--set", "stages.0.patience=60", "--epochs", 10, "--set", "accelerator=cpu"]
EPOCHS = 70


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("clients") / "train.csv", client_rows(200))


FEW = [*LONG, "--set", "stages.0.epochs=3", "--epochs", 2]


def epoch_lines(text):
    return re.findall(r"(?:ce|ap \+ ce) \d+  loss", text)


def test_a_pipe_gets_about_twenty_lines_and_the_log_all(clients, tmp_path, capsys):
    assert run("train", clients, "--target", "bought", *LONG, "--out", tmp_path / "r") == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert len(shown.splitlines()) <= 22
    assert 5 <= len(epoch_lines(shown)) <= 10
    assert "ce 60  loss" in shown
    assert "ap + ce 10  loss" in shown
    assert re.search(r"at most \d+ s left", shown)
    assert len(epoch_lines((tmp_path / "r" / "log.txt").read_text(encoding="utf-8"))) == EPOCHS


def test_verbose_shows_a_line_per_epoch(clients, tmp_path, capsys):
    assert run("train", clients, "--target", "bought", *LONG, "--verbose", "--out", tmp_path / "r") == 0
    assert len(epoch_lines(capsys.readouterr().out)) == EPOCHS


def test_quiet_shows_no_epoch(clients, tmp_path, capsys):
    assert run("train", clients, "--target", "bought", *FEW, "--quiet", "--out", tmp_path / "r") == 0
    assert epoch_lines(capsys.readouterr().out) == []


def test_quiet_and_verbose_exclude_each_other(clients, tmp_path, capsys):
    assert run("train", clients, "--target", "bought", "--quiet", "--verbose", "--out", tmp_path / "r") == 2
    assert "--quiet and --verbose exclude each other" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def output_of_terminal(command, *, columns=80, rows=24):
    """Run a command whose output is a terminal of that size, and return its output."""
    import fcntl
    import pty
    import struct
    import termios

    own, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "apmax", *map(str, command)], stdin=its, stdout=its, stderr=its, env=environment
    )
    os.close(its)
    parts = []
    while True:
        try:
            part = os.read(own, 2**16)
        except OSError:  # Linux raises at the end
            break
        if not part:
            break
        parts.append(part)
    os.close(own)
    return process.wait(timeout=60), b"".join(parts).decode()


def screen(text):
    """Return the lines that a terminal shows after an output: of the codes only those that rich's display uses."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if token == "\n":
            row += 1
            lines += [""] * (row == len(lines))
            column = 0
        elif token == "\r":
            column = 0
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token.endswith("A"):
            row -= int(token[2:-1] or 1)
        elif not token.startswith("\x1b"):
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + len(token) :]
            column += len(token)
    return [line.rstrip() for line in lines]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_terminal_has_one_display_that_leaves_no_lines(clients, tmp_path):
    command = ["train", clients, "--target", "bought", *LONG, "--ensemble", 2, "--out", tmp_path / "r"]
    code, shown = output_of_terminal(command)
    assert code == 0
    assert re.search(r"model [12] of 2, stage 1 of 2 \(ce\), epoch \d+ of 60", shown)
    assert re.search(r"best AP \d\.\d{4} \(ce \d+\)", shown)
    assert re.search(r"at most \d+ s left", shown)
    assert epoch_lines(shown) == []
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    remaining = screen(shown)
    assert not any("of 2 (" in line for line in remaining)
    assert len(remaining) <= 22
    assert len(epoch_lines((tmp_path / "r" / "log.txt").read_text(encoding="utf-8"))) == 2 * EPOCHS


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_verbose_on_a_terminal_keeps_a_line_per_epoch_above_the_display(clients, tmp_path):
    code, shown = output_of_terminal(
        ["train", clients, "--target", "bought", *LONG, "--verbose", "--out", tmp_path / "r"]
    )
    assert code == 0
    assert len(epoch_lines("\n".join(screen(shown)))) == EPOCHS


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(
            ("train", "a.csv", "--target", "bought", "--out", "r"),
            1,
            "the same command with --resume continues",
            marks=pytest.mark.slow,
        ),
        (("train", "--help"), 0, ""),
        pytest.param(("methods",), 0, "", marks=pytest.mark.slow),
    ],
)
def test_a_training_whose_output_is_no_longer_read_says_so(clients, tmp_path, words, code, message):
    (tmp_path / "a.csv").write_bytes(Path(clients).read_bytes())
    reader, output = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "apmax", *words]
    ended = subprocess.run(command, cwd=tmp_path, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    os.close(output)
    assert ended.returncode == code
    text = ended.stderr
    assert text.strip().endswith(message) if message else text == ""
