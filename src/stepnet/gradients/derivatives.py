"""Derivatives of right-hand sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepnet.problem import ODE

if TYPE_CHECKING:
    from stepnet.engines.numba_engine.derivatives.jacobian import RHSJacobian

__all__ = ["jacobian"]


def __dir__() -> list[str]:
    return __all__


def jacobian(problem: ODE) -> RHSJacobian:
    """df/dy of a problem: `J.dense(t, y)`, `J.sparse(t, y)`, `J.banded(t, y)`, `J.jvp(t, y, v)`, `J.vjp(t, y, w)`.

    What the problem supplies (`jac`, `jvp`, `vjp`, `jac_sparsity`) takes precedence; otherwise the right-hand side is
    traced or, where that fails, compiled on dual numbers.  All are exact to rounding.  `J.rung` says which of these is
    used, `J.reason` why not a faster one; `J.sparsity`, `J.bandwidth` and `J.n_colours` determine the cost of a
    Jacobian.

    Parameters
    ----------
    problem : ODE

    Returns
    -------
    RHSJacobian

    Examples
    --------
    >>> import stepnet as sn
    >>> J = sn.derivatives.jacobian(sn.ODE(lambda t, y: [y[1], -y[0]], [1.0, 0.0], (0.0, 1.0)))
    >>> J.dense(0.0, [1.0, 0.0])
    array([[ 0.,  1.],
           [-1.,  0.]])
    """
    from stepnet.engines.numba_engine import build_jacobian  # loads Numba

    if not isinstance(problem, ODE):
        raise TypeError(f"`problem` must be an ODE, found {type(problem).__name__}")
    return build_jacobian(problem)
