"""Background writing and schedule of checkpoints."""

import io
import itertools
import signal
import threading
import time

import pytest
import torch

from apmax.train import (
    Checkpoints,
    NotWrittenError,
    Optimizer,
    Stage,
    Terminated,
    checkpoints,
    epochs,
    load_checkpoint,
)
from apmax.train.checkpoints import CheckpointSchedule
from small_training import POSITIVE, TRAIN, VALID, StoppingNetwork, interrupt, network, run_of, same, train, weights

EVERY_STEP = Checkpoints(every_steps=1)


def joint_run(checkpoints, **fields):
    """Return a run with every kind of state: average, loss, momenta, proximal reference point, selection."""
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


class SlowDisk:
    """Replaces `write_checkpoint`: waits, may fail, and records the steps and the number of simultaneous writes."""

    def __init__(self, monkeypatch, *, seconds=0.01, fail_at=()):
        self.write, self.seconds, self.fail_at = checkpoints.write_checkpoint, seconds, fail_at
        self.steps, self.active, self.most = [], 0, 0
        monkeypatch.setattr(checkpoints, "write_checkpoint", self)

    def __call__(self, path, content):
        self.active += 1
        self.most = max(self.most, self.active)
        time.sleep(self.seconds)
        self.steps.append(step_of(content))
        self.active -= 1
        if self.steps[-1] in self.fail_at:
            raise OSError(28, "No space left on device")
        self.write(path, content)


def test_training_does_not_wait_for_the_disk(monkeypatch, tmp_path):
    released, seen = threading.Event(), []
    write = checkpoints.write_checkpoint

    def blocked(path, content):
        assert released.wait(10)
        write(path, content)

    def go_on():
        seen.append((tmp_path / "checkpoint.pt").exists())
        released.set()

    monkeypatch.setattr(checkpoints, "write_checkpoint", blocked)
    train(StoppingNetwork(9, go_on), joint_run(Checkpoints(every_seconds=0)), directory=tmp_path)
    assert seen == [False]
    assert (tmp_path / "checkpoint.pt").exists()


def test_training_steps_continue_during_a_slow_write(monkeypatch, tmp_path):
    disk = SlowDisk(monkeypatch, seconds=0.03)
    train(network(), joint_run(Checkpoints(every_seconds=0)), directory=tmp_path)
    assert any(after - before > 1 for before, after in itertools.pairwise(disk.steps))


@pytest.mark.parametrize("at", [4, 9, 14, 20])
def test_interrupted_with_a_slow_disk_and_resumed_the_weights_are_the_same(at, monkeypatch, tmp_path):
    run = joint_run(Checkpoints(every_seconds=0))
    whole = StoppingNetwork()
    train(whole, run, directory=tmp_path / "whole")
    SlowDisk(monkeypatch, seconds=0.01)
    with pytest.raises(KeyboardInterrupt):
        train(StoppingNetwork(at, interrupt), run, directory=tmp_path / "stopped")
    again = StoppingNetwork()
    train(again, run, directory=tmp_path / "stopped", resume=True)
    assert same(weights(again), weights(whole))


def test_every_checkpoint_by_steps_is_written_and_never_two_at_once(monkeypatch, tmp_path):
    disk = SlowDisk(monkeypatch, seconds=0.005)
    records = train(network(), joint_run(EVERY_STEP), directory=tmp_path)
    assert list(dict.fromkeys(disk.steps)) == list(range(1, records[-1].step + 1))
    assert disk.most == 1


def test_by_seconds_or_share_no_checkpoint_is_due_during_a_write():
    for config in (Checkpoints(every_seconds=0), Checkpoints(share=1.0)):
        schedule = CheckpointSchedule(config)
        schedule.started -= 1
        assert schedule.due(1)
        assert not schedule.due(1, writing=True)
    assert CheckpointSchedule(EVERY_STEP).due(1, writing=True)


