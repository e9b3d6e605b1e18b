"""Content and page of a report: JSON, escaping, the content-security policy, the drawing library."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
from importlib import resources

import numpy as np
import pytest

from apmax.report import (
    Example,
    ExampleTable,
    ReportData,
    load_report,
    page,
    render_report,
    save_report,
    write_report,
)
from small_reports import NASTY, small_report


@pytest.fixture(scope="module")
def content():
    return small_report()


@pytest.fixture(scope="module")
def html(content):
    return render_report(content)


def test_json_gives_back_the_content(content, tmp_path):
    save_report(content, tmp_path / "report.json")
    again = load_report(tmp_path / "report.json")
    assert again.to_table() == content.to_table()
    assert again.targets[0].parts == content.targets[0].parts
    assert math.isnan(again.targets[0].leaderboard[1].weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.pop("format"), "no report of apmax"),
        (lambda table: table.update(version=99), "format 99"),
        (lambda table: table.update(title=3), "report.title must be str, got int"),
        (lambda table: table["targets"][0].pop("parts"), "report.targets must have the fields"),
        (lambda table: table["targets"][0]["parts"][0].update(rows="many"), "rows must be int, got str"),
        (lambda table: table.update(versions=[]), "report.versions must be dict"),
    ],
)
def test_other_json_is_an_error(content, tmp_path, change, message):
    table = content.to_table()
    change(table)
    (tmp_path / "report.json").write_text(json.dumps(table))
    with pytest.raises(ValueError, match=f"report.json cannot be read: .*{message}"):
        load_report(tmp_path / "report.json")


def test_text_that_is_no_json_is_an_error(tmp_path):
    (tmp_path / "report.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        load_report(tmp_path / "report.json")


def test_texts_of_the_data_are_escaped(html):
    assert NASTY not in html
    assert "<img src=x" not in html
    assert html.count("&lt;img src=x") >= 8  # title, column, value, warning, cell, …
    assert len(re.findall("<script", html)) == len(re.findall("</script>", html)) == 4


def test_chart_data_are_the_content(html, content):
    (text,) = re.findall(r'<script type="application/json" id="report-data">(.*?)</script>', html)
    assert "<" not in text
    found = json.loads(text)
    assert found["targets"][0]["parts"][0]["curve"]["found"] == list(content.targets[0].parts[0].curve.found)
    assert found["targets"][0]["importance"]["each"][0]["column"] == NASTY


def test_policy_names_every_script_and_style_and_nothing_else(html):
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    rules = dict(rule.split(" ", 1) for rule in policy.replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert rules["script-src"].split() == [source_hash(text) for text in scripts]
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert rules["style-src"].split()[0] == source_hash(style)
    assert "unsafe" not in policy
    assert "http" not in policy


def source_hash(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_page_refers_to_no_other_file(html):
    own = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert not re.findall(r'(?:src|href)="(?!data:)', own)
    assert "url(" not in own
    assert "style=" not in own


def test_picture_that_is_no_data_uri_is_left_out(content):
    bad = Example(1, 0.5, True, ("0",), 'javascript:alert(1)"')
    good = Example(2, 0.4, True, ("1",), "data:image/png;base64,AAAA")
    tables = (ExampleTable("Top", "test", ("row",), (bad, good)),)
    target = dataclasses.replace(content.targets[0], examples=tables)
    html = render_report(dataclasses.replace(content, targets=(target,)))
    assert "alert(1)" not in html.replace(page._asset("d3.min.js"), "")
    assert html.count("<img src=") == 1


def test_half_of_a_surrogate_pair_does_not_break_the_page(content, tmp_path):
    write_report(dataclasses.replace(content, title="a \ud800 b"), tmp_path / "page.html")
    assert "<h1>a ? b</h1>" in (tmp_path / "page.html").read_text()


def test_missing_folder_is_an_error_and_writes_nothing(content, tmp_path):
    with pytest.raises(FileNotFoundError):
        write_report(content, tmp_path / "no" / "page.html")
    assert not list(tmp_path.iterdir())


def test_drawing_library_has_its_licence_and_is_checked(monkeypatch):
    assets = resources.files("apmax.report") / "assets"
    for name in page.LIBRARIES:
        licence = (assets / f"{name.partition('.')[0]}.LICENSE.txt").read_text()
        assert "Permission to use, copy, modify" in licence
    monkeypatch.setitem(page.LIBRARIES, "d3.min.js", "0" * 64)
    page._asset.cache_clear()
    with pytest.raises(ValueError, match=r"d3.min.js has changed"):
        page._asset("d3.min.js")
    monkeypatch.undo()
    page._asset.cache_clear()


def test_empty_parts_of_a_report_are_left_out(content):
    target = dataclasses.replace(
        content.targets[0], leaderboard=(), importance=None, examples=(), subgroups=(), verdict=("A verdict.",)
    )
    html = render_report(ReportData("plain", (target,)))
    headings = re.findall(r"<h2>(.*?)</h2>", html)
    assert headings == [
        "Average precision",
        "Precision–recall curve and threshold",
        "Calibration",
        "Scores by class",
        "Data",
        "Configuration and versions",
    ]
    assert "No warnings." in html


@pytest.mark.slow
def test_page_of_a_million_scores_has_at_most_two_megabytes():
    from apmax.report import TargetReport, score_part

    generator = np.random.default_rng(0)
    labels = (generator.random(1_000_000) < 0.3).astype(float)
    parts = tuple(
        score_part(name, generator.normal(size=1_000_000) + labels, labels) for name in ("test", "cross-fitted")
    )
    html = render_report(ReportData("large", (TargetReport("y", "1", ("A verdict.",), parts),)))
    library = sum(len(page._asset(name)) for name in page.LIBRARIES)
    assert len(html.encode()) - library <= 2_000_000
