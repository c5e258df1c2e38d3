"""The table of `stepnet gradients`: one gradient by exact methods and by the adjoint equation."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stepnet import schemes
from stepnet.checkpoints import Checkpoints
from stepnet.errors import AdjointWarning, SolveFailed
from stepnet.gradients.adjoint import Gradient, gradient
from stepnet.problem import ODE, SecondOrder
from stepnet.schemes.capabilities import moves_parts
from stepnet.schemes.conditions.families import Scheme
from stepnet.stability import adjoint_safety

CALLS, ENOUGH = 3, 1.0  # calls of which the fastest counts, fewer if they take this many seconds in total
PART = 10  # checkpoints get 1/10 of the memory of all states


class GradientProblem(NamedTuple):
    """A problem to differentiate, with its default scheme and steps."""

    problem: Callable[[], ODE | SecondOrder]
    scheme: str
    steps: int


class TableRow(NamedTuple):
    """One method: `found` is None if it cannot be used, and `note` says why."""

    way: str
    found: Gradient | None = None
    error: float = np.nan
    states: int = 0
    seconds: float = np.nan
    note: str = ""


# ---- problems -------------------------------------------------------------------------------------------------------


def lorenz() -> ODE:
    """Chaotic forward, and backward its volume grows by exp(13.7 t)."""

    def slopes(t: float, y: np.ndarray, sigma: float, rho: float, beta: float) -> list[float]:
        return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]

    return ODE(slopes, np.ones(3), (0.0, 2.0), (10.0, 28.0, 8 / 3))


def van_der_pol() -> ODE:
    """A limit cycle: attracting forward, repelling backward."""

    def slopes(t: float, y: np.ndarray, mu: float) -> list[float]:
        return [y[1], mu * (1 - y[0] * y[0]) * y[1] - y[0]]

    return ODE(slopes, np.array([2.0, 0.0]), (0.0, 10.0), (5.0,))


def relu() -> ODE:
    """y' = -K' max(0, K y + b), a layer of a parabolic network; Ruthotto & Haber (2020), J. Math. Imaging Vis. 62."""

    def slopes(t: float, y: np.ndarray, K: np.ndarray, b: np.ndarray) -> np.ndarray:
        return -K.T @ np.maximum(0.0, K @ y + b)

    random = np.random.default_rng(4)
    K, b = 2.0 * random.standard_normal((4, 4)), 0.1 * random.standard_normal(4)
    return ODE(slopes, random.standard_normal(4), (0.0, 4.0), (K, b))


def kepler() -> SecondOrder:
    """Two periods of an ellipse of eccentricity 0.6; the argument is the attracting mass."""

    def attraction(t: float, q: np.ndarray, mass: float) -> np.ndarray:
        return -mass * q / (q[0] * q[0] + q[1] * q[1]) ** 1.5

    return SecondOrder(attraction, np.array([0.4, 0.0]), np.array([0.0, 2.0]), (0.0, 4 * np.pi), (1.0,))


def pleiades() -> SecondOrder:
    """Seven stars in the plane, with their masses as arguments; Hairer, Norsett & Wanner I, II.10, up to t = 1.5."""

    def attraction(t: float, q: np.ndarray, m: np.ndarray) -> list[float]:
        pull = [0.0] * 14
        for i in range(7):
            for j in range(7):
                if i != j:
                    dx, dy = q[j] - q[i], q[7 + j] - q[7 + i]
                    w = m[j] / (dx * dx + dy * dy) ** 1.5
                    pull[i], pull[7 + i] = pull[i] + w * dx, pull[7 + i] + w * dy
        return pull

    q0 = [3.0, 3.0, -1.0, -3.0, 2.0, -2.0, 2.0, 3.0, -3.0, 2.0, 0.0, 0.0, -4.0, 4.0]
    v0 = [0.0, 0.0, 0.0, 0.0, 0.0, 1.75, -1.5, 0.0, 0.0, 0.0, -1.25, 1.0, 0.0, 0.0]
    return SecondOrder(attraction, np.array(q0), np.array(v0), (0.0, 1.5), (np.arange(1.0, 8.0),))


SUBJECTS = {
    "lorenz": GradientProblem(lorenz, "rk4", 1000),
    "vanderpol": GradientProblem(van_der_pol, "rk4", 2000),
    "relu": GradientProblem(relu, "rk4", 2000),
    "kepler": GradientProblem(kepler, "verlet", 20_000),
    "pleiades": GradientProblem(pleiades, "rk4", 1000),
}


def first_order(problem: SecondOrder) -> ODE:
    """(q, v)' = (v, a(t, q))."""
    n, attraction = problem.q0.size, problem.acceleration

    def slopes(t: float, y: np.ndarray, *args: Any) -> list[float]:
        return [*y[n:], *attraction(t, y[:n], *args)]

    return ODE(slopes, problem.initial, problem.t_span, problem.args)


