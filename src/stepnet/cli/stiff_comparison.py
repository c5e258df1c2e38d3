"""The stiff chapter of `stepnet demo`: Robertson's kinetics and van der Pol's equation, compared with SciPy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.problem import ODE
from stepnet.solving.integrate import solve
from stepnet.storage.atomic_files import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RTOL, ATOL = 1e-6, 1e-10  # small components of the kinetics matter
TIGHT_RTOL, TIGHT_ATOL = 1e-11, 1e-15
SCHEMES = ("rodas5p", "radau5", "ndf", "lsoda", "auto")
METHODS = ("Radau", "BDF", "LSODA")
MU = 1e3


def robertson(t: float, y: np.ndarray) -> list[float]:
    """Three reactions whose rates differ by a factor of 10^9; Hairer & Wanner (1996), IV.1."""
    slow, back, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return [-slow + back, slow - back - fast, fast]


def van_der_pol(t: float, y: np.ndarray) -> list[float]:
    """y'' = mu (1 - y^2) y' - y: long stiff phases, and jumps between them."""
    return [y[1], MU * (1.0 - y[0] * y[0]) * y[1] - y[0]]


PROBLEMS = {
    "Robertson, t = 0 to 1e11": ODE(robertson, np.array([1.0, 0.0, 0.0]), (0.0, 1e11)),
    "van der Pol, mu = 1e3, t = 0 to 2000": ODE(van_der_pol, np.array([2.0, 0.0]), (0.0, 2000.0)),
}


class Line(NamedTuple):
    """A row of the table: who solved, steps, evaluations, largest relative error at the end, seconds."""

    solver: str
    steps: int
    evaluations: int
    error: float
    seconds: float


def measure(problem: ODE) -> Iterator[Line]:
    """Solve with our schemes and with SciPy's at equal tolerances; times are those of a second call."""
    from scipy.integrate import solve_ivp

    exact = solve(problem, "radau5", save_every=0, rtol=TIGHT_RTOL, atol=TIGHT_ATOL).y[-1]
    for scheme in SCHEMES:
        found, seconds = _time(partial(solve, problem, scheme, rtol=RTOL, atol=ATOL, save_every=0))
        cost = found.statistics
        yield Line(scheme, cost.accepted, cost.evaluations, _find_error(found.y[-1], exact), seconds)
    for method in METHODS:
        call = partial(solve_ivp, problem.fun, problem.t_span, problem.y0, method, rtol=RTOL, atol=ATOL)
        found, seconds = _time(call)
        yield Line(f"SciPy {method}", len(found.t) - 1, found.nfev, _find_error(found.y[:, -1], exact), seconds)


def _time(call: Callable[[], Any]) -> tuple[Any, float]:
    call()
    started = time.perf_counter()
    return call(), time.perf_counter() - started


def _find_error(end: np.ndarray, exact: np.ndarray) -> float:
    return float(np.max(np.abs(end - exact) / np.abs(exact)))


def format_table(title: str, lines: list[Line]) -> str:
    """One line for each solver."""
    head = f"{'solver':<16}{'steps':>9}{'evaluations':>13}{'relative error':>16}{'time':>13}"
    rows = [
        f"{line.solver:<16}{line.steps:>9}{line.evaluations:>13}{line.error:>16.1e}{1e3 * line.seconds:>10.2f} ms"
        for line in lines
    ]
    return "\n".join([title, head, "-" * len(head), *rows])


def draw_figure() -> Figure:
    """The solutions by `auto`, with the parts of each scheme."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    for ax, (title, problem) in zip(figure.subplots(1, 2), PROBLEMS.items(), strict=True):
        solution = solve(problem, "auto", rtol=RTOL, atol=ATOL)
        t, y = solution.t[1:], solution.y[1:]
        changes = solution.statistics.switches
        starts = [0.0, *(when for when, _ in changes)]
        names = ["tsit5", *(who for _, who in changes)]
        which = np.searchsorted(starts[1:], t, side="left")
        is_explicit = np.array([name == "tsit5" for name in names])[which]
        shown = ((y[:, 0], "$y_1$"), (1e4 * y[:, 1], "$10^4 y_2$"), (y[:, 2], "$y_3$")) if y.shape[1] > 2 else (
            (y[:, 0], "$y$"),
        )  # fmt: skip
        for values, label in shown:
            ax.plot(t, values, lw=1, label=label)
            ax.plot(t[is_explicit], values[is_explicit], ".", ms=3, color="black")
        ax.set(title=f"{title}\n{len(t)} steps of auto; dots: explicit", xlabel="$t$")
        if y.shape[1] > 2:
            ax.set_xscale("log")
        ax.legend(loc="center left")
    return figure


def run(folder: Path, echo: Callable[[str], object] = print) -> None:
    """Solve, print the tables and draw the solutions."""
    for title, problem in PROBLEMS.items():
        echo("\n" + format_table(f"{title}, rtol = {RTOL:.0e}, atol = {ATOL:.0e}", list(measure(problem))))
    try:
        import matplotlib

        matplotlib.use("Agg")
        from stepnet import plots
    except ModuleNotFoundError as missing:
        echo(f"\nNo figures: {missing.name} is not installed; `pip install stepnet[plot]` brings it.")
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "stiff.png"
    with plots.style():
        write_file(path, partial(draw_figure().savefig, format="png"))
    echo(f"\nFigures: {path}")
