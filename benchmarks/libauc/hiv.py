"""LibAUC's own AP loss, optimiser and sampler on HIV, from the paper authors' stage-1 weights.

The settings are those of LibAUC's published graph recipe for AUPRC (`trainer_recipes/graph_trainer`, ogbg-molhiv; its
tutorial on graph networks has the same): sigmoid scores, batches of 64 of which half are positive, margin 0.6, gamma
0.1, SOAP (Adam) with learning rate 1e-3 and weight decay 1e-5, 60 epochs, the rate divided by 10 after 30 and 45, and
a new head (here both of its layers, as in the paper).

LibAUC 2.0.1 is not a dependency: run this in an environment of its own with torch, rdkit, pyarrow and libauc:

    APMAX_DATA=... PYTHONPATH=src:. python -m benchmarks.libauc.hiv --out results/libauc/hiv --seeds 0 1 2

One file of JSON lines per network and seed: AUPRC (trapezoidal) and AP on validation and test after every epoch, and
last a summary with the test value at the best validation epoch and the best test value of all epochs.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

EPOCHS, DECAY_AFTER, BATCH_SIZE = 60, (30, 45), 64


def predict(model: nn.Module, part: Any) -> Tensor:
    """Return the scores of a part."""
    model.eval()
    batches = [list(range(first, min(first + 512, len(part)))) for first in range(0, len(part), 512)]
    with torch.no_grad():
        return torch.cat([model(part.collate(part.__getitems__(rows))) for rows in batches])


def measure(model: nn.Module, parts: Any) -> dict[str, float]:
    """Return AUPRC and AP on validation and test."""
    from apmax.metrics import auprc, average_precision

    found = {}
    for name, part in (("valid", parts.valid), ("test", parts.test)):
        scores = predict(model, part)
        found[name] = float(auprc(scores, part.labels))
        found[f"{name}_ap"] = float(average_precision(scores, part.labels))
    return found


def train(network: str, seed: int, parts: Any, data_dir: str) -> list[dict[str, float]]:
    """Return the measurements after every epoch."""
    from libauc.losses import APLoss
    from libauc.optimizers import SOAP
    from libauc.sampler import DualSampler

    from apmax.models.graphs import GRAPH_MODELS
    from apmax.reproduce.authors import HIDDEN, load_authors_weights

    torch.manual_seed(seed)
    model = GRAPH_MODELS[network](HIDDEN)
    load_authors_weights(model, data_dir)
    for layer in model.head.children():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    data = parts.train
    sampler = DualSampler(None, BATCH_SIZE, labels=data.labels.numpy(), sampling_rate=0.5, random_seed=seed)
    loss_function = APLoss(len(data), margin=0.6, gamma=0.1, device="cpu")
    optimizer = SOAP(model.parameters(), lr=1e-3, mode="adam", weight_decay=1e-5, verbose=False, device="cpu")
    records = []
    for epoch in range(EPOCHS):
        if epoch in DECAY_AFTER:
            optimizer.update_lr(decay_factor=10)
        model.train()
        for index in torch.tensor([int(row) for row in sampler]).split(BATCH_SIZE):
            batch = data.collate(data.__getitems__(index.tolist()))
            loss = loss_function(model(batch).sigmoid(), batch.y, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        records.append({"epoch": epoch + 1} | measure(model, parts))
        print(json.dumps(records[-1]), flush=True)
    return records


def main() -> None:
    """Train every network with every seed that has no file yet."""
    from apmax.data.molecules import load_molecules

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--networks", nargs="+", default=["gine"], choices=["gine", "mpnn", "ml-mpnn"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for network in options.networks:
        parts = load_molecules("hiv", levels=network == "ml-mpnn", normalisation="descriptastorus", progress=False)
        for seed in options.seeds:
            path = options.out / f"{network}-{seed}.jsonl"
            if path.exists():
                continue
            records = train(network, seed, parts, os.environ["APMAX_DATA"])
            chosen, best = (max(records, key=lambda record, name=name: record[name]) for name in ("valid", "test"))
            summary = {
                "best_epoch": chosen["epoch"],
                "best_valid": chosen["valid"],
                "test": chosen["test"],
                "best_test": best["test"],
                "best_test_epoch": best["epoch"],
            }
            path.write_text("".join(json.dumps(record) + "\n" for record in [*records, summary]), encoding="utf-8")


if __name__ == "__main__":
    main()
