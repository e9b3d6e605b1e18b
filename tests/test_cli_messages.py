"""Errors and hints of the commands: they name the argument as it was written, and what to do."""

from __future__ import annotations

import io
import json

import pytest

from commands import run
from small_files import client_rows, write_csv


@pytest.fixture(scope="module")
def committee(tmp_path_factory):
    """Return a folder with train.csv and the committee `run`."""
    folder = tmp_path_factory.mktemp("messages")
    write_csv(folder / "train.csv", client_rows(300))
    data = [folder / "train.csv", "--target", "bought", "--effort", "quick"]
    assert run("train", *data, "--quiet", "--no-report", "--out", folder / "run") == 0
    return folder


def error_of(capsys, *arguments: object, code: int = 1) -> str:
    """Return the message of a command that fails."""
    capsys.readouterr()
    assert run(*arguments) == code
    return capsys.readouterr().err


def test_folder_that_is_called_like_an_option_keeps_its_name(committee, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "manifest.json").write_text("{}")
    data = committee / "train.csv"
    for out in (["--out", "model"], ["--out=model"]):
        assert "apmax: model is not empty" in error_of(capsys, "train", data, "--target", "bought", *out)
    assert "apmax: model was not written by apmax" in error_of(capsys, "predict", "model/", data, "--out", "ranked.csv")
    assert "apmax: --model must be" in error_of(
        capsys, "train", data, "--target", "bought", "--model", "x", "--out", "r"
    )


class TestJobOfACommittee:
    @pytest.mark.parametrize(
        ("options", "name"),
        [
            (["--set", "stages.1.lr=1e-4"], "--set"),
            (["--set", "model.hidden=[8]"], "--set"),
            (["--epochs", 3], "--epochs"),
            (["--effort", "best", "--model", "mlp"], "--model"),
        ],
    )
    def test_settings_of_a_network_are_refused(self, committee, tmp_path, capsys, options, name):
        file = committee / "run" / "run.toml"
        shown = error_of(capsys, "train", file, *options, "--out", tmp_path / "r")
        assert f"{name} is for one network, and {file} is the job of a committee" in shown
        assert f"{committee / 'train.csv'}, and a network (--model mlp)" in shown
        assert list(tmp_path.iterdir()) == []

    def test_it_is_not_tuned(self, committee, tmp_path, capsys):
        file = committee / "run" / "run.toml"
        shown = error_of(capsys, "tune", file, "--space", "stages.1.lr=1e-4,1e-3", "--out", tmp_path / "t")
        assert f"tune is for one network, and {file} is the job of a committee" in shown
        assert "(--model mlp)" in shown
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("option", [["--effort", "quick"], ["--member", "gbdt"], ["--time-limit", "1m"]])
    def test_job_of_a_network_is_none(self, client_folder, tmp_path, capsys, option):
        file = client_folder / "run" / "run.toml"
        shown = error_of(capsys, "train", file, *option, "--out", tmp_path / "r")
        assert f"{option[0]} is for a committee, and {file} is the job of one network: name its data, " in shown
        assert str(client_folder / "train.csv") in shown
        assert list(tmp_path.iterdir()) == []

    def test_flags_that_exclude_each_other_are_named(self, committee, tmp_path, capsys):
        data = [committee / "train.csv", "--target", "bought", "--effort", "quick"]
        shown = error_of(capsys, "train", *data, "--set", "stages.1.lr=1e-4", "--out", tmp_path / "r")
        assert "--effort and --set exclude each other: the latter is for one network" in shown


