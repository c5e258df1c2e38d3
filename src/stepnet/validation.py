"""Kinds of arguments, and the decorator by which public functions validate them.

A kind is a function `kind(name, value)` that returns the converted value, or raises an error with the name of the
argument in backticks, what was found and what is required.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from stepnet.errors import UnknownName
from stepnet.records import MOST_COUNT, convert_integers, format_value, validate_count, validate_flag, validate_number

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

Kind = Callable[[str, Any], Any]
Checked = TypeVar("Checked", bound=Callable[..., Any])
__all__ = [
    "alike", "array", "arrays", "check", "function", "having", "instance", "one_of", "optional", "real", "sequence",
    "text", "validate_flag", "whole",
]  # fmt: skip


def check(**kinds: Kind) -> Callable[[Checked], Checked]:
    """Decorator: validate these arguments of a function, or of a record when it is built.

    Defaults are not validated.
    """

    def decorate(target: Checked) -> Checked:
        if isinstance(target, type):
            target.__init__ = _add_checks(target.__init__, kinds)  # type: ignore[misc]
            return target
        return cast(Checked, _add_checks(target, kinds))

    return decorate


def _add_checks(function: Callable[..., Any], kinds: Mapping[str, Kind]) -> Callable[..., Any]:
    parameters = signature(function).parameters
    named_only = Parameter.KEYWORD_ONLY
    places = {name: place for place, (name, each) in enumerate(parameters.items()) if each.kind is not named_only}
    checks = [(name, places.get(name, MOST_COUNT), kind) for name, kind in kinds.items()]

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        given = list(args)
        for name, place, kind in checks:
            if place < len(given):
                given[place] = kind(name, given[place])
            elif name in named:
                named[name] = kind(name, named[name])
        return function(*given, **named)

    return call


# ---- kinds ----------------------------------------------------------------------------------------------------------


def whole(least: int = 0, most: int = MOST_COUNT) -> Kind:
    """An integer from `least` to `most`."""
    return lambda name, value: validate_count(name, value, least, most)


def real(interval: str = "(-inf, inf)") -> Kind:
    """A number in an interval."""
    return lambda name, value: validate_number(name, value, interval)


def array(*shape: int | None, dtype: DTypeLike | None = None) -> Kind:
    """An array of real numbers; with `shape`, of this shape, where None is any length."""

    def kind(name: str, value: Any) -> np.ndarray:
        try:
            found = np.asarray(value)
        except (TypeError, ValueError, OverflowError, NotImplementedError):  # the last from views of memory
            raise _refusal(name, "an array of numbers", value) from None
        found = convert_integers(name, found)
        if found.dtype.kind not in "biuf":
            raise _refusal(name, f"an array of real numbers, not of {found.dtype}", value)
        if found.dtype != np.float32 or dtype is not None:
            found = found.astype(dtype or np.float64, copy=False)
        is_fit = len(shape) == found.ndim and all(n in (None, m) for n, m in zip(shape, found.shape, strict=True))
        if shape and not is_fit:
            wanted = ", ".join("n" if n is None else str(n) for n in shape)
            raise ValueError(f"`{name}` must have the shape ({wanted}), found {found.shape}")
        return found

    return kind


def alike(name: str, value: Any, other_name: str, other: np.ndarray) -> np.ndarray:
    """Return an array of real numbers with the shape of another argument."""
    found = array()(name, value)
    if found.shape != other.shape:
        raise ValueError(f"`{name}` must have the shape {other.shape} of `{other_name}`, found {found.shape}")
    return found


def instance(*types: type, what: str = "") -> Kind:
    """A record of one of these types."""
    wanted = what or " or ".join(f"{_choose_article(each.__name__)} {each.__name__}" for each in types)

    def kind(name: str, value: Any) -> Any:
        if not isinstance(value, types):
            raise _refusal(name, wanted, value)
        return value

    return kind


def having(*attributes: str, what: str) -> Kind:
    """Anything with these attributes."""

    def kind(name: str, value: Any) -> Any:
        if isinstance(value, type) or not all(hasattr(value, each) for each in attributes):
            raise _refusal(name, f"{what} with {' and '.join(f'`{each}`' for each in attributes)}", value)
        return value

    return kind


def function(name: str, value: Any) -> Any:
    """A function."""
    if not callable(value):
        raise _refusal(name, "a function", value)
    return value


def text(name: str, value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise _refusal(name, "a text", value)
    return value


def one_of(*known: str) -> Kind:
    """One of the known names."""

    def kind(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise UnknownName(name, value, known)
        return value

    return kind


def optional(kind: Kind) -> Kind:
    """None, or a value of a kind."""
    return lambda name, value: None if value is None else kind(name, value)


def sequence(kind: Kind, least: int = 0) -> Kind:
    """A tuple of values of a kind, from any sequence."""

    def check_all(name: str, value: Any) -> tuple[Any, ...]:
        try:
            if isinstance(value, (str, bytes, Mapping, set)):
                raise TypeError
            found = tuple(value)
        except TypeError:
            raise _refusal(name, "a sequence", value) from None
        if len(found) < least:
            raise ValueError(f"`{name}` must hold at least {least}, found {len(found)}")
        return tuple([kind(f"{name}[{i}]", each) for i, each in enumerate(found)])

    return check_all


def numbers(name: str, value: Any) -> np.ndarray:
    """An array of real or complex numbers."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        raise _refusal(name, "an array of numbers", value)
    return value


def arrays(*names: str) -> Kind:
    """A dictionary with at least these arrays."""

    def kind(name: str, value: Any) -> Any:
        found = [value.get(each) for each in names] if isinstance(value, Mapping) else [None]
        if not all(hasattr(each, "dtype") and hasattr(each, "shape") for each in found):  # Zarr arrays are accepted
            wanted = ", ".join(map(repr, names)) or "names"
            raise _refusal(name, f"a dictionary of arrays ({wanted})", value)
        return value

    return kind


def _choose_article(noun: str) -> str:
    return "an" if noun.startswith(("A", "E", "I", "O", "SDE")) else "a"


def _refusal(name: str, wanted: str, value: object, error: type[Exception] = TypeError) -> Exception:
    return error(f"`{name}` must be {wanted}, found {format_value(value)} ({type(value).__name__})")
