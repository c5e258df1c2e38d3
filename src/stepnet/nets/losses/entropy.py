"""Losses of classification: sums of q_c psi(log p_c), p = softmax(z), from logarithms that do not overflow.

With l = log p, a = q psi'(l) and S = sum_c a_c, the gradient is a - p S.  Cross-entropy has psi(l) = -l, so that its
Hessian is diag(p) - p p' for targets q of sum one.  Binary losses are those of the logits (0, z).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.nets.losses.loss import Loss, LossTargets, LossTerms
from stepnet.nets.losses.targets import Meaning
from stepnet.records import validate_number
from stepnet.validation import array, check

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

SUMS_TO_ONE = 1e-5  # rounding in float32 of the sum of some thousand probabilities
Formula = Callable[[np.ndarray, np.ndarray], LossTerms]


def _logits(name: str, value: Any) -> np.ndarray:
    """Return real numbers with at least one axis, none of length zero."""
    found = array()(name, value)
    if found.ndim == 0 or 0 in found.shape:
        raise ValueError(f"`{name}` must be an array (..., classes), found the shape {found.shape}")
    return found


@check(z=_logits)
def log_softmax(z: np.ndarray) -> np.ndarray:
    """log p = z - log sum_c exp(z_c) over the last axis; infinite logits are limits of large ones.

    Parameters
    ----------
    z : ndarray
        Logits (..., classes).

    Returns
    -------
    ndarray

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.log_softmax([0.0, 0.0]).round(4)
    array([-0.6931, -0.6931])
    """
    return _import_engine().entropies(z, z).logarithms


def _import_engine() -> ModuleType:
    """Import the engine when needed, because it loads the compiler."""
    from stepnet.engines import numba_engine

    return numba_engine


@check(z=_logits)
def softmax(z: np.ndarray) -> np.ndarray:
    """exp(z_c) / sum_c exp(z_c) over the last axis.

    Parameters
    ----------
    z : ndarray
        Logits (..., classes).

    Returns
    -------
    ndarray

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> losses.softmax([0.0, 0.0])
    array([0.5, 0.5])
    """
    return np.exp(log_softmax(z))


class Slopes(NamedTuple):
    """psi, psi' and psi''."""

    value: np.ndarray
    first: np.ndarray
    second: np.ndarray


def _evaluate_focal(l: np.ndarray, p: np.ndarray, gamma: float) -> Slopes:  # noqa: E741
    """psi(l) = -(1 - exp(l))^gamma l, expressed by m = 1 - p and l / m, which tends to -1 as p tends to 1."""
    m = -np.expm1(l)
    floor = np.maximum(m, np.finfo(l.dtype).tiny)
    ratio = np.where(p > 0, p * np.where(m > 0, np.maximum(l, -np.finfo(l.dtype).max) / floor, -1), 0)
    first = m**gamma * (gamma * ratio - 1)
    second = gamma * p * floor ** (gamma - 1) * (2 + np.where(p > 0, l, 0) - (gamma - 1) * ratio)
    return Slopes(-(m**gamma) * l, first, second)


def _entropy(
    z: np.ndarray, q: np.ndarray, psi: Callable[[np.ndarray, np.ndarray], Slopes] | None = None,
    temperature: float = 1.0, scale: float = 1.0,
) -> LossTerms:  # fmt: skip
    """scale sum_c q_c psi(log p_c), p = softmax(z / temperature), over the last axis.

    Without `psi`, psi(l) = -l.
    """
    l, p, terms, gradient = _import_engine().entropies(z if temperature == 1 else z / temperature, q)  # noqa: E741
    first, second = scale / temperature, scale / temperature**2
    if psi is None:

        def multiply_hessian(v: np.ndarray) -> np.ndarray:
            l_dot = v - (p * v).sum(axis=-1, keepdims=True)
            return second * (p * l_dot * q.sum(axis=-1, keepdims=True))

        return LossTerms(_times(scale, terms), lambda: _times(first, gradient), multiply_hessian)
    slopes = psi(l, p)
    terms = scale * np.where(q == 0, 0, q * slopes.value).sum(axis=-1)  # p may be 0 where q is 0
    a = q * slopes.first
    total = a.sum(axis=-1, keepdims=True)

    def product(v: np.ndarray) -> np.ndarray:
        l_dot = v - (p * v).sum(axis=-1, keepdims=True)
        a_dot = q * slopes.second * l_dot
        return second * (a_dot - p * (a_dot.sum(axis=-1, keepdims=True) + l_dot * total))

    return LossTerms(terms, lambda: first * (a - p * total), product)


