"""ResNet: torchvision's names and shapes, the published sizes, and a forward pass written out independently."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from apmax.models.images import IMAGE_MODELS, ResNet, build_image_model, load_pretrained, resnet10, resnet18, resnet34
from apmax.train.weights import find_head, reset_modules


def published_shapes(blocks, classes=1000):
    """Return torchvision's names and shapes of a ResNet with basic blocks, written down from its published files."""
    shapes = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    before = 64
    for layer, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), start=1):
        for block in range(count):
            name = f"layer{layer}.{block}"
            shapes |= {f"{name}.conv1.weight": (width, before, 3, 3), **norm(f"{name}.bn1", width)}
            shapes |= {f"{name}.conv2.weight": (width, width, 3, 3), **norm(f"{name}.bn2", width)}
            if block == 0 and layer > 1:
                shapes |= {f"{name}.downsample.0.weight": (width, before, 1, 1), **norm(f"{name}.downsample.1", width)}
            before = width
    return {**shapes, "fc.weight": (classes, 512), "fc.bias": (classes,)}


def norm(name, width):
    vectors = {f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")}
    return {**vectors, f"{name}.num_batches_tracked": ()}


def plain_forward(state, x, blocks, stem):
    """Return the scores by the formulas alone, with the running statistics."""

    def convolve(name, x, stride, padding):
        return F.conv2d(x, state[f"{name}.weight"], stride=stride, padding=padding)

    def normalise(name, x):
        mean, var, weight, bias = (
            state[f"{name}.{part}"][None, :, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * weight + bias

    if stem == "imagenet":
        x = normalise("bn1", convolve("conv1", x, 2, 3)).clamp(min=0)
        x = F.max_pool2d(x, 3, 2, 1)
    else:
        x = normalise("bn1", convolve("conv1", x, 1, 1)).clamp(min=0)
    for layer, count in enumerate(blocks, start=1):
        for block in range(count):
            name, stride = f"layer{layer}.{block}", 2 if block == 0 and layer > 1 else 1
            inner = normalise(f"{name}.bn1", convolve(f"{name}.conv1", x, stride, 1)).clamp(min=0)
            inner = normalise(f"{name}.bn2", convolve(f"{name}.conv2", inner, 1, 1))
            if stride == 2:
                x = normalise(f"{name}.downsample.1", convolve(f"{name}.downsample.0", x, 2, 0))
            x = (x + inner).clamp(min=0)
    return x.sum((2, 3)) / (x.shape[2] * x.shape[3]) @ state["fc.weight"].T + state["fc.bias"]


@pytest.mark.parametrize(
    ("build", "blocks", "count"), [(resnet18, (2, 2, 2, 2), 11_689_512), (resnet34, (3, 4, 6, 3), 21_797_672)]
)
def test_names_shapes_and_count_are_those_published(build, blocks, count):
    model = build(1000)
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == published_shapes(blocks)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_initial_weights_are_those_of_he_also_in_the_members_of_an_ensemble():
    model = resnet10(width=32)
    reset = copy.deepcopy(model)
    reset_modules(reset, [name for name, _ in reset.named_children()], seed=1)
    for network in (model, reset):
        for name, module in network.named_modules():
            if isinstance(module, nn.Conv2d):
                spread = (2 / (module.out_channels * math.prod(module.kernel_size))) ** 0.5
                assert module.weight.std().item() == pytest.approx(spread, rel=0.1), name
                assert module.weight.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(model.conv1.weight, reset.conv1.weight)


@pytest.mark.parametrize(
    ("build", "blocks"), [(resnet10, (1, 1, 1, 1)), (resnet18, (2, 2, 2, 2)), (resnet34, (3, 4, 6, 3))]
)
@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_forward_equals_the_formulas(build, blocks, stem):
    generator = torch.Generator().manual_seed(0)
    model = build(2, width=4, stem=stem).double().eval()
    state = {
        name: torch.rand(value.shape, generator=generator, dtype=torch.float64) + 0.5
        if name.endswith(("running_var", "running_mean")) or ("bn" in name and name.endswith("weight"))
        else value
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(state)
    x = torch.randn(3, 3, 40, 36, generator=generator, dtype=torch.float64)
    expected = plain_forward(state, x, blocks, stem)
    assert expected.std() > 0
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_one_score_or_one_per_task(name):
    x = torch.randn(2, 3, 32, 32)
    assert IMAGE_MODELS[name](1, width=4).eval()(x).shape == (2,)
    assert IMAGE_MODELS[name](3, width=4).eval()(x).shape == (2, 3)


def test_head_is_the_last_layer_and_can_be_reset():
    model = resnet18(width=4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert find_head(model) is model.fc
    reset_modules(model, ["head"], seed=1)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"fc.weight", "fc.bias"}


def test_weights_of_a_thousand_classes_load_without_their_head(tmp_path):
    donor, model = resnet18(1000, width=4), resnet18(width=4)
    # Older files have no counters.
    state = {name: value for name, value in donor.state_dict().items() if "num_batches" not in name}
    torch.save(state, tmp_path / "weights.pth")
    own = model.fc.weight.clone()
    message = load_pretrained(model, tmp_path / "weights.pth")
    assert message == "100 tensors from weights.pth; its head of 1000 outputs is replaced by a new one of 1"
    assert torch.equal(model.fc.weight, own)
    assert torch.equal(model.state_dict()["layer4.1.bn2.running_var"], state["layer4.1.bn2.running_var"])
    assert torch.equal(model.conv1.weight, donor.conv1.weight)


def test_weights_of_the_same_head_load_whole(tmp_path):
    donor, model = resnet18(width=4), resnet18(width=4)
    torch.save(donor.state_dict(), tmp_path / "model.pt")
    assert load_pretrained(model, tmp_path / "model.pt") == "122 tensors from model.pt"
    assert torch.equal(model.fc.weight, donor.fc.weight)


@pytest.mark.parametrize(
    ("donor", "message"),
    [
        (lambda: resnet34(width=4), r"another network: it has layer1.2.conv1.weight"),
        (lambda: resnet18(width=8), r"conv1.weight has shape \(8, 3, 7, 7\), the model's has \(4, 3, 7, 7\)"),
        (lambda: resnet18(width=4, stem="small"), r"it needs width=4, channels=3 and stem='small'"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(tmp_path, donor, message):
    torch.save(donor().state_dict(), tmp_path / "weights.pth")
    model = resnet18(width=4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_pretrained(model, tmp_path / "weights.pth")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Harmful:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (open, (self.mark, "w"))


def test_code_in_a_file_of_weights_is_not_executed(tmp_path):
    mark = tmp_path / "executed"
    torch.save({"conv1.weight": Harmful(str(mark))}, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="not a file of plain weights"):
        load_pretrained(resnet18(width=4), tmp_path / "weights.pth")
    (tmp_path / "bare.pth").write_bytes(pickle.dumps(Harmful(str(mark)), protocol=2))
    with pytest.raises(ValueError, match="not a file of plain weights"):
        load_pretrained(resnet18(width=4), tmp_path / "bare.pth")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 32, 32, 3), r"shape \(B, 3, H, W\)"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), "floating and normalised"),
    ],
)
def test_wrong_images_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        resnet18(width=4)(images)


def test_gradient_reaches_every_parameter():
    model = resnet18(width=4)
    model(torch.randn(4, 3, 32, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_order_of_the_channels_in_memory_does_not_matter():
    torch.manual_seed(0)
    model = resnet18(width=4).eval()
    images = torch.randn(3, 3, 32, 32)
    assert model.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    expected = model(images)
    torch.testing.assert_close(model(images.contiguous(memory_format=torch.channels_last)), expected)
    torch.testing.assert_close(model.to(memory_format=torch.contiguous_format)(images), expected)


class MeanColour(torch.nn.Module):
    def __init__(self, num_outputs, *, squeeze=False):
        super().__init__()
        self.fc, self.squeeze = torch.nn.Linear(3, num_outputs), squeeze

    def forward(self, images):
        scores = self.fc(images.mean((2, 3)))
        return scores[:, 0] if self.squeeze else scores


class RaisesInForward(torch.nn.Module):
    def forward(self, images):
        raise RuntimeError("images must be 77×77\nand more")


@pytest.fixture
def builders(monkeypatch):
    """Make an importable module `my_networks` of a user's builders."""
    module = SimpleNamespace(
        MeanColour=MeanColour,
        positional=lambda outputs: MeanColour(outputs),
        number=lambda tasks: 3,
        nothing_taken=lambda: MeanColour(1),
        wrong=lambda tasks: MeanColour(7),
        fails=lambda tasks: RaisesInForward(),
        constant=4,
    )
    monkeypatch.setitem(sys.modules, "my_networks", module)


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_built_in_network_is_built_by_name(name):
    model = build_image_model(name, 2, width=4, stem="small")
    assert isinstance(model, ResNet)
    assert (model.tasks, model.stem) == (2, "small")


@pytest.mark.parametrize("name", ["my_networks:MeanColour", "my_networks:positional"])
@pytest.mark.parametrize("tasks", [1, 4])
def test_own_builder_is_called_with_the_number_of_outputs(builders, name, tasks):
    model = build_image_model(name, tasks, size=32)
    assert isinstance(model, MeanColour)
    assert model.fc.out_features == tasks
    assert model.training


def test_options_reach_the_own_builder(builders):
    assert build_image_model("my_networks:MeanColour", size=32, squeeze=True)(torch.zeros(5, 3, 8, 8)).shape == (5,)


def test_option_that_the_own_builder_lacks_is_in_the_advice(builders):
    with pytest.raises(ValueError, match=r"write it as build\(num_outputs, dropout\)$"):
        build_image_model("my_networks:MeanColour", size=32, dropout=0.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:build", "model: no_such_module:build cannot be loaded: No module named 'no_such_module'"),
        ("my_networks:nothing", "model: .* has no callable 'nothing'"),
        ("my_networks:constant", "model: .* has no callable 'constant'"),
        (
            "my_networks:nothing_taken",
            r"model: my_networks:nothing_taken is called with .* num_outputs=1, and its parameters are \(\)",
        ),
        ("my_networks:number", "model: my_networks:number must return a torch.nn.Module, got int"),
        ("my_networks:wrong", r"model: my_networks:wrong must return scores of shape \(B,\) or \(B, 1\), got \(2, 7\)"),
        ("my_networks:fails", r"cannot score images of shape \(2, 3, 32, 32\): images must be 77×77$"),
        ("resnet19", "model must be one of resnet18, resnet34"),
    ],
)
def test_unusable_network_is_an_error_that_names_the_argument(builders, monkeypatch, name, message):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=message):
        build_image_model(name, size=32)


@pytest.mark.parametrize("name", ["tiny", "timm:tiny"])
def test_timm_model_is_built_with_as_many_classes_as_tasks(monkeypatch, name):
    timm = SimpleNamespace(
        is_model=lambda name: name == "tiny", create_model=lambda name, num_classes, **options: MeanColour(num_classes)
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert build_image_model(name, 3, size=32)(torch.zeros(2, 3, 8, 8)).shape == (2, 3)
    with pytest.raises(ValueError, match="timm has no model 'huge'"):
        build_image_model("timm:huge")


def test_timm_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModuleNotFoundError, match=r"^timm is not installed; .* pip install timm torchvision$"):
        build_image_model("timm:tiny")


def test_shortcuts_of_few_channels_have_no_stride_which_is_computed_wrongly_on_a_cpu(monkeypatch):
    called, convolve = [], F.conv2d

    def record(x, weight, bias=None, stride=1, *options):
        called.append((weight.shape[1], weight.shape[2], stride if isinstance(stride, int) else stride[0]))
        return convolve(x, weight, bias, stride, *options)

    monkeypatch.setattr(F, "conv2d", record)
    resnet10(width=8, stem="small")(torch.rand(2, 3, 32, 32)).sum().backward()
    strided = [(channels, size) for channels, size, stride in called if stride > 1]
    assert strided == [(8, 3), (16, 3), (16, 1), (32, 3), (32, 1)]


def test_gradients_of_a_narrow_network_are_those_of_an_independent_forward_pass():
    torch.manual_seed(0)
    narrow, images = resnet10(width=8, stem="small").double().eval(), torch.rand(5, 3, 17, 17, dtype=torch.float64)
    state = {
        name: value.clone().requires_grad_(value.is_floating_point()) for name, value in narrow.state_dict().items()
    }
    narrow(images).sum().backward()
    plain_forward(state, images, (1, 1, 1, 1), "small").sum().backward()
    for name, weight in narrow.named_parameters():
        torch.testing.assert_close(weight.grad, state[name].grad)
