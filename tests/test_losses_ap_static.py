"""`APLoss` with static shapes: the promise `num_pos`, `torch.compile`, and memory that grows with B + B₊ only."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from apmax.exact import kernel
from apmax.losses import APLoss

LABELS = torch.zeros(200)
LABELS[::10] = 1
POSITIVES, NEGATIVES = LABELS.nonzero()[:, 0], (LABELS == 0).nonzero()[:, 0]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch._dynamo.reset()


def batches(num_pos=4, size=32, steps=4):
    generator = torch.Generator().manual_seed(3)

    def draw(rows, count):
        return rows[torch.randperm(len(rows), generator=generator)[:count]]

    for _ in range(steps):
        rows = torch.cat([draw(NEGATIVES, size - num_pos), draw(POSITIVES, num_pos)])
        rows = draw(rows, size)
        yield torch.randn(size, generator=generator), rows


def run(loss, call=None, **options):
    """Return values, gradients and u of a few steps."""
    call = loss if call is None else call
    found = []
    for scores, rows in batches(**options):
        scores.requires_grad_()
        value = call(scores, LABELS[rows], rows)
        value.backward()
        found.append((value.detach(), scores.grad))
    values, gradients = zip(*found, strict=True)
    return torch.stack(values), torch.stack(gradients), loss.u.clone()


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("validate", [True, False])
def test_the_promise_of_num_pos_does_not_change_the_numbers(validate):
    assert_same(run(APLoss(LABELS, num_pos=4, validate=validate)), run(APLoss(LABELS)))


@pytest.mark.parametrize("promised", [3, 5])
def test_a_broken_promise_is_refused_and_u_is_untouched(promised):
    loss = APLoss(LABELS, num_pos=promised)
    with pytest.raises(ValueError, match=f"labels hold 4 positives in a batch where num_pos={promised} was promised"):
        run(loss)
    assert loss.u.count_nonzero() == 0


def test_the_promise_is_about_training_batches_only():
    scores, rows = next(batches())
    expected = APLoss(LABELS).eval()(scores, LABELS[rows])
    assert APLoss(LABELS, num_pos=7).eval()(scores, LABELS[rows]) == expected


def test_a_batch_smaller_than_the_promise_is_refused():
    loss = APLoss(LABELS, num_pos=4)
    with pytest.raises(ValueError, match="labels hold 2 positives"):
        loss(torch.zeros(2), torch.ones(2), POSITIVES[:2])


CASES = pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="default"),
        pytest.param({"prevalence": "batch"}, id="batch"),
        pytest.param({"prevalence": 0.3, "start": "zero"}, id="prevalence"),
        pytest.param({"sample_weight": torch.linspace(0.5, 2, 200)}, id="weights"),
        pytest.param({"sigmoid": True, "surrogate": "squared_hinge"}, id="sigmoid"),
    ],
)


@pytest.mark.slow
@CASES
def test_with_num_pos_and_without_checks_the_whole_loss_is_one_graph(options):
    loss = APLoss(LABELS, num_pos=4, validate=False, **options)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_same(run(loss, compiled), run(APLoss(LABELS, **options)))


@pytest.mark.slow
def test_a_batch_above_the_crossover_is_one_graph_too():
    size, num_pos = 4096, 256
    assert size * num_pos > kernel.DENSE_PAIRS
    labels = torch.zeros(size)
    labels[:num_pos] = 1
    found = []
    for compiled in (True, False):
        loss = APLoss(labels, num_pos=num_pos, validate=False)
        call = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
        scores = torch.linspace(-3, 3, size).cos().requires_grad_()
        value = call(scores, labels, torch.arange(size))
        value.backward()
        found.append((value.detach(), scores.grad, loss.u.clone()))
    assert_same(*found)


@pytest.mark.slow
@CASES
def test_without_num_pos_a_compiled_loss_gives_the_same_numbers(options):
    loss = APLoss(LABELS, **options)
    assert_same(run(loss, torch.compile(loss, backend="aot_eager")), run(APLoss(LABELS, **options)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler in torch
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs a C++ compiler")
def test_inductor_gives_the_same_numbers():
    loss = APLoss(LABELS, num_pos=4, validate=False)
    assert_same(run(loss, torch.compile(loss, fullgraph=True)), run(APLoss(LABELS)))


class Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = [t.untyped_storage().nbytes() // t.element_size() for t in tree_leaves(result) if torch.is_tensor(t)]
        self.elements = max([self.elements, *made])
        return result


@pytest.mark.parametrize("surrogate", ["smooth_step", "ramp", "sigmoid"])
def test_above_the_crossover_no_matrix_of_pairs_is_made(surrogate):
    size, num_pos = 8192, 512
    labels = torch.zeros(size)
    labels[:num_pos] = 1
    loss = APLoss(labels, surrogate=surrogate)
    scores = torch.randn(size, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with Largest() as seen:
        loss(scores, labels, torch.arange(size)).backward()
    assert size <= seen.elements <= 32 * (size + num_pos) < size * num_pos / 8
