"""Checkpoints are written beside the training: complete, one at a time, waited for at the end, failures told."""

import dataclasses
import io
import itertools
import signal
import threading
import time

import pytest
import torch
from apmax.train.pace import Pace

from apmax.train import NotWrittenError, Terminated, epochs
from apmax.train import checkpoints as checkpoint
from apmax.train.config import Checkpoints, Optimizer, Stage
from small_training import POSITIVE, TRAIN, VALID, network, run_of, same, train, weights

STEP_BY_STEP = Checkpoints(every_steps=1)


def joint_run(checkpoints, **fields):
    """Return a run with all there is to save: average, loss's memory, momenta, a reference point, a selection."""
    stage = Stage(
        loss={"ap": 1.0, "ce": 1.0},
        epochs=3,
        ema=0.9,
        sampler=POSITIVE,
        optimizer=Optimizer(lr=0.01, proximal=0.1, proximal_every=1),
    )
    return run_of(stage, checkpoints=checkpoints, **fields)


def step_of(content):
    return torch.load(io.BytesIO(content), weights_only=True)["state"]["step"]


class Slow:
    """Stands for `checkpoint.write`: takes its time, and notes what it is given and how many are at it."""

    def __init__(self, monkeypatch, *, seconds=0.01, fail_at=()):
        self.write, self.seconds, self.fail_at = checkpoint.write, seconds, fail_at
        self.steps, self.active, self.most = [], 0, 0
        monkeypatch.setattr(checkpoint, "write", self)

    def __call__(self, path, content):
        self.active += 1
        self.most = max(self.most, self.active)
        time.sleep(self.seconds)
        self.steps.append(step_of(content))
        self.active -= 1
        if self.steps[-1] in self.fail_at:
            raise OSError(28, "No space left on device")
        self.write(path, content)


class Stopping(torch.nn.Module):
    """A network that does something at one of its training steps."""

    def __init__(self, at, action):
        super().__init__()
        self.inner, self.at, self.action, self.steps = network(), at, action, 0

    def forward(self, inputs):
        if self.training:
            self.steps += 1
            if self.steps == self.at:
                self.action()
        return self.inner(inputs)


def interrupt():
    raise KeyboardInterrupt


def test_training_goes_on_while_a_checkpoint_is_written(monkeypatch, tmp_path):
    released, seen = threading.Event(), []
    write = checkpoint.write

    def blocked(path, content):
        assert released.wait(10)
        write(path, content)

    def go_on():
        seen.append((tmp_path / "checkpoint.pt").exists())
        released.set()

    monkeypatch.setattr(checkpoint, "write", blocked)
    train(Stopping(9, go_on), joint_run(Checkpoints(every_seconds=0)), directory=tmp_path)
    assert seen == [False]
    assert (tmp_path / "checkpoint.pt").exists()


def test_steps_are_taken_while_a_slow_disk_is_written_to(monkeypatch, tmp_path):
    slow = Slow(monkeypatch, seconds=0.03)
    train(network(), joint_run(Checkpoints(every_seconds=0)), directory=tmp_path)
    assert any(after - before > 1 for before, after in itertools.pairwise(slow.steps))


@pytest.mark.parametrize("at", [4, 9, 14, 20])
def test_stopped_with_a_slow_disk_and_resumed_the_weights_are_the_same(at, monkeypatch, tmp_path):
    run = joint_run(Checkpoints(every_seconds=0))
    whole = Stopping(None, None)
    train(whole, run, directory=tmp_path / "whole")
    Slow(monkeypatch, seconds=0.01)
    with pytest.raises(KeyboardInterrupt):
        train(Stopping(at, interrupt), run, directory=tmp_path / "stopped")
    again = Stopping(None, None)
    train(again, run, directory=tmp_path / "stopped", resume=True)
    assert same(weights(again), weights(whole))


def test_every_checkpoint_asked_for_by_steps_is_written_and_never_two_at_once(monkeypatch, tmp_path):
    slow = Slow(monkeypatch, seconds=0.005)
    records = train(network(), joint_run(STEP_BY_STEP), directory=tmp_path)
    assert list(dict.fromkeys(slow.steps)) == list(range(1, records[-1].step + 1))
    assert slow.most == 1


def test_by_seconds_or_share_none_is_due_while_one_is_written():
    for wanted in (Checkpoints(every_seconds=0), Checkpoints(share=1.0)):
        pace = Pace(wanted)
        pace.started -= 1
        assert pace.due(1)
        assert not pace.due(1, writing=True)
    assert Pace(STEP_BY_STEP).due(1, writing=True)


