"""Random weights: scaled by fan-in and fan-out, orthogonal, or scaled by the scheme's stability region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.errors import UnknownName
from stepnet.fields import Attention, Chain, Fixed, Normalisation, reference
from stepnet.fields.formula import Layer
from stepnet.nets.design import Block, Design
from stepnet.records import validate_seed
from stepnet.schemes.conditions import amplification, imaginary_stability_limit, real_stability_limit

VARIANCES: dict[str, Callable[[float, float], float]] = {
    "lecun": lambda fan_in, fan_out: 1 / fan_in,
    "glorot": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
    "he": lambda fan_in, fan_out: 2 / fan_in,
}
NAMES = (*VARIANCES, "orthogonal", "stable")
INSIDE = 0.9  # of the distance to the boundary of the stability region
POWERS = 60  # iterations for the norm of K
SMALL = 256  # features up to which the norm of K is computed from its dense matrix


def draw_initial_weights(design: Design, name: str, seed: int | None) -> np.ndarray:
    """Draw all parameters in one vector; biases are zero.

    LeCun, Bottou, Orr & Mueller (1998); Glorot & Bengio (2010); He, Zhang, Ren & Sun (2015); Saxe, McClelland & Ganguli
    (2014) for orthogonal matrices.  "stable" scales Glorot's weights so that the layers lie inside the stability
    region.
    """
    name = validate_initialisation(name)
    random, found = _make_generator(seed), []
    for _, stage in design.stages():
        controls = stage.depth.controls if isinstance(stage, Block) else 1
        for layer, each in _list_owners(stage):
            shape = stage.parameters[each]
            if each != layer.weights:
                found.append(np.zeros(shape))
                continue
            values = _draw(layer, name, controls, random)
            if name == "stable" and isinstance(stage, Block):
                bound = find_largest_norm(stage)
                for one in values:
                    _shrink(layer, one, bound)
            found.append(values.reshape(shape))
    return np.concatenate([each.ravel() for each in found]) if found else np.zeros(0)


def validate_initialisation(name: str) -> str:
    """Return the name of an initialisation; refuse an unknown one."""
    if not isinstance(name, str) or name not in NAMES:
        raise UnknownName("initialisation", name, NAMES)
    return name


def _make_generator(seed: int | None) -> np.random.Generator:
    return np.random.default_rng(None if seed is None else validate_seed(seed))


def _list_owners(stage: Chain | Block) -> list[tuple[Layer, str]]:
    """For each parameter the first layer that has it."""
    chains = stage.field.chains if isinstance(stage, Block) else (stage,)
    layers = [layer for chain in chains for layer in chain.layers]
    return [(next(layer for layer in layers if name in layer.parameters), name) for name in stage.parameters]


def _draw(layer: Layer, name: str, controls: int, random: np.random.Generator) -> np.ndarray:
    K: Any = layer.connectivity
    if name == "orthogonal":
        n_added = 1 if isinstance(K, Attention) else int(np.prod(K.weight_shape[:-2]))  # matrices that are summed
        return np.stack([_draw_orthogonal(K.weight_shape, random) for _ in range(controls)]) / np.sqrt(n_added)
    variance = VARIANCES["glorot" if name == "stable" else name]
    return random.normal(size=(controls, *K.weight_shape)) * np.sqrt(variance(*K.fan))


def _draw_orthogonal(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    *taps, rows, columns = shape
    n = max(rows, columns)
    Q, R = np.linalg.qr(random.normal(size=(*taps, n, n)))
    Q = Q * np.sign(np.diagonal(R, axis1=-2, axis2=-1))[..., None, :]
    return Q[..., :rows, :columns]


def find_norm(layer: Layer, W: np.ndarray) -> float:
    """The largest singular value of K (or of K - K'); for attention a bound on that of K(x) for all x.

    K(x) = sum over heads of W_o W_v of the head times P, and |P| <= sqrt(tokens), as its rows are means.
    """
    K = layer.connectivity
    if isinstance(K, Attention):
        heads = [
            np.linalg.norm(o.T @ v, 2) for o, v in zip(*(np.split(w, K.heads) for w in (W[3].T, W[2])), strict=True)
        ]
        return float(K.tokens**0.5 * min(sum(heads), np.linalg.norm(W[3], 2) * np.linalg.norm(W[2], 2)))
    W = reference.effective(layer, W)
    if K.n_in <= SMALL:
        unit = np.eye(K.n_in)
        return max(float(np.linalg.norm(reference.apply(K, W, unit, unit), 2)), np.finfo(float).tiny)
    x = np.random.default_rng(0).normal(size=(K.n_in, 1))
    size = 1.0
    for _ in range(POWERS):
        x = reference.apply_transposed(K, W, x, reference.apply(K, W, x, x))
        size = float(np.linalg.norm(x))
        x = x / max(size, np.finfo(float).tiny)
    return max(np.sqrt(size), np.finfo(float).tiny)


def _shrink(layer: Layer, W: np.ndarray, bound: float) -> None:
    """Scale W in place so that |K| is within the bound; for attention |K| is quadratic in its last two matrices."""
    share = min(1.0, bound / max(find_norm(layer, W), np.finfo(float).tiny))
    if isinstance(layer.connectivity, Attention):
        W[2:] *= share**0.5
    else:
        W *= share


def find_largest_norm(block: Block) -> float:
    """The norm of K up to which the linearised block lies inside its scheme's stability region.

    Parabolic: h |K|^2 max s' within the real interval (2 for Euler).  Hyperbolic: h |K| sqrt(max s') within the
    imaginary interval (2 for Verlet).  Hamiltonian: h |K|^2 max s' within it.  Antisymmetric: h (-damping + i |K - K'|)
    max s'.  Else: h |K| max s' < 1, which makes a step invertible; for a chain the product over its layers, each with
    an equal factor.  With a normalisation N, s(N(.)) replaces s.  The dependence of K on the state is ignored.
    """
    h, name, scheme = block.h, block.field.name, block.scheme
    layer, s = block.field.parts[0].layers[0], _find_steepest(block.field.parts[0])
    if name == "parabolic":
        return float(np.sqrt(INSIDE * real_stability_limit(scheme) / (h * s)))
    if name == "hyperbolic":
        return INSIDE * imaginary_stability_limit(scheme) / (h * np.sqrt(s))
    if name == "hamiltonian":
        return float(np.sqrt(INSIDE * imaginary_stability_limit(scheme) / (h * s)))
    if name == "antisymmetric":
        return _find_largest_rotation(scheme, -layer.shift, h * s)
    n_weighted = sum(layer.connectivity.weight_shape is not None for layer in block.field.parts[0].layers)
    return float((INSIDE / (h * s)) ** (1 / max(1, n_weighted)))


def _find_steepest(chain: Chain) -> float:
    """The largest slope of s, or of s(N(.)); for a longer chain the product over its layers, without weights."""
    found = 1.0
    for layer in chain.layers:
        found *= layer.activation.steepest
        if isinstance(layer.connectivity, Normalisation):
            found *= layer.connectivity.eps**-0.5
        elif isinstance(layer.connectivity, Fixed):
            found *= find_norm(layer, np.zeros(0))
    return found


def _find_largest_rotation(scheme: Any, damping: float, h: float) -> float:
    frequencies = np.linspace(0, 10 / h, 10001)[1:]
    is_outside = amplification(scheme, h * (-damping + 1j * frequencies)) > 1 + 1e-9
    first = int(np.argmax(is_outside)) if is_outside.any() else len(frequencies)
    if first == 0:
        raise ValueError(
            f"no antisymmetric layer is stable with `scheme` {scheme.name!r} and damping {damping:g}; use 'rk4' or "
            f"'midpoint_two_step', or a positive damping"
        )
    return INSIDE * float(frequencies[first - 1])
