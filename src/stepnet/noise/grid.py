"""Times as integers: cells of a base grid, dyadic levels inside them, and a fraction of the smallest interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log2
from typing import Any, NamedTuple

import numpy as np

from stepnet import validation
from stepnet.noise.counters import MOST_CELLS, MOST_LEVELS
from stepnet.records import keep

ULPS = 4  # units in the last place by which a time may differ from the intended one
LEAF_TOLERANCES = 64  # the minimum length of a leaf, in tolerances of time
QUANTUM_BITS = 46  # of sqrt(t1 - t0); sums are exact below 2^53 quanta, 128 standard deviations of W(t1)
DEFAULT_LEVELS = 24


class Positions(NamedTuple):
    """Arrays of times: cell, leaf of the cell (0 to 2^levels - 1), and fraction of the leaf in [0, 1)."""

    cell: np.ndarray
    leaf: np.ndarray
    fraction: np.ndarray


@validation.check(cells=validation.whole(1, MOST_CELLS), levels=validation.whole(0, MOST_LEVELS))
@dataclass(frozen=True)
class NoiseGrid:
    """The interval of a Brownian path, `cells` equal cells, and the number of times each may be halved.

    Parameters
    ----------
    t_span : pair of floats
        Initial and final time.
    cells : int
        Cells of the base grid, each with its own draw.
    levels : int
        Maximum number of halvings of a cell.  The smallest intervals are the leaves; fewer levels are used where leaves
        would be shorter than the resolution of t.

    Examples
    --------
    >>> from stepnet.noise import NoiseGrid
    >>> NoiseGrid((0.0, 1.0), cells=4, levels=3).locate([0.0, 0.5, 0.78125])
    Positions(cell=array([0, 2, 3]), leaf=array([0, 0, 1]), fraction=array([0., 0., 0.]))
    """

    t_span: tuple[float, float]
    cells: int = 1
    levels: int = DEFAULT_LEVELS

    def __post_init__(self) -> None:
        t0, t1 = _validate_span(self.t_span)
        most = floor(log2((t1 - t0) / (self.cells * LEAF_TOLERANCES * _tolerate(t0, t1))))
        if most < 0:
            raise ValueError(f"`cells` must be less than {self.cells}: a cell is shorter than the resolution of t")
        keep(self, t_span=(t0, t1), levels=min(self.levels, most))

    @property
    def cell_length(self) -> float:
        return (self.t_span[1] - self.t_span[0]) / self.cells

    @property
    def quantum(self) -> float:
        """A power of two of which all increments are multiples."""
        return 2.0 ** (ceil(0.5 * log2(self.t_span[1] - self.t_span[0])) - QUANTUM_BITS)

    @property
    def rounder(self) -> float:
        """x + rounder - rounder is the multiple of the quantum nearest to x."""
        return 1.5 * 2.0**52 * self.quantum

    @property
    def leaves(self) -> int:
        """The number of leaves of a cell."""
        return 1 << self.levels

    @validation.check(name=validation.text)
    def locate(self, times: Any, name: str = "times") -> Positions:
        """The positions of times; those within a few units in the last place of the end of a leaf are moved there.

        Errors call the times by `name`.
        """
        t = validation.array()(name, times).astype(np.float64)
        self._require_inside(t, name)
        return self._place(t)

    def _require_inside(self, t: np.ndarray, name: str) -> None:
        """Refuse times outside the interval, by more than a few units in the last place."""
        t0, t1 = self.t_span
        tolerance = _tolerate(t0, t1)
        is_inside = (t >= t0 - tolerance) & (t <= t1 + tolerance)
        if not is_inside.all():
            found = np.ravel(t)[np.argmin(np.ravel(is_inside))]
            raise ValueError(f"`{name}` must be within the interval [{t0:g}, {t1:g}] of the path, found {found:g}")

    def _place(self, t: np.ndarray) -> Positions:
        """The positions of times within the interval."""
        t0, t1 = self.t_span
        n = self.cells * self.leaves
        x = np.minimum(np.maximum((t - t0) / (t1 - t0) * n, 0.0), n)
        nearest = np.rint(x)
        is_near = np.abs(x - nearest) <= 2.0 * _tolerate(t0, t1) / (t1 - t0) * n
        whole = np.where(is_near, nearest, np.floor(x))
        index = whole.astype(np.int64)
        return Positions(index >> self.levels, index & (self.leaves - 1), np.where(is_near, 0.0, x - whole))


def _tolerate(t0: float, t1: float) -> float:
    """The tolerance by which a time may differ from the intended one."""
    return ULPS * float(np.spacing(max(abs(t0), abs(t1))))


def _validate_span(t_span: Any) -> tuple[float, float]:
    """Return two finite times, the second later."""
    span = validation.array(2)("t_span", t_span)
    t0, t1 = float(span[0]), float(span[1])
    if not (np.isfinite(span).all() and 0 < t1 - t0 < np.inf):
        raise ValueError(f"`t_span` must be two finite times, the second one later, found ({t0:g}, {t1:g})")
    return t0, t1
