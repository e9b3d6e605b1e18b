"""Reading and writing csv, csv.gz and parquet."""

from __future__ import annotations

import csv
import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apmax.data import TableFile, open_writer, reading

TEXT = 'id,"a,b",c\n007,"x, y",\n8,"q""uote",1.10\n9,plain,"line\nbreak"\n'


def test_csv_is_read_as_the_text_that_stands_there(tmp_path):
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


def test_only_the_asked_columns_are_read(tmp_path):
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
        ("a.csv.gz", gzip.compress(b"a,b\n")[:12], "not a whole gzip"),
        ("a.csv.gz", gzip.compress(b"a,b\n" * 100)[:20], "Truncated"),
        ("a.parquet", b"a,b\n", "not a parquet file"),
        ("a.xlsx", b"", "must end in one of .csv, .csv.gz, .parquet"),
    ],
)
def test_unreadable_file_is_refused_by_name(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        TableFile(tmp_path / name).read()
    assert name in str(caught.value)


def test_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file.*b\.csv"):
        TableFile(tmp_path / "b.csv")


def test_failed_writing_leaves_what_stood_there(tmp_path):
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
