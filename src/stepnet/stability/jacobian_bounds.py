"""Bounds of Jacobians of layers, steps and blocks that hold for every state.

The Jacobian of a row with respect to the input is enclosed in a ball: a matrix M and a radius r with |J - M| <= r in
the spectral norm.  Weighted sums, linear maps and activations, whose slopes lie in an interval, map balls to balls;
running a step program on balls encloses the Jacobian of a step.  The centre of a ball keeps what norms alone would
lose: that a layer is antisymmetric or symplectic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stepnet.fields import reference
from stepnet.fields.activations import Activation
from stepnet.fields.connectivity import Attention, Fixed, Normalisation
from stepnet.fields.formula import Chain, Layer
from stepnet.nets.design import NO_SKIP, Block
from stepnet.schemes.capabilities import is_implicit
from stepnet.schemes.step_program import Slope, StepProgram, Sum, Term, build_held_program
from stepnet.stability.activation_ranges import (
    SLOPES,
    Interval,
    find_slope_range,
    find_value_range,
    map_linearly,
    scale,
)

GRAM = 1e-13  # rounding of the smallest eigenvalue of a Gram matrix, relative to the largest


class Ball(NamedTuple):
    """All matrices within `radius` of `centre` in the spectral norm."""

    centre: np.ndarray
    radius: float

    @property
    def singular_range(self) -> tuple[float, float]:
        """Bounds of the smallest and the largest singular value of its matrices."""
        low, high = find_singular_range(self.centre)
        return max(low - self.radius, 0.0), high + self.radius


def find_spectral_norm(matrix: np.ndarray) -> float:
    """The largest singular value; infinity for a matrix that has overflowed."""
    return find_singular_range(matrix)[1]


def find_singular_range(matrix: np.ndarray) -> tuple[float, float]:
    """A lower bound of the smallest singular value, and the largest, from the smaller Gram matrix."""
    with np.errstate(over="ignore", invalid="ignore"):
        gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    if not np.isfinite(gram).all():
        return 0.0, float("inf")
    squares = np.linalg.eigvalsh(gram)
    return float(np.sqrt(max(squares[0] - GRAM * squares[-1], 0.0))), float(np.sqrt(max(squares[-1], 0.0)))


def stack(balls: Sequence[Ball]) -> Ball:
    """The ball of rows above each other."""
    return Ball(
        np.concatenate([each.centre for each in balls]), float(np.hypot.reduce([each.radius for each in balls]))
    )


class BoundedLayer(NamedTuple):
    """What bounds of a layer need: its matrix and norm, the slopes of its activation, K x + b + t c.

    A normalisation has no matrix; its Jacobian is symmetric, with eigenvalues from 0 to `norm`, and its values are
    within `reach`.
    """

    matrix: np.ndarray | None
    norm: float
    activation: Activation
    offset: np.ndarray
    clock: np.ndarray
    reach: float

    def enclose_input(self, values: Interval, t: float) -> Interval:
        """The arguments of the activation, for inputs in an interval at times from 0 to t."""
        if self.matrix is None:
            return Interval(np.full_like(values.low, -self.reach), np.full_like(values.high, self.reach))
        found = map_linearly(self.matrix, values)
        drift = t * self.clock
        return Interval(found.low + self.offset + np.minimum(drift, 0), found.high + self.offset + np.maximum(drift, 0))


class Row(NamedTuple):
    """The ball of the Jacobian of a row, and the interval of its values; None where they may be anything."""

    ball: Ball
    values: Interval | None


def build_linear_parts(chain: Chain, weights: Mapping[str, np.ndarray]) -> list[BoundedLayer]:
    """The layers of a chain at one time."""
    return [_build_linear_part(layer, weights) for layer in chain.layers]


def _build_linear_part(layer: Layer, weights: Mapping[str, np.ndarray]) -> BoundedLayer:
    K, name = layer.connectivity, layer.activation.name
    if name not in SLOPES:
        raise ValueError(f"`net` must have activations with known slopes ({', '.join(SLOPES)}), found {name}")
    if isinstance(K, Attention):
        raise ValueError("`net` must have layers with bounded Jacobians, found attention, whose Jacobian has no bound")
    if isinstance(K, Normalisation):
        zero = np.zeros(K.n_in)
        return BoundedLayer(None, K.eps**-0.5, layer.activation, zero, zero, K.channels**0.5)
    unit = np.eye(K.n_in)
    W = reference.effective(layer, weights[layer.weights]) if layer.weights is not None else None
    matrix = reference.apply(K, W, unit, unit)
    matrix = matrix.T if layer.is_transposed else matrix
    matrix = (matrix + layer.shift * np.eye(len(matrix)) if layer.shift else matrix).astype(np.float64)
    offset, clock = (
        np.zeros(len(matrix)) if each is None else np.repeat(np.asarray(weights[each], np.float64), layer.bias_nodes)
        for each in (layer.bias, layer.clock)
    )
    return BoundedLayer(matrix, find_spectral_norm(matrix), layer.activation, offset, clock, float("inf"))


def push_through_chain(parts: Sequence[BoundedLayer], sign: float, ball: Ball) -> Ball:
    """The ball of D_m K_m ... D_1 K_1 times the matrices of a ball, with any slopes D in their intervals."""
    return push_row(parts, sign, Row(ball, None), 0.0).ball


def push_row(parts: Sequence[BoundedLayer], sign: float, row: Row, t: float) -> Row:
    """The ball and the values of a chain; slopes are those over the values of the row, at times from 0 to t."""
    ball, values = row
    for part in parts:
        if part.matrix is None:
            ball = _scale_ball(ball, 0.0, part.norm)
        else:
            ball = Ball(part.matrix @ ball.centre, part.norm * ball.radius)
        low, high = find_slopes(part, values, t)
        ball = _scale_ball(ball, low, high)
        if values is not None:
            values = find_value_range(part.activation, part.enclose_input(values, t))
    return Row(Ball(sign * ball.centre, ball.radius), None if values is None else scale(values, sign))


def find_slopes(part: BoundedLayer, values: Interval | None, t: float) -> tuple[Any, Any]:
    """The lowest and highest slopes of the activation of a layer: of each unit, or of all for any input."""
    return (
        SLOPES[part.activation.name]
        if values is None
        else find_slope_range(part.activation, part.enclose_input(values, t))
    )


def _scale_ball(ball: Ball, low: Any, high: Any) -> Ball:
    """The ball of D M for symmetric D with low <= D <= high; diagonal ones, if these are arrays."""
    middle, spread = 0.5 * np.reshape(low + high, (-1, 1)), 0.5 * np.reshape(high - low, (-1, 1))
    radius = float(np.max(np.abs((low, high)))) * ball.radius
    if np.any(spread):
        radius += find_spectral_norm(spread * ball.centre)
    return Ball(middle * ball.centre, radius)


class BlockBounds(NamedTuple):
    """Bounds of the Jacobian of a block: `steps` of each step (NaN where steps have a history), and of all steps.

    `values` are those that the block gives for inputs in an interval, None for any inputs.
    """

    steps: np.ndarray
    upper: float
    lower: float
    values: Interval | None


def _require_additive_noise(block: Block) -> None:
    """Noise that depends on the state amplifies perturbations by normal random numbers, which have no bound."""
    noise = block.field.diffusion
    layers = () if noise is None or noise.chain is None or noise.scale == 0.0 else noise.chain.layers
    if any(not isinstance(layer.connectivity, Fixed) or layer.connectivity.operator.nnz for layer in layers):
        raise ValueError(
            "`net` must have noise that does not depend on the state, as Jacobians have no bound otherwise; found a "
            f"diffusion {noise.name!r}"  # type: ignore[union-attr]
        )


def bound_block(
    block: Block, weights: Mapping[str, np.ndarray], h: float, inputs: Interval | None = None
) -> BlockBounds:
    """Enclose the Jacobians of the steps of a block, with the step size h, and of the whole block, for `inputs` or any.

    The bound of the block is the smaller of the product of its steps' and of the ball carried through all of them;
    `lower` is a lower bound of its smallest singular value.
    """
    _require_additive_noise(block)
    program = find_program(block)
    parts_at = _tabulate_layers(block, weights)
    n, is_first = block.field.width, block.field.kind == "first"
    unit = np.eye(n)
    initial = [unit] if is_first else [unit[: n // 2], unit[n // 2 :]]
    halves = [None] * len(initial) if inputs is None else _split(inputs, len(initial))
    nothing = None if inputs is None else Interval(np.zeros(len(initial[0])), np.zeros(len(initial[0])))
    start = [Row(Ball(np.zeros((len(initial[0]), n)), 0.0), nothing)] * program.opening.n_rows
    for place, matrix, values in zip(program.state, initial, halves, strict=True):
        start[place] = Row(Ball(matrix, 0.0), values)
    end = block.steps * h
    rows = _run_program(program.opening, start, partial(parts_at, 0), h, end)
    has_history = program.opening.steps > 0 or program.step.n_rows > len(program.state)
    is_gradient = _is_gradient_step(block, program.step)
    steps = []  # lower and upper bound of each
    for k in range(program.opening.steps, block.steps):
        layers = partial(parts_at, k)
        if not has_history:
            before = [Row(first.ball, row.values) for first, row in zip(start, rows, strict=True)]
            low, high = stack([row.ball for row in _run_program(program.step, before, layers, h, end)]).singular_range
            if is_gradient:
                part = layers(program.step.operations[0])[0][0]
                high = min(high, _bound_gradient_step(part, find_slopes(part, rows[0].values, end), h))
            steps.append((low, high))
        rows = _run_program(program.step, rows, layers, h, end)
    lower, upper = stack([rows[place].ball for place in program.state]).singular_range
    values = None if inputs is None else _join([rows[place].values for place in program.state])
    if has_history:
        return BlockBounds(np.full(block.steps, np.nan), upper, lower, values)
    with np.errstate(over="ignore"):
        products = np.prod(steps, axis=0)
    return BlockBounds(np.array(steps)[:, 1], min(upper, float(products[1])), max(lower, float(products[0])), values)


def _split(values: Interval, parts: int) -> list[Interval]:
    """The intervals of the parts of a state."""
    return [Interval(*ends) for ends in zip(*(np.split(each, parts) for each in values), strict=True)]


def _join(intervals: Sequence[Any]) -> Interval:
    return Interval(*(np.concatenate(ends) for ends in zip(*intervals, strict=True)))


def bound_field(block: Block, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """A rectangle (steps, 3) that holds the numerical range of the Jacobian of the field at the start of each step.

    It is given by the lowest and the highest real part, the largest logarithmic norm, and the largest imaginary part.
    """
    parts_at, kind = _tabulate_layers(block, weights), block.field.kind
    start, found = Ball(np.eye(block.field.row_size), 0.0), []
    for k in range(block.steps):
        parts, sign = parts_at(k, Slope(0, 0, 0.0))
        J, r = push_through_chain(parts, sign, start)
        if kind == "first":
            real = np.linalg.eigvalsh(0.5 * (J + J.T))
            found.append((real[0] - r, real[-1] + r, find_spectral_norm(0.5 * (J - J.T)) + r))
            continue
        other = start
        if kind != "second":
            parts, sign = parts_at(k, Slope(1, 0, 0.0))
            other = push_through_chain(parts, sign, start)
        radius = 0.5 * (r + other.radius)  # of the two diagonal blocks, which are zero in J itself
        real_part = find_spectral_norm(0.5 * (J + other.centre.T)) + radius
        found.append((-real_part, real_part, find_spectral_norm(0.5 * (J - other.centre.T)) + radius))
    return np.array(found)


def find_program(block: Block) -> Any:
    """The step program of a block, in the form that passes on no slopes if there is one."""
    if is_implicit(block.scheme):
        raise ValueError(
            f"`net` must have explicit schemes, whose steps have known Jacobians, found {block.scheme.name}, "
            "whose steps solve equations"
        )
    return NO_SKIP if block.scheme is None else build_held_program(block.scheme, block.field.kind == "second")


def _is_gradient_step(block: Block, step: StepProgram) -> bool:
    """Whether a step is y - h K' s(K y + b), whose Jacobian I - h K' D K is symmetric."""
    chain = block.field.chain(0)
    if block.field.kind != "first" or len(chain.layers) != 2 or chain.sign > 0:
        return False
    first, second = chain.layers
    mirrors = second.is_transposed and second.weights == first.weights and second.activation.name == "identity"
    is_plain = not (first.is_transposed or first.is_antisymmetric or first.shift or second.shift)
    euler = (Slope(0, 0, 0.0), Sum((Term(0, 1.0, 0), Term(1, 1.0, 1))))
    return mirrors and is_plain and step.operations == euler


def _bound_gradient_step(part: BoundedLayer, slopes: tuple[Any, Any], h: float) -> float:
    """The largest |1 - h x| for eigenvalues x of K' D K with slopes D in their intervals."""
    low, high = slopes
    if np.ndim(low) == 0:  # singular values of K from 0 to its norm
        return max(1.0, abs(1 - h * low * part.norm**2), abs(1 - h * high * part.norm**2))
    K: Any = part.matrix  # K' D K increases with D
    first, last = (np.linalg.eigvalsh(K.T @ (slope[:, None] * K))[place] for slope, place in ((low, 0), (high, -1)))
    return float(max(abs(1 - h * first), abs(1 - h * last)))


