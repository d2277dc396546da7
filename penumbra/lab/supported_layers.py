"""The table of all layers that have a rule: `python -m penumbra.lab.supported_layers`.

It is made from the registry, and docs/layers.md holds it; a test keeps the two equal.
"""

from __future__ import annotations

from collections import defaultdict

import penumbra.propagation.rules  # noqa: F401  (registers the rules)
from penumbra.propagation.registry import Target, describe, diagonal

# By the file of a rule: how far it is right, and the number of ATen operations of one propagated
# layer, views left out, where the plain layer has one or two (counted on a small input).
_FAMILIES = {
    "noise": ("exact", "7"),
    "stochastic_depth": (
        "exact for each element; that elements vary together by `coherent=True`",
        "7",
    ),
    "affine": ("exact for independent inputs", "6, of which one more pass with squared weights"),
    "contraction": ("exact for independent factors", "7; GLU 231"),
    "attention": (
        "first order; 0.75 to 1.34 of σ for weights that jump from key to key",
        "75, of which 11 matrix products",
    ),
    "arithmetic": ("exact for independent values, and for one value used twice", "4 to 8"),
    "activation": ("exact for a Gaussian input", "29"),
    "clipped": ("exact for a Gaussian input", "119"),
    "elu": ("1e-6 σ² for a Gaussian input", "195"),
    "logistic": ("3e-7 for a Gaussian input", "222"),
    "smooth": ("6e-6 for a Gaussian input; hardswish 6e-3 σ, mish 6e-5 σ", "539"),
    "positive": ("exact for a log-normal input; `var` for a Gaussian one", "10; `var` 25"),
    "normalization": ("batch norm exact; others first order", "10; others 35"),
    "softmax": ("first order, or 1 to 7 % of σ with `moment`", "24; `moment`: see [](rules.md)"),
    "pooling": (
        "averages exact; maxima take the largest mean, or 0.02 σ² with `moment`",
        "14; maxima 6",
    ),
    "selection": ("masks exact; maxima as in pooling", "6"),
    "resampling": ("exact for independent inputs", "12"),
    "structural": ("exact", "5"),
}


def table() -> str:
    """All targets by family, as Markdown."""
    families: dict[str, dict[str, None]] = defaultdict(dict)
    for target in diagonal.targets():
        name = _name(target)
        if not name.startswith("torch.TensorBase."):  # the methods of the same name are there
            families[_family(target)][name] = None
    unknown = sorted(families.keys() - _FAMILIES.keys())
    lines = ["| layers, functions and methods | right to | operations |", "| --- | --- | --- |"]
    for family in [*(name for name in _FAMILIES if name in families), *unknown]:
        names = ", ".join(f"`{name}`" for name in sorted(families[family], key=_order))
        exactness, cost = _FAMILIES.get(family, ("see its docstring", "see its docstring"))
        lines.append(f"| {names} | {exactness} | {cost} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """docs/layers.md."""
    return (
        "# Supported layers\n\n"
        "Every layer, function and method that has a rule, made from the registry by "
        "`python -m penumbra.lab.supported_layers`.\n"
        "*Right to* is for inputs as the rule assumes them: independent, and Gaussian where that "
        "is said. Measurements are in\n[](rules.md), whole networks in [](networks.md). Layers in "
        "front of the first noise source need no rule.\n*Operations* are the ATen operations of "
        "one propagated layer, views left out, where the plain layer has one or\ntwo.\n\n"
        "Refused, with the reason in the error: `nn.LSTM`, `nn.GRU`, `nn.RNN` (the same noise at "
        "every step), `cumsum`,\n`cumprod` (sums that share their terms), `F.grid_sample` "
        "(uncertain positions), `nn.FeatureAlphaDropout`.\n\n"
        f"{table()}"
    )


def _family(target: Target) -> str:
    rule = diagonal.find(target, diagonal.defaults)
    owner = getattr(rule, "__module__", "")
    if owner.endswith("registry"):  # a layer with the rule of a function
        function, _ = diagonal._layers[target]
        return _family(function)
    return owner.rpartition(".")[2]


def _name(target: Target) -> str:
    if isinstance(target, str):
        return target if "." in target else f".{target}()"
    return describe(target)


def _order(name: str) -> tuple[int, str]:
    """Layers first, then functions, then methods."""
    kinds = ("nn.", "F.", "torch.", "operator.")
    kind = next((i for i, start in enumerate(kinds) if name.startswith(start)), len(kinds))
    return kind, name


def main() -> None:
    """Print the page."""
    print(page(), end="")


if __name__ == "__main__":
    main()
