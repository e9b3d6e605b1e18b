"""Networks for images: ResNet-10, -18 and -34 with torchvision's parameter names, timm models, your own builders."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from apmax import extras, validation

STEMS = ("imagenet", "small")
SMALL_STEM_SIZE = 32
"""Largest images for which the stem "small" is the default."""
NARROW_SIZE = 64
"""Largest images for which a narrow network is the default."""
FEW_POSITIVES = 100
"""Number of positives below which short, annealed trainings of a ResNet-10 are the default for small images."""
_MANY_POSITIVES = 500
_CHANNELS_AT_ONCE = 16
"""The most channels that oneDNN's kernels take at once, with AVX-512; with AVX2 it is 8."""


class _Convolution(nn.Conv2d):
    """A convolution without bias, with the initial weights of He et al. wherever it is (re-)initialised."""

    def __init__(self, channels: int, width: int, size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(channels, width, size, stride, padding, bias=False)

    def reset_parameters(self) -> None:
        """Draw new weights."""
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        # Channels side by side in memory: up to a quarter faster on a CPU, and what tensor cores want.
        self.weight.data = self.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of a batch."""
        step = self.stride[0]
        if self.kernel_size != (1, 1) or step == 1 or self.in_channels >= _CHANNELS_AT_ONCE:
            return super().forward(x)
        # The same without a stride: of fewer channels than a block, oneDNN 3.12 (its issue 6035) writes
        # the gradient of such a weight beyond its memory, which ends in a wrong gradient or a segmentation fault.
        read = x[:, :, ::step, ::step].contiguous(memory_format=torch.channels_last)
        return nn.functional.conv2d(read, self.weight)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut: relu(x' + bn(conv(relu(bn(conv(x)))))).

    The shortcut x' is x, or a 1×1 convolution of it where the number of channels or the size changes.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _Convolution(channels, width, 3, stride, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _Convolution(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != width:
            self.downsample = nn.Sequential(_Convolution(channels, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, width, H / stride, W / stride)."""
        inner = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu_()))
        shortcut = x if self.downsample is None else self.downsample(x)
        return cast(Tensor, (inner + shortcut).relu_())


