"""Tables: kinds of columns, missing values, encoding, leakage."""

from __future__ import annotations

import datetime
import json
import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apmax.data import RobustScale, parsing
from apmax.data.parsing import words
from apmax.data.tables import EncodingReport, TableEncoder, leaks
from apmax.data.tables.columns import Number
from apmax.data.tables.inference import kind_of
from apmax.models.tables import TABLE_MODELS, OneHot


def table(**columns):
    return pa.table(columns)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2.5", "-3e2", ""], "number"),
        (["1", "2", "2", "?"], "number"),
        ([1, 5, 5, 2], "number"),
        (["a", "b", "a", "b"], "category"),
        ([True, False, None, True], "category"),
        (["2024-01-05", "2024-01-06", "NA", "2024-01-05"], "date"),
        (["2024-01-05T10:00:00Z", "2024-01-06T11:30:00+02:00"], "date"),
        (["31.12.2024", "01.02.2024"], "date"),
        ([datetime.date(2024, 1, 5), None], "date"),
        (["2024-02-31", "2024-01-01", "2024-01-01"], "category"),
    ],
)
def test_kind_is_inferred_from_the_values(values, kind):
    assert kind_of("column", pa.array(values)) == (kind, "")


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("x", ["7", "7", "7"], "same in every row"),
        ("x", [None, None], "no value"),
        ("x", ["", "NA", "?"], "no value"),
        ("x", ["ann", "bob", "eve"], "different in every row"),
        ("customer_id", [812, 17, 90, 4], "different whole number"),
        ("n", [1, 2, 3, 4], "different whole number"),
        ("n", ["4", "3", "2", "1"], "different whole number"),
        ("n", [3, 7, 20, 900], "different whole number"),
        ("n", [14, 11, 17, 12], "different whole number"),
        ("x", [[1], [2]], "not supported"),
    ],
)
def test_useless_column_is_left_out_with_the_reason(name, values, reason):
    kind, why = kind_of(name, pa.array(values))
    assert kind == "drop"
    assert reason in why


def test_free_text_is_left_out():
    column = pa.array([f"word {i // 1.5}" for i in range(300)])
    assert kind_of("note", column) == ("drop", "different in most rows: names or free text?")


def test_numbers_with_a_few_typing_errors_are_named_as_such():
    column = pa.array([str(i / 7) for i in range(50)] + [">100"])
    assert "'>100'" in kind_of("lab", column)[1]


@pytest.mark.parametrize("form", ["{:,.2f}", "${:.2f}", "{:.1f} %", "{:,.0f}.5", "{:.0f},25"])
def test_numbers_with_separators_currency_or_percent_are_recognised(form):
    amounts = [form.format(1900 + 317 * number) for number in range(50)]
    assert parsing.formatted_number(pa.array(["12", "NA", *amounts])) == amounts[0]


@pytest.mark.parametrize("form", ["10.0.{0}.7", "{0}-{0}", "A {0}", "+49 {0} 1234", "{0}.5"])
def test_codes_with_digits_and_plain_numbers_are_not_formatted(form):
    assert parsing.formatted_number(pa.array([form.format(number) for number in range(50)])) is None


def test_distinct_whole_numbers_that_do_not_count_rows_are_numbers():
    assert kind_of("income", pa.array([31200, 28900, 45100, 12])) == ("number", "")


def test_named_role_beats_inference():
    encoder = TableEncoder.fit(
        table(zip=["1", "2", "1", "2"], x=["1", "2", "4", "9"], y=["1", "a", "2", "4"]),
        roles={"zip": "category", "x": "drop", "y": "number"},
    )
    assert encoder.summary() == {"number": ["y"], "category": ["zip"], "date": []}
    assert encoder.left_out == {"x": "as requested"}


def test_role_of_an_absent_column_is_refused():
    with pytest.raises(ValueError, match="no column 'zpi'"):
        TableEncoder.fit(table(zip=["1", "2"]), roles={"zpi": "category"})


def test_unknown_role_is_refused():
    with pytest.raises(ValueError, match="must be one of number, category, date, drop"):
        TableEncoder.fit(table(zip=["1", "2"]), roles={"zip": "categorical"})


def test_role_that_no_value_fits_is_refused():
    with pytest.raises(ValueError, match="none of its values can be read as one"):
        TableEncoder.fit(table(zip=["a", "b"]), roles={"zip": "number"})


def test_table_of_useless_columns_is_refused_with_the_reasons():
    with pytest.raises(ValueError, match=r"'a' \(the same in every row\)"):
        TableEncoder.fit(table(a=["1", "1"]))


