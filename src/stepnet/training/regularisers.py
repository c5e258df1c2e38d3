"""Regularisers of stability: functions of a net and its inputs that an objective adds to the loss.

`at(net, x)` returns the value and its gradient with respect to the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stepnet.fields.connectivity import Mixing
from stepnet.nets.layer_decomposition import LayerDecomposition
from stepnet.nets.net import Net
from stepnet.records import keep, keep_numbers, validate_count, validate_seed
from stepnet.training.optimisers import Rate, Slots, Update, check_vectors, get
from stepnet.validation import array, instance, real, sequence


class Regulariser(Protocol):
    """The interface of a regulariser."""

    def at(self, net: Any, x: np.ndarray, /) -> tuple[float, np.ndarray]: ...


@dataclass(frozen=True)
class KineticEnergy:
    """strength / 2 int |y'|^2 dt over the blocks, the mean over samples: sum_k |y_(k+1) - y_k|^2 / h.

    Short and straight paths are those of optimal transport; Finlay et al. (2020), ICML.

    Parameters
    ----------
    strength : float, optional

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> value, gradient = training.KineticEnergy(0.1).at(nets.resnet(2, 1, width=3, steps=4), np.ones((5, 2)))
    >>> value > 0, gradient.size
    (True, 61)
    """

    strength: float = 1e-2

    def __post_init__(self) -> None:
        keep_numbers(self, strength="[0, inf)")

    def at(self, net: Net, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient."""
        _require_net(net)
        layers = LayerDecomposition(net)
        states, factor = layers.states(net.theta, x), self.strength / len(x)
        steps = {f"blocks.{i}.{k}": block.h for i, block in enumerate(net.design.blocks) for k in range(block.steps)}
        value, theta_bar, bar = 0.0, np.zeros_like(net.theta), np.zeros_like(states[-1])
        for k in reversed(range(len(layers.layers))):
            layer, h = layers.layers[k], steps.get(layers.layers[k].name)
            own: np.ndarray | float = 0.0
            if h is not None:
                move = states[k + 1] - states[k]
                value += 0.5 * factor * float(np.sum(move * move)) / h
                own = factor * move / h
            _, theta_bar[layer.places], pulled = layer.pullback(net.theta[layer.places], states[k], bar + own)
            bar = pulled - own
        return value, theta_bar


