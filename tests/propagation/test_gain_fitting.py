"""Gains: what they multiply, fits with a known result, and gains of another model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from penumbra.propagation import PropagationError, propagate
from penumbra.propagation.gain_fitting import Example, fit_gains, with_gains
from penumbra.propagation.montecarlo import monte_carlo


class Coherent(nn.Module):
    """One noisy value, copied into four channels that are added up again.

    The copies are equal: the variance of their sum is 16 times that of a copy, instead of 4 times
    if they were independent. So the gain is 4.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.copy = nn.Conv2d(1, 4, 1, bias=False)
        self.add = nn.Conv2d(4, 2, 1, bias=False)
        nn.init.ones_(self.copy.weight)
        nn.init.ones_(self.add.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.add(self.copy(self.dropout(x)))


class Classifier(nn.Module):
    """Noise behind two layers of positive weights, which add it up, and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.features = nn.Sequential(
            nn.Dropout(0.3), nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
        )
        self.scores = nn.Conv2d(8, 3, 3, padding=1)
        for layer in (self.features[1], self.features[3]):
            layer.weight.data.abs_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.features(x)).softmax(1)


def examples(model: nn.Module, *inputs: torch.Tensor, samples: int = 400) -> list[Example]:
    found = []
    for seed, x in enumerate(inputs):
        reference = monte_carlo(model, x, samples=samples, seed=seed)
        found.append(Example(x, reference.mean.float(), reference.std.float(), samples))
    return found


def test_gains_multiply_the_squared_weights_of_their_layer():
    walk = propagate(Coherent().eval())
    x = torch.rand(1, 1, 3, 5)
    plain = walk(x)
    gains = {"add": torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.5] * 4]).reshape(2, 4, 1, 1)}
    found = with_gains(walk, gains)(x)
    # All four inputs of `add` have the same variance: the first output has (1+2+3+4)/4 of it.
    torch.testing.assert_close(found.variance[:, 0], plain.variance[:, 0] * 2.5)
    torch.testing.assert_close(found.variance[:, 1], plain.variance[:, 1] * 0.5)
    torch.testing.assert_close(found.mean, plain.mean)
    torch.testing.assert_close(with_gains(walk, {})(x).variance, plain.variance)


def test_a_fit_finds_the_coherence_that_the_diagonal_does_not_see():
    model = Coherent().eval()
    walk = propagate(model)
    # The truth instead of samples, and no bias of their number: Var = 16 x² p/(1-p).
    exact = [Example(x := torch.rand(1, 1, 4, 4) + 0.5, 4 * x.expand(1, 2, 4, 4),
                     4 * x.expand(1, 2, 4, 4), 10**9) for _ in range(4)]  # fmt: skip
    gains = fit_gains(walk, exact, steps=300)
    x = torch.rand(1, 1, 6, 6) + 0.5
    # Adam's last steps are near zero; what is left of the descent is under a percent.
    torch.testing.assert_close(walk(x).std, 4 * x.expand(1, 2, 6, 6), rtol=0.01, atol=0)
    assert gains.keys() == {"copy", "add"} and all((g > 0).all() for g in gains.values())


def test_a_fit_carries_over_to_other_inputs_and_to_the_softmax():
    model = Classifier().eval()
    torch.manual_seed(0)
    seen, unseen = torch.rand(6, 1, 2, 8, 8).unbind(), torch.rand(2, 1, 2, 8, 8).unbind()
    walk = propagate(model, softmax="moment")
    truth = examples(model, *unseen, samples=4000)

    @torch.no_grad()
    def error() -> float:
        off = [(walk(e.input).std - e.std).abs().mean() / e.std.mean() for e in truth]
        return float(sum(off) / len(off))

    before = error()
    fitted = examples(model, *seen)
    gains = fit_gains(walk, fitted, steps=150)
    assert gains["scores/loadings"].shape == (3, 8)
    assert gains["scores/taps"].shape == (8, 1, 3, 3)
    assert error() < 0.5 * before
    # Levelled: four rounds of a nearly linear correction leave less than a thousandth.
    with torch.no_grad():
        found = sum(float(walk(e.input).std.mean()) for e in fitted)
    assert found == pytest.approx(sum(float(e.unbiased_std.mean()) for e in fitted), rel=1e-3)


def test_the_same_seed_gives_the_same_gains():
    model = Classifier().eval()
    data = examples(model, torch.randn(1, 2, 8, 8), samples=50)
    first, second = (
        fit_gains(propagate(model, softmax="moment"), data, steps=5, seed=1) for _ in range(2)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_gains_of_another_model_are_refused():
    walk = propagate(Coherent().eval())
    with pytest.raises(PropagationError, match="gains for 'scores'.*'copy', 'add'"):
        with_gains(walk, {"scores": torch.ones(1, 1)})


def test_without_an_affine_layer_behind_noise_there_is_nothing_to_fit():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Dropout(0.5)).eval()
    x = torch.rand(1, 1, 2, 2)
    with pytest.raises(PropagationError, match="no gains to fit"):
        fit_gains(propagate(model), [Example(x, x, x, 10)], steps=1)


# ---- what a fit must not return ------------------------------------------------------------------


def test_a_fit_is_never_worse_than_its_start_on_held_out_examples():
    """One example is wrong by a factor of five, and it is among those that are fitted."""
    model = Classifier().eval()
    torch.manual_seed(0)
    data = examples(model, *torch.rand(8, 1, 2, 8, 8).unbind())
    walk = propagate(model, softmax="moment")
    start = fit_gains(walk, data, steps=60)
    wrong = [Example(e.input, e.mean, 5 * e.std, e.samples) for e in data[:-1]] + data[-1:]
    with pytest.warns(UserWarning, match="no gains that are better than the start"):
        kept = fit_gains(walk, wrong, steps=40, rate=0.3, start=start)
    assert all(torch.equal(kept[name], start[name]) for name in start)


def test_steps_that_are_not_finite_leave_no_trace():
    model = Classifier().eval()
    data = examples(model, *torch.rand(6, 1, 2, 8, 8).unbind(), samples=50)
    broken = Example(data[1].input * float("nan"), data[1].mean, data[1].std, 50)
    gains = fit_gains(propagate(model), [data[0], broken, *data[2:]], steps=30)
    assert all(bool(g.isfinite().all()) for g in gains.values())


def test_examples_of_another_output_are_refused():
    model = Classifier().eval()
    x = torch.rand(1, 2, 8, 8)
    (good,) = examples(model, x, samples=50)
    walk = propagate(model)

    def fit(mean, std):
        return fit_gains(walk, [Example(x, mean, std, 50)], steps=1)

    with torch.no_grad():
        scores = model.scores(model.features(x)) * 10
    with pytest.raises(PropagationError, match="of another output"):
        fit(scores, good.std)
    with pytest.raises(PropagationError, match=r"returns \(1, 3, 8, 8\)"):
        fit(good.mean[:, :1], good.std[:, :1])
    with pytest.raises(PropagationError, match="not finite"):
        fit(good.mean, good.std * float("nan"))
    with pytest.raises(PropagationError, match="zero everywhere"):
        fit(good.mean, good.std * 0)
    with pytest.raises(PropagationError, match="no examples"):
        fit_gains(walk, [], steps=1)
