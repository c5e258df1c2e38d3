"""Weights as functions of depth: held over each step, or splines given by their control values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from stepnet.fields.connectivity import count
from stepnet.fields.inner_product import inner
from stepnet.records import validate_count
from stepnet.validation import array, check, instance, real

NEAR = 1e-9  # in intervals: a time this close to a knot belongs to the next interval


def _times(name: str, value: Any) -> np.ndarray:
    """Return finite numbers, a scalar or one-dimensional."""
    found = np.atleast_1d(array()(name, value))
    if found.ndim != 1 or not np.isfinite(found).all():
        raise ValueError(f"`{name}` must be finite numbers (times,), found the shape {found.shape}")
    return found


@dataclass(frozen=True)
class Depth:
    """theta(s) = sum_j B_j(s) theta_j, 0 <= s <= 1: clamped B-splines of a degree on equal intervals.

    Degree 0 is piecewise constant, continuous from the right: with as many controls as steps, weights step by step.
    Degree 1 is piecewise linear through its controls, degree 3 a smooth spline.  Schemes evaluate theta at their stage
    times; at the end of a step, piecewise constant weights are those of the next step.  de Boor (1978), A Practical
    Guide to Splines, IX.

    Parameters
    ----------
    controls : int
        Number of control values, more than `degree`.
    degree : int
        0 to 3.

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.Depth(controls=5, degree=3).controls
    5
    """

    controls: int
    degree: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "controls", count("controls", self.controls))
        try:
            object.__setattr__(self, "degree", validate_count("degree", self.degree, 0, 3))
        except (TypeError, ValueError):
            raise ValueError(f"`degree` must be 0, 1, 2 or 3, found {self.degree!r:.60}") from None
        if self.controls <= self.degree:
            raise ValueError(f"`controls` must be more than the degree {self.degree}, found {self.controls}")

    @property
    def intervals(self) -> int:
        return self.controls - self.degree

    @check(s=_times)
    def basis(self, s: Any) -> tuple[np.ndarray, np.ndarray]:
        """The first control value with nonzero weight at each s, and the `degree` + 1 weights from it on."""
        s = np.clip(np.atleast_1d(np.asarray(s, float)), 0.0, 1.0)
        first = np.minimum(np.floor(s * self.intervals + NEAR).astype(np.int64), self.intervals - 1)
        p = self.degree
        knots = np.clip(np.arange(-p, self.intervals + p + 1), 0, self.intervals) / self.intervals
        weights = np.ones((s.size, 1))
        for d in range(1, p + 1):  # Cox-de Boor, from the span outward
            grown = np.zeros((s.size, d + 1))
            for j in range(d):
                right, left = knots[first + p + j + 1], knots[first + p + j + 1 - d]
                share = weights[:, j] / (right - left)
                grown[:, j] += (right - s) * share
                grown[:, j + 1] += (s - left) * share
            weights = grown
        return first, weights

    def stage_basis(self, s: np.ndarray, middles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`basis` at the stage times s; the midpoints of the steps are not used."""
        return self.basis(s)

    @check(s=real())
    def values(self, controls: np.ndarray, s: float) -> np.ndarray:
        """theta(s) from the control values `(controls, ...)`."""
        first, weights = self.basis(s)
        return np.tensordot(weights[0], self._rows(controls)[first[0] : first[0] + self.degree + 1], axes=1)

    def refine(self, controls: np.ndarray, new: Depth) -> np.ndarray:
        """Control values for another depth, such that both functions agree at its nodes.

        The functions are equal if each interval is divided into equal parts and the degree is unchanged.
        """
        controls, new = self._rows(controls), instance(Depth)("new", new)
        values = self._matrix(new.nodes) @ controls.reshape(self.controls, -1)
        if new.degree > 1:  # otherwise the control values are the values at the nodes
            values = splu(new._matrix(new.nodes).tocsc()).solve(values)
        return values.reshape(new.controls, *controls.shape[1:])

    def _rows(self, controls: Any) -> np.ndarray:
        """Return control values `(controls, ...)`."""
        found = array()("controls", controls)
        if found.ndim == 0 or len(found) != self.controls or not found.size:
            raise ValueError(f"`controls` must have the shape ({self.controls}, ...), found {found.shape}")
        return found

    def _matrix(self, s: np.ndarray) -> sparse.csr_array:
        """B_j(s_i)."""
        first, weights = self.basis(s)
        columns = first[:, None] + np.arange(self.degree + 1)
        places = np.repeat(np.arange(len(first)), self.degree + 1), columns.ravel()
        return sparse.csr_array((weights.ravel(), places), shape=(len(first), self.controls))

    @property
    def nodes(self) -> np.ndarray:
        """The position of each control value: the midpoint of its interval, or the Greville abscissa."""
        p, n = self.degree, self.intervals
        if p == 0:
            return (np.arange(n) + 0.5) / n
        knots = np.clip(np.arange(1 - p, n + p), 0, n) / n
        return np.array([knots[j : j + p].mean() for j in range(self.controls)])

    @check(length=real("(0, inf)"))
    def roughness(self, controls: np.ndarray, length: float) -> tuple[float, np.ndarray]:
        """1/2 int |d theta / dt|^2 over a time, and its gradient; for degree 0 by differences of control values.

        Then it is 1/2 sum_j d |(theta_{j+1} - theta_j) / d|^2 with the distance d of control values.
        """
        controls = self._rows(controls)
        flat = controls.reshape(self.controls, -1)
        slopes = self._slopes @ flat * length**-0.5
        gradient = self._slopes.T @ slopes * length**-0.5
        return 0.5 * inner(slopes, slopes), gradient.astype(flat.dtype).reshape(controls.shape)

    @cached_property
    def _slopes(self) -> sparse.csr_array:
        """The matrix from control values to d theta / ds at Gauss points, times the square roots of the weights."""
        n, p = self.intervals, self.degree
        steps = sparse.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(self.controls - 1, self.controls))
        if p == 0:
            return sparse.csr_array(n**0.5 * steps)
        points, weights = np.polynomial.legendre.leggauss(p)
        s = (np.arange(n)[:, None] + 0.5 * (points + 1)).ravel() / n
        knots = np.clip(np.arange(1 - p, n + p), 0, n) / n
        slopes = sparse.diags_array(p / (knots[p:] - knots[: self.controls - 1])) @ steps
        roots = sparse.diags_array(np.tile((0.5 * weights / n) ** 0.5, n))
        return sparse.csr_array(roots @ Depth(self.controls - 1, p - 1)._matrix(s) @ slopes)


