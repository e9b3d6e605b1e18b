"""Progress of a run: the display on a terminal, lines in a pipe, the log, and the estimate of the time left."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace

import pytest

from apmax.train import EpochMetrics, ExactHead, Record, Run, Stage, epochs, fit, format_record
from apmax.train.display import MAX_LINES, LineDisplay, LiveDisplay, RunMonitor, RunProgress, make_monitor
from small_training import TRAIN, VALID, StoppingNetwork, interrupt, network, run_of, train

VALUES = EpochMetrics(0.25, 0.25, 0.5, -0.25)


def record_of(epoch, *, stage=0, member=0, ap=0.25, seconds=1.0):
    valid = replace(VALUES, ap=ap)
    return Record(("ce", "ap + ce", "ap")[stage], stage, epoch, epoch, 0.1, 0.5, VALUES, valid, seconds, member)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def use_terminal(monkeypatch):
    """Replace stdout by a terminal; not a fixture, as pytest sets stdout between fixtures and tests."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    return sys.stdout


def follow(run, displays):
    """Return a monitor to which all epochs of a run were reported."""
    monitor = RunMonitor(run, displays)
    for member in range(run.ensemble):
        for number, stage in enumerate(run.stages):
            monitor.start_stage(member, number, 0)
            for epoch in range(1, stage.epochs + 1):
                monitor.epoch(record_of(epoch, stage=number, member=member))
            monitor.end_stage()
    return monitor


def test_the_line_of_an_epoch_fits_eighty_columns():
    values = EpochMetrics(0.123456, 0.123456, 0.123456, -0.123456)
    record = Record("ap + ce", 1, 150, 123456, 1.2345e-5, -0.1234567, values, values, 1234.56)
    assert len(format_record(record)) < 80


