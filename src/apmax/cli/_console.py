"""Console output: notes, warnings, tables of metrics, and errors in the words of the command line."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from apmax.cli._options import MODEL_KEYS
from apmax.folders import folder_bytes

if TYPE_CHECKING:
    from apmax.committee import Leaderboard
    from apmax.metrics import Difference, Interval
    from apmax.workflows import DataType, Evaluation, JobResult, TargetEvaluations

_SAME_NAME = """
    against against_model augment backbone batch_size budget by confidence contact_sheet cost data devices duplicates
    effort ending ensemble epochs frozen group guarantee head kind largest_fragment loss lr member model name num_pos
    on_error out path positive precision pretrained prevalence probability recall resume root rows seed share size
    smiles sort space split stem target test test_share time time_limit top valid weight width
"""
FLAGS = {
    **{name: f"--{name.replace('_', '-')}" for name in _SAME_NAME.split()},
    "columns": "--column",
    "members": "--member",
    "settings": "--set",
    "train": "DATA",
}
"""Command-line flags by the argument of the library that they set."""

_NAMES = "|".join(sorted(FLAGS, key=len, reverse=True))
_FIRST_WORD = re.compile(rf"^({_NAMES})(?=:| (?:must|is|are|was|has|have|and|names|needs|mirrors|\d|'))")
_MODEL_OPTION = re.compile(rf"^(?=unknown key '({'|'.join(MODEL_KEYS)})' in the options of model)")
_EXCLUSIVE = re.compile(rf"\b({_NAMES})\b(?= and |.* exclude each other)")
_KEYWORD = re.compile(
    rf"(?<!['\w.])({_NAMES})=(\{{(?:'[^']*'|\"[^\"]*\"|[^}}'\"])*\}}|\([^)]*\)|\"[^\"]*\"|'[^']*'|\.\.\.|[^\s,;:()]+)"
)
_FOR_SHELL = re.compile(r"[\s'\"$&|;<>()`\\*?#!]")
"""Characters for which a value is quoted."""
_NARROWEST_COLUMN, _WIDEST_TABLE = 10, 10_000


def output() -> Console:
    """Return the console for results; it shows text as it is, without markup or emoji codes: much of it is data."""
    return Console(highlight=False, markup=False, emoji=False)


def plain_table(*columns: str) -> Table:
    """Return a table without lines: its first column on the left, numbers in the others."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if table.columns else "left", no_wrap=True)
    return table


def show_table(table: Table, console: Console) -> None:
    """Print a table, its numbers whole: columns that wrap get narrower, then lines get longer than the terminal.

    Rich would cut what does not fit, and a number without its last digit is another number.
    """
    unlimited = console.options.update(max_width=_WIDEST_TABLE)
    widest = Measurement.get(console, unlimited, table).maximum
    folded = [column for column in table.columns if not column.no_wrap]
    for column in folded:
        column.max_width = _NARROWEST_COLUMN
    narrowest = Measurement.get(console, unlimited, table).maximum
    for column in folded:
        column.max_width = None
    table.width = max(narrowest, min(widest, console.width))
    console.print(table, crop=False)


def show_notes(facts: Sequence[str], warnings: Sequence[str]) -> None:
    """Show facts on stdout and warnings on stderr."""
    console = output()
    for fact in facts:
        console.print(Text(fact), soft_wrap=True)
    show_warnings(warnings)


class Notes:
    """Facts and warnings about the data, shown when they are found and kept for the report.

    Args:
        quiet: Show only the warnings.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.facts: list[str] = []
        self.warnings: list[str] = []

    def show(self, facts: list[str], warnings: list[str]) -> None:
        """Show and keep facts and warnings."""
        self.facts, self.warnings = facts, warnings
        show_notes([] if self.quiet else facts, warnings)


def show_warnings(lines: Sequence[str]) -> None:
    """Show warnings on stderr."""
    console = Console(stderr=True, highlight=False)
    for line in lines:
        console.print(Text.assemble(("warning: ", "bold yellow"), keywords_to_flags(line)), soft_wrap=True)


def error_words(error: Exception) -> str:
    """Return the message of an error; of the operating system's the file and the reason.

    >>> error_words(OSError(28, "No space left on device", "runs/churn/report.html"))
    'runs/churn/report.html: No space left on device'
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def show_lack_of_report(error: Exception) -> None:
    """Show why a report could not be written, where the work before it is done."""
    show_warnings([f"no report was written: {error_text(error_words(error))}"])


