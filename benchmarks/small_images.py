"""Small images: `apmax train FOLDER` with its defaults, beside logistic regression on the pixels.

scikit-learn's digits as 8×8 PNG files, in a folder of the target and one of all other digits; the target is thinned to
3 % of all images. Both learn from the same images and are tested on the same fifth of each class. Logistic regression
is fitted to 60 % and chooses C by the AP of the other 20 %; the committee makes folds of both.
`python -m benchmarks.small_images --digits 8` prints the table of docs/guide/images.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Row

PREVALENCE = 0.03
SPLITS = 5
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)


def write_digits(folder: Path, digit: int, *, scale: int = 1, seed: int = 0) -> Path:
    """Write the images of scikit-learn's digits as PNG files in folders "target" and "other", and return the folder."""
    from PIL import Image
    from sklearn.datasets import load_digits

    data = load_digits()
    positive, negative = (np.flatnonzero((data.target == digit) == value) for value in (True, False))
    count = round(PREVALENCE / (1 - PREVALENCE) * len(negative))
    kept = np.random.default_rng(seed).choice(positive, count, replace=False)
    for name, rows in (("target", kept), ("other", negative)):
        (folder / name).mkdir(parents=True)
        for row in rows.tolist():
            image = Image.fromarray((data.images[row] * 255 / 16).astype(np.uint8))
            image.resize((8 * scale, 8 * scale), Image.Resampling.BICUBIC).save(folder / name / f"{row:04d}.png")
    return folder


def logistic_ap(prepared: Any) -> float:
    """Return the test AP of logistic regression on the pixels, with C by validation AP."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import average_precision_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    parts = [prepared.data.train, prepared.data.valid, prepared.test.dataset]
    train, valid, test = (part.store.take(part.places)[..., 0].reshape(len(part), -1) / 255.0 for part in parts)
    found = []
    for strength in STRENGTHS:
        model = make_pipeline(MinMaxScaler(), LogisticRegression(C=strength, max_iter=5000))
        model.fit(train, prepared.data.labels)
        chosen_by = average_precision_score(prepared.data.valid_labels, model.decision_function(valid))
        found.append((chosen_by, average_precision_score(prepared.test.labels, model.decision_function(test))))
    return float(max(found, key=lambda pair: pair[0])[1])


def compare(digit: int, split: int, folder: Path, *, scale: int = 1) -> tuple[float, float, float]:
    """Return the test AP of logistic regression and of the committee, and the seconds of the training."""
    from apmax.workflows import train_job
    from apmax.workflows.job import read_data_config
    from apmax.workflows.prepare import prepare_data

    images = folder / f"digits-{digit}-{scale}"
    if not images.exists():
        write_digits(images, digit, scale=scale)
    table = {"data": {"train": str(images), "target": "target", "test_share": 0.2}, "seed": split}
    simple = logistic_ap(prepare_data(read_data_config(table), seed=split))
    started = time.perf_counter()
    result = train_job(table, out=folder / f"run-{digit}-{scale}-{split}")
    assert result.test is not None
    (evaluation,) = result.test.each.values()
    return simple, evaluation.ap.estimate, time.perf_counter() - started


def run() -> list[Row]:
    """Return the AP of logistic regression over that of the committee, means over the splits of digit 8."""
    with tempfile.TemporaryDirectory() as folder:
        found = np.array([compare(8, split, Path(folder)) for split in range(SPLITS)])
    simple, network, _ = found.mean(0)
    name = "8×8 digits, 3 % positive: test AP of logistic regression / of `apmax train`"
    return [(name, float(simple / network), 1.0)]


def main() -> None:
    """Print the AP of both for each split of some digits, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", default="8", help="the targets, such as 138")
    parser.add_argument("--scale", type=int, default=1, help="enlarge the images from 8×8 by this factor")
    parser.add_argument("--splits", default=",".join(map(str, range(SPLITS))), help="the seeds, such as 0,1,2")
    parser.add_argument("--record", type=Path, help="a csv file of results: new ones are added, those in it not run")
    options = parser.parse_args()
    splits = [int(split) for split in options.splits.split(",")]
    finished = read_record(options.record, options.scale)
    print("| digit | split | logistic regression | apmax train | seconds |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for digit in map(int, options.digits):
            for split in splits:
                if (digit, split) not in finished:
                    found = compare(digit, split, Path(folder), scale=options.scale)
                    finished[digit, split] = found
                    if options.record is not None:
                        with options.record.open("a", encoding="utf-8") as file:
                            file.write(",".join(map(str, (options.scale, digit, split, *found))) + "\n")
                simple, network, seconds = finished[digit, split]
                print(f"| {digit} | {split} | {simple:.4f} | {network:.4f} | {seconds:.0f} |", flush=True)
            simple, network, seconds = np.mean([finished[digit, split] for split in splits], 0)
            print(f"| {digit} | mean | {simple:.4f} | {network:.4f} | {seconds:.0f} |", flush=True)


def read_record(path: Path | None, scale: int) -> dict[tuple[int, int], tuple[float, float, float]]:
    """Return the results of a record by digit and split."""
    if path is None or not path.exists():
        return {}
    lines = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    return {
        (int(digit), int(split)): (float(simple), float(network), float(seconds))
        for size, digit, split, simple, network, seconds in lines
        if int(size) == scale
    }


if __name__ == "__main__":
    main()