class TestOwnNetwork:
    @pytest.fixture
    def own_module(self, tmp_path, monkeypatch):
        """Go to a folder with a module of networks."""
        code = "import torch\n\n\ndef build(sizes):\n    return torch.nn.Linear(len(sizes), 1)\n"
        (tmp_path / "networks_of_messages.py").write_text(code)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))

    @pytest.mark.usefixtures("own_module")
    def test_hint_after_its_training_can_be_followed(self, committee, tmp_path, capsys):
        own = ["--model", "networks_of_messages:build", "--loss", "ce", "--epochs", 1]
        data = [committee / "train.csv", "--target", "bought"]
        assert run("train", *data, *own, "--no-report", "--out", "r") == 0
        hint = capsys.readouterr().out.splitlines()[-1]
        assert hint.endswith("apmax predict r DATA --model networks_of_messages:build --sort --out ranked.csv")
        words = hint.split("apmax ")[1].split()
        assert run(*[committee / "train.csv" if word == "DATA" else word for word in words]) == 0
        assert (tmp_path / "ranked.csv").exists()


class TestShareOfHeldOutRows:
    @pytest.mark.parametrize("rule", [["--top", 15], ["--cost", "1:5", "--budget", 15]])
    def test_number_of_rows_without_rows_is_warned_of(self, committee, capsys, rule):
        held_out = 60
        assert run("decide", committee / "run", *rule) == 0
        shown = capsys.readouterr().err
        assert f"{rule[-2]} takes at most 15 of the {held_out} held-out rows: 25 % of any file" in shown
        assert "give --rows N" in shown
        assert "predict --top 15" in shown
        assert run("decide", committee / "run", *rule, "--rows", held_out) == 0
        assert capsys.readouterr().err == ""

    def test_fewer_rows_than_a_threshold_can_take_are_an_error_of_a_budget_and_a_remark_of_top(self, committee, capsys):
        few = [5, "--rows", 10_000]
        assert run("decide", committee / "run", "--cost", "1:5", "--budget", *few) == 1
        assert "--budget: no threshold takes at most 5 of 10,000 rows" in capsys.readouterr().err
        assert run("decide", committee / "run", "--top", *few) == 0
        shown = capsys.readouterr().out
        assert "The best score of these held-out rows alone takes more rows than are wanted" in shown
        assert "apmax predict --top 5" in shown

    def test_help_says_what_the_number_is_of(self, capsys):
        assert run("decide", "--help") == 0
        shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "At most K of --rows rows are taken (without --rows: of the held-out rows)" in shown


def test_threshold_above_all_held_out_rows_is_not_said_to_take_no_row(committee, capsys):
    """New rows may have a higher score, and are then marked to be taken."""
    assert run("decide", committee / "run", "--cost", "1:0", "--json") == 0
    threshold = json.loads(capsys.readouterr().out)["decision"]["threshold"]
    assert run("decide", committee / "run", "--cost", "1:0") == 0
    assert capsys.readouterr().out.startswith(
        f"Take only rows with a score of at least {threshold!r}, which no held-out row has: at these costs it is "
        "cheapest to take none of them."
    )


@pytest.mark.parametrize("words", [["decide", "--top", 5], ["report"], ["predict", "DATA", "--out", "x.csv"]])
def test_model_folder_that_is_missing_or_a_file_is_called_that(committee, tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "note.txt").touch()
    rest = [committee / "train.csv" if word == "DATA" else word for word in words[1:]]
    missing = error_of(capsys, words[0], "missing", *rest)
    assert missing == "apmax: missing does not exist: name the folder of a model\n"
    file = error_of(capsys, words[0], "note.txt", *rest)
    assert file == "apmax: note.txt is a file and no folder: name the folder of a model\n"
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_data_of_the_wrong_form_are_told_the_right_one(image_folder, molecule_folder, tmp_path, capsys):
    image = next(image_folder.rglob("*.png"))
    out = ["--out", tmp_path / "ranked.csv"]
    shown = error_of(capsys, "predict", image_folder / "one", image, *out)
    assert shown == f"apmax: {image} is one image: name the folder that it is in, or a csv that lists files\n"
    shown = error_of(capsys, "predict", molecule_folder / "one", tmp_path, *out)
    assert shown.endswith("data of kind molecules are read from a file: csv, csv.gz, parquet, smi or sdf\n")


