"""Boundary values as arguments of a problem, so that gradients with respect to them exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepnet import validation
from stepnet.problem import ODE, SecondOrder

AN_EQUATION = validation.instance(ODE, SecondOrder, what="an equation built by `stepnet.equations`")


@dataclass(frozen=True, eq=False)
class BoundaryDataRHS:
    """An equation whose last arguments are passed to its boundary functions, value(t, *data)."""

    inner: Any
    n_own: int
    checks_steps: bool
    name: str

    def __call__(self, t: Any, u: Any, *args: Any) -> Any:
        return self.inner((t, *args[self.n_own :]), u, *args[: self.n_own])

    def find_spectrum(self, t: Any, u: Any, *args: Any) -> np.ndarray:
        return self.inner.find_spectrum((t, *args[self.n_own :]), u, *args[: self.n_own])

    def find_axes(self, *args: Any) -> Any:
        find = getattr(self.inner, "find_axes", None)
        return None if find is None else find(*args[: self.n_own])


@validation.check(problem=AN_EQUATION, data=validation.sequence(lambda _, each: each, 1))
def add_boundary_data(problem: ODE | SecondOrder, data: Sequence[Any]) -> ODE | SecondOrder:
    """The same problem with boundary values that depend on arguments: functions `value(t, *data)` of its grid.

    The data are appended to `args`, so `gradient` differentiates with respect to them.

    Parameters
    ----------
    problem : ODE or SecondOrder
        An equation on a grid some of whose boundary values are functions of t and of the data.
    data : sequence
        Numbers or arrays of numbers.

    Returns
    -------
    ODE or SecondOrder

    Raises
    ------
    TypeError
        If no boundary value is a function of t and the data.

    Examples
    --------
    >>> import numpy as np
    >>> import stepnet as sn
    >>> side = sn.operators.dirichlet(lambda t, level: level * np.sin(t))
    >>> grid = sn.operators.Grid(8, boundary=[(side, "neumann")])
    >>> heat = sn.equations.add_boundary_data(sn.equations.heat(grid, np.zeros(8), (0.0, 0.1)), [2.0])
    >>> found = sn.gradient(heat, "rk4", lambda u: (u * u).sum(), steps=40)
    >>> bool(np.isclose(found.args[-1], found.value))  # half of it is the derivative, as the loss is quadratic
    True
    """
    function: Any = problem.acceleration if isinstance(problem, SecondOrder) else problem.fun
    if not hasattr(function, "find_spectrum") or isinstance(function, BoundaryDataRHS):
        raise TypeError(f"`problem` must be an equation built by `stepnet.equations`, found {function!r:.60}")
    values = tuple(_validate_data(f"data[{i}]", each) for i, each in enumerate(data))
    added = BoundaryDataRHS(function, len(problem.args), function.checks_steps, function.name)
    args = (*problem.args, *values)
    initial = problem.q0 if isinstance(problem, SecondOrder) else problem.y0
    try:
        added(problem.t_span[0], initial, *args)
    except TypeError as error:
        raise TypeError(
            f"`problem` must have a grid whose boundary functions take t and {len(values)} data, as "
            f"`dirichlet(lambda t, level: ...)`; found {error}"
        ) from error
    if isinstance(problem, SecondOrder):
        return replace(problem, acceleration=added, args=args)
    return replace(problem, fun=added, args=args)


def _validate_data(name: str, value: Any) -> Any:
    found = validation.array()(name, value)
    if not np.isfinite(found).all():
        raise ValueError(f"`{name}` must be finite")
    return float(found) if found.ndim == 0 else found