@dataclass(frozen=True)
class HeldWeights:
    """theta_j on all of step j: each stage of a step uses the weights of that step, even a stage at its end.

    With as many control values as steps these are the layers of Haber & Ruthotto (2017), Chang et al. (2018) and
    Ruthotto & Haber (2020), each with one K.  Otherwise a step uses the control value at its midpoint.  A multistep
    scheme evaluates f(theta_n, y_n) with the weights of the step that begins at y_n.

    Parameters
    ----------
    controls : int
        Number of control values, usually one per step.

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.HeldWeights(controls=10).controls
    10
    """

    controls: int
    degree: ClassVar[int] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "controls", count("controls", self.controls))

    @property
    def intervals(self) -> int:
        return self.controls

    def stage_basis(self, s: np.ndarray, middles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The control value at the midpoint of each step, with weight 1; the stage times s are not used."""
        return self._pieces.basis(_times("middles", middles))

    def values(self, controls: np.ndarray, s: float) -> np.ndarray:
        """theta as a function of depth, continuous from the right, from the control values `(controls, ...)`."""
        return self._pieces.values(controls, s)

    def refine(self, controls: np.ndarray, new: HeldWeights) -> np.ndarray:
        """Control values for another number of steps: a divided step passes a copy to each of its parts."""
        new = instance(HeldWeights)("new", new)
        return self._pieces.refine(controls, new._pieces)

    def roughness(self, controls: np.ndarray, length: float) -> tuple[float, np.ndarray]:
        """1/2 sum_j d |(theta_{j+1} - theta_j) / d|^2 with the time d of a step, and its gradient.

        Haber & Ruthotto (2017), Inverse Problems 34:014004.
        """
        return self._pieces.roughness(controls, length)

    @cached_property
    def _pieces(self) -> Depth:
        """The same function of depth as a piecewise constant spline."""
        return Depth(self.controls)