def error_text(message: str, known: Collection[str] | None = None) -> str:
    """Return a library's error message with command-line flags for its arguments.

    Args:
        message: The message.
        known: The flags of the command; an argument at the beginning that is none of them stays as it is, such as the
            target of a model, which `apmax evaluate` has no flag for. All by default.

    >>> error_text("smiles: there is no column 'x'")
    "--smiles: there is no column 'x'"
    >>> error_text("valid and split exclude each other: each decides")
    '--valid and --split exclude each other: each decides'
    """
    exclusive, mark, rest = message.partition(" exclude each other")
    if mark:
        message = _EXCLUSIVE.sub(lambda found: FLAGS[found[1]], f"{exclusive}{mark}") + rest
    message = _MODEL_OPTION.sub(lambda found: f"{FLAGS[found[1]]}: ", message)
    first = _FIRST_WORD.match(message)
    if first is not None and (known is None or FLAGS[first[1]] in known or not FLAGS[first[1]].startswith("--")):
        message = f"{FLAGS[first[1]]}{message[first.end() :]}"
    return keywords_to_flags(message)


def keywords_to_flags(message: str) -> str:
    """Return a message with flags for the keyword arguments in it, values quoted as a shell needs it.

    >>> keywords_to_flags("it needs sort=True or top=K; budget needs cost=(FP, FN)")
    'it needs --sort or --top K; budget needs --cost FP:FN'
    >>> keywords_to_flags("on_error='skip' leaves it out; or columns={'state': 'drop'}, or resume=True")
    '--on-error skip leaves it out; or --column state=drop, or --resume'
    """
    return _KEYWORD.sub(_keyword_to_flag, message)


def _keyword_to_flag(found: re.Match[str]) -> str:
    flag, value = FLAGS[found[1]], found[2]
    if value in ("True", "..."):
        return flag if value == "True" else f"{flag} VALUE"
    if value.startswith("("):
        value = ":".join(part.strip() for part in value.strip("()").split(","))
    elif value[0] in "{'\"":
        value = _literal_text(value)
    return f"{flag} {shlex.quote(value) if _FOR_SHELL.search(value) else value}"


def _literal_text(literal: str) -> str:
    """Return a text, or a dict of one setting as NAME=VALUE."""
    try:
        value = ast.literal_eval(literal)
    except (SyntaxError, ValueError):  # a dict with a value that is no literal, such as nan
        return re.sub(r"['\"]\s*:\s*", "=", literal.strip("{}")).replace("'", "").replace('"', "")
    return ", ".join(f"{key}={each}" for key, each in value.items()) if isinstance(value, dict) else str(value)


