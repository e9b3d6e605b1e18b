"""The files of an item: its tables in Markdown and HTML, and its figure."""

from __future__ import annotations

import html
import re
from importlib import resources
from pathlib import Path

from apmax.folders import write_atomic
from apmax.reproduce.pages.figures import draw_item
from apmax.reproduce.pages.summary import Histories, ItemSummary
from apmax.reproduce.pages.tables import ItemDocument, ResultTable, TableField, item_document
from apmax.reproduce.results import locked


def write_item_files(summary: ItemSummary, folder: Path, histories: Histories) -> list[Path]:
    """Write the tables and the figure of an item, and return their paths.

    Args:
        summary: The summary of the whole item, since there is one set of files for it.
        folder: The folder of the results; the files go to a folder of the item's name in it.
        histories: The values after each epoch, by the key of the run.
    """
    target = folder / summary.item.name
    target.mkdir(parents=True, exist_ok=True)
    stem, document = file_stem(summary), item_document(summary)
    with locked(folder / ".tables.lock"):
        figures = draw_item(summary, target / stem, histories)
        pages = {
            target / f"{stem}.md": render_markdown(document),
            target / f"{stem}.html": render_html(document, tuple(path.name for path in figures)),
        }
        for path, text in pages.items():
            write_atomic(path, text.encode())
    return [*pages, *figures]


def file_stem(summary: ItemSummary) -> str:
    """Return the name of an item's files; other budgets and numbers of seeds than the default have their own."""
    parts = [summary.item.name]
    if not summary.has_default_budget:
        parts.append(summary.budget)
    if summary.seeds is not None:
        parts.append(f"{summary.seeds}-seeds")
    return "-".join(parts)


def render_markdown(document: ItemDocument) -> str:
    """Return a document in Markdown."""
    lines = [f"# {escape_markdown(document.title)}", ""]
    lines += [line for paragraph in document.opening for line in (escape_markdown(paragraph), "")]
    for section in document.sections:
        lines += [f"## {escape_markdown(section.title)}", ""]
        for table in section.tables:
            lines += [f"**{escape_markdown(table.title)}**", "", markdown_table(table), ""]
    lines += [f"* {escape_markdown(note)}" for note in document.notes]
    return "\n".join(lines).rstrip() + "\n"


def markdown_table(table: ResultTable) -> str:
    """Return a table in Markdown; a line "ours" stands between the paper's rows and ours."""
    rules = ["---", *("---:" for _ in table.columns[1:])]
    lines = [f"| {' | '.join(map(escape_markdown, table.columns))} |", f"|{'|'.join(rules)}|"]
    for number, row in enumerate(table.rows):
        if table.starts_ours(number):
            lines.append(f"| *ours* |{' |' * (len(table.columns) - 1)}")
        lines.append(f"| {' | '.join(map(_markdown_field, row.fields))} |")
    return "\n".join(lines)


def _markdown_field(field: TableField) -> str:
    """Return a field in Markdown, the best of its column in bold."""
    text = f"**{escape_markdown(field.text)}**" if field.best else escape_markdown(field.text)
    return f"{text} {escape_markdown(field.remark)}".rstrip()


def escape_markdown(text: str) -> str:
    r"""Return text with the special characters of Markdown escaped.

    >>> print(escape_markdown("a|b_c"))
    a\|b\_c
    """
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)


def replace_block(path: Path, name: str, block: str) -> None:
    """Replace the generated part of a page: the text between `<!-- name -->` and `<!-- /name -->`.

    Raises:
        ValueError: The page does not have the two marks once each.

    >>> import tempfile
    >>> page = Path(tempfile.mkdtemp(), "page.md")
    >>> _ = page.write_text("# Title <!-- counts -->old<!-- /counts -->")
    >>> replace_block(page, "counts", "3 runs")
    >>> page.read_text().split()
    ['#', 'Title', '<!--', 'counts', '-->', '3', 'runs', '<!--', '/counts', '-->']
    """
    page, start, end = path.read_text(encoding="utf-8"), f"<!-- {name} -->", f"<!-- /{name} -->"
    if page.count(start) != 1 or page.count(end) != 1:
        raise ValueError(f"{path} must have one {start} and one {end} around its generated part")
    before, _, rest = page.partition(start)
    write_atomic(path, f"{before}{start}\n\n{block}\n\n{end}{rest.partition(end)[2]}".encode())


def render_html(document: ItemDocument, figures: tuple[str, ...] = ()) -> str:
    """Return a document as an HTML page that needs no other files than its figures.

    Args:
        document: The document.
        figures: The names of image files in the page's folder.
    """
    title = html.escape(document.title)
    parts = [f"<h1>{title}</h1>", *(f"<p>{html.escape(text)}</p>" for text in document.opening)]
    parts += [f'<img src="{html.escape(name)}" alt="{title}">' for name in figures]
    for section in document.sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        for table in section.tables:
            parts += [f"<h3>{html.escape(table.title)}</h3>", _html_table(table)]
    parts += ["<ul class='notes'>", *(f"<li>{html.escape(note)}</li>" for note in document.notes), "</ul>"]
    template = resources.files("apmax.reproduce.pages").joinpath("page.html").read_text(encoding="utf-8")
    return template.replace("{{title}}", title).replace("{{body}}", "\n".join(parts))


def _html_table(table: ResultTable) -> str:
    """Return a table in HTML that scrolls sideways under a fixed first column."""
    head = "".join(f"<th scope='col'>{html.escape(name)}</th>" for name in table.columns)
    body = []
    for number, row in enumerate(table.rows):
        name, *fields = row.fields
        kind = " class='ours first'" if table.starts_ours(number) else " class='ours'" if row.ours else ""
        cells = "".join(f"<td>{_html_field(field)}</td>" for field in fields)
        body.append(f"<tr{kind}><th scope='row'>{html.escape(name.full_text)}</th>{cells}</tr>")
    rows = "\n".join(body)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def _html_field(field: TableField) -> str:
    """Return a field in HTML, the best of its column in bold."""
    text = html.escape(field.text)
    text = f"<b>{text}</b>" if field.best else text
    return f"{text} <span>{html.escape(field.remark)}</span>" if field.remark else text