def test_missing_number_becomes_the_median_with_an_indicator():
    encoder = TableEncoder.fit(table(x=["1", "2", "3", "", "100"]))
    encoded = encoder.encode(table(x=["2.5", "NaN", "inf"]))
    assert encoded.tolist() == [[0, 0], [0, 1], [0, 1]]


def test_scaling_follows_its_formula():
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    scale = 2 / 1.349
    got = RobustScale.fit(values)(np.array([2.0, 3.0, 2 - 10 * scale]))
    assert got == pytest.approx([0, 1 / scale, -(3 + math.log(1 + 7))], abs=1e-12)


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=30))
def test_scaling_keeps_the_order_and_is_finite(values):
    ordered = np.sort(np.array(values))
    got = RobustScale.fit(ordered)(ordered)
    assert np.isfinite(got).all()
    assert (np.diff(got) >= 0).all()


def categories():
    return TableEncoder.fit(table(city=["rome"] * 30 + ["oslo"] * 20 + ["bern"] * 950 + ["ulm"] + [None]))


def test_categories_are_coded_by_frequency_then_rare_then_missing():
    encoded = categories().encode(table(city=["bern", "rome", "oslo", "ulm", "", "paris"]))
    assert encoded[:, 0].tolist() == [0, 1, 2, 3, 4, 3]


def test_unseen_category_is_reported_and_a_rare_one_is_not():
    report = EncodingReport()
    categories().encode(table(city=["ulm", "paris", "paris", "bern"]), report)
    assert report.unseen == {"city": {"paris": 2}}


def test_unseen_category_is_no_category_where_training_had_no_rare_ones():
    encoder = TableEncoder.fit(table(city=["rome", "oslo"] * 10))
    assert encoder.encode(table(city=["paris", None])).tolist() == [[-1], [-1]]


def test_absent_column_is_reported_and_encoded_as_missing():
    train = table(x=["1", "2", "", "4"], city=["a", "b", None, "a"], d=["2024-01-01", "2024-02-01", None, "2024-01-01"])
    encoder, report = TableEncoder.fit(train), EncodingReport()
    assert torch.equal(encoder.encode(table(other=["1"], x=[""]), report), encoder.encode(train.slice(2, 1)))
    assert report.absent == ["city", "d"]


def test_table_without_any_known_column_is_refused():
    with pytest.raises(ValueError, match="none of the columns"):
        TableEncoder.fit(table(x=["1", "2"])).encode(table(z=["1"]))


def test_unreadable_number_is_counted_and_counts_as_missing():
    encoder, report = TableEncoder.fit(table(x=["1", "2", "2", "5"])), EncodingReport()
    assert encoder.encode(table(x=["many", "2"]), report).tolist() == [[0], [0]]
    assert report.unreadable == {"x": 1}


def test_some_unreadable_values_are_shown():
    encoder = TableEncoder.fit(table(x=["1", "2", "2", "5"], d=["2024-01-01", "2024-01-02"] * 2))
    report = EncodingReport()
    for numbers in (["many", "many", "inf", "3"], ["few", "?", "1,5", "some"]):
        encoder.encode(table(x=numbers, d=["2024-01-01", "", "31.01.2024", "2024-01-03"]), report)
    assert report.lines() == [
        "column 'x': 5 of 8 values could not be read and count as missing: 'many', 'few', '1,5', …",
        "column 'd': 2 of 8 values could not be read and count as missing: '31.01.2024'",
    ]


def test_a_missing_column_is_named_with_one_that_differs_in_case_or_spaces():
    encoder, report = TableEncoder.fit(table(age=["1", "2", "2", "5"], b=["1", "2", "2", "6"])), EncodingReport()
    encoder.encode(table(**{"Age ": ["1"], "b": ["2"]}), report)
    assert report.lines() == [
        "column 'age' is missing (did you mean 'Age '?): every row is scored as if its value were unknown"
    ]


def test_date_becomes_moment_week_year_and_hour():
    encoder = TableEncoder.fit(table(d=["1970-01-01 00:00", "1970-01-08 06:00", "1970-01-15 12:00"]))
    row = encoder.encode(table(d=["1970-01-08 06:00"]))[0].double()
    day, week, year = 0.25, 7.25 / 7, 7.25 / 365.2425
    cycles = [f(2 * math.pi * part) for part in (week, year, day) for f in (math.sin, math.cos)]
    assert row.tolist() == pytest.approx([0, *cycles], abs=1e-6)


