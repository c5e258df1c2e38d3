"""The random variables of the steps of a scheme, for groups of 16 paths or for one path.

Steps are cells of the Brownian path, unions of cells, or cells halved several times; other steps are evaluated as
general intervals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepnet.engines.contract import FixedSteps
from stepnet.engines.numba_engine.codegen.intrinsics.exact_arithmetic import exact
from stepnet.engines.numba_engine.codegen.kernels import Kernel, compiled
from stepnet.engines.numba_engine.codegen.steps.fused_steps import NoiseLayout
from stepnet.engines.numba_engine.random.increments import (
    draw_cells,
    draw_three_point,
    draw_two_point,
    join,
    refine_cell,
)
from stepnet.engines.numba_engine.random.paths import evaluate
from stepnet.noise import NoiseGrid, step_variables, three_point, two_point
from stepnet.noise.counters import CELL_AREA, CELL_INCREMENT, GROUP
from stepnet.noise.grid import DEFAULT_LEVELS
from stepnet.noise.reference import BrownianPaths
from stepnet.problem import StochasticProblem
from stepnet.schemes.step_program import Noise, StepProgram

SHORT_CHUNK, LONG_CHUNK = 64, 256  # steps whose random variables are drawn at once; more if a cell has more
CHUNK_VARIABLES = 2560  # of one path, whose numbers for 16 paths fit into the second-level cache
LONGEST_CHUNK = 1024  # of one path

W, I10, I11_SCALED, I111, ROOT, I11, J11, V, V2, I11_PAIRS, J11_PAIRS, V2_PAIRS = range(12)
CODE = {
    "W": W, "I10/h": I10, "I11/sqrt(h)": I11_SCALED, "I111/h": I111, "sqrt(h)": ROOT, "I11": I11, "J11": J11, "V": V,
    "V2": V2,
}  # fmt: skip
PAIR_CODE = {"I11": I11_PAIRS, "J11": J11_PAIRS, "V2": V2_PAIRS}
NEED_AREAS, NEED_POINTS = ("I10/h",), ("V", "V2")

average_path, second_integral, third_integral = map(
    exact, (step_variables.average_path, step_variables.second_integral, step_variables.third_integral)
)
scaled_second_integral, scaled_square, scaled_pair, pair_integral = map(
    exact,
    (
        step_variables.scaled_second_integral,
        step_variables.scaled_square,
        step_variables.scaled_pair,
        step_variables.pair_integral,
    ),
)


class StepNoise(NamedTuple):
    """Numbers of the draws: a step of length `h` is `joined` cells, or a cell halved `levels` times.

    `codes` and `offsets` say which random variables a step has, and where they begin.
    """

    seed: np.uint64
    length: float
    rounder: float
    levels: int
    joined: int
    h: float
    codes: np.ndarray
    offsets: np.ndarray
    has_areas: int
    has_points: int
    has_signs: int


class NoiseBuffers(NamedTuple):
    """Increments, areas, three-point and two-point variables of a chunk of steps, (steps, components, 16).

    The rest is workspace of the draws: a second pair of increments and areas for cells that are joined.
    """

    W: np.ndarray
    H: np.ndarray
    V: np.ndarray
    S: np.ndarray
    more_increments: np.ndarray
    more_areas: np.ndarray


@compiled
def draw_chunk(noise, path0, first, count, buffers):
    """Draw for 16 paths from `path0` on; `first` is the first step of a cell, and the steps are whole cells."""
    is_refined, has_areas = noise.levels > 0, noise.has_areas != 0
    per_cell, cell0 = 1 << noise.levels, (first >> noise.levels) * noise.joined
    n_cells = (count + per_cell - 1) >> noise.levels
    draw_intervals(noise, path0, cell0, n_cells, is_refined or has_areas, buffers.W, buffers.H)
    more_increments, more_areas = buffers.more_increments, buffers.more_areas
    for k in range(1, noise.joined):
        draw_intervals(noise, path0, cell0 + k, n_cells, has_areas, more_increments, more_areas)
        join_intervals(float(k), n_cells, has_areas, buffers)
    if is_refined:
        for s in range(n_cells):
            rows = slice(s * per_cell, (s + 1) * per_cell)
            W_, H_ = buffers.W[rows], buffers.H[rows]
            refine_cell(noise.seed, path0, cell0 + s, noise.length, noise.rounder, noise.levels, W_, H_)
    if noise.has_points != 0:
        for s in range(count):
            draw_three_point(noise.seed, path0, first + s, buffers.V[s])
    if noise.has_signs != 0:
        for s in range(count):
            draw_two_point(noise.seed, path0, first + s, buffers.S[s])


@compiled
def draw_intervals(noise, path0, cell0, n_cells, has_areas, W_, H_):
    """Increments, and areas if wanted, of every `joined`-th cell from cell0 on, at the first step of each."""
    m = W_.shape[1]
    step, scale = (GROUP * m) << noise.levels, np.sqrt(noise.length)
    for i in range(m):
        draw_cells(
            *(noise.seed, CELL_INCREMENT, path0, cell0, noise.joined, n_cells),
            *(i, scale, noise.rounder, W_, GROUP * i, step),
        )
        if has_areas:
            draw_cells(
                *(noise.seed, CELL_AREA, path0, cell0, noise.joined, n_cells),
                *(i, np.sqrt(noise.length / 12.0), 0.0, H_, GROUP * i, step),
            )


@exact
def join_intervals(k, n_cells, has_areas, buffers):
    """Join the next cells to intervals of k cells each."""
    W_, H_, more_W, more_H = buffers.W, buffers.H, buffers.more_increments, buffers.more_areas
    for s in range(n_cells):
        for i in range(W_.shape[1]):
            for j in range(GROUP):
                if has_areas:
                    W_[s, i, j], H_[s, i, j] = join(W_[s, i, j], H_[s, i, j], k, more_W[s, i, j], more_H[s, i, j], 1.0)
                else:
                    W_[s, i, j] += more_W[s, i, j]


@exact
def convert_variable(code, x, area, point, h, root):
    """A random variable from increment, area and three-point variable."""
    if code == W:
        return x
    if code == I10:
        return average_path(x, area)
    if code == I11_SCALED:
        return scaled_second_integral(x, h, root)
    if code == I111:
        return third_integral(x, h)
    if code == ROOT:
        return root
    if code == I11:
        return second_integral(x, h)
    if code == J11:
        return second_integral(x, 0.0)
    if code == V:
        return root * point
    return scaled_square(root * point, h, root)


@exact
def find_pair_offset(i, j, sign_i, sign_j, h):
    """U_ij of two three-point variables: -h for i = j, else of opposite signs for (i, j) and (j, i)."""
    if i == j:
        return -h
    return -h * sign_i if i < j else h * sign_j


@compiled
def fill_variables(noise, buffers, s, first_column, width, out):
    """The random variables of step s of a chunk for `width` columns, into the rows of `out`."""
    h, root = noise.h, np.sqrt(noise.h)
    m = buffers.W.shape[1]
    for k in range(noise.codes.shape[0]):
        code, row = noise.codes[k], noise.offsets[k]
        if code == V2_PAIRS:
            for i in range(m):
                for j in range(m):
                    for lane in range(width):
                        c = first_column + lane
                        U = find_pair_offset(i, j, buffers.S[s, i, c], buffers.S[s, j, c], h)
                        x, y = root * buffers.V[s, i, c], root * buffers.V[s, j, c]
                        out[row + i * m + j, lane] = scaled_pair(x, y, U, root)
        elif code >= I11_PAIRS:
            for i in range(m):
                for j in range(m):
                    diagonal = h if code == I11_PAIRS and i == j else 0.0
                    for lane in range(width):
                        x, y = buffers.W[s, i, first_column + lane], buffers.W[s, j, first_column + lane]
                        out[row + i * m + j, lane] = pair_integral(x, y, diagonal)
        else:
            for i in range(m):
                for lane in range(width):
                    c = first_column + lane
                    point = buffers.V[s, i, c] if noise.has_points != 0 else 0.0
                    area = buffers.H[s, i, c] if noise.has_areas != 0 else 0.0
                    out[row + i, lane] = convert_variable(code, buffers.W[s, i, c], area, point, h, root)


@compiled
def is_only_increment(noise):
    """Whether dW is the only random variable of a step, so that buffers hold the variables as they are."""
    return noise.codes.shape[0] == 1 and noise.codes[0] == W


@Kernel
def fill_path(noise, path, first, count, buffers, out):
    """The random variables of steps of one path, (steps, variables, 1); `first` is the first step of a cell."""
    draw_chunk(noise, path // GROUP * GROUP, first, count, buffers)
    for s in range(count):
        fill_variables(noise, buffers, s, path % GROUP, 1, out[s])


def build_step_noise(
    problem: StochasticProblem, n_steps: int, program: StepProgram, n_components: int
) -> StepNoise | None:
    """The numbers of the draws for equal steps, None if steps and cells do not match."""
    cells = n_steps if problem.cells is None else problem.cells
    levels, joined = _match(n_steps, cells)
    if levels < 0:
        return None
    grid = NoiseGrid(problem.t_span, cells)
    if levels > grid.levels:
        return None
    layout = NoiseLayout.of(program, n_components)
    names = [each.variable for each in program.noise]
    return StepNoise(
        np.uint64(problem.seed),
        grid.cell_length,
        grid.rounder,
        levels,
        joined,
        (problem.t_span[1] - problem.t_span[0]) / n_steps,
        np.array([_find_code(each) for each in program.noise], np.int64),
        np.array([layout.places[each].start for each in program.noise], np.int64),
        int(any(name in NEED_AREAS for name in names)),
        int(any(name in NEED_POINTS for name in names)),
        int(any(_needs_signs(each) for each in program.noise)),
    )


def _needs_signs(noise: Noise) -> bool:
    return noise.is_paired and noise.variable == "V2"


def _find_code(noise: Noise) -> int:
    return PAIR_CODE[noise.variable] if noise.is_paired else CODE[noise.variable]


def _match(n_steps: int, cells: int) -> tuple[int, int]:
    """Halvings of a cell and cells joined to a step; (-1, 0) if neither works."""
    if cells % n_steps == 0:
        return 0, cells // n_steps
    ratio = n_steps // cells
    is_power = n_steps % cells == 0 and ratio & (ratio - 1) == 0
    return (ratio.bit_length() - 1, 1) if is_power else (-1, 0)


def allocate_buffers(noise: StepNoise, n_components: int, steps: int) -> NoiseBuffers:
    """Buffers for chunks of this number of steps, which are whole cells."""
    shape = (steps, n_components, GROUP)
    H = np.zeros(shape if noise.has_areas or noise.levels else (steps, 1, 1))
    points, signs = (np.zeros(shape if has else (steps, 1, 1)) for has in (noise.has_points, noise.has_signs))
    more = (np.zeros(shape), np.zeros_like(H)) if noise.joined > 1 else (np.zeros((1, 1, 1)), np.zeros((1, 1, 1)))
    return NoiseBuffers(np.zeros(shape), H, points, signs, *more)


def round_to_cells(noise: StepNoise, steps: int) -> int:
    """The smallest number of steps, at least `steps`, that are whole cells."""
    per_cell = 1 << noise.levels
    return -(-steps // per_cell) * per_cell


def choose_chunk(noise: StepNoise, n_variables: int, n_steps: int) -> int:
    """Steps whose random variables are drawn at once: more of few variables, where calls take a tenth of the time."""
    steps = max(SHORT_CHUNK, min(LONG_CHUNK, CHUNK_VARIABLES // n_variables))
    return round_to_cells(noise, min(steps, n_steps))


class PathNoise:
    """The random variables of one path, drawn when they are needed: `draw(first, count)` gives (steps, variables).

    `increments` (steps, components) replace the Brownian path.
    """

    def __init__(
        self,
        problem: StochasticProblem,
        stepping: FixedSteps,
        program: StepProgram,
        n_components: int,
        increments: np.ndarray | None = None,
    ):
        self._increments = increments
        self._problem, self._stepping, self._program, self._m = problem, stepping, program, n_components
        self.layout = NoiseLayout.of(program, n_components)
        is_even = stepping.grid is None and increments is None
        self._numbers = build_step_noise(problem, stepping.n_steps, program, n_components) if is_even else None
        if self._numbers is not None:
            self._chunk = round_to_cells(self._numbers, LONGEST_CHUNK)
            self._buffers = allocate_buffers(self._numbers, n_components, self._chunk)

    def draw(self, first: int, count: int) -> np.ndarray:
        if self._numbers is None:
            return self._evaluate(first, count)
        per_cell = 1 << self._numbers.levels
        begin = first // per_cell * per_cell
        out = np.empty((first + count - begin, self.layout.size, 1))
        for at in range(0, len(out), self._chunk):
            part = out[at : at + self._chunk]
            fill_path(self._numbers, self._problem.path, begin + at, len(part), self._buffers, part)
        return np.ascontiguousarray(out[first - begin :, :, 0])

    def _evaluate(self, first: int, count: int) -> np.ndarray:
        """For steps that are general intervals, or increments that are given."""
        problem, n_steps = self._problem, self._stepping.n_steps
        times = self._stepping.grid
        if times is None:
            times = np.linspace(*problem.t_span, n_steps + 1)
        x, area = self._find_increments(times, first, count)
        h = np.diff(times[first : first + count + 1])[:, None]
        steps = np.arange(first, first + count)
        used, where = self._program.noise, (problem.seed, problem.path, steps, self._m)
        points = three_point(*where) if any(each.variable in NEED_POINTS for each in used) else np.zeros_like(x)
        signs = two_point(*where) if any(map(_needs_signs, used)) else np.zeros_like(x)
        out = np.empty((count, self.layout.size))
        for each, place in self.layout.places.items():
            out[:, place] = _evaluate_variable(each, x, area, points, signs, h)
        return out

    def _find_increments(self, times: np.ndarray, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Increments and areas of steps, (steps, components)."""
        if self._increments is not None:
            x = self._increments[first : first + count]
            return x, np.zeros_like(x)
        problem = self._problem
        cells = self._stepping.n_steps if problem.cells is None else problem.cells
        grid = NoiseGrid(problem.t_span, cells, DEFAULT_LEVELS)
        places = grid.locate(times[first : first + count + 1])
        start, end = (type(places)(*(each[part] for each in places)) for part in (slice(-1), slice(1, None)))
        noise = BrownianPaths(grid, problem.seed, np.array([problem.path]), self._m)
        x, area = (found[:, 0] for found in evaluate(noise, start, end))
        return x, area


