"""Slopes y' of M y' = f(t, y): M^-1 f for a nonsingular mass matrix, and consistent slopes of algebraic equations.

With the division R M y' = R f, 0 = N f of a singular M (`stepnet.problem.mass_matrix`), consistent slopes also satisfy
the derivative of the second part, N (f_y y' + f_t) = 0, so that they solve a linear system with the matrix of rows R M
and N f_y, which is nonsingular if the index is one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.engines.numba_engine.rhs.call_form import find_call_form
from stepnet.engines.numba_engine.rhs.ladder import PythonOnly, find_c_address
from stepnet.problem import ODE
from stepnet.problem.mass_matrix import MassMatrix

LARGEST_INVERSE = 64  # rows up to which the inverse of M becomes a part of the traced function
LARGEST_DENSE = 300  # rows up to which consistent slopes come from a dense matrix
MOST_ITERATIONS = 50
CONSISTENT = 1e-13  # change of the state relative to its size below which it satisfies the algebraic equations
IRREGULAR = 1e-14  # reciprocal condition, rows scaled to one, of a matrix that counts as singular

SINGULAR = (
    "their derivatives with respect to the algebraic unknowns are singular there, so the index is greater than one, or "
    "equations are redundant"
)

_reduced: WeakKeyDictionary = WeakKeyDictionary()


class InconsistentStart(Exception):
    """Initial values for which the algebraic equations could not be solved; the message is the reason."""


def drop_mass(problem: ODE) -> ODE:
    """The problem with f instead of y': without its mass matrix."""
    return problem if getattr(problem, "mass", None) is None else replace(problem, mass=None)


def is_regular(problem: ODE) -> bool:
    """Whether y' is a function of the state: no mass matrix, or one that is not singular."""
    return problem.mass is None or not problem.mass_matrix.is_singular


def solve_for_slopes(problem: ODE) -> ODE:
    """The problem y' = M^-1 f(t, y) without a mass matrix, for a nonsingular one."""
    mass = problem.mass_matrix
    if mass is None:
        return problem
    found = _reduced.get(problem)
    if found is None:
        found = _reduced.setdefault(problem, _reduce(problem, mass))
    return found


def _reduce(problem: ODE, mass: MassMatrix) -> ODE:
    if find_c_address(problem.fun) is not None:
        raise TypeError(
            "`mass` with a C function for `fun` is for implicit Runge-Kutta and Rosenbrock schemes without gradients; "
            "write `fun` in Python, or multiply by the inverse of `mass` in it"
        )
    fun: Any = problem.fun
    reason = ""
    if isinstance(fun, PythonOnly):
        fun, reason = fun.function, fun.reason
    if mass.n > LARGEST_INVERSE:
        reason = reason or "run in Python: the mass matrix is factorised by SciPy"
    form = find_call_form(fun, problem.args, (problem.y0.shape,), problem.y0.shape, problem.y0.dtype, "fun")
    solve = mass.solve if mass.n > LARGEST_INVERSE else None
    build = _wrap_in_place if form.is_in_place else _wrap_returning
    wrapped = build(fun, problem.y0.shape, solve, None if solve else mass.inverse)
    supplied = {name: getattr(problem, name) for name in ("jac", "jvp", "vjp")}
    return replace(
        problem, fun=PythonOnly(wrapped, reason) if reason else wrapped, mass=None, jac_sparsity=None,
        **_reduce_derivatives(mass, problem.y0.shape, **supplied),
    )  # fmt: skip


def _wrap_returning(fun, shape, solve, inverse):
    if solve is not None:

        def slopes(t, y, *args):
            return solve(np.ravel(np.asarray(fun(t, y, *args), float))).reshape(shape)

    elif len(shape) == 1:

        def slopes(t, y, *args):
            return inverse @ np.asarray(fun(t, y, *args))

    else:

        def slopes(t, y, *args):
            return (inverse @ np.ravel(np.asarray(fun(t, y, *args)))).reshape(shape)

    return slopes


def _wrap_in_place(fun, shape, solve, inverse):
    def slopes(t, y, dy, p):
        fun(t, y, dy, p)
        dy[...] = np.reshape(solve(np.ravel(dy)) if solve is not None else inverse @ np.ravel(dy), shape)

    return slopes


def _reduce_derivatives(mass: MassMatrix, shape, jac, jvp, vjp) -> dict[str, Any]:
    """The user's derivatives of f as derivatives of M^-1 f."""
    if any(find_c_address(each) is not None for each in (jvp, vjp)):
        raise TypeError("`jvp` and `vjp` of a problem with `mass` must be Python functions")

    def multiply(matrix):
        dense = matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix, float)
        return mass.solve(dense)

    given: dict[str, Any] = {"jac": None, "jvp": None, "vjp": None}
    if callable(jac):
        given["jac"] = lambda t, y, *args: multiply(jac(t, y, *args))
    elif jac is not None:
        given["jac"] = multiply(jac)
    if jvp is not None:
        given["jvp"] = lambda t, y, v, *args: mass.solve(np.ravel(jvp(t, y, v, *args)))
    if vjp is not None:
        given["vjp"] = lambda t, y, w, *args: vjp(t, y, mass.solve_transposed(np.ravel(w)).reshape(shape), *args)
    return given