def loss(y: np.ndarray) -> tuple[float, np.ndarray]:
    """Half the squared end state, with its gradient."""
    return 0.5 * np.sum(y * y), y


# ---- the table ------------------------------------------------------------------------------------------------------


def run(name: str, scheme: str | None, steps: int | None, echo: Callable[[str], object] = print) -> None:
    """Compute the gradient by each method, print the table and the verdict on the adjoint equation."""
    subject = SUBJECTS[name]
    rule, steps = schemes.get(scheme or subject.scheme), steps or subject.steps
    problem = subject.problem()
    if isinstance(problem, SecondOrder) and not moves_parts(rule, problem.form):
        problem = first_order(problem)
    found = compare_gradients(problem, rule, steps)
    echo(f"|y|^2 / 2 at the end of {name}, {steps} steps of {rule.name}: gradient by initial state and arguments\n")
    echo(format_table(found))
    if isinstance(problem, ODE):
        echo(f"\nVerdict: {adjoint_safety(problem, rule, loss, steps=steps).verdict}.")
    else:
        echo("\nNo verdict: the adjoint equation is solved for an `ODE`; with a scheme such as rk4 the problem is one.")


def compare_gradients(problem: ODE | SecondOrder, scheme: Scheme, steps: int) -> list[TableRow]:
    """Compare each method with the one that stores all states."""
    exact, seconds = measure_time(problem, scheme, steps, "all")
    part = Checkpoints(bytes=max(1, exact.cost.bytes // PART))
    ways: dict[str, str | Checkpoints] = {
        f"checkpoints, 1/{PART} of that": part,
        "reversible": "reversible",
        "continuous": "continuous",
        "interpolated": "interpolated",
    }
    found = [TableRow("all states", exact, 0.0, exact.cost.states, seconds)]
    for way, memory in ways.items():
        try:
            other, seconds = measure_time(problem, scheme, steps, memory)
        except (ValueError, TypeError) as refused:
            found.append(TableRow(way, note=str(refused)))
        except SolveFailed as failed:
            found.append(TableRow(way, note=failed.solution.message.split(";")[0]))
        else:
            found.append(TableRow(way, other, relative_error(other, exact), other.cost.states, seconds))
    return found


def measure_time(
    problem: ODE | SecondOrder, scheme: Scheme, steps: int, memory: str | Checkpoints
) -> tuple[Gradient, float]:
    """A gradient and its shortest run time, after a first call that may compile."""
    seconds: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdjointWarning)  # the verdict reports it
        gradient(problem, scheme, loss, steps=steps, memory=memory)
        while len(seconds) < CALLS and sum(seconds) < ENOUGH:
            started = time.perf_counter()
            found = gradient(problem, scheme, loss, steps=steps, memory=memory)
            seconds.append(time.perf_counter() - started)
    return found, min(seconds)


def relative_error(found: Gradient, exact: Gradient) -> float:
    """The distance relative to the norm of the exact gradient."""
    return float(np.linalg.norm(found.flat - exact.flat) / np.linalg.norm(exact.flat))


def format_table(found: list[TableRow]) -> str:
    """One line per method; the first is the reference."""
    head = f"{'way':<26}{'value':>12}{'|gradient|':>13}{'error':>10}{'return':>10}{'states':>8}{'time':>12}"
    return "\n".join([head, "-" * len(head), *map(_measure_row, found)])


def _measure_row(line: TableRow) -> str:
    if line.found is None:
        return f"{line.way:<26}{line.note}"
    found, drift = line.found, line.found.cost.drift
    size = np.linalg.norm(found.flat)
    returned = f"{drift:>10.1e}" if drift else f"{'-':>10}"
    numbers = f"{found.value:>12.5g}{size:>13.5g}{line.error:>10.1e}{returned}{line.states:>8}"
    return f"{line.way:<26}{numbers}{1e3 * line.seconds:>9.3f} ms"
