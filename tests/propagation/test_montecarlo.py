"""The Monte-Carlo reference against enumeration of all masks, numpy, and plain training mode."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from function_models import Net
from torch import Tensor, nn

from penumbra.propagation import (
    AdditiveGaussianNoise,
    ExactMoments,
    Moments,
    MultiplicativeGaussianNoise,
    PropagationError,
    fit_batchnorm_noise,
    noise,
    propagate,
)
from penumbra.propagation.montecarlo import _Accumulator, _Sampler, monte_carlo

RATE = 0.4
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def nonlinear() -> nn.Sequential:
    torch.manual_seed(0)
    return (
        nn.Sequential(
            nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Dropout(RATE), nn.Linear(5, 3), nn.Tanh()
        )
        .double()
        .eval()
    )


def enumerated(head, activation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and fourth central moment over every mask of each batch element."""
    keep = torch.tensor(list(itertools.product([0.0, 1.0], repeat=activation.shape[1])))
    keep = keep.double()
    weight = ((1 - RATE) ** keep * RATE ** (1 - keep)).prod(1).reshape(-1, 1, 1)
    results = head(activation * keep.unsqueeze(1) / (1 - RATE))
    mean = (weight * results).sum(0)
    deviation = results - mean
    return mean, (weight * deviation**2).sum(0), (weight * deviation**4).sum(0)


def assert_within_four_standard_errors(out: Moments, mean, variance, fourth, samples):
    """Few outputs and a fixed seed: 6e-5 of them would exceed four by chance."""
    assert ((out.mean - mean).abs() <= 4 * (variance / samples).sqrt()).all()
    assert ((out.variance - variance).abs() <= 4 * ((fourth - variance**2) / samples).sqrt()).all()


@pytest.mark.parametrize(("samples", "at_once"), [(20_000, None), (20_000, 999), (1000, 1)])
@torch.no_grad()
def test_enumerated_masks(samples, at_once):
    """The distribution over all masks, sampled together and one by one."""
    model = nonlinear()
    expected = enumerated(model[3:], model[:2](X))
    out = monte_carlo(model, X, samples=samples, at_once=at_once)
    assert out.mean.dtype == out.variance.dtype == torch.float64
    assert_within_four_standard_errors(out, *expected, samples)


@pytest.mark.parametrize("at_once", [1, 7, None])
def test_the_moments_are_those_of_the_samples(at_once, monkeypatch):
    """Unbiased (n - 1), against numpy on the same samples."""
    recorded = []
    add = _Accumulator.add
    monkeypatch.setattr(_Accumulator, "add", lambda self, b: (recorded.append(b), add(self, b))[1])
    out = monte_carlo(nonlinear(), X, samples=50, at_once=at_once)
    samples = np.concatenate([batch.numpy() for batch in recorded])
    assert samples.shape == (50, 2, 3)
    np.testing.assert_allclose(out.mean, samples.mean(0), rtol=1e-12)
    np.testing.assert_allclose(out.variance, samples.var(0, ddof=1), rtol=1e-10)
    assert len({sample.tobytes() for sample in samples}) > 25  # of 2^10 masks


def test_streaming_is_stable_far_from_zero():
    """A mean of 1e8 with a variance of one: sums of squares would lose every digit."""
    values = 1e8 + torch.randn(1000, 3, generator=torch.Generator().manual_seed(1)).double()
    stream = _Accumulator()
    for part in values.split(7):
        stream.add(part)
    reference = np.var(values.numpy() - 1e8, axis=0, ddof=1)
    np.testing.assert_allclose(stream.moments().variance, reference, rtol=1e-9)


# ---- reproducible, without side effects ----------------------------------------------------------


def test_the_seed_decides():
    first, again, other = (monte_carlo(nonlinear(), X, samples=20, seed=s) for s in (3, 3, 4))
    assert torch.equal(first.mean, again.mean)
    assert torch.equal(first.variance, again.variance)
    assert not torch.equal(first.mean, other.mean)


