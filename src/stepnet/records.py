"""What frozen records share: numbers they refuse, and how they are found by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from stepnet.errors import UnknownName


def number(name: str, value, interval: str = "(-inf, inf)") -> float:
    """A real argument in an interval, as in `number("delta", delta, "(0, inf)")`."""
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a number, found {value!r:.80} ({type(value).__name__})") from None
    low, high = map(float, interval[1:-1].split(","))
    above = found >= low if interval[0] == "[" else found > low
    below = found <= high if interval[-1] == "]" else found < high
    if not (above and below):
        raise ValueError(f"`{name}` must be a number in {interval}, found {found:g}")
    return found


def keep(record, **values) -> None:
    """Set fields of a frozen record while it is built."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def keep_numbers(record, **intervals: str) -> None:
    """Check fields of a frozen record while it is built, each by its interval."""
    for name, interval in intervals.items():
        keep(record, **{name: number(name, getattr(record, name), interval)})


def by_name(what: str, known: Mapping[str, Callable[..., Any]], name, numbers: Mapping[str, Any]):
    """The record of this name, built with these numbers; what is no name must be a record already."""
    if not isinstance(name, str):
        if numbers:
            raise TypeError(f"{', '.join(f'`{key}`' for key in numbers)} can only go with the name of a {what}")
        return name
    key = name.lower()
    if key not in known:
        raise UnknownName(what, name, known)
    takes = signature(known[key]).parameters
    for other in numbers:
        if other not in takes:
            raise TypeError(f"the {what} {key!r} takes no `{other}`; it takes {', '.join(takes) or 'no numbers'}")
    return known[key](**numbers)
