"""One problem of every equation, small and smooth, for tests that run over all of them."""

from __future__ import annotations

import numpy as np

import stepnet as sn
from stepnet import equations as se
from stepnet import operators as so

LINE = so.Grid(24, 0.0, 1.0)
PLANE = so.Grid((10, 12), 0.0, 1.0, boundary=[("dirichlet", "neumann"), "periodic"])
SPAN = (0.0, 0.01)


def smooth(grid: so.Grid) -> np.ndarray:
    """A field without symmetries."""
    x = sum((k + 1.0) * each for k, each in enumerate(grid.coordinates))
    return 1.0 + 0.5 * np.sin(2 * np.pi * x + 0.3)


def unbounded(grid: so.Grid) -> so.Grid:
    """The same points with sides through which waves leave."""
    sides = [pair and "neumann" for pair in grid.boundary]
    return so.Grid(grid.shape, grid.lower, grid.upper, [each or "periodic" for each in sides])


def drift(t, y, pull, noise):
    """A linear restoring force that depends on time."""
    return -pull * (1.0 + t) * y


def diffusion(t, y, pull, noise):
    """Noise that depends on the state."""
    return noise * (1.0 + 0.3 * y)


def process(grid: so.Grid) -> sn.SDE:
    return sn.SDE(drift, diffusion, np.zeros(grid.ndim), (0.0, 1.0), (1.3, 0.4))


def swirl(grid: so.Grid) -> np.ndarray:
    return np.stack([0.2 * smooth(grid)] * grid.ndim)


PROBLEMS = {
    "heat": (lambda g: se.heat(g, smooth(g), SPAN, 0.7), "rk4"),
    "heat with a source": (lambda g: se.heat(g, smooth(g), SPAN, 0.7, source=smooth(g), order=4), "rk4"),
    "diffusion": (lambda g: se.diffusion(g, smooth(g), SPAN, smooth(g) ** 2), "rk4"),
    "wave": (lambda g: se.wave(g, smooth(g), 0.1 * smooth(g), SPAN, 1.3), "verlet"),
    "transport": (lambda g: se.transport(g, smooth(g), SPAN, np.stack([smooth(g)] * g.ndim)), "ssprk3"),
    "advection and diffusion": (
        lambda g: se.advection_diffusion(g, smooth(g), SPAN, np.full(g.ndim, 0.8), 0.2), "rk4",
    ),
    "burgers, constant": (lambda g: se.burgers(g, smooth(g), SPAN, 0.1, reconstruction="constant"), "ssprk3"),
    "burgers, muscl": (lambda g: se.burgers(g, smooth(g), SPAN, 0.1, reconstruction="muscl"), "ssprk3"),
    "burgers, weno5": (lambda g: se.burgers(g, smooth(g), SPAN, 0.1), "ssprk3"),
    "gray_scott": (lambda g: se.gray_scott(g, np.stack((smooth(g), 0.3 * smooth(g))), SPAN, (0.2, 0.1)), "rk4"),
    "fitzhugh_nagumo": (
        lambda g: se.fitzhugh_nagumo(g, np.stack((smooth(g), 0.3 * smooth(g))), SPAN, 0.2, current=0.3), "rk4",
    ),
    "euler": (
        lambda g: se.euler(unbounded(g), smooth(g), swirl(g), 1.0 + smooth(g), SPAN, reconstruction="constant"),
        "ssprk3",
    ),
    "shallow_water": (
        lambda g: se.shallow_water(unbounded(g), smooth(g), swirl(g), SPAN, 2.0, reconstruction="constant"), "ssprk3",
    ),
    "acoustics": (lambda g: se.acoustics(unbounded(g), smooth(g), swirl(g), SPAN, 1.3), "ssprk3"),
    "fokker_planck": (lambda g: se.fokker_planck(unbounded(g), smooth(g), SPAN, process(g)), "rk4"),
    "backward_kolmogorov": (lambda g: se.backward_kolmogorov(g, smooth(g), SPAN, process(g)), "rk4"),
    "allen_cahn": (lambda g: se.allen_cahn(g, smooth(g), SPAN, 0.5), "rk4"),
}  # fmt: skip
