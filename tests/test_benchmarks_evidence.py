"""The list of commands that complete the evidence."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest
from benchmarks import evidence
from benchmarks.evidence import STEPS, Step, listing, run_step, run_steps, tier_hours

from apmax.cli.reproduce import split_names
from apmax.reproduce import load_grid
from apmax.reproduce.grid import Item
from apmax.reproduce.results import read_lines


def options_of(command: str) -> dict[str, str]:
    words = command.split()[2:]
    return dict(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize("step", [step for step in STEPS if step.command.startswith("reproduce")], ids=lambda s: s[1])
def test_commands_name_what_the_grid_has(step):
    grid = load_grid()
    item: Item = grid.items[step.command.split()[1]]
    options = options_of(step.command)
    data, models, splits = (split_names(options.get(name)) for name in ("--dataset", "--model", "--splits"))
    assert grid.cells(item, data=data, models=models, splits=splits)
    assert set(split_names(options.get("--methods")) or []) <= set(item.rows)
    assert options.get("--budget", "published") in grid.budgets
    assert set(options) <= {"--dataset", "--model", "--splits", "--methods", "--budget"}


def test_words_of_a_command():
    assert Step(1, "reproduce table6 --model gine").words(None) == [
        *(sys.executable, "-m", "apmax", "reproduce", "table6", "--model", "gine")
    ]
    assert Step(2, "when_ap_pays --hours 3").words(None)[2] == "benchmarks.when_ap_pays"
    assert Step(1, "libauc.hiv --out x").words(None) is None
    assert Step(1, "libauc.hiv --out x").words("python")[:3] == ["python", "-m", "benchmarks.libauc.hiv"]


def test_a_command_that_takes_too_long_is_told_to_stop(tmp_path):
    program = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[1]).write_text('saved'), sys.exit(0)))\n"
        "pathlib.Path(sys.argv[2]).write_text('ready')\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "checkpoint"), str(tmp_path / "ready")]
    begin = time.monotonic()
    assert run_step(words, 3.0) is None
    assert time.monotonic() - begin < 30
    assert (tmp_path / "ready").exists()
    assert (tmp_path / "checkpoint").read_text() == "saved"


def test_the_ledger_has_the_time_of_every_command(tmp_path, monkeypatch, capsys):
    codes = iter([0, None])
    monkeypatch.setattr(evidence, "run_step", lambda words, seconds: next(codes))
    steps = [Step(1, "reproduce table1"), Step(1, "libauc.hiv --out x"), Step(3, "reproduce table2")]
    run_steps(steps, 1.0, None, tmp_path / "ledger")
    lines = read_lines(tmp_path / "ledger")
    assert [(line["tier"], line["command"], line["exit"]) for line in lines] == [
        (1, "reproduce table1", 0),
        (3, "reproduce table2", None),
    ]
    assert "--libauc" in capsys.readouterr().out


def test_the_ledger_has_the_processor_time_of_commands_and_of_their_processes(tmp_path, monkeypatch):
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    monkeypatch.setattr(Step, "words", lambda step, libauc: [sys.executable, "-c", program])
    run_steps([Step(1, "busy"), Step(1, "busy")], 1.0, None, tmp_path / "ledger")
    first, second = (line["core_seconds"] for line in read_lines(tmp_path / "ledger"))
    assert first >= 0.5
    assert 0.5 <= second < 1.5 * first, "of this command alone, not of all so far"


def test_the_ledger_has_the_time_of_an_interrupted_command_and_the_list_ends(tmp_path, monkeypatch):
    def interrupt(words, seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(evidence, "run_step", interrupt)
    run_steps([Step(1, "reproduce table1"), Step(1, "reproduce table2")], 1.0, None, tmp_path / "ledger")
    (line,) = (tmp_path / "ledger").read_text().splitlines()
    assert (json.loads(line)["command"], json.loads(line)["exit"]) == ("reproduce table1", None)


def test_a_list_that_is_killed_keeps_the_time_of_its_command(tmp_path, monkeypatch):
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("APMAX_DATA", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["evidence", "--tiers", "1"])
    monkeypatch.setattr(evidence, "run_steps", lambda steps, hours, libauc: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(KeyboardInterrupt):  # which `run_steps` writes into the ledger
            evidence.main()
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_no_command_begins_when_the_time_is_over_and_a_failure_ends_the_list(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(evidence, "run_step", lambda words, seconds: begun.append(words) or 3)
    steps = [Step(1, "reproduce table1"), Step(1, "reproduce table2")]
    run_steps(steps, 0.0, None, tmp_path / "ledger")
    assert begun == []
    with pytest.raises(SystemExit, match="exit code 3: reproduce table1"):
        run_steps(steps, 1.0, None, tmp_path / "ledger")
    assert len(begun) == 1


def test_core_hours_of_a_tier_are_added_up(tmp_path):
    ledger = tmp_path / "ledger"
    assert tier_hours(ledger) == {}
    lines = [{"tier": 1, "seconds": 1800, "core_seconds": seconds} for seconds in (3600, 1800)]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert tier_hours(ledger) == {1: 1.5}
    assert list(listing([Step(1, "a"), Step(3, "b")], ledger)) == [
        "tier 1, 1.5 core hours so far",
        "  a",
        "tier 3, 0.0 core hours so far",
        "  b",
    ]