def test_the_callers_random_state_and_the_modules_modes_are_left_alone():
    model = nonlinear()
    model[0].train()
    modes = [module.training for module in model.modules()]
    broken = nn.Sequential(nn.Linear(4, 4), nn.Dropout(RATE), nn.Linear(9, 2)).double().eval()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    monte_carlo(model, X, samples=10)
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(PropagationError, match=r"layer '2' \(nn\.Linear\): mat1"):
        monte_carlo(broken, X, samples=10)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in broken.modules())


def test_only_the_noise_of_a_noise_layer_is_switched_on():
    class Block(nn.Module):
        """A user's noise layer, with a batch norm inside that must stay in eval mode."""

        def __init__(self):
            super().__init__()
            self.norm, self.drop = nn.BatchNorm1d(4).double(), nn.Dropout(RATE)

        def forward(self, x):
            if self.norm.training:
                raise AssertionError("batch norm was switched on")
            return self.drop(self.norm(x)) if self.training else x

    noise(Block)(lambda layer, x: x)
    out = monte_carlo(nn.Sequential(Block()).eval(), X, samples=50)
    assert (out.variance > 0).all()


def test_gradients_are_off_and_inference_mode_is_allowed():
    assert not monte_carlo(nonlinear(), X, samples=5).mean.requires_grad
    with torch.inference_mode():
        inside = monte_carlo(nonlinear(), X, samples=5)
    assert torch.equal(inside.mean, monte_carlo(nonlinear(), X, samples=5).mean)


# ---- the part before the noise -------------------------------------------------------------------


def test_the_prefix_is_computed_once_and_the_rest_for_each_sample():
    model = nonlinear()
    calls = {0: 0, 3: 0}
    for index in calls:
        model[index].register_forward_hook(
            lambda *_, index=index: calls.__setitem__(index, calls[index] + 1)
        )
    monte_carlo(model, X, samples=10, at_once=1)
    assert calls == {0: 1, 3: 10}


IN_PLACE = {
    "the first noise layer": lambda net, x: net.drop_in_place(net.first(x)) * 2,
    "after a rate of zero": lambda net, x: net.noise(net.nothing(net.first(x)).add_(1)),
    "functional": lambda net, x: F.dropout(net.first(x), RATE, False, True),
    "functional by name": lambda net, x: F.dropout(input=net.first(x), p=RATE, inplace=True),
    "in the prefix, read before": lambda net, x: _read_before(net, net.first(x)),
    "exact += noisy": lambda net, x: _added(net.first(x), net.noise(x[:, :3])),
    "the caller's input": lambda net, x: net.noise(x.add_(1)),
}


def _read_before(net, exact):
    product = net.noise(exact) * (exact + 0)
    return product + exact.detach().clone().add_(5)


def _added(exact, noisy):
    exact += noisy
    return exact


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("at_once", [1, None])
def test_kept_values_survive_overwriting(name, at_once):
    """Against training mode: every sample from a fresh copy of the input.

    400 samples of each; the difference of two independent means has the standard error
    sqrt(2 var/n), and 4.5 of them are exceeded in 7e-6 of the (six or eight) outputs.
    """
    torch.manual_seed(0)
    layers = {
        "first": nn.Linear(4, 3), "noise": nn.Dropout(RATE), "nothing": nn.Dropout(0.0),
        "drop_in_place": nn.Dropout(RATE, inplace=True),
    }  # fmt: skip
    x = X.float()
    model = Net(IN_PLACE[name], **layers)
    before = x.clone()
    out = monte_carlo(model, x, samples=400, at_once=at_once)
    assert torch.equal(x, before)
    model.train()
    if "functional" in name:
        model = Net(lambda net, x: F.dropout(net.first(x), RATE, True), **layers)
    torch.manual_seed(1)
    with torch.no_grad():
        samples = torch.stack([model(x.clone()) for _ in range(400)]).double()
    error = 4.5 * (2 * samples.var(0) / 400).sqrt()
    assert (error > 0).all()
    assert ((out.mean - samples.mean(0)).abs() <= error).all()


