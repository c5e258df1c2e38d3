"""Weights of samples and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.class_weight import compute_class_weight

from stepnet.validation import array

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def weigh_samples(sample_weight: ArrayLike | None, count: int) -> np.ndarray:
    """Return one nonnegative number per sample."""
    if sample_weight is None:
        return np.ones(count)
    found = array(dtype=np.float64)("sample_weight", sample_weight)
    if found.shape != (count,):
        raise ValueError(f"`sample_weight` must be {count} numbers, one for each sample, found shape {found.shape}")
    if not np.isfinite(found).all() or (found < 0).any():
        raise ValueError("`sample_weight` must be finite and not negative, found other weights")
    if not found.any():
        raise ValueError("`sample_weight` must have a weight that is not zero, found only zeros")
    return found


def weigh_classes(class_weight: Any, classes: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A factor for each class; "balanced" gives all classes the same total sample weight."""
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str) and class_weight == "balanced":
        totals = np.bincount(labels, weights, len(classes))
        return totals.sum() / (len(classes) * totals)
    if not isinstance(class_weight, dict):
        raise ValueError(f"`class_weight` must be None, 'balanced' or a dictionary, found {class_weight!r:.80}")
    found = np.asarray(compute_class_weight(class_weight, classes=classes, y=classes[labels]), np.float64)
    if not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise ValueError(f"`class_weight` must be finite, not negative and not all zero, found {class_weight!r:.80}")
    return found


def drop_trivial(weights: np.ndarray) -> np.ndarray | None:
    """Return the weights, or None if all are one."""
    return None if (weights == 1).all() else weights
