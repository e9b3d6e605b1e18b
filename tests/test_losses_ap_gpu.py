"""A training step of `APLoss` on a device: nothing waits for it, and every tensor is made where the inputs are.

Where CUDA exists torch's own synchronisation debugger decides. Elsewhere the operations of a step are inspected,
and the step runs on the "meta" device, where nothing can be read and nothing of another device may be mixed in.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from apmax.exact import search
from apmax.losses import APLoss
from apmax.losses.memory import Memory

NAN = float("nan")
SIZE, NUM_POS = 32, 4
LABELS = torch.zeros(200)
LABELS[::10] = 1
TABLE = torch.stack([LABELS, LABELS.roll(3), torch.full((200,), NAN)], 1)

CASES = {
    "default": {},
    "batch": {"prevalence": "batch"},
    "prevalence": {"prevalence": 0.3, "start": "zero"},
    "weights": {"sample_weight": torch.linspace(0.5, 2, 200)},
    "sigmoid": {"sigmoid": True, "surrogate": "squared_hinge", "floor": 0.1},
    "ramp": {"surrogate": "ramp"},
}
READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "unique_dim", "item")


def _no_host_array(*args, **keywords):
    raise AssertionError("an array on the host waits for the device")


class NoReads(TorchDispatchMode):
    """Refuses every operation whose result, or its shape, the host must wait for.

    On a CPU, `numpy()` and `tolist()` share memory and are no operations: they are refused by name.
    """

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        for name in ("numpy", "tolist", "__array__"):
            self._patch.setattr(torch.Tensor, name, _no_host_array)
        return super().__enter__()

    def __exit__(self, *error):
        self._patch.undo()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in READS, f"{name} waits for the device"
        if name in ("index", "index_put", "index_put_"):
            masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
            assert not masks, "a boolean mask as an index waits for the device"
        return func(*args, **(kwargs or {}))


def batches(device="cpu", size=SIZE, num_pos=NUM_POS):
    generator = torch.Generator().manual_seed(0)
    positives, negatives = LABELS.nonzero()[:, 0], (LABELS == 0).nonzero()[:, 0]
    for _ in range(3):
        chosen = [
            rows[torch.randperm(len(rows), generator=generator)[:count]]
            for rows, count in ((positives, num_pos), (negatives, size - num_pos))
        ]
        yield torch.randn(size, generator=generator).to(device), torch.cat(chosen).to(device)


def run(loss, device="cpu", **sizes):
    labels = LABELS.to(device)
    values = []
    for scores, rows in batches(device, **sizes):
        scores.requires_grad_()
        value = loss(scores, labels[rows], rows)
        value.backward()
        values.append((value.detach(), scores.grad))
    return values


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Take the branches that a device takes, where the host must not read any number."""
    monkeypatch.setattr(search, "on_host", lambda tensor: False)


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_step_with_static_shapes_and_without_checks_reads_nothing(options):
    loss = APLoss(LABELS, num_pos=NUM_POS, validate=False, **options)
    drawn = list(batches())
    for scores, rows in drawn:
        labels = LABELS[rows]
        scores.requires_grad_()
        with NoReads():
            loss(scores, labels, rows).backward()


