"""The eigenvectors of the Laplacian on grids as fast transforms: Fourier, sine and cosine, an axis at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stepnet.operators.boundaries import Boundary
from stepnet.operators.linear import AxisStencil, StencilOperator


class AxisTransform(NamedTuple):
    """A transform along an axis ("fft", "dct" or "dst" of a type), and the eigenvalues that belong to it."""

    axis: int
    name: str
    type: int
    eigenvalues: np.ndarray


def find_transforms(operator: StencilOperator) -> list[AxisTransform] | None:
    """The transforms that diagonalise a Laplacian; None unless each axis is periodic or, at order 2, has equal kinds of
    sides, Dirichlet or Neumann.
    """
    found = [_find_transform(operator, term) for term in operator.terms]
    return None if any(each is None for each in found) else [each for each in found if each is not None]


def _find_transform(operator: StencilOperator, term: AxisStencil) -> AxisTransform | None:
    grid, axis, stencil = operator.grid, term.axis, term.stencil
    n, k, sides = grid.shape[axis], np.arange(grid.shape[axis]), grid.boundary[axis]
    if sides is None:
        name, kind, theta = "fft", 0, 2 * np.pi * k / n
    elif stencil.order != 2:
        return None
    elif all(side.is_dirichlet for side in sides):
        name, kind = "dst", 2 if grid.centring == "cell" else 1
        theta = np.pi * (k + 1) / (n + (kind == 1))
    elif all(_is_neumann(side) for side in sides):
        name, kind = "dct", 2 if grid.centring == "cell" else 1
        theta = np.pi * k / (n - (kind == 1))
    else:
        return None
    offsets = np.array(stencil.offsets)
    values = 2 * np.sin(0.5 * np.outer(theta, offsets)) ** 2 @ -np.array(stencil.weights)  # sum w (cos - 1): sum w = 0
    return AxisTransform(axis, name, kind, term.factor * values / grid.spacing[axis] ** 2)


def _is_neumann(side: Boundary) -> bool:
    return side.value_weight == 0.0


def has_constants(transforms: list[AxisTransform]) -> bool:
    """Whether the Laplacian of a constant is zero, so that it determines u up to a constant."""
    return all(each.eigenvalues[0] == 0.0 for each in transforms)


def invert_laplacian(transforms: list[AxisTransform], right: np.ndarray) -> tuple[np.ndarray, float]:
    """u with lap u = right minus its component along constants, if these are eigenvectors; and this component."""
    from scipy import fft

    ordered, found = sorted(transforms, key=lambda each: each.name == "fft"), right
    for each in ordered:  # real transforms first
        found = fft.fft(found, axis=each.axis) if each.name == "fft" else _apply(fft, each, found, "")
    eigenvalues = np.zeros(1)
    for each in transforms:
        shape = [1] * right.ndim
        shape[each.axis] = -1
        eigenvalues = eigenvalues + each.eigenvalues.reshape(shape)
    first, rest = (0,) * right.ndim, 0.0
    if has_constants(transforms):
        whole = np.ones(right.shape)
        for each in ordered:
            whole = fft.fft(whole, axis=each.axis) if each.name == "fft" else _apply(fft, each, whole, "")
        rest = float((found[first] / whole[first]).real)
        eigenvalues[first], found[first] = 1.0, 0.0
    found = found / eigenvalues
    for each in reversed(ordered):
        found = fft.ifft(found, axis=each.axis) if each.name == "fft" else _apply(fft, each, found, "i")
    return np.ascontiguousarray(found.real), rest


def _apply(fft: Any, each: AxisTransform, values: np.ndarray, direction: str) -> np.ndarray:
    if np.iscomplexobj(values):
        return _apply(fft, each, values.real, direction) + 1j * _apply(fft, each, values.imag, direction)
    return getattr(fft, direction + each.name)(values, type=each.type, axis=each.axis)