def _times(factor: float, array: np.ndarray) -> np.ndarray:
    return array if factor == 1 else factor * array


# ---- several classes: one row of logits for each sample -------------------------------------------------------------


def cross_entropy(smoothing: float = 0.0, temperature: float = 1.0) -> Loss:
    """-sum_c q_c log p_c, p = softmax(z / temperature), q = (1 - smoothing) target + smoothing / classes.

    Targets are classes (batch,) or probabilities (batch, classes).

    Parameters
    ----------
    smoothing : float, optional
        Label smoothing, from 0 to 1.
    temperature : float, optional
        Divisor of the outputs.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> round(losses.cross_entropy().at([[0.0, 0.0]], [1]).value, 4)
    0.6931
    """
    t, smoothing = (
        validate_number("temperature", temperature, "(0, inf)"),
        validate_number("smoothing", smoothing, "[0, 1]"),
    )
    found = _build_class_loss(cross_entropy, partial(_entropy, temperature=t), smoothing, temperature=t)
    return replace(found, quick=_evaluate_compiled) if t == 1 and smoothing == 0 else found


def focal(focus: float = 2.0, smoothing: float = 0.0) -> Loss:
    """-sum_c q_c (1 - p_c)^focus log p_c: easy samples count less.  Lin et al. (2017), arXiv:1708.02002.

    Parameters
    ----------
    focus : float, optional
        The exponent.
    smoothing : float, optional
        Label smoothing, from 0 to 1.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> round(losses.focal().at([[0.0, 0.0]], [1]).value, 4)
    0.1733
    """
    g = validate_number("focus", focus, "[0, inf)")
    formula = partial(_entropy, psi=partial(_evaluate_focal, gamma=g))
    return _build_class_loss(focal, formula, validate_number("smoothing", smoothing, "[0, 1]"), convex=g == 0, focus=g)


def kl() -> Loss:
    """sum_c q_c log(q_c / p_c) for probabilities q and p = softmax(z).

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> round(losses.kl().at([[0.0, 0.0]], [[1.0, 0.0]]).value, 4)
    0.6931
    """

    def formula(z: np.ndarray, q: np.ndarray) -> LossTerms:
        rows = _reduce_rows(_entropy)(z, q)
        own = np.where(q > 0, q * np.log(np.where(q > 0, q, 1)), 0).sum(axis=-1, keepdims=True)
        return rows._replace(terms=rows.terms + own)

    meaning = Meaning("probabilities", "softmax")
    return Loss(kl, formula, _require_no_weights(_classes), _class_hits, meaning=meaning)


def distillation(temperature: float = 2.0, hard: float = 0.0) -> Loss:
    """(1 - hard) T^2 H(softmax(t / T), softmax(z / T)) + hard H(class, softmax(z)), H the cross-entropy.

    Targets are the logits t of a teacher (batch, classes), with the class as one more column where `hard` is not zero.
    Hinton, Vinyals & Dean (2015), arXiv:1503.02531; T^2 keeps the size of gradients.

    Parameters
    ----------
    temperature : float, optional
        T.
    hard : float, optional
        The factor of the cross-entropy with the class.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> round(losses.distillation(temperature=1.0).at([[0.0, 0.0]], [[0.0, 0.0]]).value, 4)
    0.6931
    """
    T, hard = validate_number("temperature", temperature, "(0, inf)"), validate_number("hard", hard, "[0, 1]")

    def formula(z: np.ndarray, q: np.ndarray) -> LossTerms:
        n = z.shape[1]
        soft = _reduce_rows(partial(_entropy, temperature=T, scale=(1 - hard) * T * T))(z, q[:, :n])
        return _sum(soft, _reduce_rows(partial(_entropy, scale=hard))(z, q[:, n:])) if hard else soft

    def read(z: np.ndarray, targets: ArrayLike, class_weights: np.ndarray | None) -> LossTargets:
        y, n = np.asarray(targets, z.dtype), z.shape[1]
        wanted = (len(z), n + 1 if hard else n)
        if y.shape != wanted:
            column = ", and the class in one more column" if hard else ""
            raise ValueError(f"`targets` must be the teacher's logits{column}: {wanted}, found {y.shape}")
        soft = softmax(y[:, :n] / T)
        return LossTargets(np.hstack((soft, _classes(z, y[:, n], None).targets)) if hard else soft)

    def hits(z: np.ndarray, targets: ArrayLike) -> np.ndarray:
        teacher = np.asarray(targets)
        return z.argmax(axis=1) == (teacher[:, -1] if hard else teacher.argmax(axis=1))

    numbers, meaning = {"temperature": T, "hard": hard}, Meaning("logits of a teacher", "softmax")
    return Loss(distillation, formula, _require_no_weights(read), hits, numbers, meaning=meaning)


