"""Documents of tables in Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
import re
from importlib import resources

from apmax.reproduce.tables import Block, Document, Field, is_separated, text_of

OURS = "ours"
# A table that is wider than the page is made to fit; others keep their size.
SHRUNK = "\\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%"


def markdown(document: Document, *, level: int = 1) -> str:
    """Return the document in Markdown, its title a heading of this level."""
    lines = [f"{'#' * level} {plain(document.title)}", "", *spaced(document.lead)]
    for section in document.sections:
        lines += [f"{'#' * (level + 1)} {plain(section.title)}", ""]
        for block in section.blocks:
            lines += [f"**{plain(block.title)}**", "", *markdown_table(block), ""]
    lines += [f"* {plain(note)}" for note in document.notes]
    return "\n".join(lines).rstrip() + "\n"


def spaced(paragraphs: tuple[str, ...]) -> list[str]:
    """Return paragraphs with an empty line after each."""
    return [line for paragraph in paragraphs for line in (plain(paragraph), "")]


def markdown_table(block: Block) -> list[str]:
    """Return a table's lines; a row of its own tells where ours begin."""
    rules = ["---", *("---:" for _ in block.columns[1:])]
    lines = [f"| {' | '.join(plain(name) for name in block.columns)} |", f"|{'|'.join(rules)}|"]
    for number, row in enumerate(block.rows):
        if is_separated(block, number):
            lines.append(f"| *{OURS}* |{' |' * (len(block.columns) - 1)}")
        lines.append(f"| {' | '.join(markdown_field(field) for field in row.fields)} |")
    return lines


def markdown_field(field: Field) -> str:
    """Return a field's text, in bold if it is the best."""
    text = f"**{plain(field.text)}**" if field.best else plain(field.text)
    return f"{text} {plain(field.aside)}".rstrip()


def plain(text: str) -> str:
    r"""Return text in which nothing is taken for Markdown.

    >>> print(plain("a|b_c"))
    a\|b\_c
    """
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)


def latex(document: Document) -> str:
    """Return the document as tables to be put into a paper; booktabs, amssymb and graphicx are needed."""
    lines = [f"% {document.title}. Needs booktabs, amssymb and graphicx.", *(f"% {text}" for text in document.lead)]
    for section in document.sections:
        for block in section.blocks:
            columns = len(block.columns)
            lines += [
                "\\begin{table}[t]",
                "\\centering\\small",
                f"\\caption{{{tex(document.title)}. {tex(caption(section.title, block.title))}.}}",
                SHRUNK,
                f"\\begin{{tabular}}{{l{'r' * (columns - 1)}}}",
                "\\toprule",
                f"{' & '.join(tex(name) for name in block.columns)} \\\\",
                "\\midrule",
            ]
            for number, row in enumerate(block.rows):
                if is_separated(block, number):
                    lines.append("\\midrule")
                lines.append(f"{' & '.join(tex_field(field) for field in row.fields)} \\\\")
            lines += ["\\bottomrule", "\\end{tabular}}", "\\end{table}", ""]
    lines += [f"% {note}" for note in document.notes]
    return "\n".join(lines).rstrip() + "\n"


def caption(section: str, block: str) -> str:
    """Return a block's title with its section's, unless that begins it."""
    return block if block.startswith(section) else f"{section}: {block}"


def tex_field(field: Field) -> str:
    """Return a field's text, in bold if it is the best."""
    text = f"\\textbf{{{tex(field.text)}}}" if field.best else tex(field.text)
    return f"{text} {tex(field.aside)}".rstrip()


TEX = {
    "\\": "\\textbackslash{}",
    "{": "\\{",
    "}": "\\}",
    "&": "\\&",
    "%": "\\%",
    "$": "\\$",
    "#": "\\#",
    "_": "\\_",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
    "−": "$-$",
    "≈": "$\\approx$",
    "▲": "$\\blacktriangle$",
    "▼": "$\\blacktriangledown$",
    "—": "---",
    "–": "--",
}


def tex(text: str) -> str:
    r"""Return text in which nothing is taken for LaTeX, and what LaTeX has no letter for is a command.

    >>> print(tex("50 % of a_b ± 1"))
    50 \% of a\_b $\pm$ 1
    """
    return "".join(TEX.get(letter, letter) for letter in text)


def page(document: Document, figures: tuple[str, ...] = ()) -> str:
    """Return the document as a page that needs nothing else, but for the figures beside it.

    Args:
        document: What to show.
        figures: File names of pictures in the page's folder.
    """
    parts = [f"<h1>{html.escape(document.title)}</h1>", *(f"<p>{html.escape(text)}</p>" for text in document.lead)]
    parts += [f'<img src="{html.escape(name)}" alt="{html.escape(document.title)}">' for name in figures]
    for section in document.sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        for block in section.blocks:
            parts += [f"<h3>{html.escape(block.title)}</h3>", html_table(block)]
    parts += ["<ul class='notes'>", *(f"<li>{html.escape(note)}</li>" for note in document.notes), "</ul>"]
    frame = resources.files("apmax.reproduce").joinpath("page.html").read_text(encoding="utf-8")
    return frame.replace("{{title}}", html.escape(document.title)).replace("{{body}}", "\n".join(parts))


def html_table(block: Block) -> str:
    """Return a table that scrolls sideways within the page, its first column always in sight."""
    head = "".join(f"<th scope='col'>{html.escape(name)}</th>" for name in block.columns)
    body = []
    for number, row in enumerate(block.rows):
        name, *fields = row.fields
        kind = " class='ours first'" if is_separated(block, number) else " class='ours'" if row.ours else ""
        cells = "".join(f"<td>{html_field(field)}</td>" for field in fields)
        body.append(f"<tr{kind}><th scope='row'>{html.escape(text_of(name))}</th>{cells}</tr>")
    rows = "\n".join(body)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def html_field(field: Field) -> str:
    """Return a field's text, in bold if it is the best."""
    text = html.escape(field.text)
    text = f"<b>{text}</b>" if field.best else text
    return f"{text} <span>{html.escape(field.aside)}</span>" if field.aside else text
