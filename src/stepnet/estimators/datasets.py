"""Data sets included in scikit-learn, by name, and their division into parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.model_selection import train_test_split

from stepnet.errors import UnknownName
from stepnet.records import validate_number
from stepnet.training import Data

NAMED: dict[str, Callable[..., Any]] = {
    "moons": lambda seed: datasets.make_moons(400, noise=0.15, random_state=seed),
    "circles": lambda seed: datasets.make_circles(400, noise=0.08, factor=0.5, random_state=seed),
    "digits": lambda seed: datasets.load_digits(return_X_y=True),
    "iris": lambda seed: datasets.load_iris(return_X_y=True),
    "wine": lambda seed: datasets.load_wine(return_X_y=True),
    "breast_cancer": lambda seed: datasets.load_breast_cancer(return_X_y=True),
}


def load_named(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples (n, features) and their classes (n,)."""
    if name not in NAMED:
        raise UnknownName("data set", name, NAMED)
    return NAMED[name](seed)


def as_columns(name: str, features: int) -> list[str]:
    """The column names of a data set in scikit-learn, or generic ones."""
    load = getattr(datasets, f"load_{name}", None)
    return [str(each) for each in load().feature_names] if load else [f"x{k}" for k in range(features)]


def split_samples(X: np.ndarray, y: np.ndarray, test: float, seed: int) -> list[np.ndarray]:
    """Training X and y, then test X and y: a random fraction of each class."""
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=test, stratify=y, random_state=seed)
    return [X_train, y_train, X_test, y_test]


def hold_out(data: Data, labels: np.ndarray | None, share: float, seed: int) -> tuple[Data, Data]:
    """Split data into training and validation samples, a random fraction, stratified by labels if there are any."""
    share, rows = validate_number("validation_fraction", share, "(0, 1)"), np.arange(len(data))
    try:
        learnt, held = train_test_split(rows, test_size=share, stratify=labels, random_state=seed)
    except ValueError as error:
        raise ValueError(
            f"`validation_fraction` = {share:g} of {len(data)} samples cannot be held out: {error}"
        ) from None
    return data.rows(learnt), data.rows(held)
