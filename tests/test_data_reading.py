"""Reading of csv, parquet, SMILES and SD files, writing of csv and parquet."""

from __future__ import annotations

import csv
import gzip
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apmax.data import (
    SdfFile,
    SmilesFile,
    TableFile,
    check_writable,
    describe_unreadable,
    open_table,
    open_writer,
    parsing,
    reading,
)

TEXT = 'id,"a,b",c\n007,"x, y",\n8,"q""uote",1.10\n9,plain,"line\nbreak"\n'


def test_csv_columns_are_read_as_text(tmp_path):
    (tmp_path / "a.csv").write_text(TEXT)
    source = TableFile(tmp_path / "a.csv")
    assert source.columns == ["id", "a,b", "c"]
    assert source.read().to_pydict() == {
        "id": ["007", "8", "9"],
        "a,b": ["x, y", 'q"uote', "plain"],
        "c": ["", "1.10", "line\nbreak"],
    }


@pytest.mark.parametrize("suffix", reading.TABLE_SUFFIXES)
def test_what_was_written_is_read_back(tmp_path, suffix):
    rows = pa.table({"a": ["1", 'x "y", z', "", "ö\n"], "b": ["", "2", "3", "4"]})
    with open_writer(tmp_path / f"t{suffix}") as writer:
        writer.write(rows.slice(0, 2))
        writer.write(rows.slice(2))
    assert TableFile(tmp_path / f"t{suffix}").read().to_pydict() == rows.to_pydict()


@pytest.mark.parametrize("suffix", reading.TABLE_SUFFIXES)
def test_file_that_cannot_be_written_is_named_and_not_the_one_beside_it(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    path.mkdir()
    with pytest.raises(OSError, match=rf"'{path}'$"), open_writer(path) as writer:
        writer.write(pa.table({"a": ["1"]}))
    long = tmp_path / f"{'x' * 300}{suffix}"
    with pytest.raises(OSError, match=rf"'{long}'$"), open_writer(long) as writer:
        writer.write(pa.table({"a": ["1"]}))
    assert list(tmp_path.iterdir()) == [path]


@given(st.lists(st.tuples(st.text("ab,\"'\n\r;\t é"), st.text('x1,\n"')), min_size=1, max_size=8))
def test_written_csv_is_what_the_standard_library_reads(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    with open_writer(path) as writer:
        writer.write(pa.table({"a": [a for a, _ in rows], "b": [b for _, b in rows]}))
    with path.open(newline="") as file:
        assert [tuple(row) for row in csv.reader(file)][1:] == rows


def test_plain_csv_is_written_as_it_was(tmp_path):
    (tmp_path / "a.csv").write_text("id,x\n007,1.10\n8,\n")
    with open_writer(tmp_path / "b.csv") as writer:
        for chunk in TableFile(tmp_path / "a.csv").chunks():
            writer.write(chunk)
    assert (tmp_path / "b.csv").read_text() == "id,x\n007,1.10\n8,\n"


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ('"age, years";"income, EUR";y', ["age, years", "income, EUR", "y"]),
        ('"a;b;c",d', ["a;b;c", "d"]),
        ('x, "a;b;c"', ["x", '"a;b;c"']),  # a quotation mark after a space is part of the name, as in the rows
        ('"a ""b; c; d""",e', ['a "b; c; d"', "e"]),
        ('"a;\nb;c",d', ["a;\nb;c", "d"]),
        ('5" pipe,6" pipe,7" pipe;8', ['5" pipe', '6" pipe', '7" pipe;8']),
    ],
)
def test_delimiters_within_quotation_marks_do_not_count(tmp_path, header, columns):
    delimiter = ";" if header.endswith(";y") else ","
    (tmp_path / "a.csv").write_text(f"{header}\n" + delimiter.join("1" * len(columns)) + "\n")
    source = open_table(tmp_path / "a.csv")
    assert (source.delimiter, source.columns) == (delimiter, columns)
    assert source.read().to_pydict() == {name: ["1"] for name in columns}


def test_blank_lines_before_the_header_are_passed_over(tmp_path):
    (tmp_path / "a.csv").write_text("\n\r\na;b\n1;2\n")
    assert open_table(tmp_path / "a.csv").read().to_pydict() == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_delimiters_are_recognised(tmp_path, delimiter):
    (tmp_path / "a.csv").write_text(delimiter.join("ab") + "\n" + delimiter.join(["1,5", "2"]) + "\n")
    assert TableFile(tmp_path / "a.csv").read().to_pydict() == {"a": ["1,5"], "b": ["2"]}


