"""Weights of samples and classes."""

from __future__ import annotations

import numpy as np
from sklearn.utils.class_weight import compute_class_weight

from stepnet.records import shown_value


def weigh_samples(sample_weight, count: int) -> np.ndarray:
    """One number for each sample, none of them negative."""
    if sample_weight is None:
        return np.ones(count)
    try:
        found = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"`sample_weight` must be numbers, found {shown_value(sample_weight)}") from None
    if found.shape != (count,):
        raise ValueError(f"`sample_weight` must be {count} numbers, one for each sample, found shape {found.shape}")
    if not np.isfinite(found).all() or (found < 0).any():
        raise ValueError("`sample_weight` must be finite and not negative, found other weights")
    if not found.any():
        raise ValueError("`sample_weight` must have a weight that is not zero, found zeros alone")
    return found


def weigh_classes(class_weight, classes: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A factor for each class; balanced ones give all classes the same weight, samples counting by theirs."""
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
    """None for weights that are all one."""
    return None if (weights == 1).all() else weights
