"""Certificates of nets: bounds of how much blocks amplify perturbations and gradients, with measured values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.nets.design import Block, Design
from stepnet.nets.net import Net
from stepnet.records import show_fields
from stepnet.stability.activation_ranges import Interval
from stepnet.stability.jacobian_bounds import (
    Ball,
    BlockBounds,
    Row,
    bound_block,
    bound_field,
    build_linear_parts,
    push_row,
)
from stepnet.validation import array, check, instance, real, whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

WIDEST = 4096  # features of a state, whose Jacobians are dense matrices
GUESSES = 4  # number of guesses of the largest safe step


@dataclass(frozen=True, repr=False, eq=False)
class BlockCertificate:
    """How much a block amplifies, in the Euclidean norm.

    Parameters
    ----------
    name : str
    h : float
        The step size.
    steps : array
        A bound of each step; NaN for multistep schemes, whose steps depend on earlier ones.
    upper : float
        A bound of the amplification of perturbations forward, and of gradients backward: a matrix and its transpose
        have the same norm.
    lower : float
        No perturbation, and no gradient, shrinks by a smaller factor; 0 if that is not known.
    measured : float
        The largest amplification found at the inputs, NaN without inputs; at most `upper`.
    safe_h : float
        A step size for which `upper` stays within the limit, with the same weights and number of steps, close to the
        largest one; `h` itself if the block is within.
    numerical_ranges : array (layers, 3)
        Bounds of the numerical range of the Jacobian of the field, for all states: lowest and highest real part,
        largest imaginary part.

    Examples
    --------
    >>> import stepnet as sn
    >>> net = sn.nets.parabolic(2, 2, 4, 5, initialisation="stable")
    >>> sn.stability.certificate(net).blocks[0].upper <= 10
    True
    """

    name: str
    h: float
    steps: np.ndarray
    upper: float
    lower: float
    measured: float
    safe_h: float
    numerical_ranges: np.ndarray

    @property
    def log_norms(self) -> np.ndarray:
        """Bounds of the logarithmic norms of the layers: perturbations grow at most like exp(log_norm t)."""
        return self.numerical_ranges[:, 1]

    def __repr__(self) -> str:
        return show_fields(self)


@dataclass(frozen=True, repr=False, eq=False)
class Certificate:
    """Bounds of the amplification of a net.

    Parameters
    ----------
    blocks : tuple of BlockCertificate
    lipschitz : float
        A Lipschitz constant of the whole map, from inputs to outputs.
    measured : float
        The largest amplification of the whole map found at the inputs, NaN without inputs.
    is_stable : bool
        Whether the bound of every block is within the limit.
    verdict : str
        A summary in one sentence.

    Examples
    --------
    >>> import stepnet as sn
    >>> net = sn.nets.parabolic(2, 2, 4, 5, initialisation="stable")
    >>> sn.stability.certificate(net).is_stable
    True
    """

    blocks: tuple[BlockCertificate, ...]
    lipschitz: float
    measured: float
    is_stable: bool
    verdict: str

    def __str__(self) -> str:
        """The verdict, and a line for each block."""
        lines = [self.verdict]
        for each in self.blocks:
            lines.append(
                f"  {each.name}: h = {each.h:.4g}, amplification from {each.lower:.3g} to {each.upper:.4g}, "
                f"measured {each.measured:.4g}, safe up to h = {each.safe_h:.4g}"
            )
        lines.append(f"  whole net: Lipschitz constant {self.lipschitz:.4g}, measured {self.measured:.4g}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return show_fields(self)


@check(net=instance(Net), limit=real("(1, inf)"), iterations=whole(1, 10_000))
def certificate(
    net: Net, x: ArrayLike | None = None, *, box: tuple[ArrayLike, ArrayLike] | None = None, limit: float = 10.0,
    iterations: int = 30,
) -> Certificate:  # fmt: skip
    """Bound how much each block of a net amplifies perturbations, for all inputs or for those in a box.

    The Jacobian of every step is enclosed in a ball of matrices by running the step program of the scheme on the
    weights, with the slopes of activations anywhere in their range.  Eigenvalues are not sufficient, because layers are
    not normal matrices.

    Parameters
    ----------
    net : Net
        A net of layers with bounded Jacobians (all but attention); noise must not depend on the state.
    x : array_like, optional
        Inputs `(batch, ...)` at which amplification is measured too, by power iteration with tangents and pullbacks.
    box : pair of array_like, optional
        The lowest and the highest inputs, numbers or arrays of an input: bounds hold for inputs between them.  States
        are enclosed in intervals by interval arithmetic, layer by layer, and with them the slopes of activations.
    limit : float, optional
        The amplification of a block up to which it counts as stable.
    iterations : int, optional
        Number of power iterations.

    Returns
    -------
    Certificate

    Raises
    ------
    ValueError
        If a layer or the noise has no bounded Jacobian, a scheme is implicit, or states are too wide for dense
        matrices; or if a net with noise has a box, or inputs are outside of it.

    Examples
    --------
    >>> import stepnet as sn
    >>> net = sn.nets.parabolic(2, 2, 4, 5, initialisation="stable")
    >>> found = sn.stability.certificate(net)
    >>> found.is_stable, found.blocks[0].upper <= 10
    (True, True)
    >>> sn.stability.certificate(net, box=(-1.0, 1.0)).lipschitz <= found.lipschitz
    True
    """
    _require_narrow(net.design)
    values = None if box is None else _read_box(net, box, x)
    found, lipschitz = [], 1.0
    for name, stage in net.design.stages():
        weights = {each: np.asarray(net.weights[f"{name}.{each}"], np.float64) for each in stage.parameters}
        if isinstance(stage, Block):
            bounds = _bound(stage, weights, stage.h, values)
            found.append(_certify_block(net, name, stage, weights, values, bounds, x, limit, iterations))
            lipschitz, values = lipschitz * bounds.upper, bounds.values
        else:
            parts, start = build_linear_parts(stage, weights), Ball(np.eye(stage.n_in), 0.0)
            grown = push_row(parts, stage.sign, Row(start, None), 0.0).ball.singular_range[1]
            row = push_row(parts, stage.sign, Row(start, values), 0.0)
            lipschitz, values = lipschitz * min(grown, row.ball.singular_range[1]), row.values
    measured = float("nan") if x is None else _measure(net, x, iterations)
    is_stable = all(each.upper <= limit for each in found)
    where = "" if box is None else ", for inputs in the box"
    return Certificate(tuple(found), lipschitz, measured, is_stable, judge(found, limit) + where)


def _read_box(net: Net, box: Any, x: ArrayLike | None) -> Interval:
    """The interval of the inputs, flat."""
    if not isinstance(box, (tuple, list)) or len(box) != 2:
        raise TypeError(f"`box` must be a pair of the lowest and the highest inputs, found {box!r:.60}")
    n = net.design.n_in
    sides = [np.ravel(array()(f"box[{k}]", side)).astype(np.float64) for k, side in enumerate(box)]
    if any(len(side) not in (1, n) for side in sides):
        raise ValueError(f"`box` must have numbers or arrays of {n} features, found {[len(side) for side in sides]}")
    low, high = (np.broadcast_to(side, n) for side in sides)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        raise ValueError("`box` must have finite lowest inputs that do not exceed the highest ones")
    if any(isinstance(stage, Block) and stage.field.diffusion is not None for _, stage in net.design.stages()):
        raise ValueError("`net` must have no noise to have a `box`, as noise leaves every box")
    if x is not None:
        inputs = np.atleast_1d(array()("x", x)).astype(np.float64)
        flat = inputs.reshape(len(inputs), -1)
        if flat.shape[1] == n and not ((low <= flat) & (flat <= high)).all():
            raise ValueError("`x` must be inputs in the `box`, found some outside")
    return Interval(low, high)


def _bound(block: Block, weights: Mapping[str, np.ndarray], h: float, inputs: Interval | None) -> BlockBounds:
    """The bounds of a block: the tighter ones of those for all inputs and those for an interval."""
    whole_space = bound_block(block, weights, h)
    if inputs is None:
        return whole_space
    inside = bound_block(block, weights, h, inputs)
    steps = np.minimum(whole_space.steps, inside.steps)
    with np.errstate(over="ignore"):
        uppers = [whole_space.upper, inside.upper, float(np.prod(steps))]  # NaN where steps have a history
    return BlockBounds(steps, float(np.nanmin(uppers)), max(whole_space.lower, inside.lower), inside.values)


def _require_narrow(design: Design) -> None:
    widest = max(max(stage.n_in, stage.n_out) for _, stage in design.stages())
    if widest > WIDEST:
        raise ValueError(f"`net` must have states of {WIDEST} features at most, found {widest}")


def _certify_block(
    net: Net, name: str, block: Block, weights: Mapping[str, np.ndarray], values: Interval | None,
    bounds: BlockBounds, x: ArrayLike | None, limit: float, iterations: int,
) -> BlockCertificate:  # fmt: skip
    measured = float("nan")
    if x is not None:
        alone = Net(Design((block,)), np.concatenate([weights[each].ravel() for each in block.parameters]), workers=1)
        measured = _measure(alone, net.features(x, int(name.split(".")[1]))[0], iterations)
    safe_h = block.h if bounds.upper <= limit else _find_safe_step(block, weights, values, limit, bounds.upper)
    ranges = bound_field(block, weights)
    return BlockCertificate(name, block.h, bounds.steps, bounds.upper, bounds.lower, measured, safe_h, ranges)


def _find_safe_step(
    block: Block, weights: Mapping[str, np.ndarray], values: Interval | None, limit: float, upper: float
) -> float:
    """The largest h with a bound within the limit, from below; 0 for layers without a skip, which have no h.

    The logarithm of the bound is nearly proportional to h, so the secant through 0 is a good guess; safe guesses are
    kept, others shorten the interval.
    """
    if block.scheme is None:
        return 0.0
    low, high, at_low, at_high = 0.0, block.h, 0.0, np.log(upper)
    for _ in range(GUESSES):
        fraction = (np.log(limit) - at_low) / (at_high - at_low) if np.isfinite(at_high) else 0.5
        h = low + max(0.98 * fraction, 0.02) * (high - low)  # below the secant, as the bound is convex in h
        found = np.log(_bound(block, weights, h, values).upper)
        low, high, at_low, at_high = (h, high, found, at_high) if found <= np.log(limit) else (low, h, at_low, found)
    return low


def _measure(net: Net, x: ArrayLike, iterations: int) -> float:
    """A lower bound of the largest singular value of the Jacobian over the inputs, by simultaneous power iterations."""
    flat = np.asarray(x, np.float64).reshape(np.shape(x)[0], -1)
    v = np.random.default_rng(0).normal(size=flat.shape)
    best = 0.0
    for _ in range(iterations):
        sizes = np.linalg.norm(v, axis=1, keepdims=True)
        v = np.divide(v, sizes, out=np.zeros_like(v), where=sizes > 0)
        _, out = net.tangent(flat, x_dot=v)
        out = out.reshape(len(flat), -1)
        best = max(best, float(np.linalg.norm(out, axis=1).max()))
        pulled = net.gradient(flat, end_gradient=out).x
        v = np.asarray(pulled, np.float64).reshape(flat.shape)
    return best


def judge(found: list[BlockCertificate], limit: float) -> str:
    """A summary of the blocks in one sentence."""
    worst = max(found, key=lambda each: each.upper)
    if worst.upper <= limit:
        return f"stable: no block amplifies perturbations or gradients by more than {worst.upper:.4g}"
    layer = "" if np.isnan(worst.steps).all() else f", most in layer {int(np.nanargmax(worst.steps))}"
    remedy = f"; with h <= {worst.safe_h:.3g} it would be at most {limit:g}" if worst.safe_h > 0 else ""
    return f"not certified: {worst.name} may amplify by up to {worst.upper:.3g} with h = {worst.h:.3g}{layer}{remedy}"
