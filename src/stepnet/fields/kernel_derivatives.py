"""3 x 3 kernels of convolutions as differential operators, and the other way round."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepnet.validation import array, check, real

STENCILS = np.array([[0.0, 1.0, 0.0], [-0.5, 0.0, 0.5], [1.0, -2.0, 1.0]])
"""The identity, the central first and the second difference, on points of distance 1."""


SPACING = real("[1e-60, 1e60]")  # whose fourth powers are numbers


def _scale(h: float) -> np.ndarray:
    return STENCILS / np.array([1.0, h, h * h])[:, None]


@check(kernels=array(), spacing=SPACING)
def find_kernel_derivatives(kernels: Any, spacing: float = 1.0) -> np.ndarray:
    """The coefficients c of sum_ab c_ab d^a/dx^a d^b/dy^b, a and b from 0 to 2, that 3 x 3 kernels discretise.

    Every kernel is exactly one such sum of the identity, central first and second differences and their products:
    c_00 is a reaction, (c_10, c_01) a velocity, c_20 and c_02 are diffusivities; those with a + b > 2 are of higher
    order.  Ruthotto & Haber (2020), J. Math. Imaging Vision 62:352.

    Parameters
    ----------
    kernels : array_like
        (..., 3, 3), applied as convolutional layers do: u[i + k - 1, j + l - 1] times kernel[k, l]; x is the first axis
        of an image.
    spacing : float
        The distance of pixels.

    Returns
    -------
    array (..., 3, 3)

    Examples
    --------
    >>> from stepnet.fields import find_kernel_derivatives
    >>> c = find_kernel_derivatives([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])  # the Laplacian
    >>> c[2, 0], c[0, 2], abs(c).sum()
    (np.float64(1.0), np.float64(1.0), np.float64(2.0))
    """
    back = np.linalg.inv(_scale(spacing))
    return back.T @ _validate_kernels("kernels", kernels) @ back


@check(coefficients=array(), spacing=SPACING)
def build_kernel(coefficients: Any, spacing: float = 1.0) -> np.ndarray:
    """The 3 x 3 kernels that discretise differential operators: the inverse of `find_kernel_derivatives`.

    Parameters
    ----------
    coefficients : array_like
        (..., 3, 3), as `find_kernel_derivatives` returns them.
    spacing : float
        The distance of pixels.

    Returns
    -------
    array (..., 3, 3)

    Examples
    --------
    >>> from stepnet.fields import build_kernel
    >>> build_kernel([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])[:, 1]  # 2 d/dx
    array([-1.,  0.,  1.])
    """
    stencils = _scale(spacing)
    return stencils.T @ _validate_kernels("coefficients", coefficients) @ stencils


def _validate_kernels(name: str, value: np.ndarray) -> np.ndarray:
    if value.shape[-2:] != (3, 3):
        raise ValueError(f"`{name}` must have the shape (..., 3, 3), found {value.shape}")
    return value
