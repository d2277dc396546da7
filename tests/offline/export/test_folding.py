"""Folded and narrowed layers give the same moments."""

import pytest
import torch
from torch import nn

from penumbra.offline.export.folding import fold_batch_norms, narrow_convolutions
from penumbra.propagation import propagate
from penumbra.propagation.gains import Gains, set_gains


class FirstOutputs(nn.Module):
    """Two convolutions of which the first `count` outputs are read, or all of them as well."""

    def __init__(self, count=1, also_all=False):
        super().__init__()
        self.noise = nn.Dropout(0.2)
        self.before = nn.Conv2d(3, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.head = nn.Conv2d(5, 4, 3, padding=1)
        self.count, self.also_all = count, also_all

    def forward(self, x):
        scores = self.head(self.norm(self.before(self.noise(x))))
        first = scores[:, : self.count]
        return first + scores.mean(1, keepdim=True) if self.also_all else first


@pytest.fixture
def image():
    return torch.randn(2, 3, 6, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def made(**options):
    torch.manual_seed(1)
    model = FirstOutputs(**options).double()
    nn.init.uniform_(model.norm.running_var, 0.5, 2)
    nn.init.uniform_(model.norm.weight, 0.5, 2)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize(("options", "left"), [({}, 1), ({"count": 3}, 3), ({"also_all": True}, 4)])
def test_unread_outputs_are_removed(options, left, image):
    model = made(**options)
    expected = propagate(model)(image)
    walk = fold_batch_norms(propagate(model))
    narrow_convolutions(walk)
    found = walk(image)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.variance, expected.variance, rtol=1e-12, atol=1e-12)
    assert len(walk.model.get_submodule("head").weight) == left
    assert len(model.head.weight) == 4  # the model itself stays as it is
    assert not any("norm" in str(node.target) for node in walk.model.graph.nodes)


@torch.no_grad()
def test_gains_are_narrowed_with_their_layer(image):
    model = made()
    gains = torch.rand(4, 5, 1, 1, dtype=torch.float64)
    set_gains(model.head, Gains(gains))
    expected = propagate(model)(image)
    walk = fold_batch_norms(propagate(model))
    narrow_convolutions(walk)
    torch.testing.assert_close(walk(image).variance, expected.variance, rtol=1e-12, atol=0)
