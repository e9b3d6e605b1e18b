"""Training in separate processes: killed, terminated, distributed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import TensorDataset

from apmax.train import Data, Run, Stage, fit, load_checkpoint, read_records
from apmax.train.processes import OtherProcessError, check_same_training, from_first, shared_errors
from commands import run
from small_training import same

pytestmark = pytest.mark.slow


SCRIPT = Path(__file__).with_name("training_script.py")


def start(directory, **settings):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, str(SCRIPT), json.dumps({"directory": str(directory), **settings})]
    return subprocess.Popen(arguments, env=environment, start_new_session=True, stderr=subprocess.PIPE)


def run_to_the_end(directory, **settings):
    process = start(directory, **settings)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()[-3000:]
    return torch.load(Path(directory) / "model.pt", weights_only=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function that gives the weights of an uninterrupted run, each trained once."""
    known = {}

    def weights_of(**settings):
        key = json.dumps(settings, sort_keys=True)
        if key not in known:
            known[key] = run_to_the_end(tmp_path_factory.mktemp("whole"), **settings)
        return known[key]

    return weights_of


def kill_after_first_step(process, directory, delay):
    """Wait until the run trains and then for `delay` seconds; kill the process and its children by SIGKILL."""
    marker = Path(directory) / "training"
    deadline = time.monotonic() + 120
    while not marker.exists():
        assert process.poll() is None, process.stderr.read().decode()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(delay)
    finished_already = process.poll() is not None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    marker.unlink()
    return not finished_already


@pytest.mark.parametrize(("devices", "workers"), [(1, 0), (1, 2), (2, 0), (2, 1)])
def test_killed_at_random_moments_and_resumed_the_weights_are_the_same(devices, workers, whole, tmp_path):
    settings = {"devices": devices, "workers": workers}
    moments = random.Random(devices * 10 + workers)
    kills = 0
    for _ in range(3):
        process = start(tmp_path / "killed", **settings)
        kills += kill_after_first_step(process, tmp_path / "killed", moments.uniform(0.0, 0.6))
    assert kills == 3
    # How many workers read the data does not change what is read.
    assert same(run_to_the_end(tmp_path / "killed", **settings), whole(devices=devices))
    records = read_records(tmp_path / "killed")
    assert [record.epoch for record in records] == [1, 2, 3, 1, 2, 3]


def test_a_run_of_two_processes_killed_among_mined_negatives_resumes_to_the_same_weights(whole, tmp_path):
    settings = {"devices": 2, "loss": "ce_mined"}
    process = start(tmp_path / "killed", kill_at=27, **settings)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert same(run_to_the_end(tmp_path / "killed", **settings), whole(**settings))


def test_a_process_that_kills_itself_at_a_random_step_resumes_to_the_same_weights(whole, tmp_path):
    for step in random.Random(1).sample(range(1, 40), 3):
        process = start(tmp_path / "killed", kill_at=step)
        process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL
    assert same(run_to_the_end(tmp_path / "killed"), whole(devices=1))


@pytest.mark.parametrize("devices", [1, 2])
def test_sigterm_to_one_process_saves_and_stops_them_all(devices, whole, tmp_path):
    process = start(tmp_path / "stopped", devices=devices, every_seconds=1e9)
    while not (tmp_path / "stopped" / "training").exists():
        assert process.poll() is None, process.stderr.read().decode()[-3000:]
        time.sleep(0.01)
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 143
    assert load_checkpoint(tmp_path / "stopped" / "checkpoint.pt")["step"] > 0
    assert same(run_to_the_end(tmp_path / "stopped", devices=devices), whole(devices=devices))


@pytest.mark.parametrize(("optimizer", "precision", "tolerance"), [("sgd", "32-true", 1e-5), ("adam", "64-true", 1e-9)])
@pytest.mark.parametrize(("loss", "weighted"), [("ce", False), ("ce_mined", False), ("ap", False), ("ap", True)])
def test_one_and_two_processes_give_the_same_weights(loss, weighted, optimizer, precision, tolerance, tmp_path):
    settings = {"plain": True, "optimizer": optimizer, "precision": precision, "loss": loss, "weighted": weighted}
    one = run_to_the_end(tmp_path / "one", devices=1, **settings)
    two = run_to_the_end(tmp_path / "two", devices=2, **settings)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=tolerance, atol=tolerance)
    first, second = (read_records(tmp_path / name)[-1] for name in ("one", "two"))
    assert first.train.ap == pytest.approx(second.train.ap, abs=1e-3)
    assert first.valid.ap == pytest.approx(second.valid.ap, abs=1e-3)


