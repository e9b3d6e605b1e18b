"""Run directory, records, documentation."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from apmax.train import (
    Record,
    Stage,
    compute_metrics,
    epochs,
    is_first_process,
    nan_to_none,
    read_records,
    read_run,
    run_from_toml,
)
from small_training import TRAIN, VALID, network, run_of, same, train, weights


def test_the_directory_holds_configuration_versions_and_records(tmp_path):
    run = run_of(Stage(epochs=2), seed=9)
    records = train(network(), run, directory=tmp_path)
    assert read_run(tmp_path / "config.toml") == run
    facts = json.loads((tmp_path / "run.json").read_text())
    assert (facts["seed"], len(facts["data"])) == (9, 64)
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["chosen"]["epoch"] in (1, 2)
    assert read_records(tmp_path) == records


def test_the_saved_weights_are_the_selected_ones(tmp_path):
    model = network()
    train(model, run_of(), directory=tmp_path)
    assert same(torch.load(tmp_path / "model.pt", weights_only=True), weights(model))


def test_records_are_strict_json_with_null_for_undefined_numbers():
    values = compute_metrics(torch.tensor([0.1, 0.2]), torch.tensor([1.0, 1.0]))
    record = Record("ce", 0, 1, 1, 0.1, 0.5, None, values, 1.0)
    line = json.loads(record.to_json(), parse_constant=pytest.fail)
    assert line["valid"]["auroc"] is None
    assert math.isnan(Record.from_table(line).valid.auroc)


def test_nan_and_infinity_become_none_at_any_depth():
    assert nan_to_none({1: math.nan, "a": [math.inf, {"b": (-math.inf, 2.0)}]}) == {
        "1": None,
        "a": [None, {"b": [None, 2.0]}],
    }


def test_a_directory_with_a_run_is_not_overwritten(tmp_path):
    train(network(), run_of(), directory=tmp_path)
    with pytest.raises(FileExistsError, match="resume=True"):
        epochs(network(), (TRAIN, VALID), run_of(), directory=tmp_path)


def test_tensorboard_gets_the_records(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    records = train(network(), run_of(tensorboard=True), directory=tmp_path)
    reader = events.EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    logged = [scalar.value for scalar in reader.Scalars("valid/ap")]
    assert logged == pytest.approx([record.valid.ap for record in records])


@pytest.mark.parametrize(
    ("variable", "value", "first"), [("RANK", "0", True), ("RANK", "1", False), ("NODE_RANK", "1", False)]
)
def test_the_first_process_is_known_by_its_rank(monkeypatch, variable, value, first):
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert is_first_process()
    monkeypatch.setenv(variable, value)
    assert is_first_process() == first


DOCUMENTATION = Path(__file__).parents[1] / "docs" / "guide" / "training.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENTATION.read_text(encoding="utf-8"), re.DOTALL)


def test_the_program_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    for block in blocks("python"):
        exec(compile(block, str(DOCUMENTATION), "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 7
    assert (tmp_path / "run" / "model.pt").exists()


def test_the_configuration_of_the_documentation_is_valid():
    (text,) = blocks("toml")
    assert [stage.name for stage in run_from_toml(text).stages] == ["ce", "ap + ce", "exact head"]