def test_the_seconds_of_writing_count_towards_the_share(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = Pace(Checkpoints(share=0.1))
    pace.saved(1, 0.5)
    pace.charge(1.5)
    now[0] = 39.9
    assert not pace.due(2)
    now[0] = 40.0
    assert pace.due(2)


def test_by_epochs_one_is_written_at_the_end_of_each(monkeypatch, tmp_path):
    slow = Slow(monkeypatch, seconds=0)
    records = train(network(), joint_run(Checkpoints(every_epochs=1)), directory=tmp_path)
    # The last epoch's own, and the one that ends the run.
    assert slow.steps == [*(record.step for record in records), records[-1].step]


def test_a_failed_write_stops_the_training_at_the_next_step_and_says_why(monkeypatch, tmp_path):
    model = Stopping(None, None)
    Slow(monkeypatch, seconds=0, fail_at=[5])
    with pytest.raises(NotWrittenError, match=r"checkpoint\.pt could not be written .*No space left.*can be resumed"):
        train(model, joint_run(STEP_BY_STEP), directory=tmp_path)
    assert model.steps == 6
    assert checkpoint.load(tmp_path / "checkpoint.pt")["step"] == 4


def test_a_failed_last_write_is_raised_at_the_end_of_the_run(monkeypatch, tmp_path):
    run = joint_run(Checkpoints(every_seconds=1e9))
    last = train(network(), run)[-1].step
    Slow(monkeypatch, fail_at=[last])
    with pytest.raises(NotWrittenError, match="No space left"):
        train(network(), run, directory=tmp_path)


def test_a_failed_write_does_not_hide_what_stopped_the_run(monkeypatch, tmp_path):
    Slow(monkeypatch, seconds=0.2, fail_at=[3])
    run = joint_run(Checkpoints(every_steps=3))
    with pytest.raises(KeyboardInterrupt), pytest.warns(RuntimeWarning, match="No space left"):
        train(Stopping(4, interrupt), run, directory=tmp_path)


def test_at_the_end_of_a_run_its_last_checkpoint_is_on_the_disk(monkeypatch, tmp_path):
    Slow(monkeypatch, seconds=0.2)
    records = train(network(), joint_run(Checkpoints(every_seconds=1e9)), directory=tmp_path)
    assert checkpoint.load(tmp_path / "checkpoint.pt")["step"] == records[-1].step


def test_leaving_the_loop_waits_for_the_checkpoint(monkeypatch, tmp_path):
    Slow(monkeypatch, seconds=0.2)
    running = epochs(network(), (TRAIN, VALID), joint_run(Checkpoints(every_seconds=1e9)), directory=tmp_path)
    record = next(running)
    running.close()
    assert checkpoint.load(tmp_path / "checkpoint.pt")["step"] == record.step


def test_an_exception_waits_for_the_checkpoint_begun_before_it(monkeypatch, tmp_path):
    Slow(monkeypatch, seconds=0.2)
    with pytest.raises(KeyboardInterrupt):
        train(Stopping(4, interrupt), joint_run(Checkpoints(every_steps=3)), directory=tmp_path)
    assert checkpoint.load(tmp_path / "checkpoint.pt")["step"] == 3


def terminate():
    signal.raise_signal(signal.SIGTERM)


def test_sigterm_waits_until_the_checkpoint_of_its_step_is_on_the_disk(monkeypatch, tmp_path):
    Slow(monkeypatch, seconds=0.2)
    with pytest.raises(Terminated):
        train(Stopping(5, terminate), joint_run(Checkpoints(every_steps=4)), directory=tmp_path)
    assert checkpoint.load(tmp_path / "checkpoint.pt")["step"] == 5
    assert checkpoint.load(tmp_path / "checkpoint.previous.pt")["step"] == 4


def test_sigterm_whose_checkpoint_fails_does_not_end_as_if_it_were_saved(monkeypatch, tmp_path):
    Slow(monkeypatch, fail_at=[5])
    with pytest.raises(NotWrittenError):
        train(Stopping(5, terminate), joint_run(Checkpoints(every_seconds=1e9)), directory=tmp_path)


def test_no_thread_is_left_after_a_run(tmp_path):
    train(network(), joint_run(STEP_BY_STEP), directory=tmp_path)
    assert not writing_threads()


def writing_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


def test_no_worker_is_started_beside_the_thread_that_writes(monkeypatch, tmp_path):
    slow, beside = Slow(monkeypatch, seconds=0.05), []
    start = torch.utils.data.DataLoader.__iter__

    def starting(self):
        beside.append(writing_threads())
        return start(self)

    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", starting)
    train(network(), joint_run(Checkpoints(every_seconds=0), workers=1), directory=tmp_path)
    assert len(slow.steps) > 2
    assert beside == [[]] * 6


@pytest.mark.parametrize("version", [1, 2])
def test_a_run_of_a_format_before_is_resumed(version, tmp_path):
    run = joint_run(STEP_BY_STEP)
    whole, again = Stopping(None, None), Stopping(None, None)
    train(whole, run, directory=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(Stopping(16, interrupt), run, directory=tmp_path / "stopped")
    file = tmp_path / "stopped" / "checkpoint.pt"
    state = checkpoint.load(file)
    lines = state["records"].splitlines()
    assert len(lines) > 0
    if version == 1:
        records = train(Stopping(None, None), run)[: len(lines)]
        state["records"] = [dataclasses.asdict(record) for record in records]
    torch.save({"format": "apmax-checkpoint", "version": version, "apmax": "0.1.0", "state": state}, file)
    train(again, run, directory=tmp_path / "stopped", resume=True)
    assert same(weights(again), weights(whole))
    assert len(checkpoint.load(file)["records"].splitlines()) == 3
