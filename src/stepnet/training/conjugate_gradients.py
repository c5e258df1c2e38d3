"""Truncated conjugate gradients, which stop at a tolerance, a boundary or negative curvature."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from stepnet.fields.inner_product import inner
from stepnet.records import validate_number
from stepnet.validation import alike, array, check, function, optional, real, whole


class CGStep(NamedTuple):
    """A step p, the decrease of the model m(p) = g'p + p'Hp / 2, and how the iteration ended."""

    direction: np.ndarray
    decrease: float
    iterations: int
    reason: str


@check(
    product=function, g=array(None), radius=real("(0, inf]"), iterations=whole(1), tol=real("[0, inf)"),
    curvature=optional(function),
)  # fmt: skip
def truncated_cg(
    product: Callable[[np.ndarray], np.ndarray], g: np.ndarray, radius: float, iterations: int, tol: float,
    curvature: Callable[[np.ndarray], float] | None = None,
) -> CGStep:  # fmt: skip
    """Minimise m(p) = g'p + p'Hp / 2 over |p| <= radius until the residual is `tol` of |g|.

    `product(d)` is H d, and `curvature(d)`, where it is cheaper, d'Hd: the residual after the last iteration is not
    needed, so it replaces the last product.

    Steihaug (1983), SIAM J. Numer. Anal. 20:626; Toint (1981).  Negative curvature is followed to the boundary; without
    one (an infinite radius) the current iterate is returned, or -g in the first iteration.

    Parameters
    ----------
    product : callable
        `product(d)` returns H d.
    g : ndarray
        The gradient.
    radius : float
        Of the trust region; infinite for none.
    iterations : int
        Maximum number of iterations.
    tol : float
        Relative residual at which the iteration ends.
    curvature : callable, optional
        `curvature(d)` returns d'Hd.

    Returns
    -------
    CGStep

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import training
    >>> training.truncated_cg(lambda d: 2.0 * d, np.array([1.0, -2.0]), np.inf, 10, 1e-10).direction
    array([-0.5,  1. ])
    """
    p, r = np.zeros_like(g), g.copy()  # r = g + H p
    d, rr = -r, inner(r, r)
    goal, reason, count, decrease = tol * sqrt(rr), "residual", 0, 0.0
    while sqrt(rr) > goal:
        count += 1
        if count == iterations:
            bend = (
                validate_number("curvature", curvature(d))
                if curvature
                else inner(d, alike("product", product(d), "g", g))
            )
            reason = "iterations"
        else:
            h = alike("product", product(d), "g", g).astype(g.dtype, copy=False)
            bend = inner(d, h)
        if not bend > 0:
            length, reason = _make_downhill(p, d, radius), "negative curvature"
        else:
            length, furthest = rr / bend, _find_boundary(p, d, radius)
            if length >= furthest:
                length, reason = furthest, "boundary"
        p, decrease = p + length * d, decrease - length * (inner(r, d) + 0.5 * length * bend)
        if reason != "residual":
            break
        r = r + length * h
        new = inner(r, r)
        d, rr = -r + new / rr * d, new
    return CGStep(p, decrease, count, reason)


def _make_downhill(p: np.ndarray, d: np.ndarray, radius: float) -> float:
    """The step length along negative curvature: to the boundary; without one, only the first direction is used."""
    if radius < inf:
        return _find_boundary(p, d, radius)
    return 0.0 if p.any() else 1.0


def _find_boundary(p: np.ndarray, d: np.ndarray, radius: float) -> float:
    """The positive root of |p + t d| = radius."""
    if radius == inf:
        return inf
    a, b, c = inner(d, d), inner(p, d), inner(p, p) - radius**2
    return (-b + sqrt(max(b * b - a * c, 0.0))) / a
