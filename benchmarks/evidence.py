"""Run what the paper's claim still lacks: a list of commands in order, for a number of hours.

    APMAX_DATA=... python -m benchmarks.evidence --hours 2 --libauc ENVIRONMENT/bin/python
    python -m benchmarks.evidence --list

Every command continues where it was stopped and skips what is finished, so that the list can be run again and again.
The time of each and its processor time are kept in results/evidence.jsonl, with the commit. LibAUC has an environment
of its own (results/libauc/README.md); without `--libauc` its commands are left out.
"""

from __future__ import annotations

import argparse
import datetime
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from apmax.reproduce.results import append_line, read_lines
from benchmarks.data_folder import data_folder
from benchmarks.origin import benchmark_commit

LEDGER = Path("results", "evidence.jsonl")
PATIENCE = 120.0
"""Seconds that a command has to write its checkpoint after it was told to stop."""


class Step(NamedTuple):
    """A command of the list: its tier, and the words after `apmax reproduce` or `python -m benchmarks.NAME`."""

    tier: int
    command: str

    def words(self, libauc: str | None) -> list[str] | None:
        """Return the words of the process, None for LibAUC without its Python."""
        module, *rest = self.command.split()
        if module == "libauc.hiv":
            return None if libauc is None else [libauc, "-m", f"benchmarks.{module}", *rest]
        name = "apmax" if module == "reproduce" else f"benchmarks.{module}"
        return [sys.executable, "-m", name, *([module] if module == "reproduce" else []), *rest]


_FEW = "ce,focal,soap,apmax"
_ALL = "ce,cb_ce,focal,ldam,auc_m,smooth_ap,fast_ap,minmax,soap,apmax"
_TUNED = f"{_ALL},ce_averaged,ce_mined --budget quick"
_LESIONS = "ham10000-mel,ham10000-akiec,ham10000-df"

STEPS = (
    Step(1, "reproduce released --model gine,mpnn --methods ce_authors,soap_released"),
    Step(1, "libauc.hiv --out results/libauc/hiv --networks gine mpnn"),
    Step(1, "reproduce released --model gine --methods soap_authors_new_head,soap_authors_head --budget paper"),
    Step(1, "reproduce released --model ml-mpnn --methods ce_authors,soap_released"),
    Step(1, "libauc.hiv --out results/libauc/hiv --networks ml-mpnn"),
    Step(1, f"reproduce table6 --dataset aicures --model ml-mpnn --splits fold0,fold1,fold2 --methods {_ALL}"),
    Step(1, "best_test_epoch --data aicures aicures-random hiv"),
    Step(2, "when_ap_pays --hours 3 --workers 2"),
    Step(3, f"reproduce table6 --dataset aicures --model gine --methods {_TUNED}"),
    Step(3, f"reproduce table5 --dataset tox21-t0,tox21-t2 --model gine --methods {_TUNED}"),
    Step(3, "reproduce scores --dataset aicures,tox21-t0,tox21-t2 --model gine --methods soap_raw --budget quick"),
    Step(3, f"reproduce table3 --dataset {_LESIONS} --model narrow --methods {_FEW}"),
    Step(3, f"reproduce table2 --dataset muv --model gine,mpnn --methods {_FEW}"),
    Step(3, f"reproduce table5 --dataset toxcast-t8,toxcast-t12 --model gine --methods {_FEW}"),
    Step(3, "reproduce batch-size --dataset cifar10 --model narrow"),
    Step(3, "reproduce consistency --dataset cifar10 --model narrow"),
    Step(3, f"reproduce table2 --dataset hiv --model mpnn,ml-mpnn --methods {_FEW}"),
    Step(3, "reproduce table1 --dataset cifar10 --model resnet18 --methods ce,soap,apmax"),
)
"""The commands, the most useful first: the authors' models, the map, then more cells of the grid, the longest last."""


def run_step(words: Sequence[str], seconds: float) -> int | None:
    """Run a command for at most so many seconds; return its exit code, None if the time was over.

    The command is then told to stop, and writes its checkpoint.
    """
    process = subprocess.Popen(words)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run_steps(steps: Sequence[Step], hours: float, libauc: str | None, ledger: Path = LEDGER) -> None:
    """Run the commands in order until the time is over, and keep the time of each in the ledger.

    Raises:
        SystemExit: A command failed.
    """
    end = time.monotonic() + 3600 * hours
    for step in steps:
        words = step.words(libauc)
        if words is None:
            print(f"left out, as LibAUC's Python is not given (--libauc): {step.command}", flush=True)
            continue
        begin = time.monotonic()
        if begin >= end:
            return
        used = _core_seconds()
        started = f"{datetime.datetime.now():%Y-%m-%d %H:%M}"
        print(f"tier {step.tier}: {step.command}", flush=True)
        try:
            code, interrupted = run_step(words, end - begin), False
        except KeyboardInterrupt:
            code, interrupted = None, True
        line = {"tier": step.tier, "command": step.command, "started": started}
        line |= {"seconds": round(time.monotonic() - begin, 1), "core_seconds": round(_core_seconds() - used, 1)}
        line |= {"exit": code, "commit": benchmark_commit()}
        append_line(ledger, line)
        if interrupted:
            return
        if code:
            raise SystemExit(f"failed with exit code {code}: {step.command}")


def _core_seconds() -> float:
    """Return the processor time of all commands that have ended: a core shared with other work counts in part."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def tier_hours(ledger: Path = LEDGER) -> dict[int, float]:
    """Return the core hours of each tier so far."""
    hours: dict[int, float] = {}
    for line in read_lines(ledger):
        hours[line["tier"]] = hours.get(line["tier"], 0.0) + line["core_seconds"] / 3600
    return hours


def listing(steps: Sequence[Step], ledger: Path = LEDGER) -> Iterator[str]:
    """Yield the commands by tier, with the core hours so far."""
    hours = tier_hours(ledger)
    for tier in sorted({step.tier for step in steps}):
        yield f"tier {tier}, {hours.get(tier, 0.0):.1f} core hours so far"
        yield from (f"  {step.command}" for step in steps if step.tier == tier)


def main() -> None:
    """Run the list, or print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0, help="stop after this time; everything is kept")
    parser.add_argument("--tiers", nargs="+", type=int, choices=[1, 2, 3], default=[1, 2, 3], help="only these tiers")
    parser.add_argument("--libauc", metavar="PYTHON", help="Python of an environment that has LibAUC 2.0.1")
    parser.add_argument("--list", action="store_true", dest="show", help="run nothing: print the list")
    options = parser.parse_args()
    steps = [step for step in STEPS if step.tier in options.tiers]
    if options.show:
        print("\n".join(listing(steps)))
        return
    data_folder()  # a missing one ends the list before its first command
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` keeps the time in the ledger, as Ctrl-C does
    run_steps(steps, options.hours, options.libauc)


if __name__ == "__main__":
    main()
