"""SegNet (Badrinarayanan et al. 2017) with the dropout of Bayesian SegNet (Kendall et al. 2017).

Five encoder blocks like those of VGG16, each followed by a 2x2 max-pooling whose selection is kept;
five mirrored decoder blocks, each preceded by unpooling with the selection of its encoder; a 3x3
convolution as classifier. `width` scales all channel counts; 1.0 is the published network.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from penumbra.errors import PenumbraError
from penumbra.offline.models.network import MEAN, STD, Network
from penumbra.offline.models.padding import CropLike, PadToMultiple
from penumbra.offline.models.pooling import MaxPool2x2, MaxUnpool2x2

# Output channels of each convolution at width 1, block by block; the decoder mirrors the encoder.
ENCODER = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
DECODER = ((64,), (128, 64), (256, 256, 128), (512, 512, 256), (512, 512, 512))

# Where dropout can be: after an encoder block (and its pooling), or after a decoder block. The
# classifier follows `decoder1`.
PLACES = tuple(f"encoder{n}" for n in range(1, 6)) + tuple(f"decoder{n}" for n in range(5, 0, -1))
PLACEMENTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "class": ("decoder1",),
    "encdec": ("encoder3", "encoder4", "encoder5", "decoder5", "decoder4", "decoder3"),
}


class SegNet(Network):
    """Class scores (logits, N x classes x H x W) of a normalised RGB image (N x 3 x H x W).

    Args:
        classes: their names.
        width: factor on all channel counts.
        dropout: a placement of Bayesian SegNet (`encdec`, `class`, `none`) or a list of places
            (`encoder1` … `encoder5`, `decoder5` … `decoder1`); the weights are the same for all.
        rate: of the dropout.
        mean, std: pixel statistics (RGB, 0 to 255) of the training, which belong to the weights.
    """

    def __init__(
        self,
        classes: Sequence[str],
        width: float = 1.0,
        dropout: str | Sequence[str] = "encdec",
        rate: float = 0.5,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        super().__init__()
        places = dropout_places(dropout)
        self.config = {
            "classes": list(classes),
            "width": width,
            "dropout": dropout if isinstance(dropout, str) else list(dropout),
            "rate": rate,
            "mean": list(mean),
            "std": list(std),
        }
        self.pad = PadToMultiple(2 ** len(ENCODER))
        self.crop = CropLike()
        self.pool = MaxPool2x2()
        self.unpool = MaxUnpool2x2()
        self.encoder, self.decoder = nn.ModuleDict(), nn.ModuleDict()
        channels = 3
        for number, outputs in enumerate(ENCODER, start=1):
            self.encoder[f"encoder{number}"], channels = _block(channels, outputs, width)
        for number, outputs in reversed(list(enumerate(DECODER, start=1))):
            self.decoder[f"decoder{number}"], channels = _block(channels, outputs, width)
        self.classifier = nn.Conv2d(channels, len(classes), kernel_size=3, padding=1)
        self.dropout = nn.ModuleDict({place: nn.Dropout(rate) for place in places})
        self._initialise()

    def forward(self, image: Tensor) -> Tensor:
        """The class scores of a batch."""
        x = self.pad(image)
        selections = []
        for place, block in self.encoder.items():
            x, selection = self.pool(block(x))
            selections.append(selection)
            x = self._drop(x, place)
        for place, block in self.decoder.items():
            x = block(self.unpool(x, selections.pop()))
            x = self._drop(x, place)
        return self.crop(self.classifier(x), image)

    def _drop(self, x: Tensor, place: str) -> Tensor:
        return self.dropout[place](x) if place in self.dropout else x

    def _initialise(self) -> None:
        """He et al. 2015: keeps the variance of the activations through ReLU layers."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


class Probabilities(nn.Module):
    """A segmentation model followed by a softmax over the classes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.softmax = nn.Softmax(dim=1)

    def forward(self, image: Tensor) -> Tensor:
        """The class probabilities of a batch."""
        return self.softmax(self.model(image))


def dropout_places(dropout: str | Sequence[str]) -> tuple[str, ...]:
    """The places of a placement, given by its name or as a list."""
    if isinstance(dropout, str) and dropout in PLACEMENTS:
        return PLACEMENTS[dropout]
    places = tuple(dropout.split(",") if isinstance(dropout, str) else dropout)
    unknown = [place for place in places if place not in PLACES]
    if unknown:
        raise PenumbraError(
            f"unknown dropout place {unknown[0]!r}: use one of {', '.join(PLACEMENTS)}, "
            f"or a list of {', '.join(PLACES)}"
        )
    return places


def _block(channels: int, outputs: Sequence[int], width: float) -> tuple[nn.Sequential, int]:
    """Convolution, batch norm, ReLU for each of `outputs`, and the last channel count."""
    layers: list[nn.Module] = []
    for wanted in outputs:
        count = max(1, round(wanted * width))
        # No bias: the following batch norm would subtract it.
        layers += [
            nn.Conv2d(channels, count, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(count),
            nn.ReLU(),
        ]
        channels = count
    return nn.Sequential(*layers), channels
