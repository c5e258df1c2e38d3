"""Programs of Runge-Kutta, Rosenbrock, additive and exponential schemes."""

from __future__ import annotations

from typing import Any

from stepnet.schemes.exponential import ExponentialRK, PhiTerm
from stepnet.schemes.imex import AdditiveRK
from stepnet.schemes.partitioned_rk import PartitionedRK
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.step_program.operations import StepProgram
from stepnet.schemes.step_program.program_writer import ProgramWriter
from stepnet.schemes.tableau import Butcher


def write_runge_kutta(table: Butcher) -> StepProgram:
    writer = ProgramWriter(1)
    return writer.program([writer.runge_kutta_step(table, 0)])


def write_pair(scheme: PartitionedRK) -> StepProgram:
    """All stages of (q, p) together, on one row."""
    writer = ProgramWriter(1)
    return writer.program(
        [writer.add_slopes(0, [writer.solve(0, 0, scheme.A, scheme.c, scheme.b, scheme.A_hat)], [1.0])]
    )


def write_rosenbrock(scheme: Rosenbrock) -> StepProgram:
    """In the transformed form, with stages v = u / h."""
    writer, arrays, form, gamma = ProgramWriter(1), scheme.arrays, scheme.transformed, scheme.gamma
    v: list[int] = []
    for i in range(len(scheme.b)):
        slope = writer.slope(0, writer.add_slopes(0, v, form.a[i]), arrays.c[i])
        row = writer.sum([(slope, gamma, 0), *((u, gamma * C, 0) for u, C in zip(v, form.C[i], strict=False))])
        v.append(writer.linear_solve(0, 0, row, gamma, gamma * arrays.d[i]))
    return writer.program([writer.add_slopes(0, v, form.m)])


def write_additive(scheme: AdditiveRK) -> StepProgram:
    writer = ProgramWriter(1)
    return writer.program([write_additive_step(writer, scheme, 0)])


def write_additive_step(writer: ProgramWriter, scheme: AdditiveRK, row: int, clock: int = 0) -> int:
    """Stage by stage: the part 1 of the problem is implicit, then the part 0 is evaluated at the stage."""
    explicit, implicit = scheme.explicit_table, scheme.implicit_table
    f: list[int] = []
    g: list[int] = []

    def move(to_f: Any, to_g: Any) -> int:
        return writer.add_slopes(row, (*f, *g), (*to_f[: len(f)], *to_g[: len(g)]))

    for i, c in enumerate(clock + implicit.c):
        own, base = implicit.A[i, i], move(explicit.A[i], implicit.A[i])
        g.append(writer.solve(1, base, [[own]], [c]) if own else writer.slope(1, base, c))
        stage = writer.add_slopes(base, [g[-1]], [own])
        f.append(writer.slope(0, stage, c))
    return move(explicit.b, implicit.b)


def write_exponential(scheme: ExponentialRK) -> StepProgram:
    """Stages in turn; the part 0 of the problem is explicit, the other one linear."""
    writer = ProgramWriter(1)
    k: list[int] = []

    def advance(c: float, coefficients: Any) -> int:
        start = writer.phi(0, (PhiTerm(1.0, 0, c),)) if c else 0
        alike: dict[Any, list[int]] = {}
        for slope, terms in zip(k, coefficients, strict=True):
            if terms:
                alike.setdefault(terms, []).append(slope)
        sums = ((writer.sum([(row, 1.0, 0) for row in rows]), terms) for terms, rows in alike.items())
        return writer.add_slopes(start, [writer.phi(row, terms) for row, terms in sums], [1.0] * len(alike))

    for c, coefficients in zip(scheme.c, scheme.A, strict=True):
        k.append(writer.slope(0, advance(c, coefficients), c))
    return writer.program([advance(1.0, scheme.b)])