def test_encoding_does_not_depend_on_the_kind_of_file():
    typed = table(
        x=[1.0, 2.0, None, 9.0], b=[True, False, True, None], d=[datetime.date(2024, 1, k) for k in (1, 2, 3, 4)]
    )
    text = table(x=["1", "2", "", "9"], b=["True", "FALSE", "true", ""], d=[f"2024-01-0{k}" for k in (1, 2, 3, 4)])
    assert torch.equal(TableEncoder.fit(typed).encode(text), TableEncoder.fit(text).encode(typed))
    assert torch.equal(TableEncoder.fit(typed).encode(text), TableEncoder.fit(typed).encode(typed))


def test_encoder_is_the_same_after_json():
    train = table(x=["1", "2.25", ""], city=["a", "b", "a"], d=["2024-01-01", "2024-02-01", None], k=["1", "1", "1"])
    encoder = TableEncoder.fit(train)
    assert TableEncoder.from_table(json.loads(json.dumps(encoder.to_table()))) == encoder


def test_encoding_in_chunks_equals_encoding_at_once():
    train = table(x=[str(i % 13) for i in range(100)], city=["ab"[i % 2] for i in range(100)])
    encoder = TableEncoder.fit(train)
    parts = [encoder.encode(train.slice(start, 7)) for start in range(0, 100, 7)]
    assert torch.equal(torch.cat(parts), encoder.encode(train))


def noise(rows=400):
    return np.random.default_rng(0).normal(size=rows)


def test_number_that_separates_the_classes_is_a_leak_in_either_direction():
    labels = (np.arange(400) % 20 == 0).astype(np.float32)
    rows = table(a=noise(), up=labels * 5 + noise() * 0.1, down=-labels * 5 + noise() * 0.1)
    assert [leak.name for leak in leaks(TableEncoder.fit(rows), rows, labels)] == ["up", "down"]


def test_category_that_separates_the_classes_is_a_leak():
    labels = (np.arange(400) % 20 == 0).astype(np.float32)
    rows = table(state=np.where(labels == 1, "closed", "open"), noise=noise())
    assert [leak.name for leak in leaks(TableEncoder.fit(rows), rows, labels)] == ["state"]


def test_value_that_only_positives_have_is_a_leak_by_being_missing():
    labels = (np.arange(400) % 20 == 0).astype(np.float32)
    rows = table(refund=pa.array([float(i) if y else None for i, y in enumerate(labels)]), noise=noise())
    found = leaks(TableEncoder.fit(rows), rows, labels)
    assert [(leak.name, leak.by) for leak in found] == [("refund", "being missing")]


def test_strong_column_that_does_not_separate_is_no_leak():
    labels = (np.arange(400) % 20 == 0).astype(np.float32)
    rows = table(good=labels * 2 + noise())
    assert leaks(TableEncoder.fit(rows), rows, labels) == []


def test_one_hot_equals_a_loop():
    sizes, inputs = [0, 3, 0, 2], torch.tensor([[0.5, 2, 7, 0], [1.5, -1, 8, 1]])
    assert OneHot(sizes)(inputs).tolist() == [[0.5, 7, 0, 0, 1, 1, 0], [1.5, 8, 0, 0, 0, 0, 1]]


