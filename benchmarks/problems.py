"""The problems: each as plain Python, for stepnet and SciPy, and in the form that every peer needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext

import numpy as np


@dataclass(frozen=True, eq=False)
class Adaptive:
    """y' = f(t, y) on [0, t_end] for solvers that choose their steps.

    `plain` is what a stepnet user writes, `python` what a SciPy user writes, `arrays(xp)` the same for any array
    library, `diffsl` for pydiffsol.  `loop` names the function in loops.c.  A chaotic problem has no `reference`.
    """

    name: str
    title: str
    y0: np.ndarray
    t_end: float
    loop: str
    plain: Callable
    python: Callable
    arrays: Callable
    diffsl: str
    reference: np.ndarray | None
    first_step: float = 1e-4

    def error(self, y: np.ndarray) -> float | None:
        """Largest absolute error of the end state."""
        return None if self.reference is None else float(np.max(np.abs(y - self.reference)))


def lorenz(t, y):
    return [10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]]


LORENZ_DIFFSL = """
u_i { x = 1.0, y = 1.0, z = 1.0 }
F_i { 10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z }
"""


def lorenz_by_taylor(t_end: float, steps: int = 400, order: int = 40, digits: int = 50) -> np.ndarray:
    """The end state to far more digits than a float holds, by Taylor series in decimal arithmetic."""
    with localcontext() as context:
        context.prec = digits
        h, beta = Decimal(t_end) / steps, Decimal(8.0 / 3.0)
        state = [Decimal(1)] * 3
        for _ in range(steps):
            x, y, z = ([value] for value in state)
            for k in range(order):
                xz = sum(x[i] * z[k - i] for i in range(k + 1))
                xy = sum(x[i] * y[k - i] for i in range(k + 1))
                slopes = 10 * (y[k] - x[k]), 28 * x[k] - xz - y[k], xy - beta * z[k]
                for series, slope in zip((x, y, z), slopes, strict=True):
                    series.append(slope / (k + 1))
            state = [sum(c * h**k for k, c in enumerate(series)) for series in (x, y, z)]
        return np.array([float(value) for value in state])


def arenstorf(t, y):
    mu = 0.012277471
    nu = 1.0 - mu
    a, b = y[0] + mu, y[0] - nu
    A, B = a * a + y[1] * y[1], b * b + y[1] * y[1]
    earth, moon = nu / (A * math.sqrt(A)), mu / (B * math.sqrt(B))
    return [
        y[2],
        y[3],
        y[0] + 2.0 * y[3] - earth * a - moon * b,
        y[1] - 2.0 * y[2] - earth * y[1] - moon * y[1],
    ]


def arenstorf_arrays(xp):
    mu = 0.012277471

    def f(t, y):
        a, b = y[0] + mu, y[0] - (1.0 - mu)
        A, B = a * a + y[1] * y[1], b * b + y[1] * y[1]
        earth, moon = (1.0 - mu) / (A * xp.sqrt(A)), mu / (B * xp.sqrt(B))
        ax = y[0] + 2.0 * y[3] - earth * a - moon * b
        ay = y[1] - 2.0 * y[2] - earth * y[1] - moon * y[1]
        return xp.stack([y[2], y[3], ax, ay])

    return f


ARENSTORF_START = [0.994, 0.0, 0.0, -2.00158510637908252240537862224]
ARENSTORF_DIFFSL = """
mu { 0.012277471 } nu { 1.0 - 0.012277471 }
u_i { x = 0.994, y = 0.0, p = 0.0, q = -2.00158510637908252240537862224 }
a { x + mu } b { x - nu }
A { a * a + y * y } B { b * b + y * y }
earth { nu / (A * sqrt(A)) } moon { mu / (B * sqrt(B)) }
F_i { p, q, x + 2.0 * q - earth * a - moon * b, y - 2.0 * p - earth * y - moon * y }
"""


def pleiades(t, y, dy):
    for i in range(14):
        dy[i] = y[14 + i]
        dy[14 + i] = 0.0
    for i in range(1, 7):
        for j in range(i):
            dx, dz = y[j] - y[i], y[7 + j] - y[7 + i]
            r2 = dx * dx + dz * dz
            w = 1.0 / (r2 * math.sqrt(r2))
            dx *= w
            dz *= w
            dy[14 + i] += (j + 1) * dx
            dy[21 + i] += (j + 1) * dz
            dy[14 + j] -= (i + 1) * dx
            dy[21 + j] -= (i + 1) * dz


def pleiades_arrays(xp):
    masses, diagonal = xp.arange(1.0, 8.0), xp.eye(7)

    def f(t, y):
        x, z = y[:7], y[7:14]
        dx, dz = x[None, :] - x[:, None], z[None, :] - z[:, None]
        r2 = dx * dx + dz * dz + diagonal
        w = masses / (r2 * xp.sqrt(r2))
        return xp.concatenate([y[14:], xp.sum(w * dx, 1), xp.sum(w * dz, 1)])

    return f


PLEIADES_START = [
    *(3.0, 3.0, -1.0, -3.0, 2.0, -2.0, 2.0),
    *(3.0, -3.0, 2.0, 0.0, 0.0, -4.0, 4.0),
    *(0.0, 0.0, 0.0, 0.0, 0.0, 1.75, -1.5),
    *(0.0, 0.0, 0.0, -1.25, 1.0, 0.0, 0.0),
]

# Hairer, Norsett & Wanner I, II.10; the digits are those of the test set of Mazzia & Magherini (2008).
PLEIADES_END = [
    *(0.3706139143970502, 3.237284092057233, -3.222559032418324, 0.6597091455775310),
    *(0.3425581707156584, 1.562172101400631, -0.7003092922212495, -3.943437585517392),
    *(-3.271380973972550, 5.225081843456543, -2.590612434977470, 1.198213693392275),
    *(-0.2429682344935824, 1.091449240428980, 3.417003806314313, 1.354584501625501),
    *(-2.590065597810775, 2.025053734714242, -1.155815100160448, -0.8072988170223021),
    *(0.5952396354208710, -3.741244961234010, 0.3773459685750630, 0.9386858869551073),
    *(0.3667922227200571, -0.3474046353808490, 2.344915448180937, -1.947020434263292),
]


def pleiades_diffsl() -> str:
    """Pleiades written out star by star, every pair once."""
    names = [f"{letter}{i}" for letter in "xzpq" for i in range(1, 8)]
    start = ", ".join(f"{name} = {value}" for name, value in zip(names, PLEIADES_START, strict=True))
    lines = [f"u_i {{ {start} }}"]
    for i in range(2, 8):
        for j in range(1, i):
            dx, dz = f"(x{j} - x{i})", f"(z{j} - z{i})"
            lines += [f"r{i}{j} {{ {dx} * {dx} + {dz} * {dz} }}", f"w{i}{j} {{ 1.0 / (r{i}{j} * sqrt(r{i}{j})) }}"]
    pulls = [
        " + ".join(f"{j}.0 * w{max(i, j)}{min(i, j)} * ({s}{j} - {s}{i})" for j in range(1, 8) if j != i)
        for s in "xz"
        for i in range(1, 8)
    ]
    return "\n".join([*lines, f"F_i {{ {', '.join([*names[14:], *pulls])} }}"])


LORENZ = Adaptive(
    "lorenz", "Lorenz, T = 100", np.ones(3), 100.0, "dopri5_lorenz", lorenz, lorenz,
    lambda xp: lambda t, y: xp.stack(lorenz(t, y)), LORENZ_DIFFSL, None,
)  # fmt: skip
LORENZ_SHORT = replace(
    LORENZ, name="lorenz-short", title="Lorenz, T = 10", t_end=10.0, reference=lorenz_by_taylor(10.0)
)
ARENSTORF = Adaptive(
    "arenstorf", "Arenstorf orbit, one period", np.array(ARENSTORF_START), 17.0652165601579625588917206249,
    "dopri5_arenstorf", arenstorf, arenstorf, arenstorf_arrays, ARENSTORF_DIFFSL, np.array(ARENSTORF_START),
)  # fmt: skip
PLEIADES = Adaptive(
    "pleiades", "Pleiades (28 unknowns), T = 3", np.array(PLEIADES_START), 3.0, "dopri5_pleiades", pleiades,
    pleiades_arrays(np), pleiades_arrays, pleiades_diffsl(), np.array(PLEIADES_END),
)  # fmt: skip
