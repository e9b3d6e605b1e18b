"""Pages of tutorials with the output of their executed notebooks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_STYLE = re.compile(r"<style.*?</style>\s*", re.DOTALL)
_TABLE = re.compile(r"<table[^>]*>")


def fill_tutorials(folder: Path) -> None:
    """Replace the page of every executed notebook in a folder by one with its output."""
    for notebook in folder.glob("*.ipynb"):
        page = tutorial_page(json.loads(notebook.read_text(encoding="utf-8")), notebook.name)
        notebook.with_suffix(".md").write_text(page, encoding="utf-8")


def tutorial_page(notebook: dict[str, Any], name: str) -> str:
    """Return the Markdown of a notebook with its output; `name` is the file that readers can download."""
    parts = []
    for cell in notebook["cells"]:
        source = _joined(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        shell = source.startswith("%%bash\n")
        parts.append(f"```{'bash' if shell else 'python'}\n{source.removeprefix('%%bash').strip()}\n```")
        parts += filter(None, map(_output, cell["outputs"]))
    title, _, text = parts[0].partition("\n")
    download = f"*This page is a notebook ([{name}]({name})), shown with the output of its last run.*"
    return "\n\n".join([title, download, text.strip(), *parts[1:]]) + "\n"


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _text(_joined(output["text"]))
    data = output["data"]
    if "image/png" in data:
        encoded = _joined(data["image/png"]).replace("\n", "")
        return f'<img alt="Picture made by the code above" src="data:image/png;base64,{encoded}">'
    if "text/html" in data:
        # A table without attributes has the style of the site, and scrolls on a narrow screen.
        table = _TABLE.sub("<table>", _STYLE.sub("", _joined(data["text/html"])))
        return "\n".join(line.strip() for line in table.splitlines() if line.strip())
    return _text(_joined(data["text/plain"]))


def _text(text: str) -> str:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join(["``` { .text .output }", *lines, "```"]) if any(lines) else ""


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
