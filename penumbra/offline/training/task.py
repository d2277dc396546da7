"""What the training loop needs from a network and its data."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.data import Dataset

from penumbra.offline.models.network import Network


class ViewDataset(Dataset[Any], Sized):
    """Augmented views; the key is `(epoch, index)`, and the same key gives the same view.

    So a resumed run sees what the interrupted one would have seen, with any number of workers.
    """


class TrainingTask(Protocol):
    """A network, its data, its loss and its validation."""

    model: Network
    metric: str  # the validation figure to maximise

    def data(self) -> ViewDataset:
        """The training data."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The scalar to minimise; `model` is the task's, possibly wrapped for several GPUs."""

    def validate(self, model: Network) -> dict[str, float]:
        """Figures on held-out data; the model is in evaluation mode."""
