"""Accuracy of classifiers on perturbed inputs: random noise and attacks along gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.nets import losses
from stepnet.nets.net import Net
from stepnet.nets.sample_noise import SampleNoise, repeat_noise
from stepnet.records import as_array, show_fields
from stepnet.stability.arguments import choose_classes
from stepnet.validation import array, check, function, one_of, optional, sequence, whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

ATTACKS = ("gaussian", "fgsm", "pgd")
Gradient = Callable[[np.ndarray, np.ndarray], Any]
REACH = 2.5  # radii that the steps of projected gradients cover together, so that corners are reached


def _radii(name: str, value: Any) -> np.ndarray:
    found = array(None)(name, value).astype(np.float64)
    if not found.size or not (np.isfinite(found) & (found >= 0)).all():
        raise ValueError(f"`{name}` must be finite numbers that are not negative, found {found!r:.60}")
    return found


@dataclass(frozen=True, repr=False, eq=False)
class RobustnessCurves:
    """Accuracy over the size of perturbations.

    Parameters
    ----------
    radii : array (radii,)
        The standard deviation of Gaussian noise, and the largest change of an entry for the attacks.
    attacks : tuple of str
    accuracies : array (attacks, radii)

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> sn.stability.RobustnessCurves(np.array([0.0, 1.0]), ("fgsm",), np.array([[1.0, 0.5]])).area.tolist()
    [0.75]
    """

    radii: np.ndarray
    attacks: tuple[str, ...]
    accuracies: np.ndarray

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def area(self) -> np.ndarray:
        """The mean accuracy over the radii of each attack."""
        span = self.radii[-1] - self.radii[0]
        return np.trapezoid(self.accuracies, self.radii, axis=1) / span if span else self.accuracies.mean(axis=1)


@check(x=array(), radii=_radii, attacks=sequence(one_of(*ATTACKS), least=1), gradient=optional(function),
       steps=whole(1, 10_000), seed=whole(), paths=whole(1, 10_000))  # fmt: skip
def robustness(
    model: Any, x: ArrayLike, labels: ArrayLike, radii: ArrayLike, *, attacks: Sequence[str] = ATTACKS,
    gradient: Gradient | None = None, steps: int = 10, seed: int = 0, paths: int = 16,
) -> RobustnessCurves:  # fmt: skip
    """Measure the accuracy of a classifier on perturbed inputs.

    "gaussian" adds noise; "fgsm" adds radius sign(dL/dx), Goodfellow, Shlens & Szegedy (2015), ICLR; "pgd" repeats
    smaller steps of it and projects onto the cube of the radius, Madry et al. (2018), ICLR.  Gradients are those of the
    cross-entropy of the model itself, averaged over Brownian paths if it has noise.

    Parameters
    ----------
    model : Net, estimator or callable
        A net; a fitted estimator with `predict`; or a function from inputs to outputs (n, classes) or labels (n,).
    x : array_like (n, ...)
    labels : array_like (n,)
        Classes; for a net or outputs their indices, for a single output 1 where it is positive.
    radii : array_like
        Sizes of perturbations.
    attacks : sequence of {"gaussian", "fgsm", "pgd"}, optional
    gradient : callable, optional
        `gradient(x, labels)` returns dL/dx; needed for attacks on models other than nets of this package.
    steps : int, optional
        Number of steps of "pgd".
    seed : int, optional
        Seed of the noise.
    paths : int, optional
        Brownian paths over which outputs of a net with noise are averaged.

    Returns
    -------
    RobustnessCurves

    Raises
    ------
    ValueError
        If an attack needs the gradient of a model that provides none.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> net = sn.nets.hamiltonian(2, 2, 4, 8)
    >>> found = sn.stability.robustness(net, x, net(x).argmax(axis=1), [0.0, 3.0])
    >>> found.accuracies[:, 0].tolist(), bool((found.accuracies[:, 1] < 1).all())
    ([1.0, 1.0, 1.0], True)
    """
    x, labels, radii = np.asarray(x, np.float64), as_array("labels", labels), np.asarray(radii)
    if x.ndim < 1:
        raise ValueError(f"`x` must hold inputs (n, ...), found {x}")
    if labels.shape != x.shape[:1] or not len(x):
        raise ValueError(f"`labels` must be one for each of {len(x)} inputs, found the shape {labels.shape}")
    classify, slope = _open_model(model, gradient, paths)
    if slope is None and set(attacks) - {"gaussian"}:
        raise ValueError(
            "`gradient` is needed for attacks on this model: a function of inputs and labels that returns dL/dx"
        )
    # inputs are often default_rng(seed).normal() themselves, and noise must not be equal to them
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,))).normal(size=x.shape)
    moves: dict[str, Callable[[float], np.ndarray]] = {
        "gaussian": lambda radius: x + radius * random,
        "fgsm": lambda radius: x + radius * _sign(slope, x, labels),
        "pgd": partial(_project_gradients, slope, x, labels, steps, random),
    }
    found = [[np.mean(classify(moves[name](float(r))) == labels) for r in radii] for name in attacks]
    return RobustnessCurves(radii, tuple(attacks), np.array(found))


def _sign(slope: Gradient | None, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    found = np.asarray(slope(x, labels), np.float64)  # type: ignore[misc]
    if found.size != x.size:
        raise ValueError(f"`gradient` must return an array of the shape {x.shape}, found {found.shape}")
    return np.sign(found.reshape(x.shape))


def _project_gradients(
    slope: Gradient | None, x: np.ndarray, labels: np.ndarray, steps: int, random: np.ndarray, radius: float
) -> np.ndarray:
    """Inputs after steps along signs of gradients, from a random start inside of the cube around them."""
    moved = x + 0.5 * radius * np.tanh(random)
    for _ in range(steps):
        moved = moved + REACH * radius / steps * _sign(slope, moved, labels)
        moved = np.clip(moved, x - radius, x + radius)
    return moved


def _open_model(model: Any, gradient: Gradient | None, paths: int) -> tuple[Callable[..., Any], Gradient | None]:
    """A function from inputs to classes, and the gradient of the loss if it is known."""
    if isinstance(model, Net):
        return partial(_classify, model, paths), gradient or partial(_differentiate, model, paths, None)
    if hasattr(model, "predict") and not isinstance(model, type):
        known = isinstance(getattr(model, "net_", None), Net) and hasattr(model, "factor_")
        if gradient is None and known:
            return model.predict, partial(_differentiate, model.net_, paths, model)
        return model.predict, gradient
    function("model", model)

    def classify(x: np.ndarray) -> np.ndarray:
        found = np.asarray(model(x))
        return choose_classes(found) if found.ndim == 2 else found

    return classify, gradient


def _classify(net: Net, paths: int, x: np.ndarray) -> np.ndarray:
    return choose_classes(_average(net, paths, x))


def _average(net: Net, paths: int, x: np.ndarray) -> np.ndarray:
    """Outputs, the means over Brownian paths if the net has noise."""
    if not net.has_noise:
        return np.asarray(net(x))
    noise = repeat_noise(SampleNoise(), len(x), paths)
    found = np.asarray(net(np.repeat(x, paths, axis=0), noise=noise))
    return found.reshape(len(x), paths, -1).mean(axis=1)


def _differentiate(net: Net, paths: int, estimator: Any, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """dL/dx of the cross-entropy, or of the loss of an estimator, whose inputs are scaled."""
    loss, factor, inputs = losses.get("binary_cross_entropy" if net.design.n_out == 1 else "cross_entropy"), 1.0, x
    if estimator is not None:
        labels = np.searchsorted(estimator.classes_, labels)
        factor, inputs = estimator.factor_, (x - estimator.shift_) * estimator.factor_
    count, noise = (paths, {"noise": repeat_noise(SampleNoise(), len(x), paths)}) if net.has_noise else (1, {})
    repeated, targets = np.repeat(inputs, count, axis=0), np.repeat(labels, count)

    def seed(outputs: np.ndarray) -> tuple[float, np.ndarray]:
        local = loss.at(outputs, targets)
        return local.value, local.gradient

    found = net.gradient(repeated, seed, **noise).x  # type: ignore[arg-type]
    return factor * np.asarray(found).reshape(len(x), count, *x.shape[1:]).sum(axis=1)
