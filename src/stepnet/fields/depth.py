"""Weights as functions of depth: splines, of which only the control values are stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepnet.fields.connectivity import count
from stepnet.sums import inner

NEAR = 1e-9  # in intervals: a time that close to a knot belongs to what comes after it


@dataclass(frozen=True)
class Depth:
    """theta(s) = sum_j B_j(s) theta_j, 0 <= s <= 1: clamped B-splines of a degree on equal intervals.

    Degree 0 is piecewise constant, continuous from the right: with as many controls as steps, weights step by step.
    Degree 1 is piecewise linear through its controls, degree 3 a smooth spline.  Every scheme evaluates theta at its
    stage times; one that looks at the end of a step sees the weights of the next one if they are piecewise constant.
    de Boor (1978), A Practical Guide to Splines, IX.

    Parameters
    ----------
    controls : int
        Control values, more than `degree`.
    degree : int
        0 to 3.
    """

    controls: int
    degree: int = 0

    def __post_init__(self):
        object.__setattr__(self, "controls", count("controls", self.controls))
        if self.degree not in (0, 1, 2, 3):
            raise ValueError(f"`degree` must be 0, 1, 2 or 3, found {self.degree!r}")
        if self.controls <= self.degree:
            raise ValueError(f"`controls` must be more than the degree {self.degree}, found {self.controls}")

    @property
    def intervals(self) -> int:
        return self.controls - self.degree

    def basis(self, s) -> tuple[np.ndarray, np.ndarray]:
        """The first control that counts at each s, and the weights of that one and the `degree` following ones."""
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

    def values(self, controls: np.ndarray, s: float) -> np.ndarray:
        """theta(s) from the control values `(controls, ...)`."""
        first, weights = self.basis(s)
        return np.tensordot(weights[0], controls[first[0] : first[0] + self.degree + 1], axes=1)

    def refined(self, controls: np.ndarray, new: Depth) -> np.ndarray:
        """Control values of another depth: those of degree 0 are repeated, others interpolated at Greville's nodes."""
        return np.stack([self.values(controls, s) for s in new.nodes])

    @property
    def nodes(self) -> np.ndarray:
        """Where each control has its place: the middle of its interval, or Greville's abscissa."""
        p, n = self.degree, self.intervals
        if p == 0:
            return (np.arange(n) + 0.5) / n
        knots = np.clip(np.arange(1 - p, n + p), 0, n) / n
        return np.array([knots[j : j + p].mean() for j in range(self.controls)])

    def roughness(self, controls: np.ndarray, length: float) -> tuple[float, np.ndarray]:
        """1/2 sum_j d |(theta_{j+1} - theta_j) / d|^2 with the distance d of controls, and its gradient."""
        distance = length / max(1, self.controls - (self.degree > 0))
        jumps = np.diff(controls, axis=0) / distance
        gradient = np.zeros_like(controls)
        gradient[1:] += jumps
        gradient[:-1] -= jumps
        return 0.5 * distance * inner(jumps, jumps), gradient