def test_without_a_terminal_a_short_run_has_a_line_per_epoch(capsys):
    train(network(), run_of(), progress=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["ce 1", "ce 2"]
    assert all("valid AP 0." in line for line in lines)


@pytest.mark.parametrize("ensemble", [1, 2, 3, 7])
@pytest.mark.parametrize("counts", [(5,), (100, 20), (3, 400), (1, 1, 90)])
def test_without_a_terminal_a_run_of_any_length_has_few_lines(counts, ensemble):
    stream = io.StringIO()
    follow(Run(stages=tuple(Stage(epochs=count) for count in counts), ensemble=ensemble), [LineDisplay(stream)])
    lines = stream.getvalue().splitlines()
    assert min(MAX_LINES, ensemble * sum(counts)) / 2 <= len(lines) <= MAX_LINES
    assert len(set(lines)) == len(lines)
    assert (lines[0].split("  ")[0] if ensemble == 1 else lines[0].split("  ")[1]) == "ce 1"


def test_the_end_of_a_stage_has_a_line_though_it_stopped_early():
    stream = io.StringIO()
    monitor = RunMonitor(Run(stages=(Stage(epochs=100, patience=3), Stage(epochs=20))), [LineDisplay(stream)])
    monitor.start_stage(0, 0, 0)
    for epoch in range(1, 18):
        monitor.epoch(record_of(epoch))
    monitor.end_stage()
    assert stream.getvalue().splitlines()[-1].startswith("ce 17  ")
    assert stream.getvalue().splitlines()[-1].endswith("  at most 20 s left")


def test_every_epoch_has_a_line_if_asked_for():
    stream = io.StringIO()
    follow(Run(stages=(Stage(epochs=50),)), [LineDisplay(stream, every_epoch=True)])
    assert len(stream.getvalue().splitlines()) == 50


def test_on_a_terminal_no_line_per_epoch_remains(monkeypatch):
    terminal = use_terminal(monkeypatch)
    train(network(), run_of(Stage(epochs=3)), progress=True)
    shown = terminal.getvalue()
    assert "stage 1 of 1 (ce), epoch" in shown
    assert "loss" not in shown


def test_on_a_terminal_lines_are_shown_above_the_display_if_asked_for(monkeypatch):
    terminal = use_terminal(monkeypatch)
    train(network(), run_of(Stage(epochs=3)), progress="epochs")
    assert re.findall(r"ce (\d)  loss", terminal.getvalue()) == ["1", "2", "3"]


def test_the_display_names_the_model_the_stage_the_best_ap_and_the_time_left():
    run = Run(stages=(Stage(epochs=4), Stage(epochs=2)), ensemble=2)
    display = LiveDisplay(None)
    display.progress = RunProgress(run)
    for number, ap in enumerate((0.2, 0.7, 0.6), 1):
        display.progress.add(record_of(number, ap=ap, seconds=10))
    first, second = display.text().plain.splitlines()
    assert first == "model 1 of 2, stage 1 of 2 (ce), epoch 4 of 4"
    assert second.endswith("25%  best AP 0.7000 (ce 2)  1 min 30 s left")


def test_the_display_fits_eighty_columns():
    display = LiveDisplay(None)
    progress = display.progress = RunProgress(
        Run(stages=(Stage(epochs=100, patience=5), Stage(loss={"ap": 1, "ce": 1}, epochs=150)), ensemble=8)
    )
    progress.add(record_of(149, stage=1, member=2, seconds=100))
    progress.add_batch(999, 1000)
    assert max(map(len, display.text().plain.splitlines())) <= 80


def test_the_display_begins_with_training_and_not_with_errors_of_the_arguments(monkeypatch, tmp_path):
    terminal = use_terminal(monkeypatch)
    train(network(), run_of(), directory=tmp_path)
    with pytest.raises(FileExistsError):
        epochs(network(), (TRAIN, VALID), run_of(), directory=tmp_path, progress=True)
    assert terminal.getvalue() == ""


def test_the_terminal_is_released_after_an_error(monkeypatch):
    terminal = use_terminal(monkeypatch)
    hide, show = "\x1b[?25l", "\x1b[?25h"
    with pytest.raises(KeyboardInterrupt):
        fit(StoppingNetwork(3, interrupt), (TRAIN, VALID), run_of(Stage(epochs=3)), progress=True)
    shown = terminal.getvalue()
    assert shown.count(hide) == shown.count(show) == 1
    assert shown.rindex(show) > shown.rindex(hide)


def test_an_ensemble_has_one_display(monkeypatch):
    terminal = use_terminal(monkeypatch)
    fit(network(), (TRAIN, VALID), run_of(Stage(epochs=2), ensemble=3), progress=True)
    shown = terminal.getvalue()
    assert shown.count("\x1b[?25l") == 1
    assert "model 1 of 3" in shown


def test_a_pipe_gets_lines_though_colours_are_forced(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    (display,) = make_monitor(run_of(), True, stream=io.StringIO()).displays
    assert isinstance(display, LineDisplay)


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    (display,) = make_monitor(run_of(), True, stream=Terminal()).displays
    assert isinstance(display, LineDisplay)


def test_another_value_of_progress_is_refused():
    with pytest.raises(ValueError, match="progress must be True, False or 'epochs', got 'all'"):
        fit(network(), (TRAIN, VALID), run_of(), progress="all")


def test_time_left_has_all_stages_and_models():
    progress = RunProgress(Run(stages=(Stage(epochs=10), Stage(epochs=5)), ensemble=2))
    assert progress.seconds_left() is None
    assert progress.time_left() == ""
    progress.add(record_of(1, seconds=2))
    assert progress.seconds_left() == 29 * 2
    progress.add(record_of(1, stage=1, seconds=6))
    assert progress.seconds_left() == 4 * 6 + 10 * 2 + 5 * 6
    progress.add(record_of(5, stage=1, member=1, seconds=6))
    assert progress.seconds_left() == 0
    assert progress.share_done() == 1


def test_time_left_is_that_of_the_latest_epochs():
    progress = RunProgress(Run(stages=(Stage(epochs=10),)))
    for epoch, seconds in enumerate((90, 1, 1, 1, 1, 1), 1):
        progress.add(record_of(epoch, seconds=seconds))
    assert progress.seconds_left() == 4


def test_time_left_is_known_within_the_first_epoch(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("apmax.train.display.time.monotonic", lambda: now[0])
    progress = RunProgress(Run(stages=(Stage(epochs=3), ExactHead())))
    progress.start_stage(0, 0, 0)
    now[0] += 5
    progress.add_batch(1, 4)
    assert progress.seconds_left() == 15 + 3 * 20
    assert progress.share_done() == pytest.approx(5 / 80)


def test_best_ap_is_that_of_the_current_model():
    progress = RunProgress(Run(stages=(Stage(epochs=2),), ensemble=2))
    for number, ap in enumerate((0.9, 0.8), 1):
        progress.add(record_of(number, ap=ap))
    assert progress.best.valid.ap == 0.9
    progress.add(record_of(1, member=1, ap=0.3))
    assert progress.best.valid.ap == 0.3


def log_lines(path):
    """Return the lines of a log without their times."""
    lines = (path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in lines)
    return [line[21:] for line in lines]


@pytest.mark.parametrize("progress", [False, True])
def test_the_log_has_every_epoch(tmp_path, progress, capsys):
    records = train(network(), run_of(Stage(epochs=30)), directory=tmp_path, progress=progress)
    assert log_lines(tmp_path) == [
        "stage 1 of 1 (ce, 30 epochs) begins",
        *(format_record(record) for record in records),
    ]
    assert len(capsys.readouterr().out.splitlines()) in ((MAX_LINES - 1, MAX_LINES) if progress else (0,))


def test_the_log_of_an_ensemble_has_all_models(tmp_path):
    fit(network(), (TRAIN, VALID), run_of(ensemble=2), directory=tmp_path)
    assert [line.split("  ")[0] for line in log_lines(tmp_path)] == [
        "model 1 of 2, stage 1 of 1 (ce, 2 epochs) begins", "model 1", "model 1",
        "model 2 of 2, stage 1 of 1 (ce, 2 epochs) begins", "model 2", "model 2",
    ]  # fmt: skip
    assert not list(tmp_path.glob("member-*/log.txt"))


def test_a_resumed_run_continues_its_log(tmp_path):
    train(network(), run_of(Stage(epochs=2)), directory=tmp_path)
    train(network(), run_of(Stage(epochs=3)), directory=tmp_path, resume=True)
    lines = log_lines(tmp_path)
    assert lines[3] == "stage 1 of 1 (ce, 3 epochs) resumed after epoch 2"
    assert [line.split("  ")[0] for line in lines[1:3] + lines[4:]] == ["ce 1", "ce 2", "ce 3"]


def test_time_left_after_a_resume_knows_the_epochs_before(tmp_path):
    train(network(), run_of(Stage(epochs=2)), directory=tmp_path)
    run = run_of(Stage(epochs=4))
    monitor = RunMonitor(run)
    next(epochs(network(), (TRAIN, VALID), run, directory=tmp_path, resume=True, progress=monitor))
    assert (monitor.progress.epochs_done, monitor.progress.epochs) == (3, 4)
    assert monitor.progress.spent > 0