@pytest.mark.parametrize("name", TABLE_MODELS)
def test_model_scores_every_row_and_every_parameter_gets_a_gradient(name):
    torch.manual_seed(0)
    model = TABLE_MODELS[name]([0, 3, 0])
    scores = model(torch.tensor([[0.5, 2, 7], [1.5, 0, 8], [1.0, 1, -3]]))
    assert scores.shape == (3,)
    (scores * torch.arange(3)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_column_of_lists_is_named_by_the_encoder():
    encoder = TableEncoder.fit(pa.table({"city": ["a", "b", "a", "b"]}))
    with pytest.raises(ValueError, match=r"column 'city': values of type list<.*> cannot be read as text"):
        encoder.encode(pa.table({"city": [["a"], ["b"]]}))
    with pytest.raises(ValueError, match="column 'x': values of type list"):
        TableEncoder.fit(pa.table({"x": [["a"], ["b"]]}), roles={"x": "category"})


def test_error_about_many_columns_names_a_few():
    table = pa.table({f"c{k}": ["same"] * 3 for k in range(1000)})
    with pytest.raises(ValueError, match=r"'c7' .*; and 992 more$") as caught:
        TableEncoder.fit(table)
    assert len(str(caught.value)) < 1000


class TestRefit:
    def test_kinds_are_those_of_all_rows(self):
        """In the first rows a word of a category has not occurred yet: the others read as numbers."""
        train = table(rank=["1", "2", "1", "2", "1", "2", "1", "high"], x=[0.5, 1, 0.5, 1] * 2, y=["a"] * 8)
        encoder = TableEncoder.fit(train)
        part = encoder.refit(train.slice(0, 6))
        assert part.summary() == {"number": ["x"], "category": ["rank"], "date": []}
        assert part.left_out == {"y": "the same in every row"}
        assert TableEncoder.fit(train.slice(0, 6)).summary()["number"] == ["rank", "x"]

    def test_values_are_those_of_some_rows(self):
        train = table(x=[1.0, 2.0, 3.0, 100.0], city=["a", "b", "b", "c"])
        assert TableEncoder.fit(train).refit(train.slice(0, 3)) == TableEncoder.fit(train.slice(0, 3))

    def test_dates_keep_their_format(self):
        train = table(d=["01/02/2024", "03/04/2024", "05/06/2024", "25/12/2024"])
        (column,) = TableEncoder.fit(train).refit(train.slice(0, 3)).columns
        assert column.format == "%d/%m/%Y"
        assert TableEncoder.fit(train.slice(0, 3)).columns[0].format != column.format

    def test_columns_of_one_value_are_left_out_unless_all_are(self):
        train = table(x=["1", "1", "2"], y=["", "", "5"], z=["a", "a", "b"], d=["2024-01-01"] * 2 + ["2024-01-02"])
        encoder = TableEncoder.fit(train)
        assert encoder.refit(train.slice(0, 2)).names == ["x", "z", "d"], "y has no value"
        with pytest.raises(ValueError, match=r"no column is left to learn from: 'y' \(no value at all\)"):
            TableEncoder.fit(train.select(["y"])).refit(train.slice(0, 2))
        more = train.append_column("w", pa.array([1.5, 2.0, 4.0]))
        part = TableEncoder.fit(more).refit(more.slice(0, 2))
        assert part.names == ["w"]
        same = "the same in every row"
        assert part.left_out == {"x": same, "y": "no value at all", "z": same, "d": same}


@pytest.mark.parametrize("values", [[1, 2, 3, 1, 2, 3], [datetime.date(2024, 1, 1 + k % 2) for k in range(6)]])
def test_numbers_and_dates_that_are_declared_categories_are_categories(values):
    declared = table(x=pa.array(values).dictionary_encode())
    encoder = TableEncoder.fit(declared)
    assert encoder.summary()["category"] == ["x"]
    assert torch.equal(encoder.encode(declared), encoder.encode(table(x=values)))
    assert TableEncoder.fit(table(x=values)).summary()["category"] == []
    ids = kind_of("x", pa.array(range(100)).dictionary_encode())
    assert ids == ("drop", "different in every row: an id?")


def test_large_whole_floats_stay_different_words():
    assert len(set(words(pa.array([1e19, 1e20, 3e25])).to_pylist())) == 3
    assert words(pa.array([2.0, 2.0**62])).to_pylist() == ["2", str(2**62)]


class TestDecimalCommas:
    def test_a_value_has_a_decimal_comma_a_point_or_none_and_thousands_are_not_guessed(self):
        texts = ["3,14", "-,5", " 2,5e3", "7", "1.5", "", "?", "1.234,56", "1,2,3", "3,", "x"]
        values, unreadable = parsing.numbers(pa.array(texts), decimal_comma=True)
        expected = [3.14, -0.5, 2500, 7, 1.5, *[np.nan] * 4, 3, np.nan]
        np.testing.assert_array_equal(values, expected)
        assert unreadable == 3
        assert parsing.numbers(pa.array(["3,14", "7"]))[1] == 1

    @pytest.mark.parametrize(
        ("texts", "found"),
        [
            (["3,14", "7", "", "-0,5"], True),
            (["3,14", "2.5"], False),
            (["3,14", "1.234,56"], False),
            (["1,2,3", "1,2"], False),
            (["3,14", "many"], False),
            (["3", "7"], False),
            (["", "?"], False),
        ],
    )
    def test_a_column_has_them_if_all_values_are_such_numbers_and_one_has_a_comma(self, texts, found):
        assert parsing.has_decimal_commas(pa.array(texts)) is found

    def test_the_reading_is_saved_and_kept_in_folds(self):
        table = pa.table({"x": ["0,5", "1,5", "4", "9,25"], "c": ["1,5", "2", "1,5", "2"]})
        encoder = TableEncoder.fit(table, decimal_comma=["x"])
        assert [column.kind for column in encoder.columns] == ["number", "category"]
        restored = TableEncoder.from_table(json.loads(json.dumps(encoder.to_table())))
        assert restored == encoder
        points = pa.table({"x": ["0.5", "1.5", "4", "9.25"], "c": table.column("c")})
        expected = TableEncoder.fit(points)
        for each in (table, points):
            assert torch.equal(restored.encode(each), expected.encode(points))
        whole = restored.refit(table.take([2, 3]))
        assert whole.columns[0] == Number("x", 6.625, expected.refit(points.take([2, 3])).columns[0].scale, False, True)
        assert whole.encode(table.take([0]))[0, 0] < 0

    def test_leaks_are_found_by_the_same_reading(self):
        labels = np.arange(100) < 8
        table = pa.table({"x": [f"{10 * label},{k % 7}" for k, label in enumerate(labels.tolist())]})
        encoder = TableEncoder.fit(table, decimal_comma=["x"])
        assert [leak.by for leak in leaks(encoder, table, labels.astype(np.float32))] == ["value"]

    def test_an_encoder_of_an_earlier_version_reads_points(self):
        entry = {"kind": "number", "name": "x", "median": 0.0, "scale": 1.0, "indicator": False}
        encoder = TableEncoder.from_table({"columns": [entry], "left_out": {}})
        assert not encoder.columns[0].decimal_comma


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_the_index_of_a_frame_of_pandas_is_an_id(name):
    some = np.random.default_rng(0).choice(10_000, 50, replace=False)
    assert kind_of("price", pa.array(some)) == ("number", "")
    assert kind_of(name, pa.array(some)) == ("drop", "a different whole number in every row: an id?")
    repeated = np.concatenate([np.arange(500), np.arange(500)])[np.random.default_rng(0).permutation(1000)]
    assert kind_of("price", pa.array(repeated)) == ("number", "")
    assert kind_of(name, pa.array(repeated)) == ("drop", "row numbers: the index of a data frame")


def test_few_whole_numbers_without_a_name_are_a_feature_and_those_of_an_index_by_its_name_are_not():
    some = pa.array(np.arange(50) % 10)
    assert kind_of("", some) == kind_of("Unnamed: 0", some) == ("number", "")
    assert kind_of("__index_level_1__", some)[0] == "drop"


def test_a_declared_index_is_a_feature():
    frame = {"__index_level_0__": [1, 2, 1, 2], "x": [0.5, 1.5, 0.2, 3.0]}
    encoder = TableEncoder.fit(pa.table(frame), roles={"__index_level_0__": "number"})
    assert [column.name for column in encoder.columns] == ["__index_level_0__", "x"]


def test_a_whole_number_is_one_category_whatever_the_file_and_the_rows_beside_it():
    csv = table(level=["1.0", "2.0", "", "2.0", "1.0"])
    encoder = TableEncoder.fit(csv, roles={"level": "category"})
    codes = encoder.encode(csv)
    for values in ([1.0, 2.0, None, 2.0, 1.0], [1, 2, None, 2, 1], ["1", "2", "", "2", "1"]):
        report = EncodingReport()
        assert torch.equal(encoder.encode(table(level=values), report), codes)
        assert not report.lines()
    # Another chunk of the same file, where the column is not whole.
    assert words(pa.array([1.0, 1e15, 2.5])).to_pylist() == ["1", "1000000000000000", "2.5"]


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ([1e-5, 1e-5, 2.5, 1e16, 1e20], ["1e-05", "1e-5", "2.5", "1e+16", "1e+20"]),
        ([datetime.datetime(2024, 1, 5), None], ["2024-01-05", ""]),
        (
            [datetime.datetime(2024, 1, 5), datetime.datetime(2024, 1, 5, 10)],
            ["2024-01-05 00:00:00", "2024-01-05 10:00:00"],
        ),
    ],
)
def test_numbers_with_exponents_and_dates_are_the_same_words_in_csv_and_parquet(typed, text):
    assert words(pa.array(typed)).equals(words(pa.array(text)))


def test_words_that_only_look_like_numbers_with_exponents_remain():
    wells = ["1E5", "10E4", "1e5", "12e-05", "1E-5"]
    assert words(pa.array(wells)).to_pylist() == wells


def test_an_encoder_that_kept_trailing_zeros_reads_them():
    encoder = TableEncoder.fit(table(level=["1", "2", "2", "1"] * 60 + ["3"]), roles={"level": "category"})
    stored = json.loads(json.dumps(encoder.to_table()))
    for name in ("values", "rare"):
        stored["columns"][0][name] = [f"{word}.0" for word in stored["columns"][0][name]]
    rows, report = table(level=["1.0", "2", "3.0"]), EncodingReport()
    assert torch.equal(TableEncoder.from_table(stored).encode(rows, report), encoder.encode(rows))
    assert not report.lines()
