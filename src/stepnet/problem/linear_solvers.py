"""How the linear systems of implicit steps are solved: names, and the settings of matrix-free iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepnet.errors import UnknownName
from stepnet.validation import check, function, optional, real, whole

LINEAR_SOLVERS = ("dense", "banded", "sparse", "gmres")


@check(rtol=real("(0, 1)"), restart=whole(1), max_iterations=whole(1), preconditioner=optional(function))
@dataclass(frozen=True)
class Gmres:
    """Matrix-free linear solves by restarted GMRES: products (df/dy) v only, no matrix is stored.

    Parameters
    ----------
    rtol : float, optional
        Residual relative to the right side at which the iteration ends.  Rosenbrock schemes need it well below the
        tolerance of the steps; Newton's iteration of implicit Runge-Kutta schemes corrects the remaining error.
    restart : int, optional
        Vectors kept before the iteration is restarted.
    max_iterations : int, optional
        Iterations after which the step counts as not solved.
    preconditioner : callable, optional
        `preconditioner(t, y, factor, *args)` returns an approximate inverse of M - factor df/dy at (t, y): a function
        of a vector, a `scipy.sparse.linalg.LinearOperator`, or a matrix.  It is called once for each factorisation
        that another solver would compute; `factor` is h times a coefficient, complex for some schemes.

    Examples
    --------
    >>> import numpy as np
    >>> import stepnet as sn
    >>> decay = sn.ODE(lambda t, y: -1e3 * y, np.ones(3), (0.0, 1.0), linear_solver=sn.Gmres(rtol=1e-10))
    >>> sn.solve(decay, "implicit_euler", steps=10).statistics.linear_solver
    'gmres'
    """

    rtol: float = 1e-8
    restart: int = 30
    max_iterations: int = 1000
    preconditioner: Callable[..., Any] | None = None


def validate_linear_solver(value: Any) -> str | Gmres | None:
    """None, one of the names, or the settings of GMRES."""
    if value is None or isinstance(value, Gmres):
        return value
    if not isinstance(value, str) or value not in LINEAR_SOLVERS:
        raise UnknownName("linear_solver", value, LINEAR_SOLVERS)
    return Gmres() if value == "gmres" else value