class TestFileWithoutRows:
    @pytest.fixture
    def header(self, committee, tmp_path):
        """A csv with the names of the columns only."""
        file = tmp_path / "none.csv"
        file.write_text((committee / "train.csv").read_text().splitlines()[0] + "\n")
        return file

    @pytest.mark.parametrize("option", [[], ["--sort"]])
    def test_predictions_of_it_are_warned_of(self, committee, header, tmp_path, capsys, option):
        assert run("predict", committee / "run", header, *option, "--out", tmp_path / "o.csv") == 0
        assert f"warning: {header} has no rows" in capsys.readouterr().err

    @pytest.mark.parametrize("model", [[], ["--model", "mlp"]])
    def test_nothing_is_trained_on_it(self, header, tmp_path, capsys, model):
        shown = error_of(capsys, "train", header, "--target", "bought", *model, "--out", tmp_path / "r")
        assert shown == f"apmax: {header} has no rows\n"
        assert not (tmp_path / "r").exists()

    @pytest.mark.parametrize("option", ["--test", "--valid"])
    def test_it_is_named_with_its_option(self, committee, header, tmp_path, capsys, option):
        data = [committee / "train.csv", "--target", "bought", option, header]
        assert error_of(capsys, "train", *data, "--out", tmp_path / "r") == f"apmax: {option}: {header} has no rows\n"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("rep.pdf", "got rep.pdf; print the page in a browser to get a PDF\n"), ("page.txt", "got page.txt\n")],
)
def test_report_is_only_written_as_html(committee, tmp_path, monkeypatch, capsys, name, remedy):
    monkeypatch.chdir(tmp_path)
    shown = error_of(capsys, "report", committee / "run", "--out", name)
    assert f"--out must end in .html, {remedy}" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [("purchase", "target: {} has no column 'bought'"), ("bought", "target 'bought' must be 'no' or")],
)
@pytest.mark.parametrize("command", [["evaluate"], ["report", "--data"]])
def test_target_of_a_model_is_not_called_an_option_where_there_is_none(
    committee, tmp_path, capsys, command, name, message
):
    file = write_csv(tmp_path / "new.csv", [{"age": 30, "income": 10, name: "maybe"}] * 3)
    shown = error_of(capsys, command[0], committee / "run", *command[1:], file)
    assert shown.startswith(f"apmax: {message.format(file)}")


def test_hint_to_predict_can_be_copied_into_a_shell(committee, tmp_path, capsys):
    folder = tmp_path / "my run"
    data = [committee / "train.csv", "--target", "bought", "--effort", "quick", "--no-report"]
    assert run("train", *data, "--out", folder) == 0
    assert f"apmax predict '{folder}' DATA --sort" in capsys.readouterr().out