def test_a_value_overwritten_in_the_prefix_after_the_noise_has_read_it():
    """The prefix runs ahead of the samples, so it must overwrite a copy only."""

    def forward(net, x):
        exact = net.first(x)
        product = net.noise(x) * exact
        return product + exact.relu_()

    torch.manual_seed(0)
    model = Net(forward, first=nn.Linear(4, 4).double(), noise=nn.Dropout(1e-9))
    with torch.no_grad():
        exact = model.first(X)
        out = monte_carlo(model, X, samples=5)
    torch.testing.assert_close(out.mean, X * exact + exact.relu())


# ---- models of all kinds -------------------------------------------------------------------------


def test_a_model_that_mixes_its_batch_is_sampled_faithfully():
    """Softmax over the batch, then the batch folded into features."""
    model = Net(
        lambda net, x: net.noise(x).softmax(0).reshape(1, -1).flip(1).cumsum(1),
        noise=nn.Dropout(RATE),
    )
    together = monte_carlo(model, X, samples=4000)
    one_by_one = monte_carlo(model, X, samples=4000, at_once=1, seed=1)
    error = (2 * one_by_one.variance / 4000).sqrt()
    assert together.mean.shape == (1, 8)
    assert ((together.mean - one_by_one.mean).abs() <= 4 * error + 1e-12).all()
    torch.testing.assert_close(together.variance, one_by_one.variance, rtol=0.2, atol=1e-12)


def test_layers_that_vmap_does_not_know_are_sampled_one_by_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(RATE), nn.LSTM(4, 3)).double().eval()
    output, (hidden, _) = monte_carlo(model, X, samples=50)
    assert output.mean.shape == (2, 3)
    assert (output.variance > 0).all()
    torch.testing.assert_close(hidden.mean[0], output.mean[-1])
    with pytest.raises(PropagationError, match=r"layer '1' \(nn\.LSTM\)"):
        monte_carlo(model, X, samples=50, at_once=2)


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise, self.first, self.second = nn.Dropout(RATE), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, y, *, scale=2.0):
        noisy, exact = self.first(self.noise(x)) * scale, self.second(y)
        return {"noisy": [noisy, exact], "split": noisy.chunk(3, 1), "exact": (exact, 7)}


def test_several_inputs_and_outputs_exact_ones_beside_noisy_ones():
    torch.manual_seed(0)
    model = Several().double().eval()
    out = monte_carlo(model, X, y=X + 1, samples=20_000, scale=3.0)
    judge = propagate(model)(X, X + 1, scale=3.0)  # exact for this model
    noisy, exact = out["noisy"]
    assert type(out) is dict
    assert type(out["noisy"]) is list
    assert isinstance(exact, ExactMoments)
    assert isinstance(out["exact"][0], ExactMoments)
    assert out["exact"][1] == 7
    assert torch.equal(exact.mean, judge["noisy"][1].mean)
    # Sums of four dropped-out terms have less kurtosis than a Gaussian's: sqrt(2/n) per error.
    torch.testing.assert_close(
        noisy.variance, judge["noisy"][0].variance, rtol=4 * (2 / 20_000) ** 0.5, atol=0
    )
    torch.testing.assert_close(torch.cat([s.mean for s in out["split"]], 1), noisy.mean)


def test_uncertain_inputs_are_drawn_as_gaussians():
    variance = torch.rand(2, 4, generator=torch.Generator().manual_seed(2)).double()
    model = nn.Sequential(nn.Linear(4, 3)).double().eval()
    for at_once in (None, 50):
        out = monte_carlo(model, Moments(X, variance), samples=20_000, at_once=at_once)
        expected = propagate(model)(Moments(X, variance))
        assert_within_four_standard_errors(
            out, expected.mean, expected.variance, 3 * expected.variance**2, 20_000
        )
    contained = Net(lambda net, x: x[0] + x[1])
    out = monte_carlo(contained, [Moments(X, variance), ExactMoments(X)], samples=20_000)
    torch.testing.assert_close(out.variance, variance, rtol=4 * (2 / 20_000) ** 0.5, atol=0)


def batch_norm_with_noise() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double().eval()
    return fit_batchnorm_noise(net, [torch.randn(64, 4).double() for _ in range(8)], 8)


