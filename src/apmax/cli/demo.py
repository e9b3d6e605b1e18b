"""`apmax demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """[bold]Examples[/]

apmax demo

apmax demo --quick"""


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="A few cells only: half a minute.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("out"),
) -> None:
    """Compare ways to train on rare digits and on a small medical table, paired over seeds.

    Prints test AP with the paired differences to cross-entropy and their intervals; draws the precision–recall curves.
    """
    raise NotImplementedError