class ResNet(nn.Module):
    """A residual network of basic blocks (He et al. 2016), as torchvision builds and names it.

    Args:
        blocks: Blocks of each of the four layers.
        tasks: Scores per image.
        width: Channels of the first layer, 64 in the paper; each further layer has twice as many.
        stem: "imagenet" is a 7×7 convolution of stride 2 and a max-pool, which the paper uses at 32×32 too; "small"
            a 3×3 convolution and no pool, which keeps four times as many positions per axis.
        channels: Channels of the images.

    Returns:
        Scores (B,) of one task, (B, tasks) of several; raw, without a sigmoid. The head is `fc`.

    Raises:
        ValueError: An argument out of range, or images of a shape other than (B, channels, H, W).

    >>> ResNet((2, 2, 2, 2))(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5])
    """

    def __init__(
        self, blocks: Sequence[int], tasks: int = 1, *, width: int = 64, stem: str = "imagenet", channels: int = 3
    ) -> None:
        super().__init__()
        if len(blocks) != 4:
            raise ValueError(f"blocks must be four numbers, one per layer, got {tuple(blocks)}")
        self.tasks = validation.whole("tasks", tasks, 1)
        self.channels = validation.whole("channels", channels, 1)
        width = validation.whole("width", width, 1)
        self.stem = validation.choice("stem", stem, STEMS)
        size, stride = (7, 2) if self.stem == "imagenet" else (3, 1)
        self.conv1 = _Convolution(channels, width, size, stride, padding=size // 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if self.stem == "imagenet" else nn.Identity()
        before = width
        for number, count in enumerate(blocks):
            after = width * 2**number
            first = ResidualBlock(before, after, stride=1 if number == 0 else 2)
            rest = [ResidualBlock(after, after, stride=1) for _ in range(validation.whole("blocks", count, 1) - 1)]
            self.add_module(f"layer{number + 1}", nn.Sequential(first, *rest))
            before = after
        self.fc = nn.Linear(before, tasks)

    @property
    def head(self) -> nn.Linear:
        """The last layer, which the second stage of training may re-initialise."""
        return self.fc

    def embed(self, images: Tensor) -> Tensor:
        """Return the features that the head reads, (B, 8 · width)."""
        if images.ndim != 4 or images.shape[1] != self.channels:
            shape = tuple(images.shape)
            raise ValueError(f"images must have shape (B, {self.channels}, H, W), got {shape}")
        if not images.is_floating_point():
            raise ValueError(f"images must be floating and normalised, got {images.dtype}")
        x = self.maxpool(self.bn1(self.conv1(images.contiguous(memory_format=torch.channels_last))).relu_())
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        return cast(Tensor, x.mean((2, 3)))

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of a batch of images (B, channels, H, W)."""
        scores: Tensor = self.fc(self.embed(images))
        return scores[:, 0] if self.tasks == 1 else scores


def resnet10(tasks: int = 1, *, width: int = 64, stem: str = "imagenet", channels: int = 3) -> ResNet:
    """Return a ResNet-10, with one block per layer; see `ResNet`.

    >>> sum(parameter.numel() for parameter in resnet10(1000).parameters())
    5418792
    """
    return ResNet((1, 1, 1, 1), tasks, width=width, stem=stem, channels=channels)


def resnet18(tasks: int = 1, *, width: int = 64, stem: str = "imagenet", channels: int = 3) -> ResNet:
    """Return a ResNet-18; see `ResNet`. `width=16` is a narrow one that trains in seconds per epoch on a CPU.

    >>> sum(parameter.numel() for parameter in resnet18(1000).parameters())
    11689512
    """
    return ResNet((2, 2, 2, 2), tasks, width=width, stem=stem, channels=channels)


def resnet34(tasks: int = 1, *, width: int = 64, stem: str = "imagenet", channels: int = 3) -> ResNet:
    """Return a ResNet-34; see `ResNet`.

    >>> sum(parameter.numel() for parameter in resnet34(1000).parameters())
    21797672
    """
    return ResNet((3, 4, 6, 3), tasks, width=width, stem=stem, channels=channels)


def small_image_options(size: int, positives: int) -> dict[str, Any]:
    """Return the options of a ResNet that suit images up to 64×64; nothing for larger ones.

    Up to 32×32 the stem is "small": the other one reduces 8×8 pixels to 2×2 before the first block. The width is 16,
    which two cores train in minutes; from 500 positives on it is 32, except at 17×17 to 32×32, where the stem "small"
    makes that slow.

    Args:
        size: Height and width of the images.
        positives: Number of positive training images.

    >>> small_image_options(8, 30), small_image_options(64, 900), small_image_options(224, 30)
    ({'width': 16, 'stem': 'small'}, {'width': 32, 'stem': 'imagenet'}, {})
    """
    if size > NARROW_SIZE:
        return {}
    slow = 16 < size <= SMALL_STEM_SIZE
    return {
        "width": 32 if positives >= _MANY_POSITIVES and not slow else 16,
        "stem": "small" if size <= SMALL_STEM_SIZE else "imagenet",
    }


def load_pretrained(model: nn.Module, path: str | PathLike[str]) -> str:
    """Load weights from a local file, such as torchvision's resnet18-f37072fd.pth, and return a line about them.

    No pickled code is executed. A head (the last linear layer, `fc` of a `ResNet`) with another number of outputs, such
    as ImageNet's 1000, is not loaded: the model keeps its own. Everything else must fit, or nothing is loaded.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not a file of weights, or weights of another network.
    """
    path = Path(path)
    given = _read_weights(path)
    own = model.state_dict()
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    head = [name for name in own if layers and name.rpartition(".")[0] == layers[-1]]
    without_head = any(name in given and given[name].shape != own[name].shape for name in head)
    wanted = [name for name in own if not (without_head and name in head)]
    # Files from before 2018 have no counters of batches, which are not used.
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    unknown = [name for name in given if name not in own]
    if missing or unknown:
        what = f"has no {missing[0]}" if missing else f"has {unknown[0]}, which the model has not"
        raise ValueError(f"{path.name} holds weights of another network: it {what}; is it the same depth?")
    for name in wanted:
        if name in given and given[name].shape != own[name].shape:
            hint = ""
            if name == "conv1.weight":
                width, channels, size, _ = given[name].shape
                hint = (
                    f"; it needs width={width}, channels={channels} and stem={'imagenet' if size == 7 else 'small'!r}"
                )
            raise ValueError(
                f"{path.name} holds weights of another network: {name} has shape {tuple(given[name].shape)}, "
                f"the model's has {tuple(own[name].shape)}{hint}"
            )
    taken = {name: given[name] for name in wanted if name in given}
    model.load_state_dict({**own, **taken})
    text = f"{len(taken)} tensors from {path.name}"
    if not without_head:
        return text
    changed = next(name for name in head if name in given)
    outputs, new = (math.prod(weights[changed].shape[:1]) for weights in (given, own))
    return f"{text}; its head of {outputs} outputs is replaced by a new one of {new}"


def _read_weights(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"pretrained: no file of weights at {path}")
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what torch raises depends on the first bytes of the file
        # For a text file torch's message is the code of its first letter.
        line = validation.first_line(error)
        reason = line if " " in line else f"torch cannot read it ({type(error).__name__})"
        raise ValueError(
            f"pretrained: {path.name} is not a file of plain weights (a saved state_dict, such as torchvision's "
            f"resnet18-f37072fd.pth): {reason}"
        ) from None
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"{path.name} must hold a state_dict, tensors by name, got {type(found).__name__}")
    return found


IMAGE_MODELS: dict[str, Callable[..., nn.Module]] = {"resnet18": resnet18, "resnet34": resnet34, "resnet10": resnet10}
"""Built as `IMAGE_MODELS[name](tasks, **options)`; the first is the default."""


def build_image_model(name: str, tasks: int = 1, *, size: int | None = 224, **options: Any) -> nn.Module:
    """Build a network for images of three channels.

    Args:
        name: An entry of `IMAGE_MODELS`; "package.module:callable", your own function or class that returns a network,
            called with the number of scores per image (as `num_outputs` if it has such a parameter, else as the first
            one); "timm:NAME", or the name of a timm model if timm is installed.
        tasks: Scores per image.
        size: Height and width of the images, with which a network that is not in `IMAGE_MODELS` is tried; None if they
            are not known.
        **options: Further arguments of the network.

    Returns:
        A network that maps (B, 3, size, size) to scores (B,) or (B, tasks).

    Raises:
        ValueError: There is no such network, it cannot be imported, or its output is something else.
        ModuleNotFoundError: "timm:NAME", and timm or its torchvision is not installed.

    >>> type(build_image_model("resnet18", 3, width=4)).__name__
    'ResNet'
    >>> build_image_model("r19")
    Traceback (most recent call last):
    ...
    ValueError: model must be one of resnet18, resnet34, resnet10, "package.module:callable" or "timm:NAME"; got 'r19'
    """
    validation.whole("tasks", tasks, 1)
    if name in IMAGE_MODELS:
        return IMAGE_MODELS[name](tasks, **options)
    kind, _, timm_name = name.partition(":")
    if kind == "timm" and timm_name:
        model = _timm_model(timm_name, tasks, options)
    elif ":" in name:
        try:
            builder = extras.load_callable(name)
        except ValueError as error:
            raise ValueError(f"model: {error}") from None
        model = _call_builder(name, builder, tasks, options)
    elif _is_timm_model(name):
        model = _timm_model(name, tasks, options)
    else:
        known = ", ".join(IMAGE_MODELS)
        raise ValueError(f'model must be one of {known}, "package.module:callable" or "timm:NAME"; got {name!r}')
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: {name} must return a torch.nn.Module, got {type(model).__name__}")
    if size is not None:
        _check_image_model(model, name, tasks, size)
    return model


def _call_builder(name: str, builder: Callable[..., Any], tasks: int, options: dict[str, Any]) -> Any:
    """Return the network of a user's builder.

    Raises:
        ValueError: It does not take the number of scores per image and the options.
    """
    try:
        signature = inspect.signature(builder)
    except (TypeError, ValueError):  # callables of C have no signature
        return builder(tasks, **options)
    given, keywords = ((), {"num_outputs": tasks}) if "num_outputs" in signature.parameters else ((tasks,), {})
    try:
        signature.bind(*given, **keywords, **options)
    except TypeError as error:
        raise ValueError(
            f"model: {name} is called with the number of scores per image, num_outputs={tasks}"
            f"{''.join(f', {key}={value!r}' for key, value in options.items())}, and its parameters are {signature} "
            f"({error}): write it as build({', '.join(['num_outputs', *options])})"
        ) from None
    return builder(*given, **keywords, **options)


def _load_timm() -> Any:
    # Not an extra: timm needs torchvision, whose build must fit that of torch, and no extra can choose it.
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        if error.name not in ("timm", "torchvision"):
            raise
        advice = "timm needs a torchvision that fits your torch: pip install timm torchvision"
        raise ModuleNotFoundError(f"{error.name} is not installed; {advice}", name=error.name) from None


def _is_timm_model(name: str) -> bool:
    try:
        timm = _load_timm()
    except ModuleNotFoundError:
        return False
    return bool(timm.is_model(name))


def _timm_model(name: str, tasks: int, options: Mapping[str, Any]) -> Any:
    timm = _load_timm()
    if not timm.is_model(name):
        raise ValueError(f"model: timm has no model {name!r}; timm.list_models() lists them")
    return timm.create_model(name, num_classes=tasks, **options)


def _check_image_model(model: nn.Module, name: str, tasks: int, size: int) -> None:
    """Raise unless a network maps two images to scores (2,) or (2, tasks)."""
    training = model.training
    shape = (2, 3, size, size)
    model.eval()
    try:
        with torch.no_grad():
            scores = model(torch.zeros(shape))
    except Exception as error:  # a user's network may raise anything
        reason = validation.first_line(error)
        raise ValueError(f"model: {name} cannot score images of shape {shape}: {reason}") from error
    finally:
        model.train(training)
    expected = [(2,), (2, 1)] if tasks == 1 else [(2, tasks)]
    found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if found not in expected:
        wanted = "(B,) or (B, 1)" if tasks == 1 else f"(B, {tasks})"
        raise ValueError(f"model: {name} must return scores of shape {wanted}, got {found} for {shape[0]} images")