def _build_class_loss(
    family: Callable[..., Loss], formula: Formula, smoothing: float, convex: bool = True, **numbers: float
) -> Loss:
    read = partial(_classes, smoothing=smoothing)
    meaning = Meaning(
        "classes", "softmax", temperature=numbers.get("temperature", 1.0), focus=numbers.get("focus", 0.0)
    )
    numbers = {"smoothing": smoothing, **numbers}
    return Loss(family, _reduce_rows(formula), read, _class_hits, numbers, convex=convex, meaning=meaning)


def _reduce_rows(formula: Formula) -> Formula:
    """Decorate a formula on (batch, classes) to give one term per sample."""

    def on_rows(z: np.ndarray, q: np.ndarray) -> LossTerms:
        terms, gradient, product = formula(z, q)
        return LossTerms(terms[:, None], gradient, product)

    return on_rows


def _evaluate_compiled(z: np.ndarray, targets: np.ndarray, share: float) -> tuple[float, np.ndarray] | None:
    return _import_engine().class_entropies(z, targets, share)


def _sum(one: LossTerms, two: LossTerms) -> LossTerms:
    return LossTerms(
        one.terms + two.terms,
        lambda: one.gradient() + two.gradient(),
        lambda v: one.product(v) + two.product(v),
    )


def _classes(
    z: np.ndarray, targets: ArrayLike, class_weights: np.ndarray | None, smoothing: float = 0.0
) -> LossTargets:
    """Probabilities of targets, smoothed and weighted, and the weight of each sample's own class."""
    n = z.shape[1]
    y = np.asarray(targets)
    q = _encode_one_hot(y, z) if y.ndim == 1 else _probabilities(y, z)
    smooth = q if smoothing == 0 else (1 - smoothing) * q + z.dtype.type(smoothing / n)
    if class_weights is None:
        return LossTargets(smooth)
    if class_weights.size != n:
        raise ValueError(f"`class_weights` must be {n} numbers, one for each class, found {class_weights.size}")
    return LossTargets((smooth * class_weights).astype(z.dtype, copy=False), (q @ class_weights)[:, None])


