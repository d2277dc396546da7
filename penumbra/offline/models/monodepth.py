"""Monodepth (Godard et al. 2017): depth from one image, learnt from stereo pairs alone.

An encoder halves the image six or seven times; the decoder doubles it, concatenates the encoder's
features of the same size, and predicts the disparity at the four finest scales. Postels et al. 2019
add a dropout before the last convolution of the finest scale. `width` scales all channel counts;
1.0 is the published network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from penumbra.errors import PenumbraError
from penumbra.offline.models.network import MEAN, STD, Network
from penumbra.offline.models.padding import CropLike, PadToMultiple

SCALES = 4
LARGEST = 0.3
"""The disparity, as a fraction of the image width, is 0.3 times a sigmoid."""

DROPOUTS = ("final", "none")

KITTI_RIG = {"baseline_m": 0.54, "focal_per_width": 0.58, "max_depth_m": 80.0}
"""Conversion from disparity to metres; the baseline is that of the training pairs."""

# Initial disparity (15 m in KITTI). The photometric loss has useful gradients only within a few
# pixels of the right disparity, and the middle of the sigmoid (2 m) is too far from it.
_INITIAL = 0.02

# Channels at width 1. VGG: (channels, kernel) of each pair of convolutions, the second of stride 2.
_VGG = ((32, 7), (64, 5), (128, 3), (256, 3), (512, 3), (512, 3), (512, 3))
_RESNET50 = ((64, 3), (128, 4), (256, 6), (512, 3))  # channels of the bottleneck, blocks
_DECODER = (16, 32, 64, 128, 256, 512, 512)  # from the finest scale on
_FEWEST = 8  # channels of a narrow network at its finest scale


class Monodepth(Network):
    """Disparity to a right camera (N x 1 x H x W, in image widths) of a normalised RGB image.

    In training mode it returns all four scales, finest first, each with the disparities of the left
    and of the right image: N x 2 x H/s x W/s.

    Args:
        encoder: `vgg` or `resnet50`.
        width: factor on all channel counts.
        dropout: `final` or `none`; the weights are the same.
        rate: of the dropout.
        batch_norm: after each convolution (not in the paper; improves short trainings).
        size: (height, width) that images are scaled to first. Any size works; the weights are
            trained for this one.
        depth: conversion from disparity to metres, see `KITTI_RIG`.
        mean, std: pixel statistics (RGB, 0 to 255) of the training, which belong to the weights.
    """

    def __init__(
        self,
        encoder: str = "vgg",
        width: float = 1.0,
        dropout: str = "final",
        rate: float = 0.5,
        batch_norm: bool = False,
        size: Sequence[int] = (256, 512),
        depth: Mapping[str, float] = KITTI_RIG,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        super().__init__()
        if encoder not in _ENCODERS:
            raise PenumbraError(f"unknown encoder {encoder!r}: use {' or '.join(_ENCODERS)}")
        if dropout not in DROPOUTS:
            raise PenumbraError(f"unknown dropout {dropout!r}: use {' or '.join(DROPOUTS)}")
        self.config = {
            "encoder": encoder,
            "width": width,
            "dropout": dropout,
            "rate": rate,
            "batch_norm": batch_norm,
            "size": list(size),
            "depth": dict(depth),
            "mean": list(mean),
            "std": list(std),
        }
        make = _Maker(width, batch_norm)
        self.encoder: _Encoder = _ENCODERS[encoder](make)
        stages = len(self.encoder.channels)
        self.pad = PadToMultiple(2**stages)
        self.crop = CropLike()
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.decoder = nn.ModuleDict()
        self.heads = nn.ModuleDict()
        channels = self.encoder.channels[-1]
        for level in range(stages, 0, -1):
            wanted = make.count(_DECODER[level - 1])
            # Inputs of this level: the upsampled decoder, the encoder's features of this size (none
            # at full size) and the two disparities of the next coarser scale.
            joined = wanted + (self.encoder.channels[level - 2] if level > 1 else 0)
            joined += 2 if level < SCALES else 0
            self.decoder[f"up{level}"] = make.convolution(channels, wanted, 3)
            self.decoder[f"join{level}"] = make.convolution(joined, wanted, 3)
            channels = wanted
            if level <= SCALES:
                self.heads[f"disparity{level}"] = nn.Conv2d(channels, 2, 3, padding=1)
        self.dropout = nn.Dropout(rate) if dropout == "final" else nn.Identity()
        self._initialise()

    def forward(self, image: Tensor) -> Tensor | list[Tensor]:
        """The disparity of a batch; in training mode all scales."""
        skips = self.encoder(self.pad(image))
        x = skips.pop()
        disparities: list[Tensor] = []
        for level in range(len(skips) + 1, 0, -1):
            parts = [self.decoder[f"up{level}"](self.upsample(x))]
            if skips:
                parts.append(skips.pop())
            if disparities:
                parts.append(self.upsample(disparities[-1]))
            x = self.decoder[f"join{level}"](torch.cat(parts, 1) if len(parts) > 1 else parts[0])
            if level == 1:
                x = self.dropout(x)
            if level <= SCALES:
                scores = self.heads[f"disparity{level}"](x)
                if level == 1 and not self.training:  # sliced before the sigmoid, to halve its cost
                    return LARGEST * torch.sigmoid(self.crop(scores[:, :1], image))
                disparities.append(LARGEST * torch.sigmoid(scores))
        return disparities[::-1]

    def _initialise(self) -> None:
        """He et al. 2015 for layers before an ELU; the initial disparity is `_INITIAL`."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        share = _INITIAL / LARGEST
        for head in self.heads.values():
            if isinstance(head, nn.Conv2d) and head.bias is not None:
                nn.init.xavier_uniform_(head.weight, gain=0.1)
                nn.init.constant_(head.bias, math.log(share / (1 - share)))


