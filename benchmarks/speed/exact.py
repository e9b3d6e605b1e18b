"""The exact objective, value and gradient: time against a sort of the same scores, memory against the scores.

`python -m benchmarks.speed.exact docs/images/exact_scaling.png` draws the time against the number of scores.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from apmax.functional import ap_objective
from apmax.integrations.boosting import APObjective
from benchmarks.timing import Row, best_times, ratio, threads

POSITIVE_EVERY = 100
LIMITS = {100_000: 6.0, 1_000_000: 6.0, 10_000_000: 10.0}
PATIENCE = 5.0


def problem(rows: int) -> tuple[Tensor, Tensor]:
    """Return float32 scores and labels with 1 % positives, made in place so that no other memory is allocated."""
    scores, labels = torch.empty(rows), torch.zeros(rows)
    scores.normal_(generator=torch.Generator().manual_seed(0))
    labels[::POSITIVE_EVERY] = 1
    scores[::POSITIVE_EVERY] += 1
    return scores, labels


def step(scores: Tensor, labels: Tensor, surrogate: str = "smooth_step", method: str = "auto") -> Tensor:
    """Compute the objective and return its gradient."""
    leaf = scores.detach().requires_grad_()
    ap_objective(leaf, labels, surrogate, method=method).backward()
    assert leaf.grad is not None
    return leaf.grad


def against_sort(rows: int, surrogate: str) -> float:
    """Return how many sorts of the scores the value and gradient take."""
    scores, labels = problem(rows)
    return ratio(lambda: step(scores, labels, surrogate), scores.sort, seconds=3.0)


def boosting_against_sort(rows: int) -> float:
    """Return how many sorts of the scores gradient and curvature of a round of boosting take."""
    scores, labels = problem(rows)
    scores, labels, objective = scores.double(), labels.double().numpy(), APObjective()
    return ratio(lambda: objective(labels, scores.numpy()), scores.sort, seconds=3.0)


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not `getrusage`: on Linux its peak is handed down from the process that started this one.
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory_growth(rows: int) -> float:
    """Return by how much value and gradient raise this process's peak, in units of the float32 scores."""
    step(*problem(1000))
    step(*problem(100_000))
    scores, labels = problem(rows)
    before = peak_bytes()
    step(scores, labels)
    return (peak_bytes() - before) / (scores.numel() * scores.element_size())


def memory_in_a_fresh_process(rows: int) -> float:
    """Return `memory_growth`, measured in a process without an earlier peak."""
    code = f"import torch; torch.set_num_threads(1); from benchmarks.speed.exact import *; print(memory_growth({rows}))"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    return float(done.stdout)


def run() -> list[Row]:
    """Return (what, ratio, target) for time and memory."""
    found = [
        (f"exact objective, smooth step, n={rows:.0e} / torch.sort", against_sort(rows, "smooth_step"), target)
        for rows, target in LIMITS.items()
    ]
    found.append(("exact objective, squared hinge, n=1e+06 / torch.sort", against_sort(10**6, "squared_hinge"), 3.5))
    found += [
        (f"boosting objective, gradient and curvature, n={rows:.0e} / torch.sort", boosting_against_sort(rows), 4.0)
        for rows in (10_000, 100_000, 1_000_000)
    ]
    found.append(("exact objective, extra memory, n=1e+07 / float32 scores", memory_in_a_fresh_process(10**7), 20.0))
    return found


def seconds_of(job: Callable[[], object]) -> float:
    """Return the shortest of several runs, or the first where that is long enough to be sure of."""
    begin = time.perf_counter()
    job()
    first = time.perf_counter() - begin
    return first if first > PATIENCE / 5 else best_times(job, seconds=0.5)[0]


def series(make: Callable[[int], Callable[[], object]], sizes: list[int], patience: float) -> list[tuple[int, float]]:
    """Return (n, seconds) for growing n, until a point takes longer than `patience`."""
    points: list[tuple[int, float]] = []
    for rows in sizes:
        points.append((rows, seconds_of(make(rows))))
        if points[-1][1] > patience:
            break
    return points


def plot(path: str | Path) -> None:
    """Write a log-log plot of time against n, beside all pairs as far as they go and a sort of the scores."""
    import matplotlib.pyplot as plt

    sizes = [round(10 ** (exponent / 2)) for exponent in range(6, 15)]
    lines = {
        "all pairs, in chunks": (lambda n: _job(n, "smooth_step", "dense"), "#b5543c", "s", "-"),
        "apmax, smooth step": (lambda n: _job(n, "smooth_step", "auto"), "#1f5f8b", "o", "-"),
        "apmax, logistic": (lambda n: _job(n, "logistic", "auto"), "#79b0d1", "o", "-"),
        "torch.sort of the scores": (lambda n: problem(n)[0].sort, "#666666", None, "--"),
    }
    figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
    for label, (make, colour, marker, dash) in lines.items():
        patience = PATIENCE if "pairs" in label else float("inf")
        with threads(1):
            n, seconds = zip(*series(make, sizes, patience), strict=True)
        axes.loglog(n, seconds, dash, color=colour, marker=marker, markersize=4.5, linewidth=1.8, label=label)
    axes.set(xlabel="examples n, 1 % positive", ylabel="seconds", xticks=[10**e for e in range(3, 8)])
    axes.set_title("Average precision as an objective: value and gradient, one thread", loc="left", fontsize=11)
    axes.legend(frameon=False, loc="lower right", fontsize=9.5)
    axes.grid(which="major", color="#e6e6e6", linewidth=0.8)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _job(rows: int, surrogate: str, method: str) -> Callable[[], object]:
    scores, labels = problem(rows)
    return lambda: step(scores, labels, surrogate, method)


if __name__ == "__main__":
    plot(sys.argv[1])
