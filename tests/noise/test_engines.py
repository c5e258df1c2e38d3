"""Both engines give the numbers of the NumPy reference: bit for bit, but for the last places of normals on tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from stepnet.engines.numba_engine.codegen.intrinsics import normals
from stepnet.engines.numba_engine.codegen.kernels import Kernel
from stepnet.engines.numba_engine.random import increments, paths
from stepnet.engines.torch_engine.random import increments as tensor_increments
from stepnet.engines.torch_engine.random import normals as tensor_normals
from stepnet.engines.torch_engine.random import paths as tensor_paths
from stepnet.noise import discrete, reference
from stepnet.noise import normals as plain_normals
from stepnet.noise.grid import NoiseGrid
from stepnet.noise.philox import convert_to_uniforms, draw_words
from stepnet.noise.reference import BrownianPaths

SEED = 2**63 + 5
PATH0, LANES, M, CELL, LEVELS = 2**33 + 32, 48, 3, 11, 3
ULPS = 2
GRIDS = [((0.0, 1.0), 1, 24), ((0.0, 1.0), 4, 6), ((-2.0, 3.3), 37, 5), ((0.0, 1e-3), 256, 0)]
TENSOR_AREAS = 1e-13  # in units of the root of the interval


def ulps_apart(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.max(np.abs(x - y) / np.spacing(np.maximum(np.abs(x), np.abs(y)))))


def intervals(grid: NoiseGrid, n: int) -> np.ndarray:
    """Random ones, dyadic ones, short ones and some within a leaf, (intervals, 2)."""
    rng = np.random.default_rng(3)
    t0, t1 = grid.t_span
    x = rng.random((4 * n, 2))
    x[n : 2 * n] = np.round(x[n : 2 * n] * grid.cells * 16) / (grid.cells * 16)
    x[2 * n : 3 * n, 1] = x[2 * n : 3 * n, 0] + 1e-3 * rng.random(n)
    x[3 * n :, 1] = x[3 * n :, 0] + 0.3 / (grid.cells * grid.leaves) * rng.random(n)
    return np.sort(np.clip(t0 + (t1 - t0) * x, t0, t1), axis=1)


# ---- compiled kernels ------------------------------------------------------------------------------------------------


@Kernel
def fill_words(seed, bits, uniforms, values):
    for i in range(bits.shape[0]):
        a, b = normals.draw_words(normals.U(3), normals.U(i), normals.U(7), normals.U(9), seed)
        bits[i, 0], bits[i, 1] = a, b
        uniforms[i, 0], uniforms[i, 1] = normals.convert_to_uniform(a), normals.convert_to_uniform(b)
        values[i, 0], values[i, 1] = normals.convert_to_normals(a, b)


@Kernel
def fill_increments(seed, path0, cell, scale, rounder, out):
    increments.draw_increments(seed, path0, cell, scale, rounder, out)


@Kernel
def refine(seed, path0, cell, length, rounder, levels, W, H):
    increments.draw_increments(seed, path0, cell, np.sqrt(length), rounder, W[0])
    increments.draw_areas(seed, path0, cell, np.sqrt(length / 12.0), H[0])
    increments.refine_cell(seed, path0, cell, length, rounder, levels, W, H)


@Kernel
def fill_discrete(seed, path0, step, two, three):
    increments.draw_two_point(seed, path0, step, two)
    increments.draw_three_point(seed, path0, step, three)


def test_words_uniforms_and_normals_of_kernels_are_the_same_bits():
    n = 20_000
    bits, uniforms, values = np.empty((n, 2), np.uint64), np.empty((n, 2)), np.empty((n, 2))
    fill_words(np.uint64(SEED), bits, uniforms, values)
    words = draw_words((3, np.arange(n), 7, 9), SEED)
    half = np.uint64(32)
    assert (bits == np.stack(((words[0] << half) | words[1], (words[2] << half) | words[3]), axis=1)).all()
    assert (uniforms == np.stack(convert_to_uniforms(words), axis=1)).all()
    assert (values == np.stack(plain_normals.convert_to_normals(words), axis=1)).all()


def lane_noise(grid: NoiseGrid) -> BrownianPaths:
    return BrownianPaths(grid, SEED, PATH0 + np.arange(LANES), M)


def test_increments_in_lanes_are_the_same_bits_whatever_the_blocks():
    grid = NoiseGrid((0.0, 2.0), 20)
    wanted = reference.draw_cell_increments(lane_noise(grid), np.array([CELL]))[0].T
    for width in (16, 48):
        for first in range(0, LANES, width):
            out = np.empty((M, width))
            numbers = np.sqrt(grid.cell_length), grid.rounder
            fill_increments(np.uint64(SEED), PATH0 + first, CELL, *numbers, out)
            assert (out == wanted[:, first : first + width]).all()


def test_refined_cells_are_the_same_bits():
    grid = NoiseGrid((0.0, 2.0), 20)
    W, H = np.empty((2, 2**LEVELS, M, LANES))
    refine(np.uint64(SEED), PATH0, CELL, grid.cell_length, grid.rounder, LEVELS, W, H)
    t = (CELL + np.arange(2**LEVELS + 1) / 2**LEVELS) * grid.cell_length
    wanted = reference.evaluate(lane_noise(grid), grid.locate(t[:-1]), grid.locate(t[1:]))
    assert (np.swapaxes(W, 1, 2) == wanted[0]).all()
    assert (np.swapaxes(H, 1, 2) == wanted[1]).all()


def test_discrete_variables_in_lanes_are_the_same():
    two, three = np.empty((2, M, LANES))
    fill_discrete(np.uint64(SEED), PATH0, CELL, two, three)
    where = SEED, PATH0 + np.arange(LANES), np.array([CELL]), M
    assert (two == discrete.draw_two_point(*where)[0].T).all()
    assert (three == discrete.draw_three_point(*where)[0].T).all()


@pytest.mark.parametrize(("span", "cells", "levels"), GRIDS)
def test_paths_of_kernels_are_the_same_bits(span, cells, levels):
    grid = NoiseGrid(span, cells, levels)
    noise = BrownianPaths(grid, SEED, np.array([0, 9, 17, 2**33 + 5]), 2)
    t = intervals(grid, 60)
    a, b = grid.locate(t[:, 0]), grid.locate(t[:, 1])
    for one, other in zip(reference.evaluate(noise, a, b), paths.evaluate(noise, a, b), strict=True):
        assert (one == other).all()


def test_threads_do_not_matter():
    grid = NoiseGrid((0.0, 1.0))
    noise = BrownianPaths(grid, SEED, np.arange(3), 2)
    t = intervals(grid, 200)
    parts = [(grid.locate(t[i::7, 0]), grid.locate(t[i::7, 1])) for i in range(7)]
    one_by_one = [paths.evaluate(noise, *part)[0] for part in parts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda part: paths.evaluate(noise, *part)[0], parts))
    assert all((x == y).all() for x, y in zip(one_by_one, together, strict=True))


# ---- tensors ---------------------------------------------------------------------------------------------------------


def draw_tensors(count: torch.Tensor):
    words = tensor_normals.draw_words((3, count, 7, 9), SEED)
    return (*words, *tensor_normals.convert_to_uniforms(words), *tensor_normals.convert_to_normals(words))


def check_tensors(found, n: int) -> None:
    words = draw_words((3, np.arange(n), 7, 9), SEED)
    for one, other in zip((*words, *convert_to_uniforms(words)), found[:6], strict=True):
        assert (one == other.numpy().astype(one.dtype)).all()
    for one, other in zip(plain_normals.convert_to_normals(words), found[6:], strict=True):
        assert ulps_apart(one, other.numpy()) <= ULPS


def test_words_and_uniforms_of_tensors_are_the_same_bits_and_normals_within_two_ulps():
    check_tensors(draw_tensors(torch.arange(20_000)), 20_000)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_tensors_are_the_same(backend):
    check_tensors(torch.compile(draw_tensors, backend=backend, fullgraph=True)(torch.arange(3000)), 3000)


@pytest.mark.parametrize(("span", "cells", "levels"), GRIDS[:3])
def test_paths_of_tensors_are_the_same(span, cells, levels, within):
    """Increments may differ by the quantum where a normal differs in its last place."""
    grid = NoiseGrid(span, cells, levels)
    numbers = np.array([0, 9, 17, 2**33 + 5])
    t = intervals(grid, 12)
    t = t[t[:, 1] > t[:, 0]]
    wanted = reference.evaluate(BrownianPaths(grid, SEED, numbers, 2), grid.locate(t[:, 0]), grid.locate(t[:, 1]))
    noise = tensor_paths.TensorNoise(grid, SEED, torch.as_tensor(numbers), 2)
    for k, (a, b) in enumerate(t.tolist()):
        W, H = tensor_paths.evaluate(noise, a, b)
        assert np.abs(W.numpy() - wanted[0][k]).max() <= 4 * grid.quantum
        if b - a > grid.cell_length / grid.leaves:  # areas within a leaf are differences
            within(
                "areas of tensors", np.abs(H.numpy() - wanted[1][k]).max() / np.sqrt(span[1] - span[0]), TENSOR_AREAS
            )


def test_discrete_variables_of_tensors_are_the_same():
    where = SEED, PATH0 + np.arange(LANES), np.array([CELL]), M
    tensors = SEED, torch.as_tensor(PATH0 + np.arange(LANES)), M, CELL
    assert (tensor_increments.draw_two_point(*tensors).numpy() == discrete.draw_two_point(*where)[0]).all()
    assert (tensor_increments.draw_three_point(*tensors).numpy() == discrete.draw_three_point(*where)[0]).all()


def test_no_number_of_a_device_is_read():
    """Meta tensors have no numbers."""
    grid = NoiseGrid((0.0, 1.0), 4)
    noise = tensor_paths.TensorNoise(grid, SEED, torch.arange(5, device="meta"), 2)
    W, H = tensor_paths.evaluate(noise, 0.1, 0.6)
    assert (W.device.type, W.shape, H.shape) == ("meta", (5, 2), (5, 2))
