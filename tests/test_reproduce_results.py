"""The files that several processes share: locks and results."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from apmax.reproduce import Results, code_origin
from apmax.reproduce.origin import source_commit
from apmax.reproduce.results import HISTORIES_FILE, RESULTS_FILE, append_line, claimed


def hold(path, ready):
    with claimed(Path(path)) as ours:
        ready.put(ours)
        signal.pause()


@pytest.mark.slow
def test_a_claim_belongs_to_one_process_and_ends_with_it(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    holder = context.Process(target=hold, args=(str(tmp_path / "claim"), ready))
    holder.start()
    assert ready.get(timeout=30)
    with claimed(tmp_path / "claim") as ours:
        assert not ours
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with claimed(tmp_path / "claim") as ours:
        assert ours


def write_lines(folder, worker):
    for number in range(50):
        append_line(Path(folder) / RESULTS_FILE, {"key": f"{worker}-{number}", "padding": "x" * 3000})


@pytest.mark.slow
def test_lines_of_several_processes_stay_whole(tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_lines, args=(str(tmp_path), worker)) for worker in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(Results(tmp_path).lines) == 150


def test_an_incomplete_line_is_left_out_and_then_replaced(tmp_path):
    append_line(tmp_path / RESULTS_FILE, {"key": "whole"})
    with (tmp_path / RESULTS_FILE).open("ab") as file:
        file.write(b'{"key": "to')
    results = Results(tmp_path)
    assert list(results.lines) == ["whole"]
    results.add({"key": "next"})
    assert [json.loads(line)["key"] for line in (tmp_path / RESULTS_FILE).read_text().splitlines()] == ["whole", "next"]
    assert list(results.lines) == ["whole", "next"]


def test_an_incomplete_history_is_left_out(tmp_path):
    append_line(tmp_path / HISTORIES_FILE, {"key": "whole"})
    with (tmp_path / HISTORIES_FILE).open("ab") as file:
        file.write(b'{"key": "to')
    assert list(Results(tmp_path).histories()) == ["whole"]


def test_code_origin_without_git_is_the_version(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert list(code_origin()) == ["version"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commit_is_dirty_where_the_source_has_changed_and_not_where_results_were_added(tmp_path):
    source, results = tmp_path / "src", tmp_path / "results"
    for folder in (source, results):
        folder.mkdir()
        (folder / "file").write_text("before")
    assert source_commit(source) is None
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*author, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    clean = source_commit(source)
    assert re.fullmatch(r"[0-9a-f]{7,}", clean)
    (results / "file").write_text("after")
    assert source_commit(source) == clean
    assert source_commit(source, results) == f"{clean}-dirty"
    (source / "new").write_text("after")
    assert source_commit(source) == f"{clean}-dirty"


def test_a_claim_is_free_again_after_its_use(tmp_path):
    with claimed(tmp_path / "claim") as ours:
        assert ours
        with claimed(tmp_path / "claim") as again:
            assert not again
    with claimed(tmp_path / "claim") as ours:
        assert ours
