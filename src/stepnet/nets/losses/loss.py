"""The record of a loss: a formula per sample, and how samples are combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.fields.inner_product import inner
from stepnet.nets.losses.targets import Meaning
from stepnet.records import keep
from stepnet.validation import alike, array

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

REDUCTIONS = ("mean", "sum")


class LossTerms(NamedTuple):
    """The value of a formula: terms (batch, k), and the derivatives of their sum with respect to the outputs."""

    terms: np.ndarray
    gradient: Callable[[], np.ndarray]
    product: Callable[[np.ndarray], np.ndarray]


class LossTargets(NamedTuple):
    """Targets in the form a formula takes, and the term weights from class weights (None: all one)."""

    targets: np.ndarray
    mass: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Expansion:
    """A function near a point: value, gradient, the product H v of the Hessian with a direction, and v'Hv.

    The last may be cheaper (`bend`) than a product.

    Parameters
    ----------
    value : float
        The value.
    slope : callable
        Returns the gradient.
    product : callable
        `product(v)` returns H v.
    bend : callable, optional
        `bend(v)` returns v'Hv.

    Examples
    --------
    >>> import numpy as np
    >>> from stepnet.nets import losses
    >>> losses.get("mse").at(np.array([[1.0], [2.0]]), np.zeros((2, 1))).value
    2.5
    """

    value: float
    slope: Callable[[], np.ndarray]
    product: Callable[[np.ndarray], np.ndarray]
    bend: Callable[[np.ndarray], float] | None = None

    @cached_property
    def gradient(self) -> np.ndarray:
        return self.slope()

    def curvature(self, v: np.ndarray) -> float:
        return inner(v, self.product(v)) if self.bend is None else self.bend(v)


@dataclass(frozen=True, eq=False)
class Loss:
    """L(z, y) = sum_ij w_i l_ij(z_i, y_i) / sum_ij w_i c_ij: a weighted mean over samples and terms, or the sum alone.

    w_i are sample weights, c_ij class weights (which are also included in l).

    Parameters
    ----------
    family, numbers
        The function that builds it and its arguments, which identify it and are stored.
    formula : callable
        `formula(outputs, targets)` returns `LossTerms`.
    read : callable
        `read(outputs, targets, class_weights)` validates targets and returns `LossTargets`.
    hits : callable, optional
        `hits(outputs, targets)`: which samples are classified correctly; None for regression losses.
    reduction : {"mean", "sum"}
        How terms are combined.
    class_weights : array_like, optional
        A factor for each class; (negative, positive) for binary losses.
    convex : bool
        Whether the loss is a convex function of the outputs.
    meaning : Meaning, optional
        Which targets it takes, how many outputs for each, and what these predict; needed by estimators.
    quick : callable, optional
        `quick(outputs, targets, share)`: the sum of all terms times `share`, one factor per sample, and its gradient in
        a single pass; None if only the formula is available.

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.huber(delta=0.5).numbers["delta"]
    0.5
    """

    family: Callable[..., Loss]
    formula: Callable[[np.ndarray, np.ndarray], LossTerms]
    read: Callable[..., LossTargets]
    hits: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    reduction: str = "mean"
    class_weights: np.ndarray | None = None
    convex: bool = True
    meaning: Meaning | None = None
    quick: Callable[[np.ndarray, np.ndarray, float], tuple[float, np.ndarray] | None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.reduction, str) or self.reduction not in REDUCTIONS:
            raise ValueError(f"`reduction` must be 'mean' or 'sum', found {self.reduction!r:.80}")
        if self.class_weights is not None:
            keep(self, class_weights=_validate_class_weights(self.class_weights))

    def __repr__(self) -> str:
        numbers: dict[str, object] = dict(self.numbers)
        if self.reduction != "mean":
            numbers["reduction"] = self.reduction
        if self.class_weights is not None:
            numbers["class_weights"] = self.class_weights.tolist()
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in numbers.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _build, (self.family, dict(self.numbers), self.reduction, self.class_weights)

    @property
    def name(self) -> str:
        return self.family.__name__

    def at(self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None) -> Expansion:
        """Value, gradient and Hessian product at outputs (batch, outputs), with sample weights (batch,)."""
        z = _validate_outputs(outputs)
        if self.quick is not None and weights is None and self.class_weights is None:
            found = self.quick(z, np.asarray(targets), 1.0 if self.reduction == "sum" else 1 / len(z))
            if found is not None:
                whole = cache(lambda: self._evaluate_formula(z, targets, None))  # for Hessian products, if requested
                return Expansion(found[0], lambda: found[1], lambda v: whole().product(v))
        return self._evaluate_formula(z, targets, weights)

    def _evaluate_formula(self, z: np.ndarray, targets: ArrayLike, weights: ArrayLike | None) -> Expansion:
        y, mass = self.read(z, targets, self.class_weights)
        with _silence():
            rows = self.formula(z, y)
            factor = self._factor(rows.terms, mass, weights)
            value = float((rows.terms * factor).sum(dtype=np.float64))
        scale = np.asarray(factor, z.dtype)

        def gradient() -> np.ndarray:
            with _silence():
                return scale * rows.gradient()

        def product(v: np.ndarray) -> np.ndarray:
            with _silence():
                return scale * rows.product(alike("v", v, "outputs", z).astype(z.dtype, copy=False))

        return Expansion(value, gradient, product)

    def _factor(self, terms: np.ndarray, mass: np.ndarray | None, weights: ArrayLike | None) -> np.ndarray | float:
        """The factor of the terms of each sample, (batch, 1) or a single number."""
        if weights is None and mass is None:
            return 1.0 if self.reduction == "sum" else 1 / terms.size
        w = np.ones(()) if weights is None else _validate_sample_weights(weights, len(terms))
        if self.reduction == "sum":
            return w
        share = terms.size / w.size  # terms per weight
        total = share * w.sum() if mass is None else (w * mass).sum(dtype=np.float64)
        return w / total if total > 0 else 0 * w  # all weights are zero


def _silence() -> np.errstate:
    """Suppress overflow warnings: infinities and NaN show in the value."""
    return np.errstate(over="ignore", invalid="ignore")


def _build(
    family: Callable[..., Loss], numbers: Mapping[str, float], reduction: str, class_weights: np.ndarray | None
) -> Loss:
    """Build a loss from its stored description."""
    return replace(family(**numbers), reduction=reduction, class_weights=class_weights)


def _validate_outputs(outputs: ArrayLike) -> np.ndarray:
    try:
        z = np.asarray(outputs)
    except ValueError:
        raise ValueError("`outputs` must be an array (batch, outputs), found a ragged sequence") from None
    if z.ndim != 2 or 0 in z.shape:
        raise ValueError(f"`outputs` must be an array (batch, outputs), found shape {z.shape}")
    if z.dtype.kind not in "fiu":
        raise TypeError(f"`outputs` must be real numbers, found {z.dtype}")
    return z if z.dtype.kind == "f" else z.astype(np.float64)


def _validate_sample_weights(weights: ArrayLike, batch: int) -> np.ndarray:
    w = array(dtype=np.float64)("weights", weights)
    if w.shape != (batch,):
        raise ValueError(f"`weights` must be one number for each of {batch} samples, found shape {w.shape}")
    if not (w >= 0).all() or not np.isfinite(w).all():
        raise ValueError("`weights` must be finite and not negative")
    return w[:, None]


def _validate_class_weights(weights: ArrayLike) -> np.ndarray:
    w = np.array(array(dtype=np.float64)("class_weights", weights))
    if w.ndim != 1 or w.size < 2 or not (w >= 0).all() or not np.isfinite(w).all():
        raise ValueError(f"`class_weights` must be one number for each class, finite and not negative, found {w}")
    w.setflags(write=False)
    return w
