"""Tracing along an example: sizes decide control flow, and what cannot be traced says where."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from penumbra.propagation import PropagationError, UntraceableModelError, monte_carlo, propagate

X = torch.randn(2, 3, 10, 12, generator=torch.Generator().manual_seed(0))


class Padded(nn.Module):
    """Sizes in `if`, `assert`, `int`, `range`, tuples and factories, as people write them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.drop = nn.Conv2d(3, 4, 3, padding=1), nn.Dropout(0.3)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x, scale=None):
        assert isinstance(x, torch.Tensor) and x.dim() == 4, "an image with its batch"
        batch, channels, height, width = x.shape
        if height % 4 != 0:
            x = F.pad(x, (0, 0, 0, 4 - height % 4))
        if scale is not None:
            x = x * scale
        for _ in range(min(channels, 2)):
            x = x + torch.zeros(x.size(0), 1, 1, int(width))
        y = self.head(self.drop(self.conv(x)))
        return y.reshape(batch, -1, y.shape[2] * y.shape[3])[:, :, : height * width]


def test_sizes_decide_control_flow():
    model = Padded().eval()
    with pytest.raises(UntraceableModelError, match="example=x"):
        propagate(model)
    walk = propagate(model, example=X)
    with torch.no_grad():
        out = walk(X)
        torch.testing.assert_close(out.mean, model(X))
    # Behind one dropout and one affine layer the variance is exact: 4 standard errors of √(2/n),
    # with room for the kurtosis of few masks.
    sampled = monte_carlo(model, X, samples=4000)
    assert abs(out.variance.mean() / sampled.variance.mean() - 1) < 0.02


def test_an_input_that_would_take_another_path_is_refused():
    walk = propagate(Padded().eval(), example=X)
    with pytest.raises(PropagationError, match="was traced where this is True, and here it is F"):
        walk(torch.randn(2, 3, 12, 12))


def test_sizes_that_decide_nothing_stay_free():
    class Free(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            if x.ndim != 4:
                raise ValueError("four dimensions")
            return self.drop(x).reshape(x.shape[0], -1).sum(1)

    walk = propagate(Free().eval(), example=X)
    other = torch.randn(5, 3, 4, 4)
    torch.testing.assert_close(walk(other).variance, other.square().sum((1, 2, 3)))


def test_the_example_is_not_changed():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            y = x * 1 if len(x.shape) == 4 else x
            y += 1
            return self.drop(y)

    before = X.clone()
    propagate(InPlace().eval(), example=X)
    assert torch.equal(before, X)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        if x.sum() > 0:  # the line that the error names
            return self.drop(x)
        return x


@pytest.mark.parametrize("example", [None, X])
def test_what_cannot_be_traced_names_file_and_line(example):
    lines, start = inspect.getsourcelines(Branching)
    line = start + next(i for i, text in enumerate(lines) if "that the error names" in text)
    with pytest.raises(UntraceableModelError, match=rf"test_example_tracing\.py:{line}\)"):
        propagate(Branching().eval(), example=example)


def test_torchs_own_transformer_is_traced_into():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Dropout(0.2)).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        out = propagate(model, example=x)(x)
        torch.testing.assert_close(out.mean, model(x), rtol=1e-4, atol=1e-5)


def test_sampling_traces_into_it_by_itself():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    sampled = monte_carlo(model, x, samples=200)
    with torch.no_grad():
        found = propagate(model, example=x)(x)
    assert abs(float(found.std.mean() / sampled.std.mean()) - 1) < 0.15


# ---- silence -------------------------------------------------------------------------------------


class Hidden(nn.Module):
    """Noise of one's own, which eval mode switches off."""

    def __init__(self, p):
        super().__init__()
        self.p, self.linear, self.seen = p, nn.Linear(12, 4), nn.Dropout(0.1)

    def forward(self, x):
        if self.training and self.p > 0:
            keep = torch.rand(x.shape[0], 1, 1, 1) > self.p
            x = x * keep / (1 - self.p)
        return self.seen(self.linear(x))


@pytest.mark.parametrize("example", [None, X])
def test_noise_behind_if_self_training_is_refused(example):
    model = Hidden(0.3).eval()
    with pytest.raises(PropagationError, match="noise only in training mode"):
        propagate(model, example=example)
    with pytest.raises(PropagationError, match="noise only in training mode"):
        monte_carlo(model, X, samples=2)
    assert not model.training
    assert not any(m.training for m in model.modules())
    propagate(Hidden(0.0).eval(), example=example)  # a rate of zero hides nothing


def test_what_else_training_mode_does_is_allowed():
    class Auxiliary(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.head, self.extra = nn.Dropout(0.5), nn.Linear(12, 2), nn.Linear(12, 2)

        def forward(self, x):
            y = self.head(self.drop(x))
            return (y, self.extra(x)) if self.training else y

    assert propagate(Auxiliary().eval())(X).variance.shape == (2, 3, 10, 2)


@pytest.mark.parametrize("model", [nn.Linear(12, 2), nn.Dropout(0.0)])
def test_a_model_without_noise_is_refused_when_it_is_called(model):
    with pytest.raises(PropagationError, match="no noise reaches the model's output"):
        propagate(model.eval())(X)
