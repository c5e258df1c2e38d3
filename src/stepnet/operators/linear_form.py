"""Linear equations on grids as data: u' = sum of rates times differences along axes, or div(k grad u)."""

from __future__ import annotations

from typing import NamedTuple

from stepnet.operators.coefficient_operators import VariableDiffusion
from stepnet.operators.extension import AxisExtension
from stepnet.operators.linear import StencilOperator

VALUE, SQUARE, POSITIVE, NEGATIVE = "value", "square", "positive", "negative"


class Rate(NamedTuple):
    """sign g(p[argument]) with g the value, its square, its positive part or its negative part."""

    argument: int
    kind: str = VALUE
    sign: float = 1.0


class AxisTerm(NamedTuple):
    """rate times sum_j weights[j] u(x + offsets[j] h) along one axis, with u continued by `extension`."""

    rate: Rate
    offsets: tuple[int, ...]
    weights: tuple[float, ...]
    extension: AxisExtension


class LinearForm(NamedTuple):
    """A right-hand side as a sum of terms on a grid; the numbers of a source begin at p[source]."""

    shape: tuple[int, ...]
    terms: tuple[AxisTerm, ...]
    source: int | None = None


class DiffusionForm(NamedTuple):
    """The right-hand side div(k grad u), with the numbers of k from p[argument] on."""

    operator: VariableDiffusion
    argument: int = 0


def list_operator_terms(operator: StencilOperator, rate: Rate) -> tuple[AxisTerm, ...]:
    """The terms of rate times an operator."""
    parts = zip(operator.terms, operator.scaled, operator.extensions, strict=True)
    return tuple(AxisTerm(rate, term.stencil.offsets, weights, extension) for term, weights, extension in parts)


def depends_on_time(form: LinearForm) -> bool:
    """Whether a boundary value is a function of time."""
    rules = [rule for term in form.terms for rule in term.extension.rules or ()]
    return any(callable(rule.boundary.value) for rule in rules)
