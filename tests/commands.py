"""The command line in this process, and short trainings by it."""

from __future__ import annotations

import pytest

SHORT = ["--set", "stages.0.epochs=3", "--epochs", "2", "--set", "accelerator=cpu", "--no-report"]
SHORT_MOLECULES = [
    "--set", "stages.0.epochs=2", "--epochs", "1", "--set", "accelerator=cpu", "--set", "model.hidden=8", "--no-report",
]  # fmt: skip
SHORT_IMAGES = [
    "--set", "stages.0.epochs=1", "--epochs", 1, "--batch-size", 16, "--width", 2, "--ensemble", 1,
    "--set", "accelerator=cpu",
    "--no-report",
]  # fmt: skip


def interrupted_after(fits: int, kept: list | None = None):
    """Return a `save_result` that keeps so many fits of a committee, listed in `kept`, and then interrupts it."""
    from apmax.committee import save_result

    kept = [] if kept is None else kept

    def save(*arguments):
        if len(kept) == fits:
            raise KeyboardInterrupt
        kept.append(arguments[1].task)
        return save_result(*arguments)

    return save


def run(*arguments: object) -> object:
    """Return the exit code of a command line."""
    from apmax.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code
