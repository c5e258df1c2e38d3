"""Derivatives of right-hand sides, as solvers see them."""

from __future__ import annotations

from stepnet.problem import ODE

__all__ = ["jacobian"]


def __dir__() -> list[str]:
    return __all__


def jacobian(problem: ODE):
    """df/dy of a problem: `J.dense(t, y)`, `J.sparse(t, y)`, `J.banded(t, y)`, `J.jvp(t, y, v)`, `J.vjp(t, y, w)`.

    What the problem supplies (`jac`, `jvp`, `vjp`, `jac_sparsity`) wins; else the right-hand side is traced, and where
    that cannot be, compiled on dual numbers.  All are exact to rounding.  `J.rung` says which way was taken, `J.reason`
    why not a faster one, `J.sparsity`, `J.bandwidth` and `J.n_colours` what one Jacobian costs.

    Parameters
    ----------
    problem : ODE
    """
    from stepnet.engines.numba_engine.rhs.problem_parts import build_jacobian  # loads Numba

    if not isinstance(problem, ODE):
        raise TypeError(f"`problem` must be an ODE, found {type(problem).__name__}")
    return build_jacobian(problem)
