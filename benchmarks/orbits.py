"""Orbits for fixed steps: one of Henon & Heiles, and the outer planets of Hairer, Lubich & Wanner, I.2.4."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

REFERENCE_TOLERANCE = 1e-13


@dataclass(frozen=True, eq=False)
class Orbit:
    """q'' = a(t, q) in `steps` even steps; `loop` is the end of the names in loops.c."""

    name: str
    title: str
    acceleration: Callable
    q0: np.ndarray
    v0: np.ndarray
    t_end: float
    steps: int
    loop: str
    args: tuple = ()

    @property
    def h(self) -> float:
        return self.t_end / self.steps

    @cached_property
    def reference(self) -> np.ndarray:
        """The end state (q, v) by dop853."""
        import stepnet as sn

        problem = sn.SecondOrder(self.acceleration, self.q0, self.v0, (0.0, self.t_end), self.args)
        tolerance = {"rtol": REFERENCE_TOLERANCE, "atol": REFERENCE_TOLERANCE}
        return sn.solve(problem, "dop853", **tolerance, save_every=0).y[-1]

    def error(self, y: np.ndarray) -> float:
        """Largest absolute error of the end state (q, v)."""
        return float(np.max(np.abs(y - self.reference)))


def henon_heiles(t, q):
    return [-q[0] - 2.0 * q[0] * q[1], -q[1] - q[0] * q[0] + q[1] * q[1]]


def outer_planets(t, q, dy, m):
    for k in range(18):
        dy[k] = 0.0
    for i in range(1, 6):
        for j in range(i):
            d0, d1, d2 = q[3 * j] - q[3 * i], q[3 * j + 1] - q[3 * i + 1], q[3 * j + 2] - q[3 * i + 2]
            r2 = d0 * d0 + d1 * d1 + d2 * d2
            w = 1.0 / (r2 * math.sqrt(r2))
            to_j, to_i = m[j] * w, m[i] * w
            dy[3 * i] += to_j * d0
            dy[3 * i + 1] += to_j * d1
            dy[3 * i + 2] += to_j * d2
            dy[3 * j] -= to_i * d0
            dy[3 * j + 1] -= to_i * d1
            dy[3 * j + 2] -= to_i * d2


G = 2.95912208286e-4  # au^3 / (solar mass day^2)

# The Sun with the inner planets, Jupiter, Saturn, Uranus, Neptune, Pluto: mass, position (au), velocity (au / day).
PLANETS = np.array(
    [
        [1.00000597682, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.000954786104043, -3.5023653, -3.8169847, -1.5507963, 0.00565429, -0.00412490, -0.00190589],
        [0.000285583733151, 9.0755314, -3.0458353, -1.6483708, 0.00168318, 0.00483525, 0.00192462],
        [0.0000437273164546, 8.3101420, -16.2901086, -7.2521278, 0.00354178, 0.00137102, 0.00055029],
        [0.0000517759138449, 11.4707666, -25.7294829, -10.8169456, 0.00288930, 0.00114527, 0.00039677],
        [1.0 / 1.3e8, -15.5387357, -25.2225594, -3.1902382, 0.00276725, -0.00170702, -0.00136504],
    ]
)

HENON_HEILES = Orbit(
    "henon-heiles", "Henon-Heiles, one orbit, energy 1/12", henon_heiles,
    np.array([0.0, 0.2]), np.array([math.sqrt(1 / 6 - 0.1**2 - 0.2**2 + 2 / 3 * 0.2**3), 0.1]),
    t_end=1e4, steps=1_000_000, loop="henon_heiles",
)  # fmt: skip
OUTER_PLANETS = Orbit(
    "outer-planets", "Outer solar system (Sun and 5 planets)", outer_planets,
    PLANETS[:, 1:4].ravel(), PLANETS[:, 4:].ravel(),
    t_end=2e5, steps=200_000, loop="outer_planets", args=(G * PLANETS[:, 0],),
)  # fmt: skip