def metrics_table(parts: Mapping[str, TargetEvaluations]) -> Table:
    """Return a table with a row for each part of the data: AP, AUPRC, AUROC with 95 % intervals, and the no-skill AP.

    Of several targets each has a row below the name of the part, and a last row has their mean AP.
    """
    table = plain_table()
    # Folded and not cut: two targets may differ in their last letters only.
    table.add_column("", overflow="fold")
    for name in ("rows", "positive", "AP", "AUPRC", "AUROC", "no skill"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, results in parts.items():
        if results.several and name:
            table.add_row(name)
        indent = "  " if name else ""
        for target, part in results.each.items():
            _add_rows(table, f"{indent}{target}" if results.several else name, part)
        if results.several:
            table.add_row(f"{indent}mean", "", "", Text(f"{results.mean_ap:.4f}", "bold green"))
    return table


def early_recognition_table(result: Evaluation) -> Table:
    """Return a table of precision and recall of the best rows, then BEDROC and the enrichment at 1 %."""
    table = plain_table("of the best rows", "precision", "95 %", "recall", "95 %")
    for k, precision in result.precision_at.items():
        recall = result.recall_at[k]
        table.add_row(f"{k:,}", f"{precision.estimate:.3f}", _ends(precision), f"{recall.estimate:.3f}", _ends(recall))
    table.add_row()
    table.add_row("BEDROC (α = 20)", f"{result.bedroc.estimate:.3f}", _ends(result.bedroc))
    table.add_row("enrichment at 1 %", f"{result.enrichment.estimate:.2f}", _ends(result.enrichment, digits=2))
    return table


def difference_line(difference: Difference, names: Sequence[str], target: str = "") -> Text:
    """Return the difference of two models' AP in words."""
    if difference.low > 0:
        verdict = f"{names[0]} is better on these rows"
    elif difference.high < 0:
        verdict = f"{names[1]} is better on these rows"
    else:
        verdict = "no difference can be told"
    return Text.assemble(
        f"{target}: " if target else "",
        f"AP of {names[0]} minus AP of {names[1]}: ",
        (f"{difference.estimate:+.4f}", "bold green"),
        f" (95 % {difference.low:+.4f} to {difference.high:+.4f}): {verdict}",
    )


def _ends(interval: Interval, digits: int = 3) -> Text:
    return Text(f"{interval.low:.{digits}f}–{interval.high:.{digits}f}", "dim")


def show_training(result: JobResult, console: Console, *, quiet: bool = False) -> None:
    """Show the outcome of a training: leaderboard and verdict, or the chosen epoch, and the metrics.

    Args:
        result: The outcome.
        console: Where it is shown.
        quiet: Show only the tables.
    """
    console.print()
    for target, leaderboard in result.leaderboards.items():
        title = f"{target}, {leaderboard.part}" if len(result.leaderboards) > 1 else leaderboard.part
        show_table(leaderboard_table(leaderboard, title), console)
        console.print()
    show_table(metrics_table(result.parts), console)
    if not quiet:
        console.print()
        for line in _result_lines(result):
            console.print(line, soft_wrap=True)


def leaderboard_table(leaderboard: Leaderboard, title: str) -> Table:
    """Return a table of a committee's members by AP, with weight and time; of several the blend, too."""
    table = plain_table(title, "AP", "95 %", "weight", "time")
    for row in (*leaderboard.rows, *([leaderboard.blend] if leaderboard.has_blend else [])):
        last = row is leaderboard.blend
        table.add_row(
            Text(row.name, "bold" if last else ""),
            Text(f"{row.ap.estimate:.4f}", "bold green" if last else ""),
            _ends(row.ap),
            "" if last else f"{row.weight:.2f}",
            f"{row.seconds:.1f} s",
        )
    return table


def _add_rows(table: Table, name: str, part: Evaluation) -> None:
    """Add the values, and the intervals in a line of their own: 80 columns do not hold them side by side."""
    table.add_row(
        name,
        f"{part.rows:,}",
        f"{part.positives:,}",
        Text(f"{part.ap.estimate:.4f}", "bold green"),
        f"{part.auprc.estimate:.4f}",
        f"{part.auroc.estimate:.4f}",
        f"{part.no_skill:.4f}",
    )
    table.add_row("", "", "95 %", *map(_ends, (part.ap, part.auprc, part.auroc)), "")


@contextmanager
def sigterm_handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Handle SIGTERM by a function inside the block, in the main thread: handlers can be set there only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: set by other than Python


def set_threads(data_type: DataType[Any] | type[DataType[Any]]) -> None:
    """Set the number of threads that pays for a data type, unless OMP_NUM_THREADS is set."""
    import torch

    if data_type.threads is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(data_type.threads)


def _result_lines(result: JobResult) -> list[str]:
    sheets = [f"The best-ranked images: {sheet}" for sheet in result.contact_sheets]
    if result.leaderboards:
        boards = result.leaderboards
        sentences = {
            target: [*board.notes, *(verdict.sentence for verdict in board.verdicts)]
            for target, board in boards.items()
        }
        shared = [text for text in next(iter(sentences.values())) if all(text in each for each in sentences.values())]
        own = [f"{target}: {text}." for target, each in sentences.items() for text in each if text not in shared]
        lines = [*own, *(f"{text[0].upper()}{text[1:]}." for text in shared)]
        return [*lines, f"{result.folder} has {folder_bytes(result.folder) / 1e6:.1f} MB.", *sheets]
    return [f"Chosen by validation AP: {_chosen_epochs(result)}.", *sheets]


def _chosen_epochs(result: JobResult) -> str:
    names = {record.stage_number: record.stage for record in result.records}
    texts = [
        f"epoch {chosen['epoch']} of stage {chosen['stage'] + 1} ({names.get(chosen['stage'], '')})"
        for chosen in result.chosen
    ]
    return texts[0] if len(texts) == 1 else "; ".join(f"for model {k + 1} {text}" for k, text in enumerate(texts))