@dataclass(frozen=True)
class JacobianFrobenius:
    """strength / 2 |dy/dx|_F^2 of the whole map, the mean over samples.

    It is estimated as E |J v|^2 of random directions v, Hutchinson (1990), Commun. Stat. 19:433.  J v are central
    differences of the outputs, whose gradient is exact; Hoffman, Roberts & Yaida (2019), arXiv:1908.02729.

    Parameters
    ----------
    strength : float, optional
    probes : int, optional
        Directions of each sample.
    difference : float, optional
        The distance of the two points of a difference, in units of the inputs.
    seed : int, optional
        Of the directions, with entries +-1.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> net = nets.mlp(2, 2, width=2, steps=1, activation="identity")
    >>> training.JacobianFrobenius(probes=200).at(net, np.ones((5, 2)))[0] > 0
    True
    """

    strength: float = 1e-2
    probes: int = 1
    difference: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        keep_numbers(self, strength="[0, inf)", difference="(0, inf)")
        keep(self, probes=validate_count("probes", self.probes, 1), seed=validate_seed(self.seed))

    def at(self, net: Net, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient."""
        _require_net(net)
        x = array()("x", x)
        if x.ndim < 2 or not x.size:
            raise ValueError(f"`x` must hold inputs (batch, ...), found the shape {x.shape}")
        signs = np.random.default_rng(self.seed).choice([-1.0, 1.0], size=(self.probes, *np.shape(x)))
        half = 0.5 * self.difference * signs
        points = np.concatenate([(x + half), (x - half)]).reshape(-1, *np.shape(x)[1:])
        factor, value = self.strength / (len(x) * self.probes), 0.0

        def seed(outputs: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal value
            above, below = np.split(outputs, 2)
            slopes = (above - below) / self.difference
            value = 0.5 * factor * float(np.sum(slopes * slopes))
            bar = factor * slopes / self.difference
            return value, np.concatenate((bar, -bar))

        gradient = net.parameter_gradient(points, seed).theta
        return value, gradient


@dataclass(frozen=True)
class LogNorm:
    """strength sum_k h max(0, mu(K_k) - margin)^2 over the layers, mu the largest eigenvalue of (K + K')/2.

    It pulls logarithmic norms of weights below the margin; with slopes in [0, 1] perturbations then hardly grow.

    Parameters
    ----------
    strength : float, optional
    margin : float, optional

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet import nets, training
    >>> training.LogNorm(1.0, margin=100.0).at(nets.resnet(2, 1, width=3, steps=4), np.ones((5, 2)))[0]
    0.0
    """

    strength: float = 1e-2
    margin: float = 0.0

    def __post_init__(self) -> None:
        keep_numbers(self, strength="[0, inf)", margin="(-inf, inf)")

    def at(self, net: Net, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient."""
        _require_net(net)
        value, gradient, views = 0.0, np.zeros_like(net.theta), net.weights
        bars = net.views(gradient)
        for name, h, is_skewed in _list_square_weights(net):
            K = views[name] - np.swapaxes(views[name], 1, 2) if is_skewed else views[name]
            mu, vectors = np.linalg.eigh(0.5 * (K + np.swapaxes(K, 1, 2)))
            excess, u = np.maximum(mu[:, -1] - self.margin, 0.0), vectors[..., -1]
            value += self.strength * h * float(np.sum(excess**2))
            if not is_skewed:
                bars[name][...] += 2 * self.strength * h * excess[:, None, None] * u[:, :, None] * u[:, None, :]
        return value, gradient


def _list_square_weights(net: Net) -> Iterator[tuple[str, float, bool]]:
    """Name, time and antisymmetry of the square weight matrices of layers of blocks; those of splines have a share."""
    found = False
    for i, block in enumerate(net.design.blocks):
        for layer in (layer for chain in block.field.parts for layer in chain.layers):
            shape = block.parameters.get(layer.weights or "", ())
            if isinstance(layer.connectivity, Mixing) and len(shape) == 3 and shape[1] == shape[2]:
                found = True
                yield f"blocks.{i}.{layer.weights}", block.length / shape[0], layer.is_antisymmetric
    if not found:
        raise ValueError("`net` must have blocks with square weight matrices to have logarithmic norms, found none")


def _require_net(net: Any) -> None:
    instance(Net)("model", net)
    if net.has_noise:
        raise ValueError("`model` must have no noise for this regulariser, found a diffusion")


@dataclass(frozen=True)
class SpectralProjection:
    """Another optimiser's step, then a projection: the norms of weight matrices of blocks are `bound` at most.

    Singular values beyond the bound are replaced by it, which is the nearest such matrix in the Frobenius norm.  Build
    it with `spectral_projection(optimiser, net, bound)`.

    Parameters
    ----------
    optimiser
        The other optimiser.
    places : tuple of (int, int, int)
        The first entry in the flat vector, rows and columns of each matrix.
    bound : float

    Examples
    --------
    >>> from stepnet import nets, training
    >>> len(training.spectral_projection("adam", nets.resnet(2, 1, width=3, steps=4), 1.0).places)
    4
    """

    optimiser: Any
    places: tuple[tuple[int, int, int], ...]
    bound: float

    def __post_init__(self) -> None:
        keep(self, optimiser=get(self.optimiser), places=sequence(_validate_place)("places", self.places))
        keep_numbers(self, bound="(0, inf)")

    @property
    def slots(self) -> tuple[str, ...]:
        return self.optimiser.slots

    @property
    def rate(self) -> Rate:
        return self.optimiser.rate

    @check_vectors
    def step(self, theta: np.ndarray, gradient: np.ndarray, slots: Slots, rate: float, count: int) -> Update:
        new, slots = self.optimiser.step(theta, gradient, slots, rate, count)
        return self.project(new), slots

    def project(self, theta: np.ndarray) -> np.ndarray:
        """The nearest parameters with these norms."""
        found = np.array(array(None)("theta", theta), float)
        for first, rows, columns in self.places:
            matrix = found[first : first + rows * columns].reshape(rows, columns)
            if matrix.shape != (rows, columns):
                raise ValueError(f"`theta` must hold the matrices of `places`, found {found.size} numbers")
            if np.linalg.norm(matrix) > self.bound:  # the Frobenius norm bounds the spectral norm
                U, s, V = np.linalg.svd(matrix, full_matrices=False)
                matrix[...] = (U * np.minimum(s, self.bound)) @ V
        return found


def _validate_place(name: str, value: Any) -> tuple[int, int, int]:
    found = sequence(lambda part, number: validate_count(part, number, 0))(name, value)
    if len(found) != 3:
        raise ValueError(f"`{name}` must be the first entry, rows and columns of a matrix, found {value!r:.60}")
    return found


def spectral_projection(optimiser: Any, net: Net, bound: float) -> SpectralProjection:
    """An optimiser that keeps the norms of the dense weight matrices of the blocks of a net within a bound.

    Parameters
    ----------
    optimiser : str or optimiser
    net : Net
        With dense layers.
    bound : float
        The largest norm.

    Returns
    -------
    SpectralProjection

    Examples
    --------
    >>> from stepnet import nets, training
    >>> net = nets.parabolic(2, 1, width=3, steps=4)
    >>> training.spectral_projection(training.SGD(0.1), net, 0.5).bound
    0.5
    """
    instance(Net)("net", net)
    bound, places = real("(0, inf)")("bound", bound), []
    numbers = net.views(np.arange(net.theta.size))
    for name, index in numbers.items():
        if name.startswith("blocks.") and index.ndim == 3:
            places += [(int(each.flat[0]), *each.shape) for each in index]
    if not places:
        raise ValueError("`net` must have blocks with weight matrices, found none")
    return SpectralProjection(optimiser, tuple(places), bound)
