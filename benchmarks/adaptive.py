"""Rows of adaptive solvers: every contender at every tolerance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.contenders import BESIDE_C, C_LOOP, CONTENDERS, Contender
from benchmarks.problems import ARENSTORF, LORENZ, LORENZ_SHORT, PLEIADES, Adaptive
from benchmarks.timing import Measured, Prepared, Row, by_turns, first_line

LORENZ_TOLERANCE = 1e-8
TOLERANCES = tuple(10.0**-k for k in range(4, 13))
SECONDS = 0.2  # for a contender at one tolerance
SECONDS_AIMS = 3.0  # where an aim looks at this very tolerance

WORKLOADS = {
    LORENZ.name: (LORENZ, (LORENZ_TOLERANCE,)),
    LORENZ_SHORT.name: (LORENZ_SHORT, TOLERANCES),
    ARENSTORF.name: (ARENSTORF, TOLERANCES),
    PLEIADES.name: (PLEIADES, TOLERANCES),
}


class StepsDiffer(RuntimeError):
    """stepnet and the C loop did not take the same steps, so their times say nothing about each other."""


def rows(name: str) -> Iterator[Row]:
    """Measure one workload."""
    problem, tolerances = WORKLOADS[name]
    for tolerance in tolerances:
        found = _at(problem, tolerance)
        require_equal_steps(problem, tolerance, found[C_LOOP.name], found[BESIDE_C.name])
        for contender in _taking_part(tolerance):
            yield _row(problem, tolerance, contender, found[contender.name])


def _taking_part(tolerance: float) -> list[Contender]:
    return [contender for contender in CONTENDERS if tolerance >= contender.tightest]


def _at(problem: Adaptive, tolerance: float) -> dict[str, Measured | Exception]:
    prepared: dict[str, Prepared] = {}
    failed: dict[str, Exception] = {}
    for contender in _taking_part(tolerance):
        try:
            prepared[contender.name] = contender.prepare(problem, tolerance)
        except Exception as exception:
            failed[contender.name] = exception
    seconds = SECONDS_AIMS if tolerance == LORENZ_TOLERANCE else SECONDS
    return failed | by_turns(prepared, seconds)


def require_equal_steps(problem: Adaptive, tolerance: float, in_c, in_stepnet) -> None:
    """Require equal steps, so that the comparison with C is one of code only."""
    for found in (in_c, in_stepnet):
        if isinstance(found, Exception):
            raise found
    c, ours = in_c.answer, in_stepnet.answer
    if (c.accepted, c.rejected) != (ours.accepted, ours.rejected):
        raise StepsDiffer(
            f"{problem.name} at {tolerance:g}: C took {c.accepted} + {c.rejected} rejected steps, "
            f"stepnet {ours.accepted} + {ours.rejected}"
        )


def _row(problem: Adaptive, tolerance: float, contender: Contender, found: Measured | Exception) -> Row:
    if isinstance(found, Exception):
        return Row(problem.name, contender.name, contender.package, tolerance, note=first_line(found))
    answer = found.answer
    is_finite = bool(np.all(np.isfinite(answer.y)))
    return Row(
        problem.name, contender.name, contender.package, tolerance, found.time, found.kernel_time,
        problem.error(answer.y), answer.accepted, answer.rejected, answer.evaluations, found.calls,
        note="" if is_finite else "the result is not finite",
    )  # fmt: skip
