"""Tables in three formats, and the pages that are made of them."""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from apmax.cli.main import main
from apmax.reproduce import Results, grid
from apmax.reproduce.output import write
from apmax.reproduce.pages import PAGE, README, readme_block, results_page, summaries, with_block
from apmax.reproduce.rendering import latex, markdown, markdown_table, page
from apmax.reproduce.results import append
from apmax.reproduce.summary import summarise
from apmax.reproduce.tables import Block, Document, Field, Row, Section, detail, document
from small_results import runs

ROOT = Path(__file__).parent.parent
CELL = ("aicures", "gine")
ROWS = ["ce", "soap", "minmax", "apmax"]


def lines():
    return {
        **runs(*CELL, "ce", {f"fold{k}": 0.4 + 0.01 * k for k in range(10)}),
        **runs(*CELL, "soap", {f"fold{k}": 0.5 + 0.02 * k for k in range(9)} | {"fold9": None}),
        **runs(*CELL, "apmax", {"fold0": 0.9}),
    }


def summary(rows=ROWS, cells=(CELL,)):
    return summarise(grid(), grid().items["table6"], lines(), cells=list(cells), rows=rows)


def test_table_of_a_cell_says_all_that_is_known():
    # CE: 0.445 ± 0.0303. SOAP: 0.58 ± 0.0548; differences 0.1 + 0.01 k for k below 9: 0.14, ± 2.306 · 0.027386 / 3.
    # Of AP half as much.
    assert "\n".join(markdown_table(detail(summary(), CELL))) == (
        "| Method | Runs | AUPRC | Paper |  | AUPRC − CE (95 %) | Won | AP | AP − CE (95 %) |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        "| CE | 10 | 0.4450 ± 0.0303 | 0.5037 ± 0.0718 | ≈ |  |  | 0.7225 ± 0.0151 |  |\n"
        "| SOAP | 10, 1 diverged | 0.5800 ± 0.0548 | **0.6639 ± 0.0515** | ≈ | +0.1400 (+0.1189 to +0.1611) | 9 of 9 "
        "| 0.7900 ± 0.0274 | +0.0700 (+0.0595 to +0.0805) |\n"
        "| MinMaxLoss | — | — | 0.5292 ± 0.0330 |  |  |  | — |  |\n"
        "| *ours* | | | | | | | | |\n"
        "| apmax (default recipe) | 1 of 10 | 0.9000 |  |  | +0.5000 (one pair) | 1 of 1 "
        "| 0.9500 | +0.2500 (one pair) |"
    )


def test_best_is_among_the_methods_with_the_most_values():
    both = {
        **runs(*CELL, "ce", {"fold0": 0.4, "fold1": 0.5}),
        **runs(*CELL, "soap", {"fold0": 0.6, "fold1": 0.7}),
        **runs(*CELL, "apmax", {"fold0": 0.9}),
    }
    block = detail(summarise(grid(), grid().items["table6"], both, cells=[CELL], rows=ROWS), CELL)
    column = block.columns.index("AUPRC")
    assert [row.fields[column].best for row in block.rows] == [False, True, False, False]


def test_networks_stand_side_by_side_with_the_papers_also_where_nothing_was_run():
    found = document(summary(cells=[CELL, ("aicures", "mpnn")]))
    assert found.sections[0].blocks[0].columns == ("Method", "GINE", "GINE, paper", "MPNN, paper")
    assert "Not run yet: AICURES, MPNN." in found.lead


def test_data_sets_of_which_nothing_was_run_are_named_only():
    found = document(summarise(grid(), grid().items["table3"], lines()))
    assert [section.title for section in found.sections] == ["AICURES"]
    assert "HAM10000, df, ResNet-34" in found.lead[1]


def test_spread_between_splits_is_told_from_that_between_seeds():
    assert any(
        "a run is one of 10 splits, whose test parts have 4 positives" in note for note in document(summary()).notes
    )


def test_seeds_of_a_split_are_said_not_to_be_independent():
    asked = {"cells": [CELL], "rows": ROWS}
    (note,) = [
        note
        for note in document(summarise(grid(), grid().items["table6"], lines(), seeds=2, **asked)).notes
        if "seeds of a split" in note
    ]
    assert "narrower" in note
    assert not any("seeds of a split" in note for note in document(summary()).notes)


def awkward() -> Document:
    rows = (
        Row((Field("a|b_c & 5 %"), Field("<0.5> ± 0.1", best=True, aside="(3) ▲"))),
        Row((Field("{x}"), Field("—")), True),
    )
    return Document(
        "T_1 & more", ("said <b>",), (Section("D", (Block("D, n#1", ("Method", "x_1 − y"), rows),)),), ("5 %",)
    )


def test_markdown_takes_nothing_for_markup():
    text = markdown(awkward())
    assert r"| a\|b\_c & 5 % | **\<0.5\> ± 0.1** (3) ▲ |" in text
    assert r"said \<b\>" in text


def test_every_row_of_a_markdown_table_has_all_columns():
    for line in markdown(document(summary(cells=[CELL, ("aicures", "mpnn")]))).splitlines():
        if line.startswith("| CE "):
            assert line.count("|") in (5, 10)


def test_latex_takes_nothing_for_commands():
    text = latex(awkward())
    assert r"a|b\_c \& 5 \% & \textbf{<0.5> $\pm$ 0.1} (3) $\blacktriangle$ \\" in text
    assert r"\{x\} & --- \\" in text
    assert r"Method & x\_1 $-$ y \\" in text
    assert r"\caption{T\_1 \& more. D, n\#1.}" in text


