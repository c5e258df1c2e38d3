"""Steps of implicit pairs with their error estimates, as step programs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.implicit import ImplicitRK
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.step_program import ProgramWriter, StepProgram


@lru_cache(maxsize=256)
def build_pair_program(scheme: Any, is_sum: bool = False) -> StepProgram | None:
    """The program of a step from row 0 whose outputs are the new state and the error estimate; None if explicit.

    `is_sum` says that the problem is a sum of parts.  Without an embedded result the estimate is zero.
    """
    if isinstance(scheme, AdditiveRK):
        return _write_additive(scheme) if is_sum else _write_diagonal(scheme.implicit_scheme)
    if isinstance(scheme, ImplicitRK):
        return _write_coupled(scheme) if not scheme.butcher.is_diagonally_implicit else _write_diagonal(scheme)
    return _write_rosenbrock(scheme) if isinstance(scheme, Rosenbrock) else None


def _write_coupled(scheme: ImplicitRK) -> StepProgram:
    writer, (A, b, c), (start, *weights) = ProgramWriter(2), scheme.butcher, scheme.estimate
    new = writer.add_slopes(0, [writer.solve(0, 0, A, c, b)], [1.0])
    terms = [(writer.solve(0, 0, A, c, weights), 1.0, 1)]
    return writer.program([new, _damp(writer, scheme, start, terms)])


def _write_diagonal(scheme: ImplicitRK) -> StepProgram:
    writer, (A, b, c), (start, *weights) = ProgramWriter(2), scheme.butcher, scheme.estimate
    k: list[int] = []
    for i in range(len(b)):
        stage = writer.add_slopes(0, k, A[i])
        k.append(writer.solve(0, stage, [[A[i, i]]], [c[i]]) if A[i, i] else writer.slope(0, stage, c[i]))
    terms = [(row, w, 1) for row, w in zip(k, weights, strict=True)]
    return writer.program([writer.add_slopes(0, k, b), _damp(writer, scheme, start, terms)])


def _damp(writer: ProgramWriter, scheme: ImplicitRK, start: float, terms: list[tuple[int, float, int]]) -> int:
    """The estimate, with the slope at the start of the step and (I - h damping J)^-1 where the scheme has them."""
    if not scheme.embedded:
        return 1
    if start:
        terms = [(writer.slope(0, 0, 0.0), start, 1), *terms]
    estimate = writer.sum(terms)
    return writer.linear_solve(0, 0, estimate, scheme.damping) if scheme.damping else estimate


def _write_rosenbrock(scheme: Rosenbrock) -> StepProgram:
    """In the transformed form, with stages v = u / h."""
    writer, arrays, form, gamma = ProgramWriter(2), scheme.arrays, scheme.transformed, scheme.gamma
    v: list[int] = []
    for i in range(len(scheme.b)):
        slope = writer.slope(0, writer.add_slopes(0, v, form.a[i]), arrays.c[i])
        row = writer.sum([(slope, gamma, 0), *((u, gamma * C, 0) for u, C in zip(v, form.C[i], strict=False))])
        v.append(writer.linear_solve(0, 0, row, gamma, gamma * arrays.d[i]))
    estimate = writer.sum([(u, e, 1) for u, e in zip(v, form.e, strict=True)]) if scheme.embedded else 1
    return writer.program([writer.add_slopes(0, v, form.m), estimate])


def _write_additive(scheme: AdditiveRK) -> StepProgram:
    """The part 0 of the problem is explicit, the part 1 implicit."""
    writer, explicit, implicit = ProgramWriter(2), scheme.explicit_table, scheme.implicit_table
    f: list[int] = []
    g: list[int] = []
    for i, c in enumerate(implicit.c):
        own, base = implicit.A[i, i], writer.add_slopes(0, (*f, *g), (*explicit.A[i, :i], *implicit.A[i, :i]))
        g.append(writer.solve(1, base, [[own]], [c]) if own else writer.slope(1, base, c))
        f.append(writer.slope(0, writer.add_slopes(base, [g[-1]], [own]), c))
    new = writer.add_slopes(0, (*f, *g), (*explicit.b, *implicit.b))
    if not scheme.embedded:
        return writer.program([new, 1])
    hats = (*scheme.embedded[0].b, *scheme.embedded[1].b)
    terms = [(k, hat - b, 1) for k, hat, b in zip((*f, *g), hats, (*explicit.b, *implicit.b), strict=True)]
    return writer.program([new, writer.sum(terms)])
