"""Noise for a model that has none, without touching its code."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from penumbra.propagation.errors import PropagationError

_AFFINE = (nn.Linear, _ConvNd)
_DECODERS = ("decoder", "decode_head", "decode_heads", "up", "ups")


class Dropped(nn.Module):
    """A layer behind dropout, under the layer's own name.

    Attributes of the layer (`weight`, `in_features`) and the names in a state dict stay those of
    the layer, so that weights load before and after.
    """

    def __init__(self, layer: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.dropout, self.layer = dropout, layer
        self.training = layer.training
        self.register_state_dict_post_hook(_without_own_name)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_own_name)  # type: ignore[no-untyped-call]

    def forward(self, x: Any, *arguments: Any, **named: Any) -> Any:
        """The layer of the dropped input."""
        return self.layer(self.dropout(x), *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


def _without_own_name(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in [name for name in state if name.startswith(f"{prefix}layer.")]:
        state[prefix + name.removeprefix(f"{prefix}layer.")] = state.pop(name)


def _with_own_name(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        if not name.startswith(f"{prefix}layer."):
            state[f"{prefix}layer.{name.removeprefix(prefix)}"] = state.pop(name)


def add_dropout(
    model: nn.Module,
    rate: float,
    where: str | Iterable[str] = "head",
    kind: type[nn.Module] = nn.Dropout,
) -> nn.Module:
    """A copy of `model` with dropout in front of some of its layers.

    Its output says how the weights that were trained *without* noise react to noise, which is not
    yet how sure the model is: train or fine-tune it with the dropout (a few epochs at a tenth of
    the last learning rate), as MC dropout assumes. The names of its weights stay the same.

    Args:
        model: any model; it is not changed.
        rate: the share of elements that are dropped.
        where: "head": in front of the last affine layer; "decoder": in front of the last affine
            layer of each block of the model's decoder, and of the head; or the names of layers.
        kind: the dropout, such as `nn.Dropout2d` for whole channels.
    """
    if not 0 < rate < 1:
        raise PropagationError(f"a dropout rate of {rate}: it must be above 0 and below 1")
    dropped = copy.deepcopy(model)
    names = _names(dropped, where)
    for name in names:
        parent, _, attribute = name.rpartition(".")
        layer = dropped.get_submodule(name)
        dropped.get_submodule(parent).add_module(attribute, Dropped(layer, kind(rate)))
    for added in dropped.modules():
        if isinstance(added, Dropped):
            added.dropout.train(added.training)
    return dropped


def _names(model: nn.Module, where: str | Iterable[str]) -> list[str]:
    affine = [name for name, m in model.named_modules() if isinstance(m, _AFFINE) and name]
    if not affine:
        raise PropagationError("the model has no affine layer inside to put dropout in front of")
    if where == "head":
        return affine[-1:]
    if where == "decoder":
        return list(dict.fromkeys([*_ends_of_blocks(model, affine), affine[-1]]))
    if isinstance(where, str):
        where = [where]
    known = dict(model.named_modules())
    names = list(where)
    for name in names:
        if name not in known or not name:
            near = ", ".join(f"'{n}'" for n in affine[-5:])
            raise PropagationError(
                f"the model has no layer '{name}': give 'head', 'decoder' or names of its layers, "
                f"the last of which are {near}"
            )
    return names


def _ends_of_blocks(model: nn.Module, affine: list[str]) -> list[str]:
    """The last affine layer of every block of the decoder."""
    decoders = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in _DECODERS]
    if not decoders:
        children = ", ".join(f"'{name}'" for name, _ in model.named_children())
        raise PropagationError(
            f"the model has no part called {' or '.join(_DECODERS)}, but {children}: give the "
            "names of the layers"
        )
    first = decoders[0]
    blocks: list[str] = []
    for name, child in model.get_submodule(first).named_children():
        path = f"{first}.{name}"
        parts = isinstance(child, (nn.ModuleList, nn.Sequential, nn.ModuleDict))
        inner = [f"{path}.{part}" for part, _ in child.named_children()] if parts else [path]
        blocks += inner
    inside = ([n for n in affine if n == b or n.startswith(f"{b}.")] for b in blocks)
    return [names[-1] for names in inside if names]
