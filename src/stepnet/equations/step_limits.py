"""The largest stable step of a scheme, from its stability region and the eigenvalues of a discrete equation."""

from __future__ import annotations

from math import ceil, inf
from typing import Any

import numpy as np

from stepnet.problem import Problem, SecondOrder
from stepnet.schemes.capabilities import find_refusal
from stepnet.schemes.catalogue import get
from stepnet.schemes.conditions import amplification, imaginary_stability_limit, real_stability_limit

GROWTH = 1e-9  # growth per step that counts as rounding
SCANNED = 400  # steps between zero and the first one that is surely unstable
AXIS = 1e-9  # relative distance from an axis within which eigenvalues count as lying on it
MARGIN = 1e-9  # by which a step may exceed the limit: rounding of the number of steps


def find_largest_step(problem: Problem, scheme: Any) -> float:
    """The largest step with which a scheme is stable on an equation.

    It follows from the stability region of the scheme and the eigenvalues of the discrete operators at the beginning;
    reaction terms and sources do not count.

    Parameters
    ----------
    problem : ODE or SecondOrder
        An equation built by `stepnet.equations`.
    scheme : record or str
        A scheme or its name.

    Returns
    -------
    float
        Infinity if all steps are stable, 0 if none is.

    Examples
    --------
    >>> from stepnet.equations import find_largest_step
    >>> from stepnet import equations, operators
    >>> grid = operators.Grid(10, boundary="neumann")
    >>> problem = equations.heat(grid, [0.0] * 10, (0.0, 1.0), diffusivity=1.0)
    >>> round(find_largest_step(problem, "euler"), 6)
    0.005
    """
    function = _find_function(problem)
    if not hasattr(function, "find_spectrum"):
        raise TypeError(
            f"`problem` must be an equation built by `stepnet.equations`, found {type(problem).__name__} with "
            f"{function!r:.60}"
        )
    scheme = get(scheme)
    refusal = find_refusal(scheme, problem.form)
    if refusal is not None:
        raise TypeError(refusal)
    initial = problem.q0 if isinstance(problem, SecondOrder) else getattr(problem, "y0", None)
    spectrum = np.asarray(function.find_spectrum(problem.t_span[0], initial, *problem.args))
    if problem.t_span[1] < problem.t_span[0] and not isinstance(problem, SecondOrder):
        spectrum = -spectrum
    return float(limit_step(scheme, spectrum, isinstance(problem, SecondOrder)))


def limit_step(scheme: Any, spectrum: np.ndarray, is_second_order: bool) -> float:
    """The largest h with h z in the stability region for all z of the spectrum (of q'' = z q if second order)."""
    if is_second_order:
        spectrum = 1j * np.sqrt(np.maximum(-spectrum.real, 0.0))
    size = float(np.max(np.abs(spectrum), initial=0.0))
    if size == 0.0:
        return inf
    if np.all(np.abs(spectrum.imag) <= AXIS * size):
        if np.max(spectrum.real) > AXIS * size:
            return 0.0  # such as heat backward in time: every scheme follows the growth
        return real_stability_limit(scheme) / size
    if np.all(np.abs(spectrum.real) <= AXIS * size):
        return imaginary_stability_limit(scheme) / size
    return _scan(scheme, spectrum[np.abs(spectrum) > AXIS * size], size)


def _scan(scheme: Any, spectrum: np.ndarray, size: float) -> float:
    """The smallest h at which some eigenvalue leaves the region, by a scan and bisection."""

    def is_stable(h: float) -> bool:
        return bool(np.all(amplification(scheme, h * spectrum) <= 1 + GROWTH))

    top = 1.0 / size
    while is_stable(top):
        top *= 2.0
        if top * size > 1e6:
            return inf
    steps = np.linspace(0.0, top, SCANNED)[1:]
    first = next((i for i, h in enumerate(steps) if not is_stable(h)), len(steps) - 1)
    low, high = (steps[first - 1] if first else 0.0), steps[first]
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(middle) else (low, middle)
    return float(low) if low > 1e-6 * top else 0.0


def find_step_refusal(problem: Problem, scheme: Any, longest: float) -> str | None:
    """Why fixed steps up to `longest` are unstable for an equation, None if they are stable or nothing is known."""
    function = _find_function(problem)
    if not getattr(function, "checks_steps", False):
        return None
    limit = find_largest_step(problem, scheme)
    if not longest > limit * (1 + MARGIN):
        return None
    begin = f"h = {longest:.4g} is unstable for {function.name} by {scheme.name}"
    if limit == 0.0:
        advice = "use another scheme, such as rk4, or an upwind operator; diffusion cannot be run backward in time"
        return f"`steps`: {begin}, as is every step; {advice}"
    span = abs(problem.t_span[1] - problem.t_span[0])
    return (
        f"`steps` must be at least {ceil(span / limit * (1 - MARGIN))}, found steps of {longest:.4g}: {begin} on this "
        f"grid, where the limit is {limit:.4g}; `check_steps=False` of the equation omits this check"
    )


def _find_function(problem: Problem) -> Any:
    function = getattr(problem, "fun", None)
    return getattr(problem, "acceleration", None) if function is None else function
