"""Discrete random variables for weak schemes, from separate streams: functions of (seed, path, step, component).

Four paths share a draw, one word each.  Two-point: -1 or 1.  Three-point: 0 with probability 2/3, else -sqrt(3) or
sqrt(3), the probabilities rounded to 2^-32; moments up to the fifth are those of a normal variable.

P. E. Kloeden, E. Platen (1992), Numerical Solution of Stochastic Differential Equations, section 14.1-14.2.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike

from stepnet import validation
from stepnet.noise.arguments import DIMENSION, check_seed, validate_paths, validate_row
from stepnet.noise.counters import MOST_CELLS, THREE_POINT, TWO_POINT, pack_counter
from stepnet.noise.philox import draw_words

SIXTH = 715827883  # of 2^32
ROOT_3 = sqrt(3.0)
PATHS_OF_A_DRAW = 4


@validation.check(seed=check_seed, dimension=DIMENSION)
def two_point(seed: int, path: ArrayLike, step: ArrayLike, dimension: int = 1) -> np.ndarray:
    """Variables that are -1 or 1, each with probability 1/2.

    Parameters
    ----------
    seed : int
        From 0 to 2^64 - 1.
    path, step : int or array_like of int
        Numbers of the path and the step, or several of them.
    dimension : int
        Components.

    Returns
    -------
    numpy.ndarray
        Of shape `(steps, paths, dimension)`; scalar arguments have no axis.

    Examples
    --------
    >>> from stepnet.noise import two_point
    >>> two_point(seed=1, path=0, step=range(4)).shape
    (4, 1)
    """
    return _shape(draw_two_point, seed, path, step, dimension)


@validation.check(seed=check_seed, dimension=DIMENSION)
def three_point(seed: int, path: ArrayLike, step: ArrayLike, dimension: int = 1) -> np.ndarray:
    """Variables that are -sqrt(3), 0 or sqrt(3), with probabilities 1/6, 2/3 and 1/6.

    Parameters
    ----------
    seed : int
        From 0 to 2^64 - 1.
    path, step : int or array_like of int
        Numbers of the path and the step, or several of them.
    dimension : int
        Components.

    Returns
    -------
    numpy.ndarray
        Of shape `(steps, paths, dimension)`; scalar arguments have no axis.

    Examples
    --------
    >>> from stepnet.noise import three_point
    >>> three_point(seed=1, path=[0, 5], step=3, dimension=2).shape
    (2, 2)
    """
    return _shape(draw_three_point, seed, path, step, dimension)


def draw_two_point(seed: int, paths: np.ndarray, steps: np.ndarray, dimension: int) -> np.ndarray:
    """-1 or 1, (steps, paths, components)."""
    return np.where(_draw(TWO_POINT, seed, paths, steps, dimension) >> np.uint64(31) == 0, -1.0, 1.0)


def draw_three_point(seed: int, paths: np.ndarray, steps: np.ndarray, dimension: int) -> np.ndarray:
    """-sqrt(3), 0 or sqrt(3), (steps, paths, components)."""
    word = _draw(THREE_POINT, seed, paths, steps, dimension)
    upper = np.where(word >= np.uint64(2**32 - SIXTH), ROOT_3, 0.0)
    return np.where(word < np.uint64(SIXTH), -ROOT_3, upper)


def _shape(draw: Callable[..., np.ndarray], seed: int, path: ArrayLike, step: ArrayLike, dimension: int) -> np.ndarray:
    paths, steps = validate_paths("path", path), validate_row("step", step, validation.whole(0, MOST_CELLS - 1))
    values = draw(seed, paths.ravel(), steps.ravel(), dimension)
    return values.reshape(*steps.shape, *paths.shape, dimension)


def _draw(stream: int, seed: int, paths: np.ndarray, steps: np.ndarray, dimension: int) -> np.ndarray:
    group, place = paths[:, None] // PATHS_OF_A_DRAW, paths[:, None] % PATHS_OF_A_DRAW
    words = draw_words(pack_counter(stream, group, np.arange(dimension), steps[:, None, None]), seed)
    return np.choose(place, words)
