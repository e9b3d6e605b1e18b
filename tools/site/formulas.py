"""Formulas as MathML, which browsers draw themselves.

`$…$` and `$$…$$` become MathML when the site is built: no script, no font and no network in the browser.
"""

from __future__ import annotations

import html
import re

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def formulas_to_mathml(page: str) -> str:
    """Return a page of HTML with the LaTeX that the Markdown extension arithmatex marks replaced by MathML."""
    from latex2mathml.converter import convert

    def to_mathml(match: re.Match[str]) -> str:
        display = "block" if match[2] == "[" else "inline"
        formula = convert(html.unescape(match[3]).strip(), display=display)
        return f'<{match[1]} class="formula">{formula}</{match[1]}>'

    return FORMULA.sub(to_mathml, page)
