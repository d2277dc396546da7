"""What can be wrong with a model that is to be propagated or sampled."""

from penumbra.errors import PenumbraError


class PropagationError(PenumbraError):
    """A model or an input that cannot be propagated; the message names the place."""


class UnsupportedLayerError(PropagationError):
    """A layer without a rule stands where its input is already uncertain."""


class UntraceableModelError(PropagationError):
    """torch.fx cannot turn the model's forward into a graph."""


class DuplicateRuleError(PropagationError):
    """A second rule was registered for a layer that has one."""
