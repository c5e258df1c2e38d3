"""Operators on the chunks of a dask array, for domains that are too large for one machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from stepnet import validation
from stepnet.operators.boundaries import Boundary, neumann
from stepnet.operators.grid import Grid
from stepnet.operators.linear import A_GRID

A_DASK_ARRAY = validation.having("map_overlap", "chunks", "shape", what="a dask array")


@validation.check(build=validation.function, grid=A_GRID, u=A_DASK_ARRAY, reach=validation.whole(1))
def map_chunks(build: Callable[[Grid], Callable[[Any], Any]], grid: Grid, u: Any, reach: int) -> Any:
    """Apply an operator, or an explicit step, to a dask array chunk by chunk.

    Each chunk receives `reach` points of its neighbours, and boundary conditions act on the sides of the domain only.
    The result equals that on the whole array up to rounding.

    Parameters
    ----------
    build : callable
        `build(grid)` returns a function of a field on that grid, such as `operators.laplacian`; it is called for the
        part of the grid that belongs to each chunk.  It must be importable or picklable for workers elsewhere.
    grid : Grid
        The grid of the whole array.
    u : dask array
        Of the shape of the grid, in chunks of at least `reach` points along each axis.
    reach : int
        Number of neighbouring points that the function reads; for a step with s stages, s times the reach of its
        operators.

    Returns
    -------
    dask array

    Examples
    --------
    >>> import dask.array
    >>> import numpy as np
    >>> from stepnet.operators import Grid, laplacian, map_chunks
    >>> grid, u = Grid((16, 16), boundary="dirichlet"), np.random.default_rng(0).normal(size=(16, 16))
    >>> found = map_chunks(laplacian, grid, dask.array.from_array(u, chunks=8), reach=1)
    >>> bool(np.allclose(found.compute(), laplacian(grid)(u), rtol=1e-12))
    True
    """
    if u.shape != grid.shape:
        raise ValueError(f"`u` must have the shape {grid.shape} of the grid, found {u.shape}")
    least = min(min(sizes) for sizes in u.chunks)
    if least < reach:
        raise ValueError(f"`reach` must be at most {least}, the length of the shortest chunk, found {reach}")
    sides: Any = {axis: "periodic" if pair is None else "none" for axis, pair in enumerate(grid.boundary)}
    compute = partial(_compute_chunk, build, grid, u.chunks, reach)
    return u.map_overlap(compute, depth=reach, boundary=sides, meta=np.zeros((0,) * u.ndim))


def _compute_chunk(
    build: Callable[[Grid], Callable[[Any], Any]],
    grid: Grid,
    chunks: tuple[tuple[int, ...], ...],
    reach: int,
    block: Any,
    block_info: Any = None,
) -> Any:
    """The function on a chunk with the points around it; dask discards the results at those points."""
    place = block_info[0]["chunk-location"]
    points = []
    for axis, sizes in enumerate(chunks):
        ends, is_periodic = np.cumsum((0, *sizes)), grid.boundary[axis] is None
        before = reach if is_periodic or place[axis] > 0 else 0
        after = reach if is_periodic or place[axis] < len(sizes) - 1 else 0
        points.append(np.arange(ends[place[axis]] - before, ends[place[axis] + 1] + after))
    return build(cut_grid(grid, tuple(points)))(block)


def cut_grid(grid: Grid, points: tuple[np.ndarray, ...]) -> Grid:
    """The grid of consecutive points, with the conditions of the domain where they reach its sides."""
    boundary, upper = [], []
    for axis, pair in enumerate(grid.boundary):
        inside = neumann(), neumann()
        lower_side, upper_side = inside if pair is None else pair
        sides = (
            lower_side if points[axis][0] == 0 else inside[0],
            upper_side if points[axis][-1] == grid.shape[axis] - 1 else inside[1],
        )
        boundary.append(tuple(_cut_values(side, axis, grid, points) for side in sides))
        n = len(points[axis])
        intervals = n if grid.centring == "cell" else n - 1 + sum(side.is_dirichlet for side in boundary[-1])
        upper.append(grid.spacing[axis] * intervals)
    return Grid(tuple(map(len, points)), 0.0, upper, boundary, grid.centring)


def _cut_values(side: Boundary, axis: int, grid: Grid, points: tuple[np.ndarray, ...]) -> Boundary:
    """A boundary whose values along the side are those at these points."""
    if not isinstance(side.value, np.ndarray):
        return side
    index = [each % n for k, (each, n) in enumerate(zip(points, grid.shape, strict=True)) if k != axis]
    return replace(side, value=side.value[np.ix_(*index)])
