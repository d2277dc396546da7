"""The architectures of docs/networks.md: their names were fixed before rules were written for them.

Each is built as its library builds it, with its own noise; where it has none, `DROPOUT` says where
`add_dropout` puts it. Nothing is downloaded: the weights are random.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

CLASSES = 10
DROPOUT = 0.2

# What torchvision declares in a compiled library, which a CPU build of torch may not load. Its
# networks use none of them, but its import describes their shapes.
_TORCHVISION_OPERATORS = (
    "nms", "qnms", "roi_align", "_roi_align_backward", "ps_roi_align", "_ps_roi_align_backward",
    "roi_pool", "_roi_pool_backward", "ps_roi_pool", "_ps_roi_pool_backward", "qroi_align",
    "deform_conv2d", "_deform_conv2d_backward",
)  # fmt: skip
_DECLARED: list[torch.library.Library] = []  # a library lives as long as its object


@dataclass(frozen=True)
class Entry:
    """An architecture by its name.

    Attributes:
        source: the package that it comes from.
        name: as the package names it.
        arguments: of its factory.
        dropout: where `add_dropout` puts noise, or None for a network that has its own.
        size: height and width of the input.
    """

    source: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    dropout: str | None = None
    size: int = 64

    @property
    def title(self) -> str:
        """The package and the name, and what tells two entries of one name apart."""
        encoder = self.arguments.get("encoder_name")
        return f"{self.source} {self.name}" + (f" ({encoder})" if encoder else "")


def _timm(name: str, drop: float = DROPOUT, path: float = 0.0, **more: Any) -> Entry:
    noise = {"drop_rate": drop} | ({"drop_path_rate": path} if path else {})
    return Entry("timm", name, {"num_classes": CLASSES, **noise} | more)


def _smp(name: str, encoder: str, dropout: str | None = "decoder", size: int = 64) -> Entry:
    arguments = {"encoder_name": encoder, "encoder_weights": None, "classes": CLASSES}
    return Entry("segmentation_models_pytorch", name, arguments, dropout, size)


def _torchvision(name: str, place: str | None = None, **more: Any) -> Entry:
    return Entry("torchvision", name, more, place)


ENTRIES: tuple[Entry, ...] = (
    _timm("resnet18"),
    _timm("resnet26d", path=0.1),
    _timm("mobilenetv3_small_100"),
    _timm("efficientnet_b0", path=0.1),
    _timm("regnety_002"),
    _timm("convnext_atto", path=0.1),
    _timm("densenet121"),
    _timm("vgg11_bn"),
    _timm("ghostnet_100"),
    _timm("repvgg_a0"),
    _timm("mixer_s32_224", img_size=64),
    _timm("vit_tiny_patch16_224", img_size=64),
    _timm("deit_tiny_patch16_224", path=0.1, img_size=64),
    _timm("swin_tiny_patch4_window7_224", path=0.1, img_size=64, window_size=4),
    _torchvision("alexnet"),
    _torchvision("vgg11"),
    _torchvision("squeezenet1_1"),
    _torchvision("mobilenet_v2"),
    _torchvision("mobilenet_v3_small"),
    _torchvision("efficientnet_b0"),
    _torchvision("googlenet", init_weights=True, aux_logits=False),
    _torchvision("densenet121", drop_rate=0.2),
    _torchvision("mnasnet0_5"),
    _torchvision("shufflenet_v2_x0_5", "head"),
    _torchvision("convnext_tiny", stochastic_depth_prob=0.1),
    _torchvision("vit_b_32", image_size=64, dropout=0.1),
    _torchvision("segmentation.deeplabv3_resnet50", weights_backbone=None, num_classes=CLASSES),
    _torchvision("segmentation.fcn_resnet50", weights_backbone=None, num_classes=CLASSES),
    _torchvision(
        "segmentation.lraspp_mobilenet_v3_large", "head",
        weights_backbone=None, num_classes=CLASSES,
    ),
    _smp("Unet", "resnet18"),
    _smp("Unet", "mobilenet_v2"),
    _smp("UnetPlusPlus", "resnet18"),
    _smp("MAnet", "resnet18"),
    _smp("Linknet", "resnet18"),
    _smp("FPN", "resnet18", None),
    _smp("PSPNet", "resnet18", None),
    _smp("PAN", "resnet18", size=128),
    _smp("DeepLabV3", "resnet18", None),
    _smp("DeepLabV3Plus", "resnet18", None),
    _smp("UPerNet", "resnet18"),
    _smp("Segformer", "mit_b0", None),
    Entry("own", "unet"),
    Entry("own", "depth"),
    Entry("own", "segformer"),
    Entry("own", "transformer"),
    Entry("own", "residual_mlp"),
)  # fmt: skip


def build(entry: Entry, seed: int = 0) -> nn.Module:
    """The network with random weights, in eval mode. ImportError if its package is missing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _FACTORIES[entry.source](entry.name)(**entry.arguments)
        _settle(model)
    return model.eval()


def _settle(model: nn.Module) -> None:
    """Batch norms that differ by channel, and no classifier of zeros: as a trained network has."""
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)) and not layer.weight.any():
            nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, 0.0, 0.1)


def _of_timm(name: str) -> Callable[..., nn.Module]:
    _import_torchvision()  # timm imports it
    timm = importlib.import_module("timm")
    return lambda **arguments: timm.create_model(name, pretrained=False, **arguments)


def _of_torchvision(name: str) -> Callable[..., nn.Module]:
    models = _import_torchvision()
    group, _, model = name.rpartition(".")
    factory = getattr(getattr(models, group) if group else models, model)
    return lambda **arguments: factory(weights=None, **arguments)


def _of_segmentation_models(name: str) -> Callable[..., nn.Module]:
    _import_torchvision()
    factory: Callable[..., nn.Module] = getattr(
        importlib.import_module("segmentation_models_pytorch"), name
    )
    return factory


def _of_own(name: str) -> Callable[..., nn.Module]:
    own = importlib.import_module("penumbra.lab.experiments.networks.own")
    factory: Callable[..., nn.Module] = getattr(own, name)
    return factory


def _import_torchvision() -> Any:
    if not _DECLARED:
        _DECLARED.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in _TORCHVISION_OPERATORS:
            with contextlib.suppress(RuntimeError):  # the compiled library has declared it
                _DECLARED[0].define(f"{name}(Tensor x) -> Tensor")
    return importlib.import_module("torchvision.models")


_FACTORIES: dict[str, Callable[[str], Callable[..., nn.Module]]] = {
    "timm": _of_timm,
    "torchvision": _of_torchvision,
    "segmentation_models_pytorch": _of_segmentation_models,
    "own": _of_own,
}