def test_latex_separates_ours_and_closes_what_it_opens():
    text = latex(document(summary()))
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    body = text.split(r"\midrule")
    assert "apmax" in body[2]
    assert "apmax" not in body[1]
    code = re.sub(r"\\[{}%]|^%.*$", "", text, flags=re.MULTILINE)
    assert code.count("{") == code.count("}")


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


def test_html_takes_nothing_for_tags():
    found = outline(page(awkward()))
    assert found.open == []
    assert found.rows[1] == ["a|b_c & 5 %", "<0.5> ± 0.1 (3) ▲"]


def test_html_needs_no_other_file_than_its_figures():
    text = page(document(summary()), ("table6.png",))
    assert re.findall(r'(?:src|href)="([^"]+)"', text) == ["table6.png"]
    assert "prefers-color-scheme: dark" in text
    assert "position: sticky" in text
    assert text.count("class='ours first'") == 2


def test_budgets_and_seeds_have_files_of_their_own(tmp_path):
    usual = write(summary(), tmp_path, {})
    other = summarise(grid(), grid().items["table6"], lines(), cells=[CELL], budget="quick", seeds=2)
    assert [path.name for path in usual] == ["table6.md", "table6.tex", "table6.html", "table6.png"]
    assert write(other, tmp_path, {})[0].name == "table6-quick-2-seeds.md"


def committed(folder: Path, count: int | None = None) -> Path:
    for line in list(lines().values())[:count]:
        append(folder / "results.jsonl", line)
    return folder


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *words])
    return int(ended.value.code)


def test_command_prints_what_is_asked_and_writes_the_whole_item(tmp_path, capsys):
    out = committed(tmp_path)
    assert run("table6", "--model", "gine", "--methods", "ce", "--only-tables", "--out", str(out)) == 0
    shown = capsys.readouterr().out
    assert "AICURES, GINE" in shown
    assert "SOAP" not in shown.split("·")[0]
    assert "table6.md, .tex, .html, .png" in shown
    assert "| SOAP | 10, 1 diverged |" in (out / "table6" / "table6.md").read_text()


def test_command_without_results_says_so_and_draws_nothing(tmp_path, capsys):
    assert run("convergence", "--only-tables", "--out", str(tmp_path)) == 0
    assert "0 of " in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.png"))


@pytest.mark.parametrize(
    "wrong",
    [["--methods", "sope"], ["--methods", "soap_16"], ["--budget", "huge"], ["--dataset", "hiv"], ["--splits", "x"]],
)
def test_command_refuses_what_the_item_has_not_before_it_writes(wrong, tmp_path, capsys):
    assert run("table6", "--only-tables", "--out", str(tmp_path), *wrong) == 1
    assert wrong[0].removeprefix("--").rstrip("s") in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def pages_of(found, count, histories):
    return results_page(found, count, histories), readme_block(found, count, histories)


def test_pages_are_what_the_results_say_and_nothing_typed():
    """Of the results that the page counts: while experiments run, there are more than were there when it was made."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    count = int(re.search(r"\((\d+) results?\)", text).group(1))
    results = Results(ROOT / "results")
    first = dict(list(results.lines.items())[:count])
    expected, block = pages_of(summaries(first), len(first), results.histories())
    readme = (ROOT / README).read_text(encoding="utf-8")
    assert text == expected
    assert readme == with_block(readme, block)


def test_pages_have_all_results_that_are_committed():
    told = subprocess.run(
        ["git", "-C", str(ROOT), "show", "HEAD:results/results.jsonl"], capture_output=True, text=True, check=False
    )
    if told.returncode != 0:
        pytest.skip("no commit with results")
    keys = {json.loads(line)["key"] for line in told.stdout.splitlines()}
    count = int(re.search(r"\((\d+) results?\)", (ROOT / PAGE).read_text(encoding="utf-8")).group(1))
    assert count >= len(keys), "run: make results"


def test_page_names_what_is_unfinished_and_what_was_not_run():
    text = results_page(summaries(lines()), 21, {})
    assert "* AICURES, GINE: 10 of 10" not in text
    assert "1 of 10 runs of apmax" in text
    assert "no run at all: AICURES, MPNN; AICURES, ML-MPNN" in text
    assert "* Table 1: CIFAR-10 and CIFAR-100, test AUPRC" in text.split("## Not run yet")[1]


def test_larger_budget_has_a_section_once_a_choice_was_made():
    from test_experiment_summary import tuned_lines

    assert "quick budget" not in results_page(summaries(tuned_lines([0.1, 0.3, 0.2]), ["table6"]), 3, {})
    text = results_page(summaries(tuned_lines([0.1, 0.3, 0.2, 0.0]), ["table6"]), 4, {})
    assert "## Table 6: AICURES, all networks, test AUPRC (quick budget)" in text
    assert "(paper budget)" not in text


def test_pages_without_results_say_so():
    assert "Nothing has been run yet." in results_page([], 0, {})
    assert "Nothing has been run yet." in readme_block([], 0, {})


def test_readme_without_marks_is_refused():
    with pytest.raises(ValueError, match=r"README.md must have one <!-- results -->"):
        with_block("# no marks", "block")


def test_only_the_block_of_the_readme_is_replaced():
    assert with_block("a\n<!-- results -->old<!-- /results -->\nb", "new \\1") == "a\nnew \\1\nb"