def test_chunks_are_all_rows_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK_ROWS", 10)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 64)
    rows = pa.table({"a": [str(i) for i in range(95)]})
    for name in ("t.csv", "t.parquet"):
        with open_writer(tmp_path / name) as writer:
            writer.write(rows)
        chunks = list(TableFile(tmp_path / name).chunks())
        assert len(chunks) >= 5
        assert pa.concat_tables(chunks).column("a").to_pylist() == rows.column("a").to_pylist()


def test_only_the_requested_columns_are_read(tmp_path):
    (tmp_path / "a.csv").write_text(TEXT)
    assert TableFile(tmp_path / "a.csv").read(["c", "id"]).column_names == ["c", "id"]


def test_header_without_rows_is_a_table_without_rows(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n")
    assert TableFile(tmp_path / "a.csv").read().shape == (0, 2)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"a,a\n1,2\n", "2 columns with the name 'a'"),
        ("a.csv", b"a,b\n1,2\n3\n", "Expected 2 columns, got 1"),
        ("a.csv", "é\n1\n".encode("latin-1"), "not UTF-8"),
        ("a.csv.gz", gzip.compress(b"a,b\n", mtime=0)[:12], "not a whole gzip"),
        ("a.csv.gz", gzip.compress(b"a,b\n" * 100, mtime=0)[:20], "Truncated"),
        ("a.parquet", b"a,b\n", "not a parquet file"),
        ("a.xlsx", b"", "must end in one of .csv, .csv.gz, .parquet, or of molecules .smi, "),
    ],
)
def test_unreadable_file_is_refused_by_name(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        TableFile(tmp_path / name).read()
    assert name in str(caught.value)


@pytest.mark.parametrize("suffix", [".smi", ".sdf"])
def test_damaged_file_of_molecules_is_refused_by_name(tmp_path, suffix):
    # Texts that do not compress, so that the first lines of a truncated file can be read.
    lines = "".join(f"C{number * 7919 % 10_007}\n$$$$\n" for number in range(20_000)).encode()
    whole = gzip.compress(lines, mtime=0)
    damaged = [
        (f"cut{suffix}.gz", whole[: len(whole) // 2], "is not a whole gzip file"),
        (f"changed{suffix}.gz", whole[:100] + bytes(50) + whole[150:], "is not a whole gzip file"),
        (f"latin{suffix}", lines + "é\n".encode("latin-1"), "is not UTF-8 text"),
        (f"latin{suffix}.gz", gzip.compress(lines + "é\n".encode("latin-1")), "is not UTF-8 text"),
    ]
    for name, content, message in damaged:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} {message}"):
            open_table(tmp_path / name).read(["name"])


def test_sd_file_that_is_damaged_after_it_was_opened_is_refused_by_name(tmp_path):
    file = tmp_path / "a.sdf.gz"
    whole = gzip.compress(b"a\n$$$$\n" * 1000, mtime=0)
    file.write_bytes(whole)
    opened = open_table(file)
    file.write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"a\.sdf\.gz is not a whole gzip file"):
        opened.read(["name"])


def test_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file.*b\.csv"):
        TableFile(tmp_path / "b.csv")


def test_failed_write_leaves_the_previous_file(tmp_path):
    (tmp_path / "t.csv").write_text("before")

    def write_half():
        with open_writer(tmp_path / "t.csv") as writer:
            writer.write(pa.table({"a": ["1"]}))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert (tmp_path / "t.csv").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_column_that_csv_cannot_hold_is_named(tmp_path):
    with (
        pytest.raises(ValueError, match="column 'lists' cannot be written as csv"),
        open_writer(tmp_path / "t.csv") as w,
    ):
        w.write(pa.table({"lists": [[1, 2]]}))


def test_types_of_parquet_survive(tmp_path):
    rows = pa.table({"n": pa.array([1, None], pa.int16()), "t": pa.array([0, 1], pa.timestamp("ms"))})
    pq.write_table(rows, tmp_path / "a.parquet")
    with open_writer(tmp_path / "b.parquet") as writer:
        for chunk in TableFile(tmp_path / "a.parquet").chunks():
            writer.write(chunk)
    assert pq.read_table(tmp_path / "b.parquet").equals(rows)


def test_compression_is_recognised_by_content(tmp_path):
    (tmp_path / "a.csv.gz").write_text("a,b\n1,2\n")
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"a,b\n1,2\n", mtime=0))
    for name in ("a.csv.gz", "a.csv"):
        assert TableFile(tmp_path / name).read().to_pydict() == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize("content", [b"a ; b\n1;2\n", b"\xef\xbb\xbfa; b\n1;2\n", b'"a";" b"\n1;2\n'])
