"""Counters of draws: streams, and the positions of path, cell, node and component in the four words.

A counter is (node, cell, low word of the path, high byte of the path | component << 8 | stream << 24), so that no two
draws of a seed have the same one.  Some draws serve several paths: `CELL_*` streams count groups of paths.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CELL_INCREMENT, CELL_AREA, NODE, LEVY_AREA, TWO_POINT, THREE_POINT, EXIT = range(1, 8)
"""Streams: increments and areas of cells, bridges inside cells, Levy areas, discrete variables, exits inside steps."""

MOST_PATHS = 2**40
MOST_CELLS = 2**32
MOST_COMPONENTS = 2**16
MOST_LEVELS = 31

GROUP = 16
"""Paths of a group, where path i < 8 and path i + 8 share a draw of two normals: vectors are stored contiguously."""
HALF_GROUP = GROUP // 2


def locate_in_pair(path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of the draw that a path shares, and the index of its normal in that draw."""
    path = np.asarray(path, np.int64)
    return path // GROUP * HALF_GROUP + path % HALF_GROUP, path % GROUP // HALF_GROUP


def pack_counter(stream: int, path: Any, component: Any, cell: Any, node: Any = 0) -> Any:
    """The four words, from integers or arrays of them that broadcast."""
    path, component = np.asarray(path, np.int64), np.asarray(component, np.int64)
    return node, cell, path & 0xFFFFFFFF, (path >> 32) | (component << 8) | (stream << 24)
