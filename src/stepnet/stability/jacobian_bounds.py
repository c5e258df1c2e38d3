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
from stepnet.fields.connectivity import Attention, Fixed, Normalisation
from stepnet.fields.formula import Chain, Layer
from stepnet.nets.design import NO_SKIP, Block
from stepnet.schemes.step_program import Slope, StepProgram, Sum, Term, build_held_program

SLOPES = {
    "tanh": (0.0, 1.0), "relu": (0.0, 1.0), "leaky_relu": (0.01, 1.0), "softplus": (0.0, 1.0),
    "gelu": (-0.12891, 1.12891), "silu": (-0.09984, 1.09984), "elu": (0.0, 1.0),
    "selu": (0.0, 1.0507009873554805 * 1.6732632423543773), "sigmoid": (0.0, 0.25), "identity": (1.0, 1.0),
}  # fmt: skip
"""The intervals that hold the derivatives of activations everywhere."""

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
    """The matrix of a layer, its norm, and the interval of the slopes of what follows it."""

    matrix: np.ndarray | None
    norm: float
    low: float
    high: float


def build_linear_parts(chain: Chain, weights: Mapping[str, np.ndarray]) -> list[BoundedLayer]:
    """The layers of a chain at one time."""
    return [_build_linear_part(layer, weights) for layer in chain.layers]


def _build_linear_part(layer: Layer, weights: Mapping[str, np.ndarray]) -> BoundedLayer:
    K, name = layer.connectivity, layer.activation.name
    if name not in SLOPES:
        raise ValueError(f"`net` must have activations with known slopes ({', '.join(SLOPES)}), found {name}")
    if isinstance(K, Attention):
        raise ValueError("`net` must have layers with bounded Jacobians, found attention, whose Jacobian has no bound")
    if isinstance(K, Normalisation):  # its Jacobian is symmetric, with eigenvalues from 0 to 1 / sqrt(eps)
        low, high = SLOPES[name]
        steep = K.eps**-0.5
        return BoundedLayer(None, 1.0, min(low * steep, 0.0), max(high * steep, 0.0))
    unit = np.eye(K.n_in)
    W = reference.effective(layer, weights[layer.weights]) if layer.weights is not None else None
    matrix = reference.apply(K, W, unit, unit)
    matrix = matrix.T if layer.is_transposed else matrix
    matrix = (matrix + layer.shift * np.eye(len(matrix)) if layer.shift else matrix).astype(np.float64)
    return BoundedLayer(matrix, find_spectral_norm(matrix), *SLOPES[name])


def push_through_chain(parts: Sequence[BoundedLayer], sign: float, ball: Ball) -> Ball:
    """The ball of D_m K_m ... D_1 K_1 times the matrices of a ball, with any slopes D in their intervals."""
    M, r = ball
    for part in parts:
        if part.matrix is not None:
            M, r = part.matrix @ M, part.norm * r
        middle, spread = 0.5 * (part.low + part.high), 0.5 * (part.high - part.low)
        if spread:
            r = max(abs(part.low), abs(part.high)) * r + spread * find_spectral_norm(M)
        M = middle * M
    return Ball(sign * M, r)


class BlockBounds(NamedTuple):
    """Bounds of the Jacobian of a block: `steps` of each step (NaN where steps have a history), and of all steps."""

    steps: np.ndarray
    upper: float
    lower: float


def _require_additive_noise(block: Block) -> None:
    """Noise that depends on the state amplifies perturbations by normal random numbers, which have no bound."""
    noise = block.field.diffusion
    layers = () if noise is None or noise.chain is None or noise.scale == 0.0 else noise.chain.layers
    if any(not isinstance(layer.connectivity, Fixed) or layer.connectivity.operator.nnz for layer in layers):
        raise ValueError(
            "`net` must have noise that does not depend on the state, as Jacobians have no bound otherwise; found a "
            f"diffusion {noise.name!r}"  # type: ignore[union-attr]
        )


def bound_block(block: Block, weights: Mapping[str, np.ndarray], h: float) -> BlockBounds:
    """Enclose the Jacobians of the steps of a block, with the step size h, and of the whole block.

    The bound of the block is the smaller of the product of its steps' and of the ball carried through all of them;
    `lower` is a lower bound of its smallest singular value.
    """
    _require_additive_noise(block)
    program = find_program(block)
    parts_at = _tabulate_layers(block, weights)
    n, is_first = block.field.width, block.field.kind == "first"
    unit = np.eye(n)
    initial = [unit] if is_first else [unit[: n // 2], unit[n // 2 :]]
    start: list[Ball] = [Ball(np.zeros((len(initial[0]), n)), 0.0)] * program.opening.n_rows
    for place, matrix in zip(program.state, initial, strict=True):
        start[place] = Ball(matrix, 0.0)
    rows = _run_program(program.opening, start, partial(parts_at, 0), h)
    has_history = program.opening.steps > 0 or program.step.n_rows > len(program.state)
    is_gradient = _is_gradient_step(block, program.step)
    steps = []  # lower and upper bound of each
    for k in range(program.opening.steps, block.steps):
        layers = partial(parts_at, k)
        if not has_history:
            low, high = stack(_run_program(program.step, start, layers, h)).singular_range
            if is_gradient:
                high = min(high, _bound_gradient_step(layers(program.step.operations[0])[0][0], h))
            steps.append((low, high))
        rows = _run_program(program.step, rows, layers, h)
    lower, upper = stack([rows[place] for place in program.state]).singular_range
    if has_history:
        return BlockBounds(np.full(block.steps, np.nan), upper, lower)
    with np.errstate(over="ignore"):
        products = np.prod(steps, axis=0)
    return BlockBounds(np.array(steps)[:, 1], min(upper, float(products[1])), max(lower, float(products[0])))


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


def _bound_gradient_step(part: BoundedLayer, h: float) -> float:
    """The largest |1 - h d k^2| for slopes d in their interval and singular values k of K up to its norm."""
    ends = (1 - h * part.low * part.norm**2, 1 - h * part.high * part.norm**2)
    return max(1.0, *map(abs, ends))


def _run_program(
    program: StepProgram, rows: Sequence[Ball], layers: Callable[[Slope], tuple[list[BoundedLayer], float]], h: float
) -> list[Ball]:
    """The rows that a step program passes on."""
    found = list(rows)
    for operation in program.operations:
        if isinstance(operation, Slope):
            found.append(push_through_chain(*layers(operation), found[operation.row]))
        elif isinstance(operation, Sum):
            terms = [(term.weight * h**term.power, found[term.row]) for term in operation.terms]
            centre = sum(weight * ball.centre for weight, ball in terms)
            found.append(Ball(np.asarray(centre), sum(abs(weight) * ball.radius for weight, ball in terms)))
    return [found[output] for output in program.outputs]


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
