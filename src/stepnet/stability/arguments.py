"""Kinds of arguments that functions of stability share."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepnet.schemes import catalogue
from stepnet.schemes.capabilities import (
    count_formulas,
    find_stability_function_refusal,
    find_step_choice_refusal,
    is_stochastic,
)
from stepnet.schemes.tableau import Butcher
from stepnet.validation import array

LARGEST = 1e6  # largest coordinate of a grid: high powers of larger numbers would overflow


def deterministic_scheme(name: str, value: Any) -> Any:
    """A scheme by name or record, or a Butcher tableau; stochastic schemes are refused."""
    if isinstance(value, Butcher):
        return value
    found = any_scheme(name, value)
    if is_stochastic(found):
        raise TypeError(
            f"`{name}` must be a scheme for ordinary equations, found {found.name}, which has no stability function; "
            "use `stability.mean_square_region`"
        )
    refusal = find_stability_function_refusal(found)
    if refusal is not None:
        raise TypeError(f"`{name}` must have one stability function, and {refusal}")
    return found


def scheme_or_formulas(name: str, value: Any) -> Any:
    """As `deterministic_scheme`, or a scheme that chooses among formulas of several orders."""
    if not isinstance(value, Butcher) and count_formulas(found := any_scheme(name, value)):
        return found
    return deterministic_scheme(name, value)


def require_exact_derivative(scheme: Any) -> None:
    """Refuse schemes whose runs have no exact derivative; others, and None for the default, are left to `solve`."""
    if scheme is not None:
        refusal = find_step_choice_refusal(
            any_scheme("scheme", scheme), "so `scheme` has no exact derivative of a run;"
        )
        if refusal is not None:
            raise TypeError(refusal)


def any_scheme(name: str, value: Any) -> Any:
    """A scheme by name or record."""
    if not isinstance(value, str) and not catalogue.is_scheme(value):
        raise TypeError(f"`{name}` must be a scheme or the name of one, found {value!r:.60} ({type(value).__name__})")
    return catalogue.get(value)


def choose_classes(outputs: np.ndarray) -> np.ndarray:
    """The indices of the largest of several outputs (n, outputs); for a single one, 1 where it is positive, else 0."""
    return outputs.argmax(axis=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).astype(int)


def grid_axis(name: str, value: Any) -> np.ndarray:
    """Numbers (n,), increasing, of moderate size."""
    found = array(None)(name, value).astype(np.float64)
    if not (found.size and (np.abs(found) <= LARGEST).all() and (np.diff(found) > 0).all()):
        raise ValueError(f"`{name}` must be increasing numbers (n,) of size {LARGEST:g} at most, found {found!r:.60}")
    return found


def complex_number(name: str, value: Any) -> complex:
    """A finite number, real or complex."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, complex, np.number)):
        raise TypeError(f"`{name}` must be a number, found {value!r:.60}")
    try:
        found = complex(value)
    except OverflowError:
        found = complex(float("inf"))
    if not np.isfinite(found):
        raise ValueError(f"`{name}` must be finite, found {value!r:.60}")
    return found