def test_names_of_columns_have_no_spaces_around(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    source = TableFile(tmp_path / "a.csv")
    assert source.columns == ["a", "b"]
    assert source.read(["b", "a"]).to_pydict() == {"b": ["2"], "a": ["1"]}


def test_missing_column_is_named_with_the_argument_and_the_nearest(tmp_path):
    (tmp_path / "a.csv").write_text("smiles,active\nC,1\n")
    with pytest.raises(
        ValueError, match=r"group: .*a\.csv has no column 'smile' \(did you mean 'smiles'\?\); its columns are 'smiles'"
    ):
        TableFile(tmp_path / "a.csv").check_column("smile", "group")


@pytest.mark.parametrize("suffix", [".smi", ".smi.gz"])
def test_smiles_file_has_a_molecule_and_its_name_on_each_line(tmp_path, suffix, monkeypatch):
    content = b"\xef\xbb\xbfCCO ethyl alcohol\n\nCC\tethane\nC\n"
    (tmp_path / f"a{suffix}").write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    source = open_table(tmp_path / f"a{suffix}", smiles_column="s")
    assert isinstance(source, SmilesFile)
    assert source.columns == ["s", "name"]
    assert source.read().to_pydict() == {"s": ["CCO", "CC", "C"], "name": ["ethyl alcohol", "ethane", ""]}
    assert source.read(["s"]).column_names == ["s"]
    monkeypatch.setattr(reading, "CHUNK_ROWS", 2)
    assert [chunk.num_rows for chunk in source.chunks()] == [2, 1]


def sd_file(records):
    chem = pytest.importorskip("rdkit.Chem")
    lines = []
    for smiles, name, properties in records:
        molecule = chem.MolFromSmiles(smiles)
        molecule.SetProp("_Name", name)
        data = "".join(f"> <{key}>\n{value}\n\n" for key, value in properties.items())
        lines.append(f"{chem.MolToMolBlock(molecule)}{data}$$$$\n")
    return "".join(lines)


@pytest.mark.parametrize("suffix", [".sdf", ".sdf.gz"])
def test_sd_file_gives_smiles_names_and_properties(tmp_path, suffix):
    records = [
        ("OCC", "ethanol", {"active": "yes", "note": "two\nlines"}),
        ("C[C@H](N)C(=O)O", "alanine", {"active": "no"}),
        ("c1ccccc1", "", {"smiles": "wrong", "active": "", "dose": "3"}),
    ]
    content = sd_file(records).encode()
    (tmp_path / f"a{suffix}").write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    source = open_table(tmp_path / f"a{suffix}")
    assert isinstance(source, SdfFile)
    assert source.columns == ["smiles", "name", "active", "note", "dose"]
    assert source.read().to_pydict() == {
        "smiles": ["CCO", "C[C@H](N)C(=O)O", "c1ccccc1"],
        "name": ["ethanol", "alanine", ""],
        "active": ["yes", "no", ""],
        "note": ["two\nlines", "", ""],
        "dose": ["", "", "3"],
    }


def test_structure_that_cannot_be_read_is_an_unreadable_row(tmp_path):
    content = sd_file([("CC", "a", {"y": "1"}), ("CCO", "b", {"y": "0"}), ("CCC", "c", {"y": "0"})])
    first, second, rest = content.split("$$$$\n", 2)
    (tmp_path / "a.sdf").write_text("$$$$\n".join([first, second.replace(" O ", " Qq"), rest]))
    from apmax.data.molecules import read_molecules

    data, report = read_molecules(tmp_path / "a.sdf", targets=["y"], cache=tmp_path)
    assert data.table_rows.tolist() == [0, 2]
    assert data.labels.tolist() == [1, 0]
    (unreadable,) = report.unreadable
    assert unreadable.row == 1
    assert "a structure of an .sdf file that RDKit cannot read" in unreadable.reason


def test_unreadable_rows_are_counted_and_the_first_are_shown():
    rows = [reading.UnreadableRow(row, "C(C", "extra open parentheses") for row in range(7)]
    line = describe_unreadable(rows, 1000, "molecules", most=1)
    assert line == "7 of 1,000 molecules cannot be read: row 0 'C(C' (extra open parentheses); and 6 more"


def test_csv_of_a_million_columns_is_refused_by_its_header(tmp_path):
    (tmp_path / "wide.csv").write_text(",".join(map(str, range(1_000_000))) + "\n1,2\n")
    started = time.perf_counter()
    with pytest.raises(
        ValueError, match=r"wide\.csv has 1,000,000 columns, more than the 100,000 .* leave columns out"
    ):
        TableFile(tmp_path / "wide.csv")
    assert time.perf_counter() - started < 5


def test_header_without_end_is_read_to_the_limit_only(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(reading, "MAX_COLUMNS", 10)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a," * 1_000_000))
    with pytest.raises(ValueError, match=r"a\.csv\.gz has at least 501 columns"):
        TableFile(tmp_path / "a.csv.gz")


@pytest.mark.parametrize("length", [10_001, 140_000])
def test_overlong_name_of_a_column_is_refused_with_the_file(tmp_path, length):
    (tmp_path / "a.csv").write_text(f"a,{'b' * length}\n1,2\n")
    with pytest.raises(ValueError, match=r"a\.csv: the name of a column is longer than 10,000 characters"):
        TableFile(tmp_path / "a.csv")


@pytest.mark.parametrize("content", ["x" * 5000 + ",3\n1,2\n", '"' + "x\n" * 5000])
def test_row_longer_than_a_block_is_explained(tmp_path, monkeypatch, content):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1000)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n" + content)
    with pytest.raises(ValueError, match=r"a\.csv: a row is longer than .* is a quotation mark not closed"):
        TableFile(tmp_path / "a.csv").read()


def test_error_does_not_quote_a_whole_row(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n" + "x" * 100_000 + "\n")
    with pytest.raises(ValueError, match="Expected 2 columns, got 1") as caught:
        TableFile(tmp_path / "a.csv").read()
    assert len(str(caught.value)) < 1000


def test_line_of_smiles_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1000)
    (tmp_path / "a.smi.gz").write_bytes(gzip.compress(b"CCO\n" + b"C" * 100_000))
    with pytest.raises(ValueError, match=r"a\.smi\.gz: a line is longer than"):
        open_table(tmp_path / "a.smi.gz").read()


def test_record_of_structures_without_end_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("rdkit")
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1000)
    (tmp_path / "a.sdf").write_text("line\n" * 1000)
    with pytest.raises(ValueError, match=r"a\.sdf: a record is longer than .* \$\$\$\$"):
        open_table(tmp_path / "a.sdf").read()


