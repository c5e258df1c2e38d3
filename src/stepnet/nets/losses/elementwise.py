"""Losses that are sums over outputs: of residuals r = z - y, of counts, of normal distributions."""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, inf
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import exprel

from stepnet.nets.losses.loss import Loss, LossTargets, LossTerms
from stepnet.nets.losses.targets import Meaning
from stepnet.records import validate_number

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

REAL = Meaning()
Each = Callable[[np.ndarray], np.ndarray]  # of residuals
EachPair = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of outputs and targets


def mse() -> Loss:
    """r^2.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.mse().at([[3.0]], [[1.0]]).value
    4.0
    """
    return _build_residual_loss(mse, lambda r: r * r, lambda r: 2 * r, lambda r: np.full_like(r, 2))


def mae() -> Loss:
    """|r|, with derivative zero at zero.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.mae().at([[3.0]], [[1.0]]).value
    2.0
    """
    return _build_residual_loss(mae, np.abs, np.sign, np.zeros_like)


def huber(delta: float = 1.0) -> Loss:
    """r^2 / 2 where |r| < delta, delta (|r| - delta / 2) beyond.  Huber (1964), Ann. Math. Statist. 35:73.

    Parameters
    ----------
    delta : float, optional
        Where it becomes linear.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.huber().at([[3.0]], [[0.0]]).value
    2.5
    """
    d = validate_number("delta", delta, "(0, inf)")
    return _build_residual_loss(
        huber,
        lambda r: np.where(np.abs(r) < d, 0.5 * r * r, d * (np.abs(r) - 0.5 * d)),
        lambda r: np.clip(r, -d, d),
        lambda r: np.where(np.abs(r) < d, 1, 0).astype(r.dtype),
        delta=d,
    )


def tukey(c: float = 4.685) -> Loss:
    """c^2 / 6 (1 - (1 - (r/c)^2)^3) where |r| < c, c^2 / 6 beyond.  Beaton & Tukey (1974), Technometrics 16:147.

    Parameters
    ----------
    c : float, optional
        Where it becomes constant.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.tukey(c=3.0).at([[9.0]], [[0.0]]).value
    1.5
    """
    c = validate_number("c", c, "(0, inf)")

    def square(r: np.ndarray) -> np.ndarray:
        """min((r/c)^2, 1)."""
        return np.minimum(np.abs(r) / c, 1) ** 2

    def rest(r: np.ndarray) -> np.ndarray:
        return 1 - square(r)

    def value(u: np.ndarray) -> np.ndarray:
        """1 - (1 - u)^3, accurate for small u."""
        return u * (3 - u * (3 - u))

    return _build_residual_loss(
        tukey,
        lambda r: c * c / 6 * value(square(r)),
        lambda r: np.clip(r, -c, c) * rest(r) ** 2,
        lambda r: rest(r) * (5 * rest(r) - 4),
        convex=False,
        c=c,
    )


def quantile(tau: float = 0.5) -> Loss:
    """max(tau e, (tau - 1) e), e = y - z: least at the tau-quantile.  Koenker & Bassett (1978), Econometrica
    46:33.

    Parameters
    ----------
    tau : float, optional
        The level of the quantile.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.quantile(tau=0.75).at([[0.0]], [[2.0]]).value
    1.5
    """
    tau = validate_number("tau", tau, "(0, 1)")
    return _build_residual_loss(
        quantile,
        lambda r: np.maximum(-tau * r, (1 - tau) * r),
        lambda r: np.where(r < 0, -tau, np.where(r > 0, 1 - tau, 0)).astype(r.dtype),
        np.zeros_like,
        tau=tau,
    )


def barron(alpha: float = 1.0, c: float = 1.0) -> Loss:
    """|a - 2| / a (((r/c)^2 / |a - 2| + 1)^(a/2) - 1) and its limits at a = 2, 0 and both infinities.

    a = 2 is r^2 / 2, 1 the pseudo-Huber loss, 0 Cauchy's, -2 Geman and McClure's, -inf Welsch's.  Barron (2019), A
    general and adaptive robust loss function, CVPR, with c for his scale.

    Parameters
    ----------
    alpha : float, optional
        The shape a.
    c : float, optional
        The scale of residuals.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> round(losses.barron(alpha=0.0).at([[2.0]], [[0.0]]).value, 4)
    1.0986
    """
    a, c = validate_number("alpha", alpha, "[-inf, inf]"), validate_number("c", c, "(0, inf)")
    b = abs(a - 2)

    def square(r: np.ndarray) -> np.ndarray:
        return (r / c) ** 2

    def power(s: np.ndarray, exponent: float) -> np.ndarray:
        """log of (s / b + 1)^exponent, exponent ~ a / 2."""
        if b == 0 or b == inf:
            return 0.5 * s * (0 if b == 0 else copysign(1, a))
        return exponent * np.log1p(s / b)

    def value(r: np.ndarray) -> np.ndarray:
        s = square(r)
        if b == inf:
            return copysign(1, a) * np.expm1(power(s, 0.5 * a))
        if b == 0:
            return 0.5 * s
        logarithm = np.log1p(s / b)
        return 0.5 * b * logarithm * exprel(0.5 * a * logarithm)

    def influence(s: np.ndarray) -> np.ndarray:
        """rho'(r) c^2 / r."""
        return np.exp(power(s, 0.5 * a - 1))

    def bend(s: np.ndarray) -> np.ndarray:
        """(a - 2) s / (s + b)."""
        if b == 0 or b == inf:
            return s * (0 if b == 0 else copysign(1, a))
        return (a - 2) * s / (s + b)

    return _build_residual_loss(
        barron,
        value,
        lambda r: r / c**2 * influence(square(r)),
        lambda r: influence(square(r)) / c**2 * (1 + bend(square(r))),
        convex=a >= 1,
        alpha=a,
        c=c,
    )


