"""Tables of numbers that narrow windows do not break into lines."""

from __future__ import annotations

import re

# A number with its deviation, interval or count, or a date: "+0.03 (−0.01 to +0.07)", "3 of 8", "2026-01-01".
WORDS = r"(?:[\d.,+±()%–−\s-]|to\b|of\b|epoch\b)*"
CELL = re.compile(rf'<td( style="[^"]*")?>((?:<strong>)?(?:stage )?[+−-]?\.?\d{WORDS}(?:</strong>)?)</td>')


def numbers_in_one_line(page: str) -> str:
    """Return a page of HTML whose cells of numbers have the class "number", which the style sheet does not wrap."""
    return CELL.sub(lambda cell: f'<td class="number"{cell[1] or ""}>{cell[2]}</td>', page)
