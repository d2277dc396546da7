"""Muon: orthogonal steps for convolutions, AdamW's for the rest, exact resumption."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from penumbra.offline.training.muon import Muon, orthogonalised


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3))
    return model.to(memory_format=torch.channels_last)


def muon(model: nn.Module, rate: float = 0.01, decay: float = 0.0) -> Muon:
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return Muon([groups[0] | {"orthogonal": True}, groups[1]], lr=rate)


def advance(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, seed: int = 3) -> None:
    torch.manual_seed(seed)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8, 8)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("shape", [(6, 20), (20, 6)])
def test_all_directions_become_equally_strong(shape):
    torch.manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    strengths = torch.logspace(0, -1, 6)
    turned = orthogonalised(u @ torch.diag(strengths) @ v)
    # In the same singular vectors, strengths of 1 to 0.1 all come out between 0.6 and 1.3.
    inner = u.mT @ turned @ v.mT
    off = inner - torch.diag(inner.diagonal())
    assert off.abs().max() < 1e-3
    assert inner.diagonal().min() > 0.6 and inner.diagonal().max() < 1.3


def test_a_step_of_a_convolution_does_not_depend_on_the_size_of_its_gradient():
    steps = []
    for factor in (1.0, 1000.0):
        model = network()
        optimizer = muon(model, rate=0.01)
        before = model[0].weight.detach().clone()
        (factor * model(torch.randn(2, 3, 8, 8)).square().mean()).backward()
        optimizer.step()
        steps.append(model[0].weight.detach() - before)
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-3, atol=1e-6)
    # An orthogonal 8 x 27 matrix has root mean square 1/√27; times 0.2 √27 as of AdamW.
    assert steps[0].square().mean().sqrt().item() == pytest.approx(0.2 * 0.01, rel=0.3)


def test_batch_norm_and_biases_move_as_with_adamw():
    mine, theirs = network(), network()
    advance(mine, muon(mine), 1)
    adamw = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.0)
    advance(theirs, adamw, 1)
    for (name, one), two in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        if one.ndim <= 1:
            torch.testing.assert_close(one, two, msg=name)
        else:
            assert not torch.allclose(one, two), name


def test_weight_decay_shrinks_weights_by_rate_times_decay():
    model = network()
    optimizer = muon(model, rate=0.1, decay=0.5)
    before = model[0].weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(model[0].weight.detach(), before * (1 - 0.1 * 0.5))


def test_a_restored_state_continues_bit_for_bit():
    whole = network()
    optimizer = muon(whole)
    advance(whole, optimizer, 3)
    resumed = network(seed=9)
    resumed.load_state_dict(whole.state_dict())
    other = muon(resumed)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    advance(whole, optimizer, 2, seed=5)
    advance(resumed, other, 2, seed=5)
    for one, two in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, two)
