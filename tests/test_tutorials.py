"""Tutorials: the stored notebooks are those of the pages, have real output, and run again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
from tools.run_tutorials import notebook_of, run_tutorial, tutorial_pages, with_stored_output  # noqa: E402
from tools.site.tutorials import tutorial_page  # noqa: E402

PAGES = tutorial_pages()
NEEDS = {
    "molecules": ["rdkit", "pandas"],
    "tables": ["pandas"],
    "images": ["PIL", "pandas"],
    "own-loop": ["rdkit", "pandas", "lightning", "chemprop", "torch_geometric"],
}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def stored(page: Path):
    return nbformat.read(page.with_suffix(".ipynb"), as_version=4)


def texts(notebook) -> list[str]:
    """Return the texts that the code cells print, in order."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [output.text for output in outputs if output.output_type == "stream"]


def words(text: str) -> list[str]:
    """Return the words of a text without numbers, without the lines that tell how far a training is."""
    progress = re.compile(r" left$|valid AP|fitted in|rows in .* a second")
    lines = [line for line in text.splitlines() if not progress.search(line)]
    return re.findall(r"[A-Za-z]{3,}", " ".join(lines))


def test_there_is_a_tutorial_for_each_user():
    assert {page.stem for page in PAGES} == set(NEEDS)


@each_page
def test_stored_notebook_is_that_of_the_page(page):
    """After a change of a page run `python tools/run_tutorials.py NAME`."""
    written, found = notebook_of(page.read_text()), stored(page)
    assert [cell.source for cell in found.cells] == [cell.source for cell in written.cells]


@each_page
def test_stored_notebook_was_executed_in_order_without_errors(page):
    code = [cell for cell in stored(page).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {output.output_type for cell in code for output in cell.outputs}
    assert "stream" in kinds
    assert "error" not in kinds
    pictures = [output for cell in code for output in cell.outputs if "image/png" in output.get("data", {})]
    assert pictures


@each_page
def test_stored_notebook_is_small_and_names_no_machine(page):
    content = page.with_suffix(".ipynb").read_text()
    assert len(content) < 300_000
    assert not re.search(r"/(tmp|home|root|work|usr)/|site-packages|\\u001b", content)


@each_page
def test_tutorial_ends_with_a_decision(page):
    text = page.read_text()
    assert "apmax decide" in text or "choose_threshold" in text
    assert "**The decision**" in text.split("\n## ")[-1]


def test_page_shows_source_and_output_of_cells():
    notebook = notebook_of("# Title\n\nText.\n\n```bash\napmax methods\n```\n\n```python\n1 + 1\n```\n\nEnd.\n")
    shell, python = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert shell.source == "%%bash\napmax methods"
    shell.outputs = [nbformat.v4.new_output("stream", text="ap\n")]
    table = '<style scoped>\n  .x {}\n</style>\n<table border="1" class="dataframe">\n\n  <tr></tr></table>'
    python.outputs = [
        nbformat.v4.new_output("execute_result", {"text/plain": "2"}),
        nbformat.v4.new_output("display_data", {"image/png": "iVBO\nRw0=", "text/plain": "<Figure>"}),
        nbformat.v4.new_output("display_data", {"text/html": table, "text/plain": "table"}),
    ]
    page = tutorial_page(json.loads(nbformat.writes(notebook)), "title.ipynb")
    assert page == (
        "# Title\n\n*This page is a notebook ([title.ipynb](title.ipynb)), shown with the output of its last run.*\n\n"
        "Text.\n\n```bash\napmax methods\n```\n\n``` { .text .output }\nap\n```\n\n"
        "```python\n1 + 1\n```\n\n``` { .text .output }\n2\n```\n\n"
        '<img alt="Picture made by the code above" src="data:image/png;base64,iVBORw0=">\n\n'
        "<table>\n<tr></tr></table>\n\nEnd.\n"
    )


def test_output_is_kept_where_only_the_text_changes():
    stored = notebook_of("# Title\n\n```python\nprint(1)\n```\n")
    stored.cells[1].outputs, stored.cells[1].execution_count = [nbformat.v4.new_output("stream", text="1\n")], 1
    stored.metadata["language_info"]["version"] = "3.11.7"
    kept = with_stored_output(notebook_of("# Other\n\n```python\nprint(1)\n```\n\nMore.\n"), stored)
    assert [cell.source for cell in kept.cells] == ["# Other", "print(1)", "More."]
    assert kept.cells[1].outputs == stored.cells[1].outputs
    assert kept.metadata["language_info"]["version"] == "3.11.7"
    assert with_stored_output(notebook_of("# Title\n\n```python\nprint(2)\n```\n"), stored) is None


@pytest.mark.slow
@each_page
def test_tutorial_runs_and_prints_what_is_stored(page):
    for module in NEEDS[page.stem]:
        pytest.importorskip(module)
    assert [words(text) for text in texts(run_tutorial(page))] == [words(text) for text in texts(stored(page))]


@pytest.mark.slow
def test_program_of_several_processes_gives_the_weights_of_one(tmp_path):
    """The program of docs/how-to/processes.md."""
    import subprocess
    import sys

    text = (Path(__file__).parent.parent / "docs" / "how-to" / "processes.md").read_text()
    (tmp_path / "train_two.py").write_text(re.search(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE).group(1))
    weights = []
    for processes in (1, 2):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        done = subprocess.run([*command, "train_two.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
        weights.append(json.loads(done.stdout.strip().splitlines()[-1]))
    assert weights[0] == pytest.approx(weights[1], abs=2e-4)
