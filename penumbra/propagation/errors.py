"""Errors of propagation and sampling. Each message names the place in the model."""

from penumbra.errors import PenumbraError


class PropagationError(PenumbraError):
    """A model or an input that cannot be propagated."""


class UnsupportedLayerError(PropagationError):
    """A layer without a rule has an uncertain input."""


class UntraceableModelError(PropagationError):
    """torch.fx cannot trace the model's forward."""


class HiddenNoiseError(UntraceableModelError):
    """A layer that is taken as one piece has noise inside."""


class DuplicateRuleError(PropagationError):
    """A layer that has a rule was given a second one."""