def test_structures_without_properties_are_read(tmp_path):
    chem = pytest.importorskip("rdkit.Chem")
    block = chem.MolToMolBlock(chem.MolFromSmiles("CCO"))
    (tmp_path / "a.sdf").write_text(f"{block}$$$$\n{block}")
    assert open_table(tmp_path / "a.sdf").read().to_pydict() == {"smiles": ["CCO", "CCO"], "name": ["", ""]}


def test_long_value_is_shown_in_part():
    line = describe_unreadable([reading.UnreadableRow(3, "C" * 1000, "too long")], 5)
    assert line == f"1 of 5 rows cannot be read: row 3 {'C' * 100 + '…'!r} (too long)"


def test_structure_of_too_many_atoms_is_an_unreadable_row(tmp_path, monkeypatch):
    chem = pytest.importorskip("rdkit.Chem")
    monkeypatch.setattr(reading, "MAX_SDF_ATOMS", 3)
    blocks = [chem.MolToMolBlock(chem.MolFromSmiles(text)) for text in ("CCO", "CCCO")]
    (tmp_path / "a.sdf").write_text("".join(block + "$$$$\n" for block in blocks))
    assert open_table(tmp_path / "a.sdf").read(["smiles"]).column("smiles").to_pylist() == ["CCO", ""]


def test_column_of_smiles_called_name_is_kept_apart_from_the_names(tmp_path):
    (tmp_path / "a.smi").write_text("CCO ethanol\n")
    assert SmilesFile(tmp_path / "a.smi", "name").read().to_pydict() == {"name": ["CCO"], "id": ["ethanol"]}


ODD = {
    "bytes": pa.array([b"\xff\xfe", b"a"]),
    "lists": pa.array([[1], [2, 3]]),
    "structs": pa.array([{"a": 1}, {"a": 2}]),
}


@pytest.fixture
def odd_columns(tmp_path):
    pq.write_table(pa.table({**ODD, "text": pa.array([b"yes", b"no"]), "x": [1, 2]}), tmp_path / "odd.parquet")
    return TableFile(tmp_path / "odd.parquet")


@pytest.mark.parametrize("name", list(ODD))
def test_column_that_is_no_text_is_refused_with_file_column_and_type(odd_columns, name):
    with pytest.raises(ValueError, match=rf"target: column '{name}' of .*odd\.parquet is of type \w+"):
        odd_columns.check_column(name, "target")
    with pytest.raises(ValueError, match="cannot be read as text"):
        parsing.words(odd_columns.read([name]).column(name))


def test_bytes_that_are_text_are_read(odd_columns):
    odd_columns.check_column("text", "target")
    assert parsing.words(odd_columns.read(["text"]).column("text")).to_pylist() == ["yes", "no"]


def test_column_that_csv_cannot_hold_is_refused_before_writing(odd_columns, tmp_path):
    with pytest.raises(
        ValueError, match=r"column 'bytes' of .*odd\.parquet is of type binary .* write out\.csv as parquet"
    ):
        check_writable(tmp_path / "out.csv", odd_columns)
    check_writable(tmp_path / "out.parquet", odd_columns)
