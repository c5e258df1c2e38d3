"""Boundaries of expectations: exits from a domain (Dirichlet) and faces of a box that reflect paths (Neumann).

A path that is reflected along the normal of a face is the image of a path z without a boundary under a map that folds
the space, y = fold(z), where z has the coefficients s(z) f(t, fold(z)) and s(z) g(t, fold(z)) with the sign s of the
derivative of fold, entry by entry: this is Tanaka's formula without the local time.  Steps of Euler-Maruyama for z are
those of the symmetrised Euler scheme, of weak order one (M. Bossy, E. Gobet & D. Talay 2004, J. Appl. Probab. 41:877).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from stepnet.events import Event
from stepnet.problem import SDE
from stepnet.validation import array

Fold = Callable[[Any], Any]


class Box(NamedTuple):
    """The faces that reflect, (entries,) each, infinite where there is none."""

    lower: np.ndarray
    upper: np.ndarray


def validate_box(reflecting: Any, sde: SDE, points: np.ndarray) -> Box:
    """Return the faces of `reflecting`; all start points must lie between them."""
    if not isinstance(reflecting, (tuple, list)) or len(reflecting) != 2:
        raise TypeError(f"`reflecting` must be a pair (lower, upper), found {reflecting!r:.60}")
    faces = [array()("reflecting", value) for value in reflecting]
    for face in faces:
        if face.shape not in ((), sde.y0.shape):
            raise ValueError(
                f"`reflecting` must hold a number or an array of the shape {sde.y0.shape} of the state for each side, "
                f"found the shape {face.shape}"
            )
    box = Box(*(np.array(np.broadcast_to(face, sde.y0.shape).ravel()) for face in faces))
    if not (box.lower < box.upper).all():  # also NaN
        raise ValueError(f"`reflecting` must have lower < upper, found {reflecting!r:.80}")
    outside = ((points < box.lower) | (points > box.upper)).any(axis=1)
    if outside.any():
        raise ValueError(f"`x` must lie between the faces of `reflecting`, found {points[outside.argmax()]}")
    return box


def build_fold(box: Box) -> tuple[Fold, Fold]:
    """The map that folds flat states into the box, and the signs of its derivative."""
    lower, upper = box
    has_lower, has_upper = np.isfinite(lower), np.isfinite(upper)
    both, below, above = has_lower & has_upper, has_lower & ~has_upper, has_upper & ~has_lower
    a, b = np.where(has_lower, lower, 0.0), np.where(has_upper, upper, 0.0)
    width = np.where(both, b - a, 1.0)
    kinds = tuple(name for name, has in (("both", both), ("below", below), ("above", above)) if has.any())

    def fold(z: Any) -> Any:
        found = z
        if "both" in kinds:
            k = (z - a) - 2.0 * width * np.floor((z - a) / (2.0 * width))
            found = np.where(both, a + np.minimum(k, 2.0 * width - k), found)
        if "below" in kinds:
            found = np.where(below, a + np.abs(z - a), found)
        if "above" in kinds:
            found = np.where(above, b - np.abs(z - b), found)
        return found

    def find_signs(z: Any) -> Any:
        found = 1.0 + 0.0 * z
        if "both" in kinds:
            k = (z - a) - 2.0 * width * np.floor((z - a) / (2.0 * width))
            found = np.where(both, np.where(k < width, 1.0, -1.0), found)
        if "below" in kinds:
            found = np.where(below, np.where(z < a, -1.0, 1.0), found)
        if "above" in kinds:
            found = np.where(above, np.where(z > b, -1.0, 1.0), found)
        return found

    return fold, find_signs


def unfold(sde: SDE, box: Box) -> SDE:
    """The equation without boundaries whose folded paths are those that the box reflects."""
    f, g, shape, n = sde.drift, sde.diffusion, sde.y0.shape, sde.y0.size
    fold, find_signs = build_fold(box)
    columns = sde.diffusion_shape[len(shape) :]

    def drift(t: float, z: Any, *args: Any) -> Any:
        y, signs = fold(z.reshape(n)), find_signs(z.reshape(n))
        return (signs * np.ravel(f(t, y.reshape(shape), *args))).reshape(shape)

    def diffusion(t: float, z: Any, *args: Any) -> Any:
        y, signs = fold(z.reshape(n)), find_signs(z.reshape(n))
        found = np.reshape(g(t, y.reshape(shape), *args), (n, *columns))
        return (signs.reshape((n,) + (1,) * len(columns)) * found).reshape(shape + columns)

    noise = "general" if sde.noise == "additive" and columns else "diagonal" if sde.noise == "additive" else sde.noise
    return replace(sde, drift=drift, diffusion=diffusion, noise=noise)


def fold_first(function: Callable[..., Any] | None, box: Box, shape: tuple[int, ...]) -> Callable[..., Any] | None:
    """`function(t, y, *args)` of the folded state."""
    if function is None:
        return None
    fold, _ = build_fold(box)

    def folded(t: float, z: Any, *args: Any) -> Any:
        return function(t, fold(z.reshape(-1)).reshape(shape), *args)

    return folded


def build_exit(domain: Any, shape: tuple[int, ...], n: int) -> Event:
    """The event at which a path leaves the domain, for states with further entries."""
    event = domain if isinstance(domain, Event) else Event(domain, terminal=True)
    inside = event.fun

    def watch(t: float, z: Any, *args: Any) -> Any:
        return inside(t, z[:n].reshape(shape), *args)

    return replace(event, fun=watch, terminal=True)


def require_inside(domain: Any, sde: SDE, points: np.ndarray) -> None:
    """Refuse start points on the boundary of the domain or beyond it."""
    inside = domain.fun if isinstance(domain, Event) else domain
    for point in points:
        value = inside(sde.t_span[0], point.reshape(sde.y0.shape).copy(), *sde.args)
        if np.ndim(value) != 0 or np.asarray(value).dtype.kind not in "biuf":
            raise TypeError(f"`domain` must return a number for one state, found {value!r:.80}")
        if not value > 0.0:
            raise ValueError(f"`domain` must be positive at each start point, found {value:g} at {point}")
