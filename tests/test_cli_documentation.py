"""What the documentation and the help texts show are commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from apmax.cli import main

PAGES = [Path(__file__).parent.parent / "docs" / f"{name}.md" for name in ("command-line", "molecules", "images")]


def shown():
    lines = [line for page in PAGES for line in re.findall(r"^\$ (apmax .+)$", page.read_text(), re.MULTILINE)]
    for command in main.COMMANDS.values():
        lines += re.findall(r"^(apmax .+)$", main.sys.modules[command.__module__].EXAMPLES, re.MULTILINE)
    return lines


@pytest.mark.parametrize("line", shown())
def test_shown_command_has_the_options_it_shows(line, capsys):
    _, command, *words = line.split()
    with pytest.raises(SystemExit):
        main.main([command, "--help"])
    known = capsys.readouterr().out
    for option in (word for word in words if word.startswith("--")):
        assert f" {option} " in known, f"{command} has no option {option}"
