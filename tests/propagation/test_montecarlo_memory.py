"""The memory of Monte-Carlo sampling does not grow with the number of samples."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from penumbra.propagation.montecarlo import _Sampler

PEAK = """
import resource, torch
from torch import nn
from penumbra.propagation.montecarlo import monte_carlo
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Dropout(0.5), nn.Conv2d(8, 11, 3)).eval()
for samples in (60, 360):
    monte_carlo(model, torch.randn(1, 3, 60, 80), samples=samples)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_samples():
    """80x60: one stored sample of 11 classes would be 0.4 MB in float64, 300 of them 120 MB."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    few, many = map(int, done.stdout.split())  # the process's peak in kB, so far
    assert many - few < 40_000


def test_images_are_sampled_few_at_a_time_and_vectors_by_the_thousand():
    image = _Sampler(nn.Sequential(nn.Dropout(0.5)).eval(), (torch.ones(1, 11, 360, 480),), {})
    vector = _Sampler(nn.Sequential(nn.Dropout(0.5)).eval(), (torch.ones(4, 16),), {})
    assert image.fitting_at_once() == 1
    assert vector.fitting_at_once() >= 1000