def poisson() -> Loss:
    """exp(z) - y z: the negative log-likelihood of counts y with rate exp(z), without the term in y alone.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.poisson().at([[0.0]], [[3.0]]).value
    1.0
    """
    return _make_loss(poisson, lambda z, y: np.exp(z) - y * z, lambda z, y: np.exp(z) - y, lambda z, y: np.exp(z),
                        _require_counts, meaning=Meaning("counts", "exp"))  # fmt: skip


def gaussian_nll() -> Loss:
    """(s + (m - y)^2 exp(-s)) / 2: the negative log-likelihood of y with mean m and variance exp(s).

    The first half of the outputs are means, the second half logarithms of variances; targets are (batch, outputs / 2).

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.gaussian_nll().at([[1.0, 0.0]], [[2.0]]).value
    0.5
    """

    def formula(z: np.ndarray, y: np.ndarray) -> LossTerms:
        m, s = np.split(z, 2, axis=1)
        r, precision = m - y, np.exp(-s)
        square = r * r * precision

        def product(v: np.ndarray) -> np.ndarray:
            v_m, v_s = np.split(v, 2, axis=1)
            cross = -r * precision
            return np.hstack((precision * v_m + cross * v_s, cross * v_m + 0.5 * square * v_s))

        return LossTerms(0.5 * (s + square), lambda: np.hstack((r * precision, 0.5 * (1 - square))), product)

    def read(z: np.ndarray, targets: ArrayLike, class_weights: np.ndarray | None) -> LossTargets:
        if z.shape[1] % 2:
            raise ValueError(f"gaussian_nll takes pairs of outputs (mean, log of variance), found {z.shape[1]} outputs")
        return _require_real(z[:, : z.shape[1] // 2], targets, class_weights)

    return Loss(gaussian_nll, formula, read, convex=False, meaning=Meaning(link="first half", each=2))


def _build_residual_loss(
    family: Callable[..., Loss], value: Each, slope: Each, curvature: Each, convex: bool = True, **numbers: Any
) -> Loss:
    """sum_j rho(z_j - y_j) from rho, rho' and rho''."""
    return _make_loss(
        family,
        lambda z, y: value(z - y),
        lambda z, y: slope(z - y),
        lambda z, y: curvature(z - y),
        _require_real,
        convex,
        **numbers,
    )


def _make_loss(
    family: Callable[..., Loss], value: EachPair, slope: EachPair, curvature: EachPair,
    read: Callable[..., LossTargets], convex: bool = True, meaning: Meaning = REAL, **numbers: float,
) -> Loss:  # fmt: skip
    def formula(z: np.ndarray, y: np.ndarray) -> LossTerms:
        return LossTerms(value(z, y), lambda: slope(z, y), lambda v: curvature(z, y) * v)

    return Loss(family, formula, read, numbers=numbers, convex=convex, meaning=meaning)


def _require_real(z: np.ndarray, targets: ArrayLike, class_weights: np.ndarray | None) -> LossTargets:
    """Return targets of the shape of the outputs; for a single output (batch,) is also accepted."""
    if class_weights is not None:
        raise ValueError("`class_weights` are for losses of classification; use sample weights instead")
    try:
        y = np.asarray(targets)
    except ValueError:  # rows of different lengths
        raise TypeError(f"`targets` must be real numbers in one array, found {targets!r:.60}") from None
    if y.dtype.kind not in "fiub":
        raise TypeError(f"`targets` must be real numbers, found {y.dtype}")
    if y.ndim == 1 and z.shape[1] == 1:
        y = y[:, None]
    if y.shape != z.shape:
        raise ValueError(f"`targets` must have the shape of what they are compared with, {z.shape}, found {y.shape}")
    return LossTargets(y.astype(z.dtype, copy=False))


def _require_counts(z: np.ndarray, targets: ArrayLike, class_weights: np.ndarray | None) -> LossTargets:
    read = _require_real(z, targets, class_weights)
    if (read.targets < 0).any():
        raise ValueError(f"`targets` of a Poisson loss are counts, not negative; found {read.targets.min():g}")
    return read
