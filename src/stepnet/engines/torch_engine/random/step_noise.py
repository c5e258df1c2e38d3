"""The random variables of the steps of a scheme, (batch, components) each.

A source draws the increments and areas of a step, from Brownian paths or by calls of a user's object, whenever a step
is run or run again; only the draws of a few steps, which are computed together, are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stepnet.engines.torch_engine.random.increments import draw_three_point, draw_two_point
from stepnet.engines.torch_engine.random.levy_areas import approximate_levy_area
from stepnet.engines.torch_engine.random.paths import (
    DRAW_ENTRIES,
    Position,
    TensorNoise,
    draw_cell_areas,
    draw_cell_increments,
    evaluate_between,
    locate,
)
from stepnet.noise import step_variables
from stepnet.schemes.step_program import Noise

LEVY_AREA = "A"
"""The Levy area of a step, one number for each pair of components; only schemes of this engine have it."""
NEED_AREAS = ("I10/h", LEVY_AREA)
SIGNED_PAIRS = "V2 of pairs"
"""V2 for each pair of components, which also needs two-point variables."""
NEED_POINTS = ("V", "V2", SIGNED_PAIRS)
CHUNK = 64  # maximum number of steps whose draws are computed together


class StepDraw(NamedTuple):
    """Increments of a step, the mean of W - W(t) over it, its Levy area, and discrete variables; None if not needed.

    V are three-point variables, S two-point variables.
    """

    W: Tensor
    mean: Tensor | None = None
    A: Tensor | None = None
    V: Tensor | None = None
    S: Tensor | None = None


class NoiseSource(Protocol):
    """Draws for a step: its number, its times, and the names of the random variables that are required."""

    def draw(self, step: int, a: float, b: float, names: tuple[str, ...]) -> StepDraw: ...


class StepNoise(NamedTuple):
    """The random variables of steps, from a source, in the precision of the state."""

    source: NoiseSource
    dtype: torch.dtype

    def read(self, wanted: tuple[Noise, ...], step: int, a: float, b: float, h: float) -> list[Tensor]:
        """The variables of step number `step` from a to b, of length h."""
        draw = self.source.draw(step, a, b, tuple(map(_find_name, wanted)))
        return [convert_variable(each, draw, h).to(self.dtype) for each in wanted]


def _find_name(noise: Noise) -> str:
    return SIGNED_PAIRS if noise.is_paired and noise.variable == "V2" else noise.variable


def convert_variable(noise: Noise, draw: StepDraw, h: float) -> Tensor:
    """A random variable of a step of length h, see `schemes.stochastic.VARIABLES`."""
    if noise.is_paired:
        return _PAIRS[noise.variable](draw, h).flatten(1)
    return _VARIABLES[noise.variable](draw, h, sqrt(h))


_VARIABLES: dict[str, Callable[[Any, float, float], Tensor]] = {
    "W": lambda draw, h, root: draw.W,
    "I10/h": lambda draw, h, root: draw.mean,
    "I11/sqrt(h)": lambda draw, h, root: step_variables.scaled_second_integral(draw.W, h, root),
    "I111/h": lambda draw, h, root: step_variables.third_integral(draw.W, h),
    "sqrt(h)": lambda draw, h, root: torch.full_like(draw.W, root),
    "I11": lambda draw, h, root: step_variables.second_integral(draw.W, h),
    "J11": lambda draw, h, root: step_variables.second_integral(draw.W, 0.0),
    "V": lambda draw, h, root: root * draw.V,
    "V2": lambda draw, h, root: step_variables.scaled_square(root * draw.V, h, root),
}

_PAIRS: dict[str, Callable[[Any, float], Tensor]] = {
    "I11": lambda draw, h: _multiply_pairs(draw.W, h),
    "J11": lambda draw, h: _multiply_pairs(draw.W, 0.0),
    "V2": lambda draw, h: _multiply_signed_pairs(draw.V, draw.S, h),
    LEVY_AREA: lambda draw, h: draw.A,
}


def _multiply_pairs(W: Tensor, h: float) -> Tensor:
    diagonal = h * torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    return step_variables.pair_integral(W[:, :, None], W[:, None, :], diagonal)


def _multiply_signed_pairs(V: Tensor, S: Tensor, h: float) -> Tensor:
    """(V_i V_j + U_ij) / sqrt(h) with U_ii = -h and U_ij = -U_ji = +-h."""
    root, m = sqrt(h), V.shape[-1]
    is_upper = torch.ones(m, m, dtype=torch.bool, device=V.device).triu(1)
    U = torch.where(is_upper, -S[:, :, None], S[:, None, :])
    U = h * torch.where(torch.eye(m, dtype=torch.bool, device=V.device), -1.0, U)
    return step_variables.scaled_pair(root * V[:, :, None], root * V[:, None, :], U, root)


# ---- Brownian paths -------------------------------------------------------------------------------------------------


class PathNoise:
    """Draws from Brownian paths, for steps between known times or, without `times`, between any.

    Steps that are cells of the paths are drawn in chunks.
    """

    def __init__(self, noise: TensorNoise, times: Sequence[float] | None = None, is_conditional: bool = True):
        self.noise, self.is_conditional = noise, is_conditional
        self.positions = None if times is None else locate(noise.grid, times)
        self.chunks: dict[str, tuple[int, Tensor]] = {}

    def draw(self, step: int, a: float, b: float, names: tuple[str, ...]) -> StepDraw:
        start, end = locate(self.noise.grid, (a, b)) if self.positions is None else self.positions[step : step + 2]
        V = S = None
        if any(name in NEED_POINTS for name in names):
            V = self._read_chunk("V", step, self._draw_points)
            S = self._read_chunk("S", step, self._draw_signs) if SIGNED_PAIRS in names else None
            if all(name in (*NEED_POINTS, "sqrt(h)") for name in names):
                return StepDraw(V, V=V, S=S)
        has_areas = any(name in NEED_AREAS for name in names)
        W, H = self._read_cell(start, has_areas) if _is_cell(start, end) else evaluate_between(self.noise, start, end)
        if H is None:
            return StepDraw(W, V=V, S=S)
        A = self._approximate_area(start, end, b - a, W, H) if LEVY_AREA in names else None
        return StepDraw(W, step_variables.average_path(W, H), A, V, S)

    def _approximate_area(self, start: Position, end: Position, h: float, W: Tensor, H: Tensor) -> Tensor:
        return approximate_levy_area(self.noise, start, end, h, W, H, self.is_conditional)

    def _read_cell(self, start: Position, has_areas: bool) -> tuple[Tensor, Tensor | None]:
        W = self._read_chunk("W", start.cell, lambda cells: draw_cell_increments(self.noise, cells))
        if not has_areas:
            return W, None
        return W, self._read_chunk("H", start.cell, lambda cells: draw_cell_areas(self.noise, cells))

    def _draw_points(self, steps: Tensor) -> Tensor:
        return draw_three_point(self.noise.seed, self.noise.paths, self.noise.dimension, steps)

    def _draw_signs(self, steps: Tensor) -> Tensor:
        return draw_two_point(self.noise.seed, self.noise.paths, self.noise.dimension, steps)

    def _read_chunk(self, name: str, number: int, draw: Callable[[Tensor], Tensor]) -> Tensor:
        """The draw with this number; a chunk of draws is computed at once, and the latest chunk is cached.

        The draw is copied, so that graphs of recorded steps do not keep the whole chunk alive.
        """
        grid = self.noise.grid
        size = max(1, min(CHUNK, DRAW_ENTRIES // max(1, self.noise.n_entries)))
        chunk = number // size
        found, drawn = self.chunks.get(name, (-1, None))
        if found != chunk or drawn is None:
            last = (chunk + 1) * size if name in "VS" else min((chunk + 1) * size, grid.cells)
            drawn = draw(torch.arange(chunk * size, last, device=self.noise.paths.device))
            self.chunks[name] = chunk, drawn
        return drawn[number - chunk * size].clone()


def _is_cell(start: Position, end: Position) -> bool:
    """Whether the interval is a cell of the base grid."""
    return start[1:] == (0, 0.0) and end == (start.cell + 1, 0, 0.0)


# ---- objects of users -----------------------------------------------------------------------------------------------


class CalledNoise:
    """Draws by calling `bm(ta, tb, return_U=..., return_A=...)`, U being the integral of W - W(ta)."""

    def __init__(self, bm: Callable[..., Any]):
        self.bm = bm

    def draw(self, step: int, a: float, b: float, names: tuple[str, ...]) -> StepDraw:
        more = {"return_U": "I10/h" in names, "return_A": LEVY_AREA in names}
        more = {name: True for name, is_wanted in more.items() if is_wanted}
        found = self.bm(*(torch.tensor(t, dtype=torch.float64) for t in (a, b)), **more)
        if not more:
            return StepDraw(found)
        W, *rest = found
        mean = rest.pop(0) / (b - a) if "return_U" in more else None
        return StepDraw(W, mean, rest.pop(0) if "return_A" in more else None)
