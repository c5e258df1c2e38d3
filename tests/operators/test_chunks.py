"""Operators and explicit steps on the chunks of a dask array equal those on the whole array."""

from __future__ import annotations

from functools import partial

import dask
import dask.array
import numpy as np
import pytest
from dask.distributed import Client, LocalCluster

from stepnet import operators as so

ROUNDING = 1e-13  # relative: the same sums, with boundary values of the same grid


def step(order: int, grid: so.Grid):
    """One step of Euler's method for the heat equation."""
    operator = so.laplacian(grid, order)
    return lambda u: u + 1e-4 * operator(u)


def build_grid(centring: str, rng: np.random.Generator) -> so.Grid:
    sides = (so.dirichlet(rng.normal(size=24)), so.robin(1.0, 0.5, rng.normal(size=24)))
    return so.Grid((20, 24), 0.0, (1.0, 2.0), boundary=[sides, "periodic"], centring=centring)


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("centring", ["cell", "node"])
def test_chunks_give_the_whole(centring, order):
    rng = np.random.default_rng(0)
    grid = build_grid(centring, rng)
    u = rng.normal(size=grid.shape)
    with dask.config.set(scheduler="synchronous"):
        found = so.map_chunks(partial(step, order), grid, dask.array.from_array(u, chunks=(7, 8)), order // 2)
        wanted = step(order, grid)(u)
        assert np.max(np.abs(found.compute() - wanted)) <= ROUNDING * np.max(np.abs(wanted))


def test_two_processes_give_the_whole():
    rng = np.random.default_rng(1)
    grid = build_grid("cell", rng)
    u = rng.normal(size=grid.shape)
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster):
        found = so.map_chunks(partial(step, 2), grid, dask.array.from_array(u, chunks=(10, 12)), 1).compute()
    assert np.max(np.abs(found - step(2, grid)(u))) <= ROUNDING * np.max(np.abs(found))


def test_wrong_chunks_are_refused():
    grid = so.Grid(8)
    with pytest.raises(TypeError, match="`u` must be a dask array"):
        so.map_chunks(so.laplacian, grid, np.ones(8), 1)
    with pytest.raises(ValueError, match="`reach` must be at most 2"):
        so.map_chunks(so.laplacian, grid, dask.array.ones(8, chunks=2), 3)
    with pytest.raises(ValueError, match="`u` must have the shape"):
        so.map_chunks(so.laplacian, grid, dask.array.ones(9, chunks=3), 1)
