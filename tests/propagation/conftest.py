"""References that share no code with the rules: integration, and a linear map as a matrix."""

import math

import numpy as np
import pytest
import torch


def _gaussian_moments(function, mean, std, corners=()):
    """E[f(X)] and Var[f(X)], X ~ N(mean, std²), by Gauss-Legendre on panels, in float64.

    Panels are a quarter of a standard deviation wide, half a unit where the function bends, and
    end at its corners: 20 nodes on each are exact to rounding. Beyond 12 standard deviations the
    mass is 4e-33.
    """
    edges = np.concatenate(
        [
            np.linspace(-12, 12, 97),
            (np.linspace(-45, 45, 181) - mean) / std,
            (np.asarray(corners, dtype=float) - mean) / std,
        ]
    )
    edges = np.unique(edges[np.abs(edges) <= 12])
    half, centre = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    nodes, weights = np.polynomial.legendre.leggauss(20)
    u = centre[:, None] + half[:, None] * nodes
    mass = half[:, None] * weights * np.exp(-0.5 * u**2) / math.sqrt(2 * math.pi)
    at_mean = function(torch.tensor(float(mean), dtype=torch.float64)).item()
    difference = function(torch.from_numpy(mean + std * u)).numpy() - at_mean
    first = (mass * difference).sum()
    return at_mean + first, (mass * (difference - first) ** 2).sum()


def _matrix_of(function, shape):
    """(A, b) of the affine map x ↦ A x + b on tensors of a shape, from its values at unit vectors.

    The map is asked one vector at a time, as a user would.
    """
    size = math.prod(shape)
    offset = function(torch.zeros(shape, dtype=torch.float64))
    units = torch.eye(size, dtype=torch.float64)
    columns = [(function(unit.reshape(shape)) - offset).flatten() for unit in units]
    return torch.stack(columns, 1), offset


@pytest.fixture(scope="session")
def gaussian_moments():
    return _gaussian_moments


@pytest.fixture(scope="session")
def matrix_of():
    return _matrix_of


def _through_onnx(model, x):
    """The outputs of the model exported to ONNX, as ONNX Runtime computes them."""
    import onnxruntime

    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})


@pytest.fixture(scope="session")
def through_onnx():
    return _through_onnx


@pytest.fixture
def exporting(monkeypatch):
    """Rules take the form that goes into an exported graph."""
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)


class _Function(torch.nn.Module):
    """A function as a model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def _against_samples(function, *inputs, samples=20_000, **options):
    """The moments of a function of Gaussian inputs: by its rules, and by sampling."""
    from penumbra.propagation import monte_carlo, propagate

    model = _Function(function).eval()
    with torch.no_grad():
        found = propagate(model, example=inputs, **options)(*inputs)
    return found, monte_carlo(model, *inputs, samples=samples)


@pytest.fixture(scope="session")
def against_samples():
    return _against_samples
