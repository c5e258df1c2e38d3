"""The record of a loss: a formula for one sample, and how samples are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from stepnet.fields.inner_product import inner
from stepnet.nets.losses.targets import Meaning
from stepnet.records import keep
from stepnet.validation import alike, array

REDUCTIONS = ("mean", "sum")


class LossTerms(NamedTuple):
    """What a formula says of each sample: its terms (batch, k), and derivatives of their sum by its outputs."""

    terms: np.ndarray
    gradient: Callable[[], np.ndarray]
    product: Callable[[np.ndarray], np.ndarray]


class LossTargets(NamedTuple):
    """Targets as a formula wants them, and the weights of the terms that class weights give (None: all one)."""

    targets: np.ndarray
    mass: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Expansion:
    """A function near a point: value, gradient, the product H v of the Hessian with a direction, and v'Hv.

    The last may be known (`bend`) for less than a product.
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

    w_i are sample weights, c_ij the weights of the classes (which are inside l, too).

    Parameters
    ----------
    family, numbers
        The function that makes it, and its arguments: what it is, and how it is stored.
    formula : callable
        `formula(outputs, targets)` giving `LossTerms`.
    read : callable
        `read(outputs, targets, class_weights)` checks targets and gives `LossTargets`.
    hits : callable, optional
        `hits(outputs, targets)`: which samples are classified right; None for losses of regression.
    reduction : {"mean", "sum"}
        How terms are put together.
    class_weights : array_like, optional
        A factor for each class; two of them (no, yes) for binary losses.
    convex : bool
        Whether the loss is a convex function of the outputs.
    meaning : Meaning, optional
        Which targets it takes, how many outputs for each, and what these foretell; estimators need it.
    quick : callable, optional
        `quick(outputs, targets, share)`: the sum of all terms times `share`, one for each sample, and its gradient in a
        single pass; None where only the formula will do.
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

    def __post_init__(self):
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

    def __reduce__(self):
        return _build, (self.family, dict(self.numbers), self.reduction, self.class_weights)

    @property
    def name(self) -> str:
        return self.family.__name__

    def at(self, outputs, targets, weights=None) -> Expansion:
        """Value, gradient and Hessian product at outputs (batch, outputs), with sample weights (batch,)."""
        z = _validate_outputs(outputs)
        if self.quick is not None and weights is None and self.class_weights is None:
            found = self.quick(z, np.asarray(targets), 1.0 if self.reduction == "sum" else 1 / len(z))
            if found is not None:
                whole = cache(lambda: self._by_formula(z, targets, None))  # for products, if there are any
                return Expansion(found[0], lambda: found[1], lambda v: whole().product(v))
        return self._by_formula(z, targets, weights)

    def _by_formula(self, z: np.ndarray, targets, weights) -> Expansion:
        y, mass = self.read(z, targets, self.class_weights)
        with _silence():
            rows = self.formula(z, y)
            factor = self._factor(rows.terms, mass, weights)
            value = float((rows.terms * factor).sum(dtype=np.float64))
        scale = np.asarray(factor, z.dtype)

        def gradient():
            with _silence():
                return scale * rows.gradient()

        def product(v):
            with _silence():
                return scale * rows.product(alike("v", v, "outputs", z).astype(z.dtype, copy=False))

        return Expansion(value, gradient, product)

    def _factor(self, terms: np.ndarray, mass: np.ndarray | None, weights) -> np.ndarray | float:
        """What the terms of each sample are multiplied by, (batch, 1) or a single number."""
        if weights is None and mass is None:
            return 1.0 if self.reduction == "sum" else 1 / terms.size
        w = np.ones(()) if weights is None else _validate_sample_weights(weights, len(terms))
        if self.reduction == "sum":
            return w
        share = terms.size / w.size  # of the terms in each weight
        total = share * w.sum() if mass is None else (w * mass).sum(dtype=np.float64)
        return w / total if total > 0 else 0 * w  # a batch of which nothing counts


def _silence():
    """No warnings of overflow: infinite and undefined numbers are told by the value."""
    return np.errstate(over="ignore", invalid="ignore")


def _build(family, numbers, reduction, class_weights) -> Loss:
    """A loss from what is stored of it."""
    return replace(family(**numbers), reduction=reduction, class_weights=class_weights)


def _validate_outputs(outputs) -> np.ndarray:
    try:
        z = np.asarray(outputs)
    except ValueError:
        raise ValueError("`outputs` must be an array (batch, outputs), found a ragged sequence") from None
    if z.ndim != 2 or 0 in z.shape:
        raise ValueError(f"`outputs` must be an array (batch, outputs), found shape {z.shape}")
    if z.dtype.kind not in "fiu":
        raise TypeError(f"`outputs` must be real numbers, found {z.dtype}")
    return z if z.dtype.kind == "f" else z.astype(np.float64)


def _validate_sample_weights(weights, batch: int) -> np.ndarray:
    w = array(dtype=np.float64)("weights", weights)
    if w.shape != (batch,):
        raise ValueError(f"`weights` must be one number for each of {batch} samples, found shape {w.shape}")
    if not (w >= 0).all() or not np.isfinite(w).all():
        raise ValueError("`weights` must be finite and not negative")
    return w[:, None]


def _validate_class_weights(weights) -> np.ndarray:
    w = np.array(array(dtype=np.float64)("class_weights", weights))
    if w.ndim != 1 or w.size < 2 or not (w >= 0).all() or not np.isfinite(w).all():
        raise ValueError(f"`class_weights` must be one number for each class, finite and not negative, found {w}")
    w.setflags(write=False)
    return w
