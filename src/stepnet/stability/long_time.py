"""Structure over long times: drift of invariants, symplecticity and reversibility of numerical solutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.gradients.tangents import jacobian
from stepnet.problem import Partitioned, Problem, SecondOrder, restart
from stepnet.records import show_fields
from stepnet.solution import Solution
from stepnet.solving.integrate import solve
from stepnet.stability.arguments import require_exact_derivative
from stepnet.stability.first_order import DETERMINISTIC
from stepnet.validation import array, check, function, instance, optional, whole

DEFINITE = 3.0  # standard deviations of the trend beyond which an invariant is said to drift


@dataclass(frozen=True, repr=False, eq=False)
class InvariantDrift:
    """Errors of an invariant along a solution.

    Parameters
    ----------
    name : str
    times : array (times,)
    errors : array (times,)
        I(t) - I(0), relative to |I(0)| if that is not zero.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> found = sn.stability.InvariantDrift("energy", np.arange(3.0), np.array([0.0, 1.0, 2.0]))
    >>> found.largest, round(found.rate, 12)
    (2.0, 1.0)
    """

    name: str
    times: np.ndarray
    errors: np.ndarray

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def largest(self) -> float:
        """The largest |error|."""
        return float(np.abs(self.errors).max())

    @property
    def rate(self) -> float:
        """The slope of the line through the errors by least squares."""
        return float(np.polyfit(self.times - self.times[0], self.errors, 1)[0])

    @property
    def is_drifting(self) -> bool:
        """Whether the trend over the whole time exceeds three standard deviations of the errors around it."""
        span = self.times - self.times[0]
        around = self.errors - np.polyval(np.polyfit(span, self.errors, 1), span)
        return bool(abs(self.rate * span[-1]) > DEFINITE * around.std())


@check(problem=DETERMINISTIC, steps=optional(whole(1)), samples=whole(3, 10**6))
def drift(
    problem: Problem, scheme: Any, invariants: Mapping[str, Callable[[Solution], Any]] | Callable[[Solution], Any], *,
    steps: int | None = None, samples: int = 1000, **options: Any,
) -> tuple[InvariantDrift, ...]:  # fmt: skip
    """Measure how invariants such as energy and momentum change along a long run.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
    scheme : str or scheme
    invariants : callable or mapping of str to callable
        `energy(solution)` returns a number for each of its times, as in `plots.energy_error`.
    steps : int, optional
        Equal steps; without them steps are adaptive.
    samples : int, optional
        Approximate number of saved states.
    **options
        Options of `solve`, except save times.

    Returns
    -------
    tuple of InvariantDrift

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> problem = sn.SecondOrder(lambda t, q: -np.sin(q), [1.0], [0.0], (0.0, 200.0))
    >>> energy = lambda s: s.v[:, 0] ** 2 / 2 - np.cos(s.q[:, 0])
    >>> [sn.stability.drift(problem, name, energy, steps=2000)[0].is_drifting for name in ("verlet", "rk4")]
    [False, True]
    """
    named = dict(invariants) if isinstance(invariants, Mapping) else {"invariant": invariants}
    for name in ("save_at", "save_every"):
        if name in options:
            raise TypeError(f"`{name}` is chosen by `drift`; choose how many states are saved by `samples`")
    every = 1 if steps is None else max(1, steps // samples)
    solution = solve(problem, scheme, steps=steps, save_every=every, **options)
    found = []
    for name, invariant in named.items():
        values = array()("invariants", function("invariants", invariant)(solution))
        if values.shape != solution.t.shape:
            raise ValueError(
                f"`invariants` must give one number for each of {len(solution.t)} times, found {values.shape} of {name}"
            )
        if not np.isfinite(values).all():
            raise ValueError(f"`invariants` must give finite numbers, found NaN or infinity of {name}")
        scale = abs(values[0]) or 1.0
        found.append(InvariantDrift(name, np.abs(solution.t - solution.t[0]), (values - values[0]) / scale))
    return tuple(found)


@check(problem=DETERMINISTIC)
def reversibility_error(problem: Problem, scheme: Any, *, steps: Any = None, **options: Any) -> float:
    """Solve forward and back again: the distance from the initial state, relative to its size.

    It is at the level of rounding for symmetric schemes with fixed steps, and of the order of the errors for others.

    Parameters
    ----------
    problem : ODE, Partitioned, SecondOrder or Split
    scheme, steps
        As in `solve`.
    **options
        Options of `solve`.

    Returns
    -------
    float

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.SecondOrder(lambda t, q: -q**3, [1.0], [0.0], (0.0, 10.0))
    >>> sn.stability.reversibility_error(problem, "verlet", steps=200) < 1e-12
    True
    """
    end = solve(problem, scheme, steps=steps, save_every=0, **options).y[-1]
    if steps is not None and np.ndim(steps):
        steps = np.asarray(steps)[::-1]
    back = restart(problem, np.asarray(end).ravel(), problem.t_span[::-1])
    start = np.asarray(solve(back, scheme, steps=steps, save_every=0, **options).y[-1]).ravel()
    return float(np.linalg.norm(start - problem.initial) / (np.linalg.norm(problem.initial) or 1.0))


@check(problem=instance(Partitioned, SecondOrder))
def symplecticity_error(problem: Partitioned | SecondOrder, scheme: Any, *, steps: Any = None, **options: Any) -> float:
    """The largest entry of M' J M - J, M the derivative of the end state with respect to the initial one.

    It is at the level of rounding for symplectic schemes, for any step size.

    Parameters
    ----------
    problem : Partitioned or SecondOrder
        A Hamiltonian system; q' = v and p = v for a `SecondOrder` problem.
    scheme, steps
        As in `solve`.
    **options
        Options of `jacobian` for adaptive steps.

    Returns
    -------
    float

    Raises
    ------
    TypeError
        If the scheme chooses its order, as the derivative of its steps is not known.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> pendulum = sn.SecondOrder(lambda t, q: -np.sin(q), [1.0], [0.0], (0.0, 10.0))
    >>> errors = [sn.stability.symplecticity_error(pendulum, name, steps=50) for name in ("verlet", "rk4")]
    >>> errors[0] < 1e-12, errors[1] > 1e-6
    (True, True)
    """
    require_exact_derivative(scheme)
    M = jacobian(problem, scheme, steps=steps, **options).y0
    n = len(M) // 2
    J = np.block([[np.zeros((n, n)), np.eye(n)], [-np.eye(n), np.zeros((n, n))]])
    return float(np.abs(M.T @ J @ M - J).max())
