"""Assembles the commands, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

try:
    import typer
except ModuleNotFoundError:  # pragma: no cover - there is no command without it
    raise SystemExit("apmax: the command line needs typer; it comes with: pip install 'apmax[cli]'") from None

from apmax import __version__
from apmax.cli import demo, evaluate, methods, predict, reproduce, train, tune

FAILED, MISUSED, INTERRUPTED, TERMINATED = 1, 2, 130, 143

app = typer.Typer(
    name="apmax",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "train": train.train,
    "predict": predict.predict,
    "evaluate": evaluate.evaluate,
    "tune": tune.tune,
    "methods": methods.methods,
    "demo": demo.demo,
    "reproduce": reproduce.reproduce,
}


def unwrapped(text: str) -> str:
    """Return a docstring whose paragraphs are one line each, so that they wrap by the terminal's width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


for command_name, command in COMMANDS.items():
    examples = sys.modules[command.__module__].EXAMPLES
    app.command(command_name, help=unwrapped(command.__doc__ or ""), epilog=examples)(command)


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        sys.stdout.write(f"apmax {__version__}\n")
        raise typer.Exit


@app.callback(epilog="Try it: [bold]apmax demo --quick[/]. Each command has its own [bold]--help[/] with examples.")
def apmax(
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
    _debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error (with any command).")] = False,
) -> None:
    """Train models that put the rare positives first: from a table to a ranked list."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 misused."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = show_warning
    try:
        code = app(args=[word for word in given if word != "--debug"], prog_name="apmax", standalone_mode=False)
        # Typer makes an exit code of Ctrl-C, and says nothing.
        if code == INTERRUPTED:
            say(stopped("interrupted", given))
    except KeyboardInterrupt:
        say(stopped("interrupted", given))
        code = INTERRUPTED
    except SystemExit as ended:
        if ended.code == TERMINATED:
            say(stopped("terminated", given))
        raise
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        code = report(error, debug="--debug" in given)
    sys.exit(code or 0)


def stopped(how: str, given: Sequence[str]) -> str:
    """Return what to say of a command that a signal ended.

    >>> stopped("interrupted", ["train", "a.csv"])
    'interrupted; the same command with --resume goes on'
    """
    return f"{how}; the same command with --resume goes on" if given[:1] in (["train"], ["tune"]) else how


def report(error: Exception, *, debug: bool) -> int:
    """Say in one line what went wrong, or all of it, and return the exit code."""
    misuse: Any = getattr(error, "format_message", None)
    if misuse is not None:
        context = getattr(error, "ctx", None)
        text = misuse().strip()
        if text:  # without: the help has been shown instead
            say(f"{' '.join(text.split())} (see `{context.command_path if context else 'apmax'} --help`)")
        return MISUSED
    if debug:
        traceback.print_exception(error)
        return FAILED
    text = " ".join(str(error).split()) or type(error).__name__
    expected = isinstance(error, (ValueError, TypeError, OSError, ModuleNotFoundError)) or hasattr(error, "rows")
    say(text if expected else f"{type(error).__name__}: {text} (--debug shows where)")
    return FAILED


def say(text: str) -> None:
    """Write an error to the terminal's other stream."""
    sys.stderr.write(f"apmax: {text}\n")


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,  # noqa: ARG001 - as Python hands them over
    file: Any = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Show our own warnings in one line, and leave out those about other packages' insides."""
    if issubclass(category, UserWarning) and "apmax" in filename:
        sys.stderr.write(f"warning: {' '.join(str(message).split())}\n")