def _evaluate_variable(
    noise: Noise, x: np.ndarray, area: np.ndarray, points: np.ndarray, signs: np.ndarray, h: np.ndarray
) -> np.ndarray:
    root = np.sqrt(h)
    if _needs_signs(noise):
        is_upper = np.triu(np.ones((x.shape[1],) * 2, bool), 1)
        U = h[:, :, None] * np.where(is_upper, -signs[:, :, None], signs[:, None, :])
        U = np.where(np.eye(x.shape[1], dtype=bool), -h[:, :, None], U)
        V_ = root * points
        return step_variables.scaled_pair(V_[:, :, None], V_[:, None, :], U, root[:, :, None]).reshape(len(x), -1)
    if noise.is_paired:
        diagonal = h[:, :, None] * np.eye(x.shape[1]) if noise.variable == "I11" else 0.0
        return step_variables.pair_integral(x[:, :, None], x[:, None, :], diagonal).reshape(len(x), -1)
    match noise.variable:
        case "W":
            return x
        case "I10/h":
            return step_variables.average_path(x, area)
        case "I11/sqrt(h)":
            return step_variables.scaled_second_integral(x, h, root)
        case "I111/h":
            return step_variables.third_integral(x, h)
        case "sqrt(h)":
            return np.broadcast_to(root, x.shape)
        case "I11" | "J11":
            return step_variables.second_integral(x, h if noise.variable == "I11" else 0.0)
        case "V":
            return root * points
    return step_variables.scaled_square(root * points, h, root)