def _run_program(
    program: StepProgram, rows: Sequence[Row], layers: Callable[[Slope], tuple[list[BoundedLayer], float]], h: float,
    end: float,
) -> list[Row]:  # fmt: skip
    """The rows that a step program passes on, at times from 0 to `end`."""
    found = list(rows)
    for operation in program.operations:
        if isinstance(operation, Slope):
            found.append(push_row(*layers(operation), found[operation.row], end))
        elif isinstance(operation, Sum):
            terms = [(term.weight * h**term.power, found[term.row]) for term in operation.terms]
            centre = sum(weight * row.ball.centre for weight, row in terms)
            ball = Ball(np.asarray(centre), sum(abs(weight) * row.ball.radius for weight, row in terms))
            found.append(Row(ball, _add([(weight, row.values) for weight, row in terms])))
    return [found[output] for output in program.outputs]


def _add(terms: Sequence[tuple[float, Interval | None]]) -> Interval | None:
    """The values of a weighted sum."""
    scaled = [scale(values, weight) for weight, values in terms if values is not None]
    return Interval(*(np.sum(ends, axis=0) for ends in zip(*scaled, strict=True))) if scaled else None


def _tabulate_layers(block: Block, weights: Mapping[str, np.ndarray]) -> Callable[[int, Slope], Any]:
    """Look up the layers of a slope of step k; those of equal weights are built once."""
    kept: dict[tuple[Any, ...], Any] = {}
    n_parts = len(block.field.parts)

    def find(k: int, slope: Slope) -> tuple[list[BoundedLayer], float]:
        s, middle = ((k + slope.c) / block.steps, (k + slope.step + 0.5) / block.steps)
        first, basis = block.depth.stage_basis(np.array([s]), np.array([middle]))
        part = min(slope.part, n_parts - 1)
        key = (part, int(first[0]), *np.ravel(basis).tolist())
        if key not in kept:
            chain, factors = block.field.chain(part), np.ravel(basis)
            now = {
                name: np.tensordot(factors, controls[first[0] : first[0] + len(factors)], axes=1)
                for name, controls in weights.items()
            }
            kept[key] = build_linear_parts(chain, now), chain.sign
        return kept[key]

    return find