def test_the_seconds_of_writing_count_towards_the_share(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    schedule = CheckpointSchedule(Checkpoints(share=0.1))
    schedule.saved(1, 0.5)
    schedule.charge(1.5)
    now[0] = 39.9
    assert not schedule.due(2)
    now[0] = 40.0
    assert schedule.due(2)


def test_by_epochs_a_checkpoint_is_written_after_each(monkeypatch, tmp_path):
    disk = SlowDisk(monkeypatch, seconds=0)
    records = train(network(), joint_run(Checkpoints(every_epochs=1)), directory=tmp_path)
    # One after the last epoch, and one at the end of the run.
    assert disk.steps == [*(record.step for record in records), records[-1].step]


def test_a_failed_write_stops_training_at_the_next_step_with_the_reason(monkeypatch, tmp_path):
    model = StoppingNetwork()
    SlowDisk(monkeypatch, seconds=0, fail_at=[5])
    with pytest.raises(NotWrittenError, match=r"checkpoint\.pt could not be written .*No space left.*can be resumed"):
        train(model, joint_run(EVERY_STEP), directory=tmp_path)
    assert model.steps == 6
    assert load_checkpoint(tmp_path / "checkpoint.pt")["step"] == 4


def test_a_failed_last_write_is_raised_at_the_end_of_the_run(monkeypatch, tmp_path):
    run = joint_run(Checkpoints(every_seconds=1e9))
    last = train(network(), run)[-1].step
    SlowDisk(monkeypatch, fail_at=[last])
    with pytest.raises(NotWrittenError, match="No space left"):
        train(network(), run, directory=tmp_path)


def test_a_failed_write_does_not_hide_the_error_that_stopped_the_run(monkeypatch, tmp_path):
    SlowDisk(monkeypatch, seconds=0.05, fail_at=[3])
    run = joint_run(Checkpoints(every_steps=3))
    with pytest.raises(KeyboardInterrupt), pytest.warns(RuntimeWarning, match="No space left"):
        train(StoppingNetwork(4, interrupt), run, directory=tmp_path)


def test_at_the_end_of_a_run_its_last_checkpoint_is_on_the_disk(monkeypatch, tmp_path):
    SlowDisk(monkeypatch, seconds=0.05)
    records = train(network(), joint_run(Checkpoints(every_seconds=1e9)), directory=tmp_path)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["step"] == records[-1].step


def test_leaving_the_loop_waits_for_the_checkpoint(monkeypatch, tmp_path):
    SlowDisk(monkeypatch, seconds=0.05)
    running = epochs(network(), (TRAIN, VALID), joint_run(Checkpoints(every_seconds=1e9)), directory=tmp_path)
    record = next(running)
    running.close()
    assert load_checkpoint(tmp_path / "checkpoint.pt")["step"] == record.step


def test_an_exception_waits_for_the_checkpoint_begun_before_it(monkeypatch, tmp_path):
    SlowDisk(monkeypatch, seconds=0.05)
    with pytest.raises(KeyboardInterrupt):
        train(StoppingNetwork(4, interrupt), joint_run(Checkpoints(every_steps=3)), directory=tmp_path)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["step"] == 3


def terminate():
    signal.raise_signal(signal.SIGTERM)


def test_sigterm_waits_until_the_checkpoint_of_its_step_is_on_the_disk(monkeypatch, tmp_path):
    SlowDisk(monkeypatch, seconds=0.05)
    with pytest.raises(Terminated):
        train(StoppingNetwork(5, terminate), joint_run(Checkpoints(every_steps=4)), directory=tmp_path)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["step"] == 5
    assert load_checkpoint(tmp_path / "checkpoint.previous.pt")["step"] == 4


def test_sigterm_with_a_failed_checkpoint_does_not_exit_as_if_saved(monkeypatch, tmp_path):
    SlowDisk(monkeypatch, fail_at=[5])
    with pytest.raises(NotWrittenError):
        train(StoppingNetwork(5, terminate), joint_run(Checkpoints(every_seconds=1e9)), directory=tmp_path)


def test_no_thread_is_left_after_a_run(tmp_path):
    train(network(), joint_run(EVERY_STEP), directory=tmp_path)
    assert not writing_threads()


def writing_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


@pytest.mark.slow
def test_no_worker_is_started_during_a_write(monkeypatch, tmp_path):
    disk, threads = SlowDisk(monkeypatch, seconds=0.05), []
    start = torch.utils.data.DataLoader.__iter__

    def starting(self):
        threads.append(writing_threads())
        return start(self)

    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", starting)
    train(network(), joint_run(Checkpoints(every_seconds=0), workers=1), directory=tmp_path)
    assert len(disk.steps) > 2
    assert threads == [[]] * 6
