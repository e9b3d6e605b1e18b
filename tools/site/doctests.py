"""Griffe extension: examples in docstrings as blocks of code.

Docstrings of apmax have their doctests after the text, without a heading; Markdown would read `>>>` as a quotation.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!$).*)*", re.MULTILINE)


def fence_examples(docstring: str) -> str:
    """Return a docstring with its doctests as fenced blocks.

    >>> fence_examples("Add.")
    'Add.'
    """
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", docstring)


class FencedExamples(griffe.Extension):
    """Fences the examples in the docstring of every object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)