@pytest.mark.usefixtures("as_on_a_device")
def test_a_step_above_the_crossover_reads_nothing():
    labels = torch.zeros(4096)
    labels[:128] = 1
    loss = APLoss(labels, num_pos=128, validate=False)
    scores = torch.randn(4096, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with NoReads():
        loss(scores, labels, torch.arange(4096)).backward()
    assert scores.grad.abs().max() > 0


@pytest.mark.usefixtures("as_on_a_device")
def test_a_step_of_several_tasks_reads_nothing():
    loss = APLoss(TABLE, num_pos=8, validate=False)
    rows = torch.arange(40)
    scores = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = TABLE[rows]
    with NoReads():
        loss(scores, labels, rows).backward()


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize("probabilities", [False, True])
def test_with_checks_a_step_with_static_shapes_reads_once(probabilities, monkeypatch):
    loss = APLoss(LABELS, num_pos=NUM_POS)
    (scores, rows), *_ = batches()
    scores = scores.sigmoid() if probabilities else scores
    read = []
    tolist = torch.Tensor.tolist

    def counted(tensor):
        read.append(tensor)
        return tolist(tensor)

    # On a device a list is one transfer; on a CPU it is no operation.
    monkeypatch.setattr(torch.Tensor, "tolist", counted)

    class CountReads(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket.__name__ in READS:
                read.append(func)
            return func(*args, **(kwargs or {}))

    labels = LABELS[rows]
    for _ in range(2):  # the first step also looks whether the scores are probabilities
        read.clear()
        with CountReads():
            loss(scores.detach().requires_grad_(), labels, rows).backward()
        assert len(read) == 1


def test_the_inspection_sees_what_waits():
    with pytest.raises(AssertionError, match="waits"), NoReads():
        torch.ones(3).nonzero()
    with pytest.raises(AssertionError, match="mask"), NoReads():
        torch.ones(3)[torch.tensor([True, False, True])]
    with pytest.raises(AssertionError, match="waits"), NoReads():
        torch.ones(3).numpy()
    with pytest.raises(AssertionError, match="waits"), NoReads():
        APLoss(LABELS)(torch.zeros(200), LABELS, torch.arange(200))


def planted_in_memory(monkeypatch):
    """Read a number where u is stored."""
    write = Memory.write
    monkeypatch.setattr(Memory, "write", lambda self, slots, u, *rest: (u.sum().item(), write(self, slots, u, *rest)))


def planted_in_kernel(monkeypatch):
    """Sort by numpy, as the host does."""
    monkeypatch.setattr(search, "_count", lambda edges, values, strictly: torch.from_numpy(edges.numpy()))


def planted_on_host(monkeypatch):
    """Take the branches of the host."""
    monkeypatch.setattr(search, "on_host", lambda tensor: True)


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize("plant", [planted_in_memory, planted_in_kernel, planted_on_host])
def test_the_guard_fails_where_a_host_synchronisation_is_planted(plant, monkeypatch):
    labels = torch.zeros(4096)
    labels[:128] = 1
    loss = APLoss(labels, num_pos=128, validate=False)
    scores = torch.randn(4096, generator=torch.Generator().manual_seed(0)).requires_grad_()
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="waits"), NoReads():
        loss(scores, labels, torch.arange(4096))


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_the_branches_of_a_device_give_the_numbers_of_the_host(options, monkeypatch):
    expected = APLoss(LABELS, **options)
    values = run(expected)
    monkeypatch.setattr(search, "on_host", lambda tensor: False)
    loss = APLoss(LABELS, num_pos=NUM_POS, validate=False, **options)
    torch.testing.assert_close(run(loss), values, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(loss.u, expected.u, rtol=1e-5, atol=1e-7)


@pytest.fixture
def meta(monkeypatch):
    """The device without numbers, which knows nothing of autocast either."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    return "meta"


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_every_tensor_is_made_where_the_inputs_are(meta, options):
    loss = APLoss(LABELS, num_pos=NUM_POS, validate=False, **options).to(meta)
    for value, gradient in run(loss, meta):
        assert value.device.type == meta
        assert gradient.device.type == meta
    assert {buffer.device.type for buffer in loss.buffers()} == {meta}


def test_several_tasks_are_made_where_the_inputs_are(meta):
    loss = APLoss(TABLE, num_pos=8, validate=False).to(meta)
    scores = torch.zeros(40, 3, device=meta, requires_grad=True)
    loss(scores, TABLE[:40].to(meta), torch.arange(40, device=meta)).backward()
    assert scores.grad.device.type == meta


def test_rows_may_be_on_the_host(meta, monkeypatch):
    loss = APLoss(LABELS, num_pos=NUM_POS).to(meta)
    # A device without numbers cannot tell that its batch is valid: no fault, and scores from -1 to 1.
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: [0, -1, 1])
    scores = torch.zeros(40, device=meta, requires_grad=True)
    loss(scores, LABELS[:40].to(meta), torch.arange(40)).backward()
    assert scores.grad.device.type == meta


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_cuda
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_on_cuda_a_step_with_static_shapes_and_without_checks_never_synchronises(options):
    loss = APLoss(LABELS, num_pos=NUM_POS, validate=False, **options).cuda()
    labels = LABELS.cuda()
    drawn = [(scores.requires_grad_(), labels[rows], rows) for scores, rows in batches("cuda")]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for scores, own, rows in drawn:
            loss(scores, own, rows).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_on_cuda_the_numbers_are_those_of_the_cpu(options):
    expected, loss = APLoss(LABELS, **options), APLoss(LABELS, **options).cuda()
    for (value, gradient), (ours, own) in zip(run(expected), run(loss, "cuda"), strict=True):
        torch.testing.assert_close(ours.cpu(), value, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(own.cpu(), gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(loss.u.cpu(), expected.u, rtol=1e-4, atol=1e-6)


@needs_cuda
def test_labels_on_cuda_build_a_loss_on_cuda():
    assert {buffer.device.type for buffer in APLoss(LABELS.cuda()).buffers()} == {"cuda"}
