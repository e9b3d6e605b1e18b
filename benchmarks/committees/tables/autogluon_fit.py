"""AutoGluon on one split, for a Python environment that holds AutoGluon and not apmax.

    python autogluon_fit.py SPLIT.npz SCORES.npy --seconds 60 [--cores 2] [--presets best_quality]

SPLIT.npz holds train, train_labels and test; SCORES.npy gets the probability of the positive class of every test row.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np


def main() -> None:
    """Fit within the time limit, and score the test rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--presets")
    options = parser.parse_args()
    import pandas as pd
    from autogluon.tabular import TabularPredictor

    with np.load(options.split) as arrays:
        train, labels, test = (arrays[name] for name in ("train", "train_labels", "test"))
    names = [f"x{column}" for column in range(train.shape[1])]
    frame = pd.DataFrame(train, columns=names).assign(label=labels.astype(int))
    with tempfile.TemporaryDirectory() as folder:
        predictor = TabularPredictor(
            "label", problem_type="binary", eval_metric="average_precision", path=folder, verbosity=1
        )
        # Dynamic stacking takes a quarter of the time, and fails where that is too short for one model.
        more = {} if options.presets is None else {"presets": options.presets, "dynamic_stacking": False}
        predictor.fit(frame, time_limit=options.seconds, num_cpus=options.cores, num_gpus=0, **more)
        scores = predictor.predict_proba(pd.DataFrame(test, columns=names))[1].to_numpy()
    np.save(options.scores, scores)


if __name__ == "__main__":
    main()
