"""Networks as one writes them in a file of one's own: no library, noise of every kind."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.lab.experiments.networks.catalogue import CLASSES, DROPOUT


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
    )  # fmt: skip


class _UNet(nn.Module):
    """Ronneberger et al. 2015 with padding to a multiple of eight, as many write it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(_block(i, o) for i, o in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(_block(3 * w, w) for w in reversed(widths[:-1]))
        self.drop = nn.Dropout(DROPOUT)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        assert x.shape[1] == 3, "an image has three channels"
        if height % 8 or width % 8:
            x = F.pad(x, (0, -width % 8, 0, -height % 8))
        skips = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for block in self.up:
            skip = skips.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = block(torch.cat([x, skip], 1))
        return self.head(self.drop(x))[..., :height, :width]


class _Depth(nn.Module):
    """An encoder and decoder for disparity, with Dropout2d in the decoder."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3), nn.ELU(),
            nn.Conv2d(width, 2 * width, 5, 2, 2), nn.ELU(),
            nn.Conv2d(2 * width, 4 * width, 3, 2, 1), nn.ELU(),
        )  # fmt: skip
        self.first = nn.Conv2d(4 * width, 2 * width, 3, padding=1)
        self.second = nn.Conv2d(2 * width, width, 3, padding=1)
        self.drop = nn.Dropout2d(DROPOUT)
        self.head = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.elu(self.first(F.interpolate(self.encoder(x), scale_factor=2)))
        y = F.elu(self.second(F.interpolate(y, scale_factor=2)))
        y = F.interpolate(self.drop(y), scale_factor=2, mode="bilinear")
        return 0.3 * torch.sigmoid(self.head(y))


class _Mixed(nn.Module):
    """A block of SegFormer: attention over reduced keys, then an MLP with a depthwise kernel."""

    def __init__(self, width: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.reduce = nn.Conv2d(width, width, reduction, reduction)
        self.out, self.drop = nn.Linear(width, width), nn.Dropout(0.1)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.depthwise = nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4 * width)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        y = self.norm1(tokens)
        small = self.reduce(y.transpose(1, 2).reshape(batch, channels, height, width))
        small = small.flatten(2).transpose(1, 2)
        q = self.q(y).reshape(batch, -1, self.heads, channels // self.heads).transpose(1, 2)
        kv = self.kv(small).reshape(batch, -1, 2, self.heads, channels // self.heads)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        y = self.out(y.transpose(1, 2).reshape(batch, -1, channels))
        tokens = tokens + self.drop(y)
        z = self.expand(self.norm2(tokens)).transpose(1, 2)
        z = self.depthwise(z.reshape(batch, 4 * channels, height, width))
        z = self.contract(F.gelu(z.flatten(2).transpose(1, 2)))
        tokens = tokens + self.drop(z)
        return tokens.transpose(1, 2).reshape(batch, channels, height, width)


class _SegFormer(nn.Module):
    """Xie et al. 2021 in small: two stages, an all-MLP decoder."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 4, 3)
        self.one, self.two = _Mixed(width, 2, 4), _Mixed(2 * width, 4, 2)
        self.merge = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.fuse = nn.Conv2d(3 * width, width, 1)
        self.norm, self.drop = nn.BatchNorm2d(width), nn.Dropout2d(0.1)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.one(self.stem(x))
        second = self.two(self.merge(first))
        second = F.interpolate(second, size=first.shape[2:], mode="bilinear")
        y = F.relu(self.norm(self.fuse(torch.cat([first, second], 1))))
        return F.interpolate(self.head(self.drop(y)), size=x.shape[2:], mode="bilinear")


class _Transformer(nn.Module):
    """torch's own encoder layers on patches, with a token for the class."""

    def __init__(self, width: int = 64, patch: int = 16, positions: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.1 * torch.randn(1, positions + 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, DROPOUT, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(tokens.shape[0], -1, -1), tokens], 1)
        return self.head(self.encoder(tokens + self.positions)[:, 0])


class _ResidualMLP(nn.Module):
    """Dropout in residual blocks on a flattened image."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(3 * 16 * 16, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1),
                nn.Linear(width, width),
            )
            for _ in range(depth)
        )  # fmt: skip
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(F.adaptive_avg_pool2d(x, 16).flatten(1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def unet() -> nn.Module:
    """An own U-Net."""
    return _UNet()


def depth() -> nn.Module:
    """An own depth network."""
    return _Depth()


def segformer() -> nn.Module:
    """A network like SegFormer."""
    return _SegFormer()


def transformer() -> nn.Module:
    """A small vision transformer of torch's own layers."""
    return _Transformer()


def residual_mlp() -> nn.Module:
    """Residual blocks with dropout."""
    return _ResidualMLP()
