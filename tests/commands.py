"""The command line as typed, for the tests of the commands."""

from __future__ import annotations

import pytest

from apmax.cli.main import main


def run(*arguments: object) -> object:
    """Return the exit code of a command line."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code
