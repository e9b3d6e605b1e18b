"""Writer of the executed notebooks of docs/tutorials.

A tutorial is a Markdown page. Its blocks of `python` and `bash` are the cells of a notebook, which is executed in a
temporary folder and stored beside the page with its output:

    python tools/run_tutorials.py [NAME ...]

Without names those are executed whose code has changed; of the others only the text is replaced.
`tools/site/tutorials.py` puts the output into the site.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"
SECONDS = 1200
"""Time limit of a cell, far above what any of them takes, on a busy machine too."""
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def tutorial_pages() -> list[Path]:
    """Return the pages of all tutorials."""
    return sorted(page for page in TUTORIALS.glob("*.md") if page.stem != "index")


def notebook_of(page: str) -> Any:
    """Return the notebook of a page's text, not executed.

    A block of `bash` becomes a cell that begins with `%%bash`: unlike `!`, it runs its commands without a terminal, so
    that no progress display is drawn.
    """
    cells, position = [], 0
    for block in _BLOCK.finditer(page):
        cells.append(nbformat.v4.new_markdown_cell(page[position : block.start()].strip()))
        language, code = block[1], block[2].rstrip()
        cells.append(nbformat.v4.new_code_cell(f"%%bash\n{code}" if language == "bash" else code))
        position = block.end()
    cells.append(nbformat.v4.new_markdown_cell(page[position:].strip()))
    cells = [cell for cell in cells if cell.source]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def execute(notebook: Any, folder: Path) -> Any:
    """Execute a notebook in a folder and return it with its output; a failing cell raises its error."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {
        "PATH": programs,
        "APMAX_CACHE": str(folder / ".cache"),
        "COLUMNS": "100",
        "OMP_NUM_THREADS": "1",  # the number of threads changes the last digits
        "PYTHONWARNINGS": "ignore,default:::__main__",  # those of other libraries name their files on this machine
    }
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, **variables})
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
        if cell.cell_type == "code":
            cell.outputs = _tidy(cell.outputs)
    return notebook


def _tidy(outputs: list[Any]) -> list[Any]:
    """Return outputs with each stream joined to one text, without control sequences."""
    tidy: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and tidy and tidy[-1].get("name") == output.name:
            tidy[-1].text += output.text
        else:
            tidy.append(output)
    for output in tidy:
        if output.output_type == "stream":  # after joining: a sequence may be cut between two outputs
            output.text = _CONTROL.sub("", output.text)
    return tidy


def run_tutorial(page: Path) -> Any:
    """Return the executed notebook of a page."""
    with tempfile.TemporaryDirectory() as folder:
        return execute(notebook_of(page.read_text()), Path(folder))


def with_stored_output(notebook: Any, stored: Any) -> Any | None:
    """Return a notebook with the output of a stored one, or None if its code is another."""
    code, known = ([cell for cell in each.cells if cell.cell_type == "code"] for each in (notebook, stored))
    if [cell.source for cell in code] != [cell.source for cell in known]:
        return None
    for cell, found in zip(code, known, strict=True):
        cell.outputs, cell.execution_count = found.outputs, found.execution_count
    notebook.metadata = stored.metadata  # the kernel's version belongs to the output
    return notebook


def main(names: list[str]) -> None:
    """Execute the named tutorials, or those whose code has changed, and store the notebooks of all of these."""
    pages = tutorial_pages()
    unknown = set(names) - {page.stem for page in pages}
    if unknown:
        sys.exit(f"no tutorial {', '.join(sorted(unknown))}: there are {', '.join(page.stem for page in pages)}")
    for page in pages:
        path = page.with_suffix(".ipynb")
        notebook = None
        if not names and path.exists():
            notebook = with_stored_output(notebook_of(page.read_text()), nbformat.read(path, as_version=4))
        if not names or page.stem in names:
            nbformat.write(notebook or run_tutorial(page), path)


if __name__ == "__main__":
    main(sys.argv[1:])
