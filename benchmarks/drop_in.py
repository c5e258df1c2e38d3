"""Rows of scripts written for SciPy in which only the import is changed: plain Python functions, default options."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cold_start import seconds_to_solution
from benchmarks.problems import LORENZ
from benchmarks.timing import Answer, Prepared, Row, by_turns

WORKLOAD = "drop-in"
WITHIN, PROCESS = "the call", "the whole process"
T_LONG = 100_000.0  # a run of a minute for SciPy, so that starting Python and loading packages is no matter
SECONDS = 3.0
PACKAGES = {"SciPy": ("scipy", "scipy.integrate"), "stepnet": ("stepnet", "stepnet")}

SCRIPT = """
from {module} import solve_ivp
solution = solve_ivp(lorenz, (0.0, {t_end}), [1.0, 1.0, 1.0])
assert solution.success and len(solution.t) > 1000
"""


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Lorenz to T = 100 in a process that is warm, and a long run in one of its own."""
    found = by_turns({f"{who}, {WITHIN}": _prepared(module) for who, (_, module) in PACKAGES.items()}, SECONDS)
    for who, (package, module) in PACKAGES.items():
        measured = found[f"{who}, {WITHIN}"]
        if isinstance(measured, Exception):
            raise measured
        answer = measured.answer
        yield Row(
            WORKLOAD, f"{who}, {WITHIN}", package, time=measured.time, accepted=answer.accepted,
            evaluations=answer.evaluations, calls=measured.calls,
        )  # fmt: skip
        elapsed = min(seconds_to_solution(SCRIPT.format(module=module, t_end=T_LONG)) for _ in range(_repeats(who)))
        yield Row(WORKLOAD, f"{who}, {PROCESS}", package, time=elapsed, calls=_repeats(who))


def _repeats(who: str) -> int:
    """The first run of ours may have a kernel to compile."""
    return 3 if who == "stepnet" else 1


def _prepared(module: str) -> Prepared:
    from importlib import import_module

    solve_ivp = import_module(module).solve_ivp

    def call():
        return solve_ivp(LORENZ.python, (0.0, LORENZ.t_end), LORENZ.y0)

    call()
    return Prepared(call, lambda s: Answer(s.y[:, -1], len(s.t) - 1, None, s.nfev))