def test_comparison_of_a_member_with_its_committee_tells_them_apart(committee, capsys):
    folder = committee / "run"
    command = ["evaluate", folder, committee / "train.csv", "--against", folder, "--member", "gbdt", "--no-report"]
    assert run(*command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"AP of {folder} (gbdt) minus AP of {folder}:" in shown
    assert shown.count("95 %") == 3


@pytest.mark.parametrize("positive", [[], ["--positive", "2"]])
def test_target_of_three_values_names_the_remedy(tmp_path, capsys, positive):
    rows = [{"x": k, "y": k % 3, "many": k % 40, "same": 1, "empty": ""} for k in range(90)]
    data = [write_csv(tmp_path / "a.csv", rows), "--target"]
    shown = error_of(capsys, "train", *data, "y", *positive, "--out", tmp_path / "r")
    assert "--target 'y' must have two different values, got '0' (30 rows), '1' (30 rows), '2' (30 rows): " in shown
    assert "make a column of 0 and 1 first (--positive VALUE names one of two values, and merges none)" in shown
    shown = error_of(capsys, "train", *data, "many", *positive, "--out", tmp_path / "r")
    assert "such as 1 for numbers above a threshold (--positive VALUE" in shown
    assert "add rows of the other class" in error_of(capsys, "train", *data, "same", "--out", tmp_path / "r")
    assert "the column is empty" in error_of(capsys, "train", *data, "empty", "--out", tmp_path / "r")


class TestNamedArgument:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--set", "stages.1.lr=abc"], "--set stages.1.lr=abc: lr must be a number, got 'abc'"),
            (["--set", "seed=1", "--set", "stages.0.epochs=-1"], "--set stages.0.epochs=-1: epochs must be at least 1"),
            (["--set", "stages.1.loss=fokal"], "--set stages.1.loss=fokal: loss must be one of"),
            (["--set", "data.share=7"], "--set data.share=7: share must lie in (0, 1), got 7.0"),
            (["--set", "seed=1", "--loss", "fokal"], "apmax: --loss must be one of"),
            (["--lr", "nan"], "apmax: --lr must be a number, got nan"),
            (["--lr", "-1"], "apmax: --lr must lie in (0, inf), got -1.0"),
            (["--lr", "-1", "--set", "stages.1.lr=0.1"], "apmax: --lr must lie in (0, inf), got -1.0"),
            (["--lr", "0.1", "--set", "stages.0.lr=-1"], "--set stages.0.lr=-1: optimizer.lr must lie in"),
            (["--batch-size", "10000001"], "apmax: --batch-size must be at most 10,000,000, got 10,000,001"),
            (["--batch-size", "2"], "apmax: --batch-size 2: num_pos must be below batch_size 2, got 8"),
            (["--num-pos", "10000001"], "apmax: --num-pos must be at most 10,000,000, got 10,000,001"),
            (["--num-pos", "9", "--batch-size", "8"], "apmax: --num-pos must be below batch_size 8, got 9"),
            (["--width", "8"], "apmax: --width: unknown key 'width' in the options of model 'mlp'"),
            (["--column", "agee=number"], "apmax: --column: TRAIN has no column 'agee' (did you mean 'age'?)"),
            (["--column", "Age=drop"], "apmax: --column: TRAIN has no column 'Age' (did you mean 'age'?)"),
            (["--column", "age=float"], "apmax: --column: the kind of 'age' must be one of number, category, date"),
            (["--column", "city=number"], "apmax: --column: 'city' is declared as a number, but none of its values"),
            (["--member", "gine"], "--member: 'gine' is a member for data of kind molecules; these are of kind table"),
            (["--test", "nope.csv"], "apmax: --test: no such file: nope.csv"),
            (["--valid", "nope.csv"], "apmax: --valid: no such file: nope.csv"),
            (["--test", "OTHER"], "apmax: --test: OTHER has no column 'bought'"),
            (["--test", "OTHER", "--model", "mlp"], "apmax: --test: OTHER has no column 'bought'"),
        ],
    )
    def test_of_a_training(self, committee, tmp_path, capsys, options, message):
        other = tmp_path / "other.csv"
        write_csv(other, [{"age": 1, "city": "rome"}])
        places = {"TRAIN": str(committee / "train.csv"), "OTHER": str(other)}
        words = [places.get(word, word) for word in options]
        shown = error_of(
            capsys, "train", committee / "train.csv", "--target", "bought", *words, "--out", tmp_path / "r"
        )
        for name, place in places.items():
            message = message.replace(name, place)
        assert message in shown
        assert shown.count("\n") == 1
        assert not (tmp_path / "r").exists()

    def test_of_a_job_that_is_missing(self, tmp_path, capsys):
        file = tmp_path / "nope.toml"
        assert error_of(capsys, "train", file, "--out", tmp_path / "r") == f"apmax: no such file: {file}\n"

    def test_of_a_search(self, committee, tmp_path, capsys):
        data = [committee / "train.csv", "--target", "bought", "--space", "stages.1.lr=1e-3,abc"]
        shown = error_of(capsys, "tune", *data, "--out", tmp_path / "t")
        assert shown.startswith("apmax: --space stages.1.lr=abc: lr must be a number")

    def test_of_the_job_that_is_searched(self, committee, tmp_path, capsys):
        data = [committee / "train.csv", "--target", "bought", "--batch-size", 2, "--space", "stages.1.lr=1e-3,1e-2"]
        shown = error_of(capsys, "tune", *data, "--out", tmp_path / "t")
        assert shown.startswith("apmax: --batch-size 2: num_pos must be below batch_size 2")

    def test_of_a_training_that_diverges(self, committee, tmp_path, capsys):
        data = [committee / "train.csv", "--target", "bought", "--loss", "ce", "--lr", "1e38"]
        shown = error_of(capsys, "train", *data, "--quiet", "--out", tmp_path / "r")
        assert "or lower the learning rate (now" in shown

    def test_of_a_file_is_not_taken_for_a_flag(self, client_folder, tmp_path, capsys):
        text = (client_folder / "run" / "run.toml").read_text()
        file = tmp_path / "run.toml"
        file.write_text(text.replace("\nlr = ", "\nlr = -", 1))
        shown = error_of(capsys, "train", file, "--lr", "0.1", "--out", tmp_path / "r")
        assert shown.startswith("apmax: optimizer.lr must lie in (0, inf), got -")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ([], "give exactly one of --precision P, --recall R, --top K and --cost FP:FN; got none"),
            (["--recall", 0.5, "--cost", "1:5"], "got --recall 0.5 and --cost 1.0:5.0"),
            (["--budget", 5], "--budget needs --cost FP:FN: without costs, --top K takes so many rows"),
            (["--guarantee", "--top", 3], "--guarantee needs --precision P or --recall R, got --top 3"),
        ],
    )
    def test_of_a_decision(self, committee, capsys, options, message):
        assert message in error_of(capsys, "decide", committee / "run", *options)

    def test_of_a_prediction(self, committee, tmp_path, capsys):
        words = ["predict", committee / "run", committee / "train.csv", "--by", "bought", "--out", tmp_path / "o.csv"]
        assert "--by names the target to sort by: it needs --sort or --top K" in error_of(capsys, *words)

    def test_of_molecules_in_another_column(self, molecule_folder, tmp_path, capsys):
        file = tmp_path / "up.csv"
        file.write_text("SMILES,n\nCCO,1\nCCN,2\n")
        shown = error_of(capsys, "predict", molecule_folder / "one", file, "--out", tmp_path / "o.csv")
        assert f"--smiles: {file} has no column 'smiles' (did you mean 'SMILES'?)" in shown
        assert "(--smiles SMILES)" in shown
        assert run("predict", molecule_folder / "one", file, "--smiles", "SMILES", "--out", tmp_path / "o.csv") == 0


@pytest.mark.parametrize("command", [["evaluate", "DATA", "--no-report"], ["decide", "--recall", 0.5]])
def test_tables_are_not_cut_by_narrow_terminals(committee, monkeypatch, capsys, command):
    words = [committee / "train.csv" if word == "DATA" else word for word in command]
    shown = {}
    for width in (40, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        assert run(words[0], committee / "run", *words[1:]) == 0
        shown[width] = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown[40] == shown[200]


def test_long_names_fold_before_a_table_is_wider_than_the_terminal(monkeypatch, capsys):
    from rich.table import Table

    from apmax.cli import _console

    monkeypatch.setenv("COLUMNS", "40")
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")
    table.add_column("AP", no_wrap=True)
    table.add_row("abc" * 20, "0.1234567")
    _console.show_table(table, _console.output())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert "0.1234567" in lines[1]
    assert "".join(line.split(" ")[0] for line in lines[1:]) == "abc" * 20


def test_output_of_an_encoding_without_greek_letters_has_marks_for_them(committee, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="cp1252", write_through=True))
    assert run("evaluate", committee / "run", committee / "train.csv", "--no-report") == 0
    assert "BEDROC (? = 20)" in written.getvalue().decode("cp1252")
