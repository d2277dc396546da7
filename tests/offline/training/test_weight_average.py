"""The moving average of weights."""

from __future__ import annotations

import torch
from torch import nn

from penumbra.offline.training.weight_average import WeightAverage


def test_average_formula():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = WeightAverage(model, decay=0.9)
    expected = {k: v.clone() for k, v in model.state_dict().items()}
    for step in (0, 1, 1000):
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape)) if tensor.is_floating_point() else tensor.add_(
                1
            )
        decay = min(0.9, (1 + step) / (10 + step))
        average.update(model, step)
        for key, value in model.state_dict().items():
            if value.is_floating_point():
                expected[key] = decay * expected[key] + (1 - decay) * value
            else:
                expected[key] = value
    for key, value in average.model.state_dict().items():
        torch.testing.assert_close(value, expected[key])