# ---- algebraic equations --------------------------------------------------------------------------------------------


class AlgebraicSystem(NamedTuple):
    """f and its derivatives (`evaluate(t, y)`, `differentiate(t, y)`), and which equations are algebraic."""

    evaluate: Any
    differentiate: Any
    differential: Any
    algebraic: Any

    def solve(self, jacobian, v: np.ndarray) -> np.ndarray:
        """The solution x of R M x = the first entries of v, N J x = the others."""
        from scipy.sparse import vstack
        from scipy.sparse.linalg import splu

        matrix = vstack((self.differential, self.algebraic @ jacobian)).tocsc()
        if matrix.shape[0] <= LARGEST_DENSE:
            dense = matrix.toarray()
            scale = np.maximum(np.abs(dense).max(axis=1, initial=0.0), 1e-300)
            scaled = dense / scale[:, None]
            if not np.isfinite(scaled).all() or np.linalg.cond(scaled) > 1.0 / IRREGULAR:
                raise np.linalg.LinAlgError
            return np.linalg.solve(scaled, v / scale)
        try:
            return splu(matrix).solve(v)
        except RuntimeError:
            raise np.linalg.LinAlgError from None


def build_algebraic_system(problem: ODE, field, find_entries, places) -> AlgebraicSystem:
    """The system of a problem with a singular mass matrix, from f and the entries of df/dy at `places`, and df/dt."""
    from scipy.sparse import coo_array

    n, shape = problem.initial.size, (problem.initial.size,) * 2

    def differentiate(t, y):
        values = find_entries(t, y)
        return coo_array((values[: len(values) - n], places), shape).tocsr(), values[len(values) - n :]

    mass: MassMatrix = problem.mass_matrix
    R, N = mass.division
    return AlgebraicSystem(field, differentiate, R @ mass.sparse, N)


def find_consistent_slope(system: AlgebraicSystem, mass: MassMatrix, t: float, y: np.ndarray) -> np.ndarray:
    """y' at a state that satisfies the algebraic equations."""
    jacobian, rate = system.differentiate(t, y)
    R, N = mass.division
    v = np.concatenate((R @ system.evaluate(t, y), -(N @ rate)))
    try:
        return system.solve(jacobian, v)
    except np.linalg.LinAlgError:
        return np.full(y.size, np.nan)


def find_consistent_state(system: AlgebraicSystem, mass: MassMatrix, t: float, y0: np.ndarray) -> np.ndarray:
    """The state with N f = 0 and M y = M y0, by a damped Newton method; y0 itself if it is consistent."""
    y, y_bar = y0, system.differential @ y0
    change, size = _find_correction(system, mass, t, y, y_bar)
    for _ in range(MOST_ITERATIONS):
        if size <= CONSISTENT * max(np.abs(y).max(initial=0.0), 1e-300):
            return y if y is y0 else y + change
        share = 1.0
        while True:
            trial = y + share * change
            next_change, next_size = _find_correction(system, mass, t, trial, y_bar, is_trial=True)
            if next_size <= (1.0 - 0.25 * share) * size or next_size <= CONSISTENT * np.abs(trial).max(initial=0.0):
                break
            share *= 0.5
            if share < 1e-3:
                raise InconsistentStart(_describe(system, mass, t, y, "Newton's method does not converge"))
        y, change, size = trial, next_change, next_size
    raise InconsistentStart(_describe(system, mass, t, y, "Newton's method does not converge"))


def _find_correction(system: AlgebraicSystem, mass: MassMatrix, t, y, y_bar, is_trial: bool = False):
    """The step of Newton's method and its size; infinite where a trial state has none."""
    with np.errstate(all="ignore"):
        f = system.evaluate(t, y)
        v = np.concatenate((y_bar - system.differential @ y, -(mass.division[1] @ f)))
        try:
            change = system.solve(system.differentiate(t, y)[0], v)
        except np.linalg.LinAlgError:
            if is_trial:
                return y, np.inf
            raise InconsistentStart(_describe(system, mass, t, y, SINGULAR)) from None
    size = np.abs(change).max(initial=0.0)
    return change, size if np.isfinite(size) else np.inf


def _describe(system: AlgebraicSystem, mass: MassMatrix, t: float, y: np.ndarray, why: str) -> str:
    left = np.abs(mass.division[1] @ system.evaluate(t, y)).max(initial=0.0)
    return (
        f"no state that satisfies the algebraic equations was found from `y0` (largest residual {left:.3g}): {why}; "
        f"give a `y0` nearer to one, or equations of index one"
    )