class _Maker:
    """Builds layers of a given width, with or without batch norm."""

    def __init__(self, width: float, batch_norm: bool) -> None:
        self.width, self.batch_norm = width, batch_norm

    def count(self, channels: int) -> int:
        return max(_FEWEST, round(channels * self.width))

    def convolution(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, activation: bool = True
    ) -> nn.Sequential:
        """Convolution, batch norm, ELU."""
        bias = not self.batch_norm
        layers: list[nn.Module] = [
            nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)
        ]
        if self.batch_norm:
            layers.append(nn.BatchNorm2d(outputs))
        if activation:
            layers.append(nn.ELU())
        return nn.Sequential(*layers)


class _Encoder(nn.Module):
    """Returns features of ever smaller size; `channels` are their channel counts."""

    channels: list[int]


class _Vgg(_Encoder):
    """Pairs of convolutions; features at 1/2, 1/4, … 1/128 of the size."""

    def __init__(self, make: _Maker) -> None:
        super().__init__()
        self.channels = [make.count(channels) for channels, _ in _VGG]
        self.blocks = nn.ModuleList()
        inputs = 3
        for outputs, (_, kernel) in zip(self.channels, _VGG, strict=True):
            first = make.convolution(inputs, outputs, kernel)
            self.blocks.append(nn.Sequential(first, make.convolution(outputs, outputs, kernel, 2)))
            inputs = outputs

    def forward(self, x: Tensor) -> list[Tensor]:
        features = []
        for block in self.blocks:
            x = block(x)
            features.append(x)
        return features


class _ResNet50(_Encoder):
    """Godard's ResNet50: batch norm only on request, stride in the last block of a stage.

    Features at 1/2 (first convolution), 1/4 (pooling), 1/8, … 1/64 of the size.
    """

    def __init__(self, make: _Maker) -> None:
        super().__init__()
        self.stem = make.convolution(3, make.count(64), 7, 2)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.channels = [make.count(64)] * 2
        self.stages = nn.ModuleList()
        for narrow, count in _RESNET50:
            inputs, narrow = self.channels[-1], make.count(narrow)
            blocks = []
            for number in range(count):
                stride = 2 if number == count - 1 else 1
                blocks.append(_Bottleneck(make, inputs, narrow, stride))
                inputs = 4 * narrow
            self.stages.append(nn.Sequential(*blocks))
            self.channels.append(inputs)

    def forward(self, x: Tensor) -> list[Tensor]:
        features = [self.stem(x)]
        features.append(self.pool(features[0]))
        for stage in self.stages:
            features.append(stage(features[-1]))
        return features


class _Bottleneck(nn.Module):
    def __init__(self, make: _Maker, inputs: int, narrow: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * narrow
        self.residual = nn.Sequential(
            make.convolution(inputs, narrow, 1),
            make.convolution(narrow, narrow, 3, stride),
            make.convolution(narrow, outputs, 1, activation=False),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)
        self.activation = nn.ELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.residual(x) + self.shortcut(x))


_ENCODERS: dict[str, Callable[[_Maker], _Encoder]] = {"vgg": _Vgg, "resnet50": _ResNet50}
