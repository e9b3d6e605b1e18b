"""Cost of a training step of every loss over one of cross-entropy: the tables on the pages of losses.

`python -m benchmarks.speed.loss_costs` measures, single thread, and writes results/losses/costs.json, which the
documentation site shows.
"""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path

import torch

from apmax.folders import write_atomic
from apmax.losses import LOSSES
from benchmarks.speed.loss import MEGABYTE, Batch, LiveBytes
from benchmarks.timing import best_times, threads

COSTS = Path(__file__).parents[2] / "results" / "losses" / "costs.json"
SIZES = ((4, 64), (64, 1024), (2048, 32768))


def measure(num_pos: int, size: int, *, seconds: float = 15.0) -> dict[str, tuple[float, float]]:
    """Return, by the key of the loss, its CPU time over that of torch's cross-entropy and its peak of extra MiB.

    Args:
        num_pos: The positives of the batch.
        size: Its examples.
        seconds: How long all losses together are measured at least.
    """
    batch = Batch(num_pos, size)
    jobs = {name: batch.step(loss(batch.train_labels), batch.rows) for name, loss in LOSSES.items()}
    base, *times = best_times(
        batch.step(torch.nn.BCEWithLogitsLoss()), *jobs.values(), seconds=seconds, clock=time.process_time
    )
    costs = {}
    for (name, job), shortest in zip(jobs.items(), times, strict=True):
        with LiveBytes() as live:
            job()
        costs[name] = shortest / base, live.peak / MEGABYTE
    return costs


def main() -> None:
    """Measure every loss at every size and write the table."""
    rows = []
    with threads(1):
        for num_pos, size in SIZES:
            for name, (ratio, memory) in measure(num_pos, size).items():
                print(f"{name:<10} {num_pos:>5} positives in {size:>6}: time {ratio:8.3g}, {memory:8.3g} MiB")
                rows.append({"loss": name, "positives": num_pos, "examples": size, "time": ratio, "mebibytes": memory})
    table = {"python": platform.python_version(), "torch": torch.__version__, "rows": rows}
    COSTS.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(COSTS, (json.dumps(table, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
