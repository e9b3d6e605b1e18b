"""The command `apmax`: its commands, error messages and exit codes."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
except ModuleNotFoundError:  # pragma: no cover - there is no command without it
    raise SystemExit("apmax: the command line needs typer; it comes with: pip install 'apmax[cli]'") from None

from apmax import __version__
from apmax.cli import decide, demo, evaluate, methods, predict, report, reproduce, train, tune

FAILED, MISUSED, INTERRUPTED, TERMINATED = 1, 2, 130, 143
_RESUMED = (["train"], ["tune"])
"""The commands that `--resume` continues, as first words."""

app = typer.Typer(
    name="apmax",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "train": train.train_command,
    "predict": predict.predict_command,
    "evaluate": evaluate.evaluate_command,
    "report": report.report_command,
    "decide": decide.decide_command,
    "tune": tune.tune_command,
    "methods": methods.methods_command,
    "demo": demo.demo_command,
    "reproduce": reproduce.reproduce_command,
}


def _unwrap(text: str) -> str:
    """Return a docstring whose paragraphs are one line each, so that they wrap by the terminal's width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


for command_name, command in COMMANDS.items():
    examples = sys.modules[command.__module__].EXAMPLES
    app.command(command_name, help=_unwrap(command.__doc__ or ""), epilog=examples)(command)


def _show_version(requested: bool) -> None:
    if requested:
        sys.stdout.write(f"apmax {__version__}\n")
        raise typer.Exit


@app.callback(epilog="Try it: [bold]apmax demo --quick[/]. Each command has its own [bold]--help[/] with examples.")
def apmax_command(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    _debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error (with any command).")] = False,
) -> None:
    """Train models that put the rare positives first: from a table to a ranked list."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 misused."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = _show_warning
    if isinstance(sys.stdout, TextIOWrapper):
        # Redirected output may have an encoding without α or –, such as ASCII or that of Windows; files are all UTF-8.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = app(args=[word for word in words if word != "--debug"], prog_name="apmax", standalone_mode=False)
        # Typer turns Ctrl-C into an exit code without a message.
        if code == INTERRUPTED:
            _print_error(_signal_text("interrupted", words))
    except KeyboardInterrupt:
        _print_error(_signal_text("interrupted", words))
        code = INTERRUPTED
    except SystemExit as ended:
        if ended.code == TERMINATED:
            _print_error(_signal_text("terminated", words))
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        code = _end_without_reader(words)  # rich has noticed it
    except BrokenPipeError:
        code = _end_without_reader(words)
    except Exception as error:
        code = _report_error(error, words)
    sys.exit(code or 0)


def _end_without_reader(words: Sequence[str]) -> int:
    """Return the exit code where the reader of the output is gone, as with `head`; a training is then not finished."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if words[:1] not in _RESUMED or {"--help", "-h"}.intersection(words):
        return 0
    _print_error(_signal_text("the reader of the output has ended, and this command with it", words))
    return FAILED


def _signal_text(signal: str, words: Sequence[str]) -> str:
    """Return the message for a command that a signal ended.

    >>> _signal_text("interrupted", ["train", "a.csv"])
    'interrupted; the same command with --resume continues'
    """
    return f"{signal}; the same command with --resume continues" if words[:1] in _RESUMED else signal


def _report_error(error: Exception, words: Sequence[str]) -> int:
    """Print an error as one line, or with its traceback, and return the exit code."""
    misuse: Any = getattr(error, "format_message", None)
    if misuse is not None:
        context = getattr(error, "ctx", None)
        text = misuse().strip()
        if text:  # without a text the help has been shown instead
            _print_error(f"{' '.join(text.split())} (see `{context.command_path if context else 'apmax'} --help`)")
        return MISUSED
    if "--debug" in words:
        traceback.print_exception(error)
        return FAILED
    from apmax.cli._console import error_text, error_words

    text = " ".join(error_words(error).split()) or type(error).__name__
    expected = isinstance(error, (ValueError, TypeError, OSError, ModuleNotFoundError)) or hasattr(error, "rows")
    _print_error(
        error_text(text, _flags(words)) if expected else f"{type(error).__name__}: {text} (--debug shows where)"
    )
    return FAILED


def _flags(words: Sequence[str]) -> set[str] | None:
    """Return the flags of the command that was called; None if there is none.

    Flags of the name of a given file or folder are left out: messages about --out model begin with its name.
    """
    commands = getattr(typer.main.get_command(app), "commands", {})
    command = next((commands[word] for word in words if word in commands), None)
    if command is None:
        return None
    given = [word.partition("=")[2] if word.startswith("--") else word for word in words]
    paths = {f"--{Path(word)}" for word in given if os.path.exists(word)}  # noqa: PTH110 - Path refuses long words
    return {flag for option in command.params for flag in option.opts} - paths


def _print_error(text: str) -> None:
    sys.stderr.write(f"apmax: {text}\n")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,  # noqa: ARG001 - Python's signature
    file: Any = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Show warnings of apmax in one line, and hide those of other packages."""
    if issubclass(category, UserWarning) and "apmax" in filename:
        sys.stderr.write(f"warning: {' '.join(str(message).split())}\n")
