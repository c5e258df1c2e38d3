"""Finite-time Lyapunov exponents over a plane of initial states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.ensembles.ensemble import solve_ensemble
from stepnet.problem import Problem
from stepnet.records import show_fields
from stepnet.stability.arguments import grid_axis
from stepnet.stability.first_order import DETERMINISTIC
from stepnet.validation import check, sequence, whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

CHUNK = 20_000  # members that are solved at once


@check(x=grid_axis, y=grid_axis)
@dataclass(frozen=True, repr=False, eq=False)
class LyapunovField:
    """Finite-time Lyapunov exponents log(s) / T, s the largest stretching of a perturbation over the time span T.

    Parameters
    ----------
    x, y : array
        The values of two entries of the initial state.
    values : array (len(y), len(x))

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> sn.stability.LyapunovField([0.0, 1.0], [0.0], np.zeros((1, 2))).values.shape
    (1, 2)
    """

    x: np.ndarray
    y: np.ndarray
    values: np.ndarray

    def __post_init__(self) -> None:
        for name in ("x", "y"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))
        if np.shape(self.values) != (len(self.y), len(self.x)):
            raise ValueError(
                f"`values` must have the shape ({len(self.y)}, {len(self.x)}), found {np.shape(self.values)}"
            )

    def __repr__(self) -> str:
        return show_fields(self)


@check(problem=DETERMINISTIC, x=grid_axis, y=grid_axis)
def lyapunov_field(
    problem: Problem, x: ArrayLike, y: ArrayLike, scheme: Any = None, *, components: tuple[int, int] = (0, 1),
    **options: Any,
) -> LyapunovField:  # fmt: skip
    """Compute the finite-time Lyapunov exponent of each initial state on a grid.

    Ridges of the field separate regions that drift apart; Shadden, Lekien & Marsden (2005), Physica D 212:271.  All
    states and their tangents are solved together, as members of an ensemble.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
        Its time span is that of the exponents; it may go backward.
    x, y : array_like
        The values of two entries of the flat initial state, increasing; other entries are those of the problem.
    scheme : str or scheme, optional
    components : tuple of int, optional
        The indices of these two entries.
    **options
        Options of `solve_ensemble`, such as `steps`, `rtol` and `atol`.

    Returns
    -------
    LyapunovField

    Examples
    --------
    >>> import stepnet as sn
    >>> saddle = sn.ODE(lambda t, y: [y[0], -2 * y[1]], [0.0, 0.0], (0.0, 3.0))
    >>> sn.stability.lyapunov_field(saddle, [0.0, 1.0], [0.0], "rk4", steps=300).values.round(6).tolist()
    [[1.0, 1.0]]
    """
    from stepnet.engines.numba_engine import as_block, tangent_problem

    n, x, y = problem.initial.size, np.asarray(x), np.asarray(y)
    first, second = _validate_components(components, n)
    starts = np.tile(problem.initial, (len(y), len(x), 1))
    starts[..., first], starts[..., second] = x, y[:, None]
    both = tangent_problem(problem, np.ones(n), as_block([None] * len(problem.args), problem.args), may_call=True)
    n_parts, flat = 2 if problem.form.has_halves else 1, starts.reshape(-1, n)
    span = abs(problem.t_span[1] - problem.t_span[0])
    values, count = np.empty(len(flat)), max(1, CHUNK // n)
    for begin in range(0, len(flat), count):
        some = flat[begin : begin + count]
        rows = np.empty((len(some), n, n_parts, 2, n // n_parts))  # a tangent for each unit vector
        rows[:, :, :, 0] = some.reshape(-1, 1, n_parts, n // n_parts)
        rows[:, :, :, 1] = np.eye(n).reshape(n, n_parts, -1)
        ends = solve_ensemble(both, scheme, y0=rows.reshape(len(some) * n, -1), **options).y_end.reshape(rows.shape)
        stretched = np.linalg.norm(ends[:, :, :, 1].reshape(-1, n, n), ord=2, axis=(1, 2))
        with np.errstate(divide="ignore"):
            values[begin : begin + count] = np.log(stretched) / span
    return LyapunovField(x, y, values.reshape(len(y), len(x)))


def _validate_components(components: Any, n: int) -> tuple[int, int]:
    if n < 2:
        raise ValueError(f"`problem` must have a state of two entries at least, found {n}")
    found = sequence(whole(0, n - 1))("components", components)
    if len(found) != 2 or found[0] == found[1]:
        raise ValueError(f"`components` must be two different entries of the state, found {components!r:.60}")
    return found
