"""Products with sums: einsum, addcmul, addmm, and gated linear units."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penumbra.propagation.errors import PropagationError
from penumbra.propagation.moments import Moments
from penumbra.propagation.registry import layer, rule
from penumbra.propagation.rules.affine import matrix_product
from penumbra.propagation.rules.arithmetic import add, multiply


@rule(torch.einsum)
def einsum(equation: str, *operands: Any) -> Moments:
    """Σ Π x for independent factors, as a matrix product: V_x y² + x² V_y + V_x V_y, summed.

    One or two operands may be uncertain. Every index that is summed must stand in each uncertain
    operand: elsewhere one of its elements would be summed with itself.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    places = [i for i, value in enumerate(operands) if isinstance(value, Moments)]
    inputs, _, output = equation.replace(" ", "").partition("->")
    names = inputs.split(",")
    if "->" not in equation or len(places) > 2:
        raise PropagationError(
            "einsum has a rule for equations with '->' and at most two uncertain operands"
        )
    summed = set("".join(names)) - set(output) - set(".")
    for place in places:
        if not summed <= set(names[place]) or len(set(names[place])) < len(
            names[place].replace("...", ".")
        ):
            raise PropagationError(
                f"einsum '{equation}' sums the uncertain operand {place} with itself: sum the "
                "other operand over that index first"
            )
    if len(places) == 2 and operands[places[0]] is operands[places[1]]:
        raise PropagationError("einsum of an uncertain value with itself has no rule")
    means = [value.mean if isinstance(value, Moments) else value for value in operands]
    squares = [mean.square() for mean in means]

    def with_variances(chosen: list[int]) -> Tensor:
        values = [operands[i].variance if i in chosen else s for i, s in enumerate(squares)]
        result: Tensor = torch.einsum(equation, *values)
        return result

    variance = sum((with_variances([i]) for i in places[1:]), with_variances(places[:1]))
    if len(places) == 2:
        variance = variance + with_variances(places)
    return Moments(torch.einsum(equation, *means), variance)


@rule(torch.addcmul, "addcmul", "addcmul_")
def add_product(x: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Moments:
    """x + value · tensor1 · tensor2, as the two operations."""
    exact = not isinstance(tensor1, Moments) and not isinstance(tensor2, Moments)
    return add(x, tensor1 * tensor2 if exact else multiply(tensor1, tensor2), alpha=value)


@rule(torch.addmm, torch.baddbmm, "addmm", "baddbmm")
def add_matrix_product(x: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """β x + α mat1 @ mat2, as the operations."""
    exact = not isinstance(mat1, Moments) and not isinstance(mat2, Moments)
    product = mat1 @ mat2 if exact else matrix_product(mat1, mat2)
    scaled = multiply(x, beta) if isinstance(x, Moments) else x * beta
    return add(scaled, product, alpha=alpha)


def _gated(form: str) -> None:
    from penumbra.propagation.registry import diagonal

    @rule(F.glu, smooth=form)
    def gated_linear_unit(x: Moments, dim: int = -1) -> Moments:
        """a sigmoid(b) of the two halves of x, taken as independent."""
        (a, b), (v, w) = x.mean.chunk(2, dim), x.variance.chunk(2, dim)
        sigmoid = diagonal.find(torch.sigmoid, {**diagonal.defaults, "smooth": form})
        if sigmoid is None:
            raise PropagationError("sigmoid has no rule")
        return multiply(Moments(a, v), sigmoid(Moments(b, w)))


_gated("moment")
_gated("jacobian")
layer(nn.GLU, F.glu, "dim")
