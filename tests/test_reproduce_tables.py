"""Tables of results in Markdown and HTML, and the command that prints and writes them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from apmax.cli.main import main
from apmax.reproduce.pages import ResultTable, cell_table, markdown_table, write_item_files
from apmax.reproduce.pages.render import render_html, render_markdown
from apmax.reproduce.pages.tables import DataSection, ItemDocument, TableField, TableRow, item_document
from apmax.reproduce.results import append_line
from small_experiments import CELL, partial_table6, result_lines, summarise

ROWS = ["ce", "soap", "minmax", "apmax"]


def summary(rows=ROWS, cells=(CELL,)):
    return summarise("table6", partial_table6(), cells=list(cells), rows=rows)


def test_table_of_a_cell_has_all_columns_and_rows():
    # CE: 0.445 ± 0.0303. SOAP: 0.58 ± 0.0548; differences 0.1 + 0.01 k for k below 9: 0.14, ± 2.306 · 0.027386 / 3.
    # Of AP half as much.
    assert markdown_table(cell_table(summary(), CELL)) == (
        "| Method | Runs | AUPRC | Paper |  | AUPRC − CE (95 %) | Won | AP | AP − CE (95 %) |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        "| CE | 10 | 0.4450 ± 0.0303 | 0.5037 ± 0.0718 | ≈ |  |  | 0.7225 ± 0.0151 |  |\n"
        "| SOAP | 10, 1 diverged | 0.5800 ± 0.0548 | **0.6639 ± 0.0515** | ≈ | +0.1400 (+0.1189 to +0.1611) | 9 of 9 "
        "| 0.7900 ± 0.0274 | +0.0700 (+0.0595 to +0.0805) |\n"
        "| MinMax | — | — | 0.5292 ± 0.0330 |  |  |  | — |  |\n"
        "| *ours* | | | | | | | | |\n"
        "| apmax (default recipe) | 1 of 10 | 0.9000 |  |  | +0.5000 (one pair) | 1 of 1 "
        "| 0.9500 | +0.2500 (one pair) |"
    )


def test_best_is_among_the_methods_with_the_most_values():
    both = {
        **result_lines(*CELL, "ce", {"fold0": 0.4, "fold1": 0.5}),
        **result_lines(*CELL, "soap", {"fold0": 0.6, "fold1": 0.7}),
        **result_lines(*CELL, "apmax", {"fold0": 0.9}),
    }
    table = cell_table(summarise("table6", both, cells=[CELL], rows=ROWS), CELL)
    column = table.columns.index("AUPRC")
    assert [row.fields[column].best for row in table.rows] == [False, True, False, False]


def test_overview_has_the_papers_column_also_for_networks_without_a_run():
    found = item_document(summary(cells=[CELL, ("aicures", "mpnn")]))
    assert found.sections[0].tables[0].columns == ("Method", "GINE", "GINE, paper", "MPNN, paper")
    assert "Not run yet: AICURES, MPNN." in found.opening


def test_data_sets_without_a_run_are_only_named():
    found = item_document(summarise("table3", partial_table6()))
    assert [section.title for section in found.sections] == ["AICURES"]
    assert "HAM10000, df, ResNet-34" in found.opening[1]


def test_note_says_that_the_deviation_is_between_splits():
    assert any(
        "a run is one of 10 splits, with 4 positives in the test part and 4 in the validation part" in note
        for note in item_document(summary()).notes
    )


def test_note_says_that_seeds_of_a_split_are_not_independent():
    part = {"cells": [CELL], "rows": ROWS}
    (note,) = [
        note
        for note in item_document(summarise("table6", partial_table6(), seeds=2, **part)).notes
        if "seeds of a split" in note
    ]
    assert "narrower" in note
    assert not any("seeds of a split" in note for note in item_document(summary()).notes)


def document_of_special_characters() -> ItemDocument:
    rows = (
        TableRow((TableField("a|b_c & 5 %"), TableField("<0.5> ± 0.1", best=True, remark="(3) ▲"))),
        TableRow((TableField("{x}"), TableField("—")), True),
    )
    return ItemDocument(
        "T_1 & more",
        ("text <b>",),
        (DataSection("D", (ResultTable("D, n#1", ("Method", "x_1 − y"), rows),)),),
        ("5 %",),
    )


def test_markdown_escapes_special_characters():
    text = render_markdown(document_of_special_characters())
    assert r"| a\|b\_c & 5 % | **\<0.5\> ± 0.1** (3) ▲ |" in text
    assert r"text \<b\>" in text


def test_every_row_of_a_markdown_table_has_all_columns():
    text = render_markdown(item_document(summary(cells=[CELL, ("aicures", "mpnn")])))
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("| Method")]
    assert [table[0].count("|") for table in tables] == [5, 10]
    for table in tables:
        assert {line.count("|") for line in table} == {table[0].count("|")}


class Outline(HTMLParser):
    """Collects the tags that are open at the end, and the words of each cell."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def outline(text: str) -> Outline:
    parser = Outline()
    parser.feed(text)
    parser.close()
    return parser


def test_html_escapes_special_characters():
    found = outline(render_html(document_of_special_characters()))
    assert found.open == []
    assert found.rows[1] == ["a|b_c & 5 %", "<0.5> ± 0.1 (3) ▲"]


def test_html_needs_no_other_file_than_its_figures():
    text = render_html(item_document(summary()), ("table6.png",))
    assert re.findall(r'(?:src|href)="([^"]+)"', text) == ["table6.png"]
    assert "prefers-color-scheme: dark" in text
    assert "position: sticky" in text
    assert text.count("class='ours first'") == 2


def test_budgets_and_seeds_have_files_of_their_own(tmp_path):
    usual = write_item_files(summary(), tmp_path, {})
    other = summarise("table6", partial_table6(), cells=[CELL], budget="quick", seeds=2)
    assert [path.name for path in usual] == ["table6.md", "table6.html", "table6.png"]
    assert write_item_files(other, tmp_path, {})[0].name == "table6-quick-2-seeds.md"


def committed(folder: Path, count: int | None = None) -> Path:
    for line in list(partial_table6().values())[:count]:
        append_line(folder / "results.jsonl", line)
    return folder


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *words])
    return int(ended.value.code)


def test_command_prints_the_selected_part_and_writes_the_whole_item(tmp_path, capsys):
    out = committed(tmp_path)
    assert run("table6", "--model", "gine", "--methods", "ce", "--only-tables", "--out", str(out)) == 0
    shown = capsys.readouterr().out
    assert "AICURES, GINE" in shown
    assert "SOAP" not in shown.split("·")[0]
    assert "table6.md, .html, .png" in shown
    assert "| SOAP | 10, 1 diverged |" in (out / "table6" / "table6.md").read_text()


def test_command_without_results_says_so_and_draws_nothing(tmp_path, capsys):
    assert run("convergence", "--only-tables", "--out", str(tmp_path)) == 0
    assert "0 of " in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.png"))


@pytest.mark.parametrize(
    "wrong",
    [["--methods", "sope"], ["--methods", "soap_16"], ["--budget", "huge"], ["--dataset", "hiv"], ["--splits", "x"]],
)
def test_command_refuses_unknown_names_before_it_writes(wrong, tmp_path, capsys):
    assert run("table6", "--only-tables", "--out", str(tmp_path), *wrong) == 1
    assert wrong[0].removeprefix("--").rstrip("s") in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
