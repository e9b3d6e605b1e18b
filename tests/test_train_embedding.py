"""Embeddings: the inputs of the head, their cache, and the head by the exact objective on cached ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from apmax.data.images import Augment, ImageDataset
from apmax.models.images import resnet10
from apmax.train import Data, ExactHead, Run, embed, exact_head, fit
from apmax.train.weights import last_linear

LABELS = np.tile([1.0, 0.0, 0.0, 0.0], 10)


@pytest.fixture
def images():
    pixels = np.random.default_rng(0).integers(0, 120, (len(LABELS), 8, 8, 3), dtype=np.uint8)
    pixels[LABELS == 1, 2:6, 2:6] += 100
    return ImageDataset(pixels, LABELS)


def network(seed=0):
    torch.manual_seed(seed)
    return resnet10(width=4, stem="small")


def passes(model):
    """Return a list that grows with every forward pass of the body."""
    calls = []
    model.conv1.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_embeddings_are_what_the_head_reads(images):
    model = network().train()
    found = embed(model, images, batch_size=7)
    assert model.training
    model.eval()
    with torch.no_grad():
        expected = model.embed(images.read(range(len(images))))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_cached_embeddings_are_read_without_the_network(images, tmp_path):
    model = network()
    calls = passes(model)
    first = embed(model, images, cache=tmp_path)
    count = len(calls)
    with torch.no_grad():
        model.fc.weight.mul_(2)  # another head reads the same embeddings
    assert torch.equal(embed(model, images, cache=tmp_path), first)
    augmented = images.subset(np.arange(len(images)), augment=Augment(pad=1))
    assert torch.equal(embed(model, augmented, cache=tmp_path), first)
    assert len(calls) == count > 0


def test_other_pixels_weights_or_rows_are_computed_anew(images, tmp_path):
    model = network()
    embed(model, images, cache=tmp_path)
    calls = passes(model)
    changed = images.store.pixels.copy()
    changed[3, 0, 0, 0] ^= 1
    embed(model, ImageDataset(changed), cache=tmp_path)
    embed(model, images.subset(np.arange(len(images))[::-1]), cache=tmp_path)
    with torch.no_grad():
        model.bn1.running_mean[0] += 1e-3
    embed(model, images, cache=tmp_path)
    assert len(calls) == 3
    assert len(list(tmp_path.iterdir())) == 4


def test_unknown_content_is_not_cached(images, tmp_path):
    with pytest.raises(ValueError, match=r"cache: TensorDataset has no method content_hash"):
        embed(nn.Linear(2, 1), TensorDataset(torch.ones(3, 2)), cache=tmp_path)
    own = images.with_transform(lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1) / 255)
    with pytest.raises(ValueError, match=r"transform: .* leave out cache"):
        embed(network(), own, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_exact_head_on_cached_embeddings_is_the_same_and_runs_no_network(images, tmp_path, monkeypatch):
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path))
    data = Data(images.subset(np.arange(24)), images.subset(np.arange(24, 40)))
    heads = []
    for cache in (False, True, True):
        model = network()
        calls = passes(model)
        fit(model, data, Run(stages=(ExactHead(max_iter=20, cache=cache),), accelerator="cpu"))
        heads.append(model.fc.weight.detach().clone())
    assert not calls
    assert torch.equal(heads[0], heads[1])
    assert torch.equal(heads[1], heads[2])
    assert not torch.equal(heads[0], network().fc.weight)


def test_several_processes_compute_embeddings_because_the_cache_may_be_on_one_machine_only(images, monkeypatch):
    monkeypatch.setattr(exact_head, "cached_embeddings", lambda *_: pytest.fail("the cache was read"))
    model = network()
    run_state = SimpleNamespace(
        world_size=2,
        model=model,
        device=torch.device("cpu"),
        loading={"batch_size": 1024, "seed": 0, "device": torch.device("cpu")},
        before_loading=lambda: None,
    )
    embedded = exact_head._embed(run_state, model, last_linear(model), images, cache=True)
    assert len(embedded) == len(images)
