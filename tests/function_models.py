"""Models that are one function, for tests of single operations."""

from torch import nn


class Call(nn.Module):
    """A function of the input as a model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Net(nn.Module):
    """A model whose forward is a function of itself and the input, with layers by name."""

    def __init__(self, function, **layers: nn.Module):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.eval()

    def forward(self, x):
        return self.function(self, x)
