"""Targets: two values as labels, missing values, several columns."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from apmax.data import Target, Targets, any_known, any_positive, open_table, read_labelled


@pytest.mark.parametrize(
    ("values", "positive"),
    [
        (["0", "1"], "1"),
        ([0, 1], "1"),
        ([0.0, 1.0, None], "1"),
        (["0.0", "1.0"], "1"),
        ([-1, 1], "1"),
        (["Yes", "no"], "yes"),
        ([True, False], "true"),
        (["TRUE", "False"], "true"),
    ],
)
def test_positive_of_a_known_pair_of_values_is_found(values, positive):
    target = Target.fit("y", pa.array(values))
    assert target.positive == positive
    assert np.nansum(target.labels(pa.array(values))) == 1


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(30, 2)])
def test_numbers_of_any_precision_are_classes(kind):
    whole = pa.array([1, 0, None])
    column = pa.array([np.float16(1), np.float16(0), None], kind) if kind == pa.float16() else whole.cast(kind)
    assert np.array_equal(Target.fit("y", column).labels(column), [1, 0, np.nan], equal_nan=True)


def test_other_values_need_the_positive_to_be_named():
    with pytest.raises(ValueError, match=r"'good' \(2 rows\), 'bad' \(1 rows\): name the positive value"):
        Target.fit("y", pa.array(["good", "bad", "good"]))


def test_positive_value_can_be_named():
    assert Target.fit("y", pa.array(["good", "bad"]), positive="Bad").labels(pa.array(["bad", "good"])).tolist() == [
        1,
        0,
    ]


@pytest.mark.parametrize("values", [["0", "1", "2"], ["1", "1"], ["", None], [0.5, 1.0, 0.25]])
def test_target_that_is_not_binary_is_refused_with_the_values_found(values):
    with pytest.raises(ValueError, match="two different values, got") as caught:
        Target.fit("y", pa.array(values))
    if values[0]:
        assert str(values[0]) in str(caught.value)


def test_third_value_of_the_target_is_refused_later_too():
    with pytest.raises(ValueError, match=r"got 'maybe' \(1 rows\)"):
        Target("y", "yes", "no").labels(pa.array(["yes", "maybe"]))


@pytest.mark.parametrize("missing", ["", "?", "NA", "n/a", "NaN", "null", "None", " "])
def test_missing_label_is_nan_and_not_a_third_value(missing):
    column = pa.array(["yes", missing, "no"])
    assert np.array_equal(Target.fit("y", column).labels(column), [1, np.nan, 0], equal_nan=True)


def test_targets_are_the_same_after_json():
    targets = Targets.fit(["a", "b"], pa.table({"a": ["0", "1"], "b": ["no", "yes"]}))
    assert Targets.from_table(json.loads(json.dumps(targets.to_table()))) == targets


def test_one_target_is_a_vector_and_several_a_matrix():
    table = pa.table({"a": ["0", "1", ""], "b": ["no", "", "yes"]})
    assert Targets.fit(["a"], table).labels(table).shape == (3,)
    both = Targets.fit(["a", "b"], table).labels(table)
    assert np.array_equal(both, [[0, 0], [1, np.nan], [np.nan, 1]], equal_nan=True)


def test_rows_are_known_or_positive_for_any_target():
    labels = np.array([[0, np.nan], [np.nan, np.nan], [0, 1]], np.float32)
    assert any_known(labels).tolist() == [True, False, True]
    assert any_positive(labels).tolist() == [False, False, True]
    assert any_known(labels[:, 0]).tolist() == [True, False, True]


def test_only_the_needed_columns_are_read_with_the_labels(tmp_path):
    (tmp_path / "a.csv").write_text("id;smiles;active;note\n1;C;yes;x\n2;CC;no;y\n")
    found = read_labelled(open_table(tmp_path / "a.csv"), ["active"], ["smiles"])
    assert found.table.column_names == ["smiles", "active"]
    assert found.labels.tolist() == [[1], [0]]
    assert found.targets.names == ("active",)


def test_missing_target_column_is_named_with_the_nearest(tmp_path):
    (tmp_path / "a.csv").write_text("smiles,active\nC,1\n")
    with pytest.raises(ValueError, match=r"target: .*a\.csv has no column 'actve' \(did you mean 'active'\?\)"):
        read_labelled(open_table(tmp_path / "a.csv"), ["actve"], ["smiles"])