def _encode_one_hot(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    batch, n = z.shape
    if y.shape != (batch,):
        raise ValueError(f"`targets` must be one class for each of {batch} samples, found shape {y.shape}")
    labels = _labels(y)
    q, wrong = _import_engine().one_hot(labels, n, z.dtype)
    if wrong >= 0:
        raise ValueError(f"`targets` must be classes from 0 to {n - 1}, one for each output, found {labels[wrong]}")
    return q


def _labels(y: np.ndarray) -> np.ndarray:
    if y.dtype.kind not in "fiub" or (y.dtype.kind == "f" and not np.all(np.isfinite(y) & (y == np.floor(y)))):
        found = f"{y.dtype}" if y.dtype.kind not in "f" else "numbers that are not"
        raise TypeError(f"`targets` of shape (batch,) must be integers, found {found}")
    return y.astype(np.int64, copy=False)


def _probabilities(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    if y.shape != z.shape:
        raise ValueError(f"`targets` must be classes (batch,) or probabilities {z.shape}, found shape {y.shape}")
    q = y.astype(z.dtype, copy=False)
    if (q < 0).any() or not np.allclose(q.sum(axis=1), 1, rtol=0, atol=SUMS_TO_ONE):
        raise ValueError("`targets` as probabilities must not be negative, and each row must sum to one")
    return q


def _class_hits(z: np.ndarray, targets: ArrayLike) -> np.ndarray:
    y = np.asarray(targets)
    return (z.argmax(axis=1) == (y if y.ndim == 1 else y.argmax(axis=1))) & _is_known(z)


def _is_known(z: np.ndarray) -> np.ndarray:
    """Which samples have no NaN outputs; others count as misclassified."""
    return ~np.isnan(z).any(axis=1)


def _require_no_weights(read: Callable[..., LossTargets]) -> Callable[..., LossTargets]:
    def read_targets(z: np.ndarray, targets: ArrayLike, class_weights: np.ndarray | None) -> LossTargets:
        if class_weights is not None:
            raise ValueError("`class_weights` are not available for this loss; use sample weights instead")
        return read(z, targets, None)

    return read_targets


# ---- binary: each output is the logit of a separate label -----------------------------------------------------------


def binary_cross_entropy(smoothing: float = 0.0) -> Loss:
    """-q log p - (1 - q) log(1 - p), p = 1 / (1 + exp(-z)), q = (1 - smoothing) target + smoothing / 2.

    Targets are 0, 1 or between, of the shape of the outputs.

    Parameters
    ----------
    smoothing : float, optional
        Label smoothing, from 0 to 1.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> round(losses.binary_cross_entropy().at([[0.0]], [[1.0]]).value, 4)
    0.6931
    """
    return _build_answer_loss(binary_cross_entropy, _entropy, validate_number("smoothing", smoothing, "[0, 1]"))


def binary_focal(focus: float = 2.0, smoothing: float = 0.0) -> Loss:
    """-q (1 - p)^focus log p - (1 - q) p^focus log(1 - p), p = 1 / (1 + exp(-z)).  Lin et al. (2017).

    Parameters
    ----------
    focus : float, optional
        The exponent.
    smoothing : float, optional
        Label smoothing, from 0 to 1.

    Returns
    -------
    Loss

    Examples
    --------
    >>> from stepnet.nets import losses
    >>> round(losses.binary_focal().at([[0.0]], [[1.0]]).value, 4)
    0.1733
    """
    g = validate_number("focus", focus, "[0, inf)")
    formula = partial(_entropy, psi=partial(_evaluate_focal, gamma=g))
    return _build_answer_loss(
        binary_focal, formula, validate_number("smoothing", smoothing, "[0, 1]"), convex=g == 0, focus=g
    )


def _build_answer_loss(
    family: Callable[..., Loss], formula: Formula, smoothing: float, convex: bool = True, **numbers: float
) -> Loss:
    def on_pairs(z: np.ndarray, q: np.ndarray) -> LossTerms:
        terms, gradient, product = formula(_pair(z), q)
        return LossTerms(terms, lambda: gradient()[..., 1], lambda v: product(_pair(v))[..., 1])

    read, meaning = (
        partial(_answers, smoothing=smoothing),
        Meaning("answers", "sigmoid", focus=numbers.get("focus", 0.0)),
    )
    numbers = {"smoothing": smoothing, **numbers}
    return Loss(family, on_pairs, read, _answer_hits, numbers, convex=convex, meaning=meaning)


def _pair(z: np.ndarray) -> np.ndarray:
    """The logits (0, z) of the two classes."""
    return np.stack((np.zeros_like(z), z), axis=-1)


def _answers(z: np.ndarray, targets: ArrayLike, class_weights: np.ndarray | None, smoothing: float) -> LossTargets:
    y = np.asarray(targets)
    if y.ndim == 1 and z.shape[1] == 1:
        y = y[:, None]
    if y.shape != z.shape:
        raise ValueError(f"`targets` must have the shape of the outputs, {z.shape}, found {y.shape}")
    if y.dtype.kind not in "fiub" or not ((y >= 0) & (y <= 1)).all():
        raise ValueError("`targets` of a binary loss must be 0, 1 or numbers between")
    y = y.astype(z.dtype, copy=False)
    q = np.stack((1 - y, y), axis=-1)
    smooth = q if smoothing == 0 else (1 - smoothing) * q + z.dtype.type(smoothing / 2)
    if class_weights is None:
        return LossTargets(smooth)
    if class_weights.size != 2:
        raise ValueError(f"`class_weights` of a binary loss must be 2 numbers (no, yes), found {class_weights.size}")
    return LossTargets((smooth * class_weights).astype(z.dtype, copy=False), q @ class_weights)


def _answer_hits(z: np.ndarray, targets: ArrayLike) -> np.ndarray:
    y = np.asarray(targets).reshape(z.shape)
    return ((z > 0) == (y > 0.5)).all(axis=1) & _is_known(z)
