"""Griffe extension: examples in docstrings as blocks of code, and names that share a description.

Docstrings of apmax have their doctests after the text, without a heading; Markdown would read `>>>` as a quotation. Of
"low, high: Its limits." griffe would read `high` as the type of `low`.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!$).*)*", re.MULTILINE)

SHARED = re.compile(r"^ +\w+(?:, \w+)+(?=: )", re.MULTILINE)


def fence_examples(docstring: str) -> str:
    """Return a docstring with its doctests as fenced blocks.

    >>> fence_examples("Add.")
    'Add.'
    """
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", docstring)


def join_names(docstring: str) -> str:
    r"""Return a docstring with no-break spaces between names that share a description.

    >>> join_names("    low, high: Its limits, both.")
    '    low,\xa0high: Its limits, both.'
    """
    return SHARED.sub(lambda match: match[0].replace(", ", ",\N{NO-BREAK SPACE}"), docstring)


class FencedExamples(griffe.Extension):
    """Fences the examples in the docstring of every object, and joins names that share a description."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(join_names(obj.docstring.value))
