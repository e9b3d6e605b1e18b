"""The same file gives the same labels and errors in `read_molecules`, `images.read_csv` and on the command line."""

from __future__ import annotations

import gzip

import pytest

from apmax.data.images import read_csv
from apmax.data.molecules import read_molecules
from apmax.workflows import ImageData, MoleculeData
from apmax.workflows.prepare import prepare_data

pytest.importorskip("rdkit")
Image = pytest.importorskip("PIL.Image")

NAMES = ["C" * length for length in range(1, 13)]
"""SMILES that are file names as well."""
POSITIVE = [number % 3 == 0 for number in range(len(NAMES))]
GAP = 4
"""The row whose label is missing."""


def lines(delimiter=",", words=("0", "1"), missing="", quote=""):
    cells = [words[positive] for positive in POSITIVE]
    cells[GAP] = missing
    rows = [[f"{quote}{name}{quote}", cell, "x"] for name, cell in zip(NAMES, cells, strict=True)]
    return "".join(delimiter.join(row) + "\n" for row in [["name", "active", "note"], *rows])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    for name in NAMES:
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    return tmp_path


def molecules_in_python(path, **options):
    data, _ = read_molecules(path, "name", targets=["active"], **options)
    return dict(zip(data.table_rows.tolist(), data.labels.tolist(), strict=True))


def images_in_python(path, **options):
    data, _ = read_csv(path, "active", column="name", ending=".png", size=8, **options)
    rows = [NAMES.index(name.rpartition("/")[2].removesuffix(".png")) for name in data.names]
    return dict(zip(rows, data.labels.tolist(), strict=True))


def labels_of_job(config):
    """Return the labels of the training and validation rows of the command line."""
    data = prepare_data(config, seed=0).data
    found = {}
    for dataset, labels in ((data.train, data.labels), (data.valid, data.valid_labels)):
        rows = (
            dataset.table_rows.tolist()
            if config.kind == "molecules"
            else [NAMES.index(name.rpartition("/")[2].removesuffix(".png")) for name in dataset.names]
        )
        found |= dict(zip(rows, labels.tolist(), strict=True))
    return found


def molecules_on_the_command_line(path, **options):
    return labels_of_job(MoleculeData(str(path), "active", smiles="name", share=0.4, **options))


def images_on_the_command_line(path, **options):
    config = ImageData(str(path), "active", path="name", ending=".png", size=8, share=0.4, **options)
    return labels_of_job(config)


WAYS = [molecules_in_python, molecules_on_the_command_line, images_in_python, images_on_the_command_line]
FILES = {
    "commas": ("a.csv", lines().encode()),
    "semicolons": ("a.csv", lines(";").encode()),
    "tabs": ("a.csv", lines("\t").encode()),
    "no and yes": ("a.csv", lines(words=("no", "Yes")).encode()),
    "inactive and active": ("a.csv", lines(";", words=("Inactive", "active")).encode()),
    "false and true": ("a.csv", lines(words=("False", "TRUE")).encode()),
    "decimals": ("a.csv", lines(words=("0.0", "1.0")).encode()),
    "question mark": ("a.csv", lines(missing="?").encode()),
    "NA": ("a.csv", lines(missing="NA").encode()),
    "nan": ("a.csv", lines(missing="NaN").encode()),
    "byte-order mark": ("a.csv", lines(";").encode("utf-8-sig")),
    "gzip": ("a.csv.gz", gzip.compress(lines().encode("utf-8-sig"))),
    "plain text named gzip": ("a.csv.gz", lines().encode()),
    "quotes": ("a.csv", lines(quote='"').encode()),
    "spaces": ("a.csv", lines(" , ").replace(" ,", ",").encode()),
    "blank last line": ("a.csv", (lines() + "\n").encode()),
    "windows line ends": ("a.csv", lines().replace("\n", "\r\n").encode()),
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("file", FILES)
def test_labels_do_not_depend_on_the_way_to_read_a_file(folder, file, way):
    name, content = FILES[file]
    (folder / name).write_bytes(content)
    assert way(folder / name) == {row: float(label) for row, label in enumerate(POSITIVE) if row != GAP}


FAULTS = {
    "third value": (lines(missing="maybe"), {}, "target 'active' must have two different values, got '0'"),
    "one value": (lines(words=("1", "1")), {}, "must have two different values, got '1'"),
    "other words": (lines(words=("good", "bad")), {}, "'good' (7 rows), 'bad' (4 rows): name the positive value"),
    "wrong positive": (lines(), {"positive": "yes"}, "positive must be a value of target 'active', got 'yes'"),
    "no target": (lines().replace("active", "activ"), {}, "has no column 'active' (did you mean 'activ'?)"),
    "short row": (lines() + "CC\n", {}, "Expected 3 columns, got 1"),
    "latin-1": ("näme" + lines(), {}, "is not UTF-8 text"),
    "empty": ("", {}, "is empty: a header"),
    "column twice": (lines().replace("note", "name"), {}, "2 columns with the name 'name'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_do_not_depend_on_the_way_to_read_a_file(folder, fault):
    content, options, message = FAULTS[fault]
    (folder / "a.csv").write_bytes(content.encode("latin-1"))
    messages = set()
    for way in WAYS:
        with pytest.raises(ValueError, match=r"\w") as caught:
            way(folder / "a.csv", **options)
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert message in messages.pop()


def test_missing_column_of_molecules_is_the_same_error_everywhere(folder):
    (folder / "a.csv").write_text(lines().replace("name", "smile"))
    messages = set()
    for way in WAYS[:2]:
        with pytest.raises(ValueError, match=r"smiles: .* has no column 'name'; its columns are 'smile'") as caught:
            way(folder / "a.csv")
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_positive_value_can_be_named_everywhere(folder):
    (folder / "a.csv").write_text(lines(words=("good", "bad")))
    for way in WAYS:
        assert sum(way(folder / "a.csv", positive="bad").values()) == sum(POSITIVE)


def test_targets_of_one_file_read_another_with_one_class_only(folder):
    (folder / "a.csv").write_text(lines(words=("no", "yes")))
    (folder / "b.csv").write_text("name,active\nC,yes\nCC,yes\n")
    _, report = read_molecules(folder / "a.csv", "name", targets=["active"])
    data, _ = read_molecules(folder / "b.csv", "name", targets=report.targets)
    assert data.labels.tolist() == [1, 1]
    _, report = read_csv(folder / "a.csv", "active", column="name", ending=".png", size=8)
    data, _ = read_csv(folder / "b.csv", report.targets, column="name", ending=".png", size=8)
    assert data.labels.tolist() == [1, 1]