def run_by_torchrun(directory, **settings):
    settings = json.dumps({"directory": str(directory), "devices": 2, "plain": True, **settings})
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(SCRIPT), settings]
    subprocess.run(command, check=True, timeout=300, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return torch.load(directory / "model.pt", weights_only=True)


def test_under_torchrun_the_weights_are_those_of_fabrics_own_processes(tmp_path):
    own = run_to_the_end(tmp_path / "own", devices=2, plain=True)
    assert same(run_by_torchrun(tmp_path / "torchrun"), own)


def test_a_run_whose_processes_have_other_last_bits_of_the_inputs_is_resumed(tmp_path):
    trained = run_by_torchrun(tmp_path, own_inputs=True)
    assert same(run_by_torchrun(tmp_path, own_inputs=True), trained)


def agree(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)

    def fail_in_the_second():
        if rank == 1:
            raise FileNotFoundError("no such file: data.csv")

    expected = FileNotFoundError if rank else OtherProcessError
    with pytest.raises(expected, match=r"no such file: data\.csv"), shared_errors(2):
        fail_in_the_second()
    assert from_first(lambda: {"rank": dist.get_rank()}, 2) == {"rank": 0}
    with pytest.raises(OtherProcessError if rank else ZeroDivisionError, match="by zero"):
        from_first(lambda: 1 // 0, 2)
    check_same_training("labels", {"seed": 0}, 2)
    with pytest.raises(ValueError, match=r"data: process 1 of 2 \(on .*\) has other rows"):
        check_same_training(f"labels of {rank}", {"seed": 0}, 2)
    with pytest.raises(ValueError, match=r"seed: process 1 of 2 \(on .*\) has another value"):
        check_same_training("labels", {"seed": rank}, 2)
    dist.destroy_process_group()


def test_processes_agree_on_errors_and_on_what_the_first_one_knows():
    mp.spawn(agree, args=(29517,), nprocs=2)


def test_a_committee_under_torchrun_is_refused_before_anything_is_written(tmp_path):
    data = tmp_path / "data.csv"
    data.write_text("a,y\n" + "".join(f"{row},{int(row % 5 == 0)}\n" for row in range(200)))
    arguments = ["-m", "apmax", "train", str(data), "--target", "y", "--out", str(tmp_path / "model")]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *arguments]
    done = subprocess.run(command, timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "a committee is trained by one process" in done.stderr
    assert not (tmp_path / "model").exists()


OWN_NETWORK = """
import os
from torch import nn

def build(sizes):
    if os.environ["RANK"] == "1":
        raise ValueError("not on this machine")
    return nn.Linear(len(sizes), 1)
"""


def test_a_network_that_one_process_cannot_build_leaves_no_file(tmp_path):
    (tmp_path / "own.py").write_text(OWN_NETWORK)
    (tmp_path / "data.csv").write_text(
        "a,b,y\n" + "".join(f"{row % 7},{row},{int(row % 5 == 0)}\n" for row in range(200))
    )
    arguments = ["-m", "apmax", "train", "data.csv", "--target", "y", "--model", "own:build", "--devices", "2"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *arguments, "--out", "trained"]
    done = subprocess.run(command, cwd=tmp_path, timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "process 1 of 2 failed: ValueError" in done.stderr
    assert not (tmp_path / "trained").exists()


def set_torchrun_variables(rank, port):
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": 2}
    os.environ.update({name: str(value) for name, value in {**settings, "RANK": rank, "LOCAL_RANK": rank}.items()})


def fit_by_function(rank, port):
    set_torchrun_variables(rank, port)

    def build():
        if rank == 1:
            raise ValueError("not on this machine")
        return torch.nn.Linear(4, 1)

    labels = torch.arange(40) % 5 == 0
    data = Data(TensorDataset(torch.zeros(40, 4), labels.float()))
    with pytest.raises(ValueError if rank else OtherProcessError, match="not on this machine"):
        fit(build, data, Run(stages=(Stage(epochs=1),), accelerator="cpu", devices=2))


def test_a_function_that_fails_in_one_process_ends_fit_in_all():
    mp.spawn(fit_by_function, args=(29519,), nprocs=2)


def train_from_job(rank, folder, port):
    set_torchrun_variables(rank, port)
    os.chdir(folder)
    run("train", "run.toml", "--devices", 2, "--out", "trained")


def test_a_job_that_one_machine_lacks_ends_all_processes(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "data.csv").write_text("a,y\n" + "".join(f"{row},{int(row % 5 == 0)}\n" for row in range(200)))
    (folders[0] / "run.toml").write_text('[data]\ntrain = "data.csv"\ntarget = "y"\n[model]\nname = "mlp"\n')
    started = mp.get_context("spawn")
    processes = [started.Process(target=train_from_job, args=(*each, 29518)) for each in enumerate(folders)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    waiting = [process for process in processes if process.is_alive()]
    for process in waiting:
        process.kill()
    assert waiting == []
    assert not (folders[0] / "trained").exists()
