"""One problem of every equation, small and smooth, for tests that run over all of them."""

from __future__ import annotations

import numpy as np

from stepnet import equations as se
from stepnet import operators as so

LINE = so.Grid(24, 0.0, 1.0)
PLANE = so.Grid((10, 12), 0.0, 1.0, boundary=[("dirichlet", "neumann"), "periodic"])
SPAN = (0.0, 0.01)


def smooth(grid: so.Grid) -> np.ndarray:
    """A field without symmetries."""
    x = sum((k + 1.0) * each for k, each in enumerate(grid.coordinates))
    return 1.0 + 0.5 * np.sin(2 * np.pi * x + 0.3)


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
    "allen_cahn": (lambda g: se.allen_cahn(g, smooth(g), SPAN, 0.5), "rk4"),
}  # fmt: skip
