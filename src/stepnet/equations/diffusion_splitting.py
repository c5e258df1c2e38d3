"""Equations as sums of their diffusion and the rest, for schemes that treat diffusion implicitly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepnet.problem import ODE, Split


@dataclass(frozen=True, eq=False)
class DiffusionPart:
    """The diffusion of an equation."""

    equation: Any

    def __call__(self, t: Any, u: Any, *args: Any) -> Any:
        return self.equation.diffuse(t, u, *args)


@dataclass(frozen=True, eq=False)
class RemainingPart:
    """An equation without its diffusion."""

    equation: Any

    def __call__(self, t: Any, u: Any, *args: Any) -> Any:
        return self.equation.find_rest(t, u, *args)


def split_diffusion(problem: ODE) -> Split:
    """The same equation as a sum of two parts: first everything but the diffusion, then the diffusion.

    IMEX schemes take the diffusion implicitly, so that their steps are limited by the first part only.  The arguments
    are those of the equation.

    Parameters
    ----------
    problem : ODE
        An equation with diffusion: `heat`, `diffusion`, `advection_diffusion`, `burgers`, `gray_scott`, `allen_cahn`
        or `fitzhugh_nagumo`.

    Returns
    -------
    Split

    Raises
    ------
    TypeError
        If it is another problem.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> grid = sn.operators.Grid(100, 0.0, 1.0, boundary="neumann")
    >>> u0 = np.cos(np.pi * grid.coordinates[0])
    >>> problem = sn.equations.split_diffusion(sn.equations.allen_cahn(grid, u0, (0.0, 5.0), 0.05))
    >>> sn.solve(problem, "ars343", steps=50).y.shape
    (51, 100)
    """
    equation = getattr(problem, "fun", None)
    if getattr(equation, "laplacian", None) is None or not hasattr(equation, "diffuse"):
        name = "" if equation is None else f" of {getattr(equation, 'name', type(equation).__name__)}"
        raise TypeError(
            f"`problem` must be an equation of `stepnet.equations` with diffusion, found {type(problem).__name__}{name}"
        )
    parts = RemainingPart(equation), DiffusionPart(equation)
    return Split(parts, problem.y0, problem.t_span, problem.args, trace=problem.trace)
