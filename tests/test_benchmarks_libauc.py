"""The study of one network on tables beside LibAUC; its own methods need no LibAUC."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.committees.tables.problems import HELD_BACK, TableSplit
from benchmarks.libauc import tables
from benchmarks.libauc.tables import METHODS, draw_configurations, fit_method, standardised_parts, write_report

from apmax.metrics import average_precision
from apmax.reproduce.results import append_line


@pytest.fixture
def split(monkeypatch):
    monkeypatch.setattr(tables, "STEPS", 60)
    monkeypatch.setattr(tables, "STEPS_BETWEEN_CHECKS", 20)
    monkeypatch.setattr(tables, "CONFIGURATIONS", 2)
    generator = np.random.default_rng(0)
    labels = (np.arange(600) % 10 == 0).astype(float)
    features = generator.normal(size=(600, 3)) * [1.0, 100.0, 0.0] + 2 * labels[:, None]
    return TableSplit(features[:400], labels[:400], features[400:], labels[400:])


def test_all_methods_have_as_many_configurations_with_the_same_rates():
    drawn = [draw_configurations(method, seed=3) for method in METHODS.values()]
    assert {len(each) for each in drawn} == {tables.CONFIGURATIONS}
    for configurations in zip(*drawn, strict=True):
        assert len({(each["lr"], each["weight_decay"]) for each in configurations}) == 1


def test_features_are_scaled_by_the_training_rows(split):
    train, valid, test = standardised_parts(split, seed=0)
    assert len(train.labels) + len(valid.labels) == 400
    assert len(test.labels) == 200
    assert train.features.mean(0).abs().max() < 1e-5
    np.testing.assert_allclose(train.features[:, 1].std(correction=0), 1, rtol=1e-4)


@pytest.mark.parametrize("name", ["ce", "apmax", "ce_apmax"])
def test_the_chosen_configuration_has_the_highest_validation_ap(split, name):
    scored = fit_method(split, name, 0)
    facts = scored.facts
    assert facts["chosen"] == int(np.argmax(facts["valid_aps"]))
    assert facts["valid_ap"] == pytest.approx(max(facts["valid_aps"]), abs=1e-6)
    ap = float(average_precision(scored.scores, split.test_labels))
    assert ap == pytest.approx(facts["test_aps"][facts["chosen"]], abs=1e-6)
    assert facts["defaults_ap"] == pytest.approx(facts["test_aps"][0], abs=1e-6)
    assert ap > 0.5
    assert facts["step"] in (20, 40, 60)


def test_the_report_has_the_differences_of_tuned_and_of_default_settings(tmp_path):
    values = {"ce": 0.4, "libauc": 0.3, "apmax": 0.5, "ce_libauc": 0.4, "ce_apmax": 0.6}
    for name in HELD_BACK:
        for resplit in (0, 1, 2):
            for method, ap in values.items():
                line = {"table": name, "resplit": resplit, "method": method, "ap": ap, "defaults_ap": ap - 0.25}
                append_line(tmp_path / "tables.jsonl", line | {"commit": "abc", "versions": {"libauc": "2.0.1"}})
    write_report(tmp_path)
    page = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "| libauc | +0.2000 | +0.2000 to +0.2000 | 8 of 8 |" in page
    assert "| **mean of 8** | 0.150 | 0.050 | 0.250 | 0.150 | **0.350** |" in page
