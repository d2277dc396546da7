"""Softmax and log-softmax against autograd's Jacobian."""

import mpmath
import pytest
import torch
import torch.nn.functional as F
from function_models import Call
from torch import nn

from penumbra.propagation import Moments, propagate

SHAPES = {
    "F.softmax": (lambda x: F.softmax(x, dim=1), (2, 5, 3)),
    "last dimension": (lambda x: F.softmax(x, -1), (2, 3, 4)),
    "torch.softmax": (lambda x: torch.softmax(x, 0), (6,)),
    ".softmax()": (lambda x: x.softmax(dim=2), (2, 2, 3, 2)),
    "F.log_softmax": (lambda x: F.log_softmax(x, dim=1), (2, 5, 2)),
    ".log_softmax()": (lambda x: x.log_softmax(-2), (3, 4, 2)),
    "Softmax": (nn.Softmax(dim=1), (3, 4)),
    "Softmax2d": (nn.Softmax2d(), (2, 3, 2, 2)),
    "Softmax2d of one image": (nn.Softmax2d(), (3, 2, 2)),
    "LogSoftmax": (nn.LogSoftmax(dim=-1), (2, 3)),
}
UNSAID = {f"dim left out, {len(shape)}": shape for shape in ((4,), (3, 4), (3, 2, 2), (2, 3, 2, 2))}


@pytest.mark.parametrize("name", [*SHAPES, *UNSAID])
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_variance_is_the_squared_jacobian_times_the_variance(name):
    function, shape = SHAPES.get(name) or (nn.Softmax(dim=None), UNSAID[name])
    model = function if isinstance(function, nn.Module) else Call(function)
    generator = torch.Generator().manual_seed(0)
    mean = 3 * torch.randn(shape, dtype=torch.float64, generator=generator)
    variance = torch.rand(shape, dtype=torch.float64, generator=generator)
    out = propagate(model)(Moments(mean, variance))
    jacobian = torch.autograd.functional.jacobian(model, mean)
    jacobian = jacobian.reshape(mean.numel(), mean.numel())
    expected = (jacobian.square() @ variance.flatten()).reshape(shape)
    assert torch.equal(out.mean, model(mean))
    # sums of a few positive terms; autograd's Jacobian itself cancels to 1e-16 of s
    torch.testing.assert_close(out.variance, expected, rtol=1e-11, atol=1e-17)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [0.0, 3.0, 8.0, 15.0, 30.0])
def test_a_confident_class_keeps_its_variance(dtype, gap):
    """Relative precision where V_k (1 - 2 s_k) + Σ s_j² V_j would be a difference of ones."""
    logits = torch.tensor([gap, 0.5, 0.0, -1.0], dtype=dtype)
    variance = torch.tensor([2.0, 0.3, 1.0, 0.7], dtype=dtype)
    with mpmath.workdps(60):
        x, v = ([mpmath.mpf(value) for value in t.tolist()] for t in (logits, variance))
        s = [mpmath.exp(value) / sum(map(mpmath.exp, x)) for value in x]
        log = [sum(((j == k) - s[j]) ** 2 * v[j] for j in range(4)) for k in range(4)]
        plain = [s[k] ** 2 * log[k] for k in range(4)]
    for model, expected in ((nn.Softmax(0), plain), (nn.LogSoftmax(0), log)):
        got = propagate(model)(Moments(logits, variance)).variance
        # e^-30 is rounded to 30 x ε/2 by its exponent, and squared twice
        tolerance = 100 * torch.finfo(dtype).eps
        assert got.tolist() == pytest.approx([float(e) for e in expected], rel=tolerance, abs=0)


def test_two_equal_classes_are_exact():
    """s = (1/2, 1/2): neither is the likely one, and Var = (V_1 + V_2)/16."""
    out = propagate(nn.Softmax(0))(Moments(torch.zeros(2), torch.tensor([1.0, 3.0])))
    assert out.variance.tolist() == [0.25, 0.25]


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_the_dtype_that_is_asked_for_is_given(function):
    x = Moments(torch.randn(3, 4), torch.rand(3, 4))
    out = propagate(Call(lambda v: function(v, 1, dtype=torch.float64)))(x)
    assert out.mean.dtype == out.variance.dtype == torch.float64
    by_position = {F.softmax: torch.softmax, F.log_softmax: torch.log_softmax}[function]
    again = propagate(Call(lambda v: by_position(v, 1, torch.float64)))(x)
    assert torch.equal(out.variance, again.variance)


def test_probabilities_vary_together_to_zero():
    """Σ_k s_k = 1 has no variance, so two classes have the same."""
    generator = torch.Generator().manual_seed(1)
    mean, variance = (torch.rand(7, 2, generator=generator).double() for _ in range(2))
    out = propagate(nn.Softmax(1))(Moments(mean, variance))
    torch.testing.assert_close(out.variance[:, 0], out.variance[:, 1], rtol=1e-14, atol=0)