NOISES = {
    "dropout": lambda: nn.Dropout(RATE),
    "additive": lambda: AdditiveGaussianNoise(0.5),
    "multiplicative": lambda: MultiplicativeGaussianNoise(0.5),
    "functional": lambda: Net(lambda net, x: F.dropout(x, RATE, training=net.training)),
    "torch.dropout": lambda: Net(lambda net, x: torch.dropout(x, RATE, False)),
    "alpha": lambda: nn.AlphaDropout(RATE),
    "channels": lambda: Net(lambda net, x: F.dropout1d(x.unsqueeze(-1), RATE, False).squeeze(-1)),
    "batch norm": batch_norm_with_noise,
}


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("at_once", [1, None])
def test_every_noise_source_is_on(name, at_once):
    """Against its rule, which is exact for the noise alone; 2000 samples, kurtosis below 20."""
    model = nn.Sequential(NOISES[name]()).eval()
    samples = 2000
    out = monte_carlo(model, X, samples=samples, at_once=at_once)
    with torch.no_grad():
        expected = propagate(model)(X)
    error = (expected.variance / samples).sqrt()
    assert ((out.mean - expected.mean).abs() <= 4.5 * error).all()
    relative = (out.variance / expected.variance - 1).abs()
    assert (relative <= 4.5 * (19 / samples) ** 0.5).all()


def test_noise_of_batch_elements_is_independent(monkeypatch):
    """Equal inputs, unequal samples, in one batch as in several."""
    recorded = []
    add = _Accumulator.add
    monkeypatch.setattr(_Accumulator, "add", lambda self, b: (recorded.append(b), add(self, b))[1])
    monte_carlo(nn.Sequential(nn.Dropout(0.5)).eval(), torch.ones(2, 3), samples=4000)
    samples = torch.cat(recorded).flatten(1).double()
    correlation = torch.corrcoef(samples.T)
    assert ((correlation - torch.eye(6)).abs() <= 4 / 4000**0.5).all()


# ---- bounded -------------------------------------------------------------------------------------


def test_the_prefix_is_freed_on_the_way():
    layers = [nn.Linear(4, 4) for _ in range(6)]
    sampler = _Sampler(nn.Sequential(*layers, nn.Dropout(0.5)).eval(), (X.float(),), {})
    assert len(sampler._kept) == 1


def test_progress_is_shown_when_asked(capsys):
    monte_carlo(nonlinear(), X, samples=30, at_once=10)
    assert capsys.readouterr().err == ""
    monte_carlo(nonlinear(), X, samples=30, at_once=10, progress=True)
    assert "30/30" in capsys.readouterr().err


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "inputs", "options", "message"),
    [
        (nn.Sequential(nn.Linear(4, 2)), (X,), {}, "no noise reaches the model's output"),
        (nn.Sequential(nn.Dropout(0.5)), (X,), {"samples": 1}, "at least 2 samples, not 1"),
        (nn.Sequential(nn.Dropout(0.5)), (X,), {"at_once": 0}, "at_once must be at least 1"),
        (nn.Sequential(nn.Dropout(0.5)), (), {}, "the model's input 'input': it was not given"),
        (nn.Sequential(nn.Dropout(0.5)), (X, X), {}, "the model has no input for 1 more"),
        (nn.Sequential(nn.Dropout(0.5)), (Moments(X, X),), {}, "variance is negative"),
        (nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4).train()), (X,), {}, "statistics of the"),
        (nn.Sequential(nn.LSTM(4, 4, 2, dropout=0.5), nn.Dropout()), (X,), {}, "dropout inside"),
        (Net(lambda net, x: x + torch.randn_like(x)), (X,), {}, "draws random numbers"),
        (Net(lambda net, x: F.dropout(x).size(0)), (X,), {}, "returns a int, not a tensor"),
    ],
)
def test_refusals_say_what_is_wrong(model, inputs, options, message):
    with pytest.raises(PropagationError, match=message):
        monte_carlo(model, *inputs, **{"samples": 10, **options})
