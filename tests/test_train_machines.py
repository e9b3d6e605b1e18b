"""Training on several machines: network namespaces, each with its own address and its own folders."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import training_script
from apmax.train import read_records

pytestmark = pytest.mark.slow

SETTINGS = {"num_nodes": 2, "plain": True, "optimizer": "sgd"}
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def hosts():
    """Two network namespaces that are joined by a pair of virtual interfaces; skips where they cannot be made."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2")
    names = [f"apmax{os.getpid()}-{host}" for host in range(2)]
    made = []
    try:
        for name in names:
            added = ip("netns", "add", name)
            if added.returncode:
                pytest.skip(f"needs network namespaces: {added.stderr.strip()}")
            made.append(name)
        links = [
            ("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth1", "netns", names[1])
        ]
        for host, name in enumerate(names):
            links.append(("-n", name, "address", "add", f"{ADDRESSES[host]}/24", "dev", f"veth{host}"))
            links += [("-n", name, "link", "set", device, "up") for device in ("lo", f"veth{host}")]
        for link in links:
            done = ip(*link)
            if done.returncode:
                pytest.skip(f"needs virtual interfaces: {done.stderr.strip()}")
        yield names
    finally:
        for name in made:
            ip("netns", "delete", name)


def torchrun(hosts, folders, settings, *, port):
    """Run the training script on every host; return exit codes and outputs."""
    processes = []
    for host, (name, folder) in enumerate(zip(hosts, folders, strict=True)):
        folder.mkdir(exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"veth{host}"}
        arguments = json.dumps({"directory": str(folder), **SETTINGS, **settings[host]})
        command = [
            "ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes=2",
            "--nproc-per-node=1", f"--node-rank={host}", f"--master-addr={ADDRESSES[0]}", f"--master-port={port}",
            str(Path(training_script.__file__)), arguments,
        ]  # fmt: skip
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs


@pytest.fixture(scope="module")
def folders(hosts, tmp_path_factory):
    """The run's folders on both hosts, after a training whose second host was killed and that was resumed."""
    folders = [tmp_path_factory.mktemp("machines") / f"host{host}" for host in range(2)]
    codes, outputs = torchrun(hosts, folders, [{"fast": True}, {"kill_at": 12}], port=29511)
    assert all(codes), outputs
    assert (folders[0] / "checkpoint.pt").exists(), outputs
    codes, outputs = torchrun(hosts, folders, [{"fast": True}, {"fast": True}], port=29512)
    assert codes == [0, 0], outputs
    return folders


def test_two_machines_of_which_one_was_killed_train_the_weights_of_one_process(folders, tmp_path):
    training_script.main(tmp_path, plain=True, optimizer="sgd", fast=True)
    one, two = (torch.load(folder / "model.pt", weights_only=True) for folder in (tmp_path, folders[0]))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-5, atol=1e-5)
    assert [(r.stage, r.epoch) for r in read_records(folders[0])] == [
        (r.stage, r.epoch) for r in read_records(tmp_path)
    ]


def test_only_the_first_machine_writes_files(folders):
    assert [path.name for path in folders[1].iterdir() if path.name != "training"] == []
