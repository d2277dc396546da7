"""Layers that have no rule for a reason, which the error says."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

_RECURRENT = (
    "; a recurrent layer feeds the same noise back at every step, so that its values are far from "
    "independent. Put the noise behind it, or sample it with monte_carlo"
)
_CUMULATIVE = (
    "; the sums of one row share most of their terms, so that later layers could not take them as "
    "independent"
)
_GRID = (
    "; at an uncertain position the sampled value is not a function of means and variances. Only "
    "the image may be uncertain, and for that give F.interpolate or a rule of your own"
)
_REASONS: dict[Any, str] = {
    **dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell), _RECURRENT),
    **dict.fromkeys((torch.cumsum, "cumsum", torch.cumprod, "cumprod"), _CUMULATIVE),
    F.grid_sample: _GRID,
}


def why_refused(target: Any) -> str:
    """The reason why a target has no rule, to be put behind "it has no rule"; or nothing."""
    return _REASONS.get(target, "")
