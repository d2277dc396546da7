"""Stacked training against autograd, and against one network trained alone."""

import pytest
import torch
from torch import nn

from penumbra.lab.experiments.regression import stacked_networks
from penumbra.lab.experiments.regression.stacked_networks import NetworkStack, train, weight_decay

SPLITS, ROWS, FEATURES, HIDDEN = 3, 150, 4, 7  # 150 rows: a whole batch and a partial one
RATES, DECAYS = [0.1, 0.3], [1e-2, 1e-4]


@pytest.fixture(scope="module")
def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SPLITS, ROWS, FEATURES, generator=generator)
    return x, (x[..., 0] * x[..., 1]).sin()


def fitted(problem, splits, points, epochs=6):
    x, y = problem
    of = torch.tensor(list(splits))
    rates = torch.tensor([RATES[p] for p in points]).expand(len(of), -1)
    decays = torch.tensor([DECAYS[p] for p in points]).expand(len(of), -1)
    return train(x[of], y[of], rates, decays, HIDDEN, epochs=epochs, seed=5, splits=list(splits))


def test_a_network_does_not_depend_on_those_trained_with_it(problem):
    together = fitted(problem, range(SPLITS), (0, 1))
    for split in range(SPLITS):
        for point in (0, 1):
            alone = fitted(problem, [split], [point])
            for name in ("w1", "b1", "w2", "b2"):
                # Adam divides by small gradients: rounding of 1e-7 grows over twelve steps.
                torch.testing.assert_close(
                    getattr(together, name)[split, point], getattr(alone, name)[0, 0],
                    rtol=1e-4, atol=1e-5,
                )  # fmt: skip
    assert (together.w1[0, 0] - together.w1[0, 1]).abs().max() > 1e-3  # the points do differ
    assert (together.w1[0, 0] - together.w1[1, 0]).abs().max() > 1e-3  # and the splits


def test_the_same_seed_gives_the_same_weights_and_another_does_not(problem):
    x, y = problem
    rates, decays = torch.full((SPLITS, 1), 0.1), torch.zeros(SPLITS, 1)
    first, second, other = (
        train(x, y, rates, decays, HIDDEN, epochs=2, seed=seed, splits=range(SPLITS)).w1
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.allclose(first, other)


def test_training_is_what_torch_does_step_by_step(problem, monkeypatch):
    """The written-out gradient, Adam and weight decay against autograd on the same masks."""
    x, y = (part[:1] for part in problem)
    masks = _recorded_masks(monkeypatch)
    result = train(x, y, torch.tensor([[0.3]]), torch.tensor([[1e-2]]), HIDDEN,
                   epochs=1, seed=0, splits=[0])  # fmt: skip
    orders = masks.orders
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    _set(model, masks.initial)
    optimizer = torch.optim.Adam(model.parameters(), lr=stacked_networks.RATE)
    for rows, (first, second) in zip(
        orders.split(stacked_networks.BATCH), masks.pairs(), strict=True
    ):
        hidden = model[1](model[0](x[0, rows] * first / 0.7)) * second / 0.7
        loss = (model[2](hidden)[:, 0] - y[0, rows]).square().mean()
        loss = loss + 1e-2 * sum(layer.weight.square().sum() for layer in (model[0], model[2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trained = result.network(0, 0)
    # After two steps of Adam at 1e-3 only rounding differs.
    for ours, theirs in zip(trained.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


class _recorded_masks:
    """Remember what `train` draws: first weights, the order of rows, the masks."""

    def __init__(self, monkeypatch):
        self.masks, draw, start = [], stacked_networks._kept, stacked_networks._initial

        def kept(generators, *args, **kwargs):
            if not self.masks:
                self.orders = torch.from_numpy(self._order)
            self.masks.append(draw(generators, *args, **kwargs)[0, 0].clone())
            return draw_again(self.masks[-1], kwargs.get("out"))

        def draw_again(mask, out):
            return mask[None, None] if out is None else out.copy_(mask[None])

        def initial(generators, *args):
            weights = start(generators, *args)
            self.initial = [w.clone() for w in weights]
            copy = type(generators[0])(type(generators[0].bit_generator)())
            copy.bit_generator.state = generators[0].bit_generator.state
            self._order = copy.permutation(ROWS)
            return weights

        monkeypatch.setattr(stacked_networks, "_kept", kept)
        monkeypatch.setattr(stacked_networks, "_initial", initial)

    def pairs(self):
        return list(zip(self.masks[::2], self.masks[1::2], strict=True))


def _set(model, initial):
    first, last = initial
    with torch.no_grad():
        model[0].weight.copy_(first[0].T)
        model[2].weight.copy_(last)
        model[0].bias.zero_()
        model[2].bias.zero_()


def test_masks_drop_at_the_rate():
    generators = [stacked_networks.np.random.default_rng(0)]
    threshold = stacked_networks.mask_threshold(torch.tensor([[0.005, 0.1, 0.5]]))[..., None, None]
    kept = stacked_networks._kept(generators, threshold, 1000, 1000)
    dropped = 1 - kept.mean((0, 2, 3))
    # A million draws: five standard errors of the smallest rate are 3.5e-4, of the largest 2.5e-3.
    assert abs(dropped[0] - 0.005) < 3.5e-4
    assert abs(dropped[1] - 0.1) < 1.5e-3
    assert abs(dropped[2] - 0.5) < 2.5e-3
    assert ((kept[:, 2] == 1) <= (kept[:, 0] == 1)).all()  # the same numbers for all points


def test_weight_decay_is_gal_s():
    decay = weight_decay(torch.tensor(0.1), torch.tensor(0.25), 400)
    assert float(decay) == pytest.approx(1e-4 * 0.9 / (2 * 400 * 0.25))


def test_a_network_of_the_stack_is_a_plain_module():
    generator = torch.Generator().manual_seed(1)
    w1, b1, w2, b2 = (torch.randn(2, 3, *shape, generator=generator)
                      for shape in ((4, 5), (5,), (5,), ()))  # fmt: skip
    one = NetworkStack(w1, b1, w2, b2, torch.full((2, 3), 0.2)).network(1, 2)
    x = torch.randn(6, 4, generator=generator)
    expected = (x @ w1[1, 2] + b1[1, 2]).relu() @ w2[1, 2] + b2[1, 2]
    torch.testing.assert_close(one(x)[:, 0], expected)
    assert [layer.p for layer in one if isinstance(layer, nn.Dropout)] == [pytest.approx(0.2)] * 2
