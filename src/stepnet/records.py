"""What frozen records share: numbers and arguments they refuse, and how they are found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from stepnet.errors import UnknownArgument, UnknownName

Named = TypeVar("Named", bound=Callable[..., Any])


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
            raise UnknownArgument(f"the {what} {key!r}", other, takes)
    return known[key](**numbers)


def explain_arguments(also: Iterable[str] = ()) -> Callable[[Named], Named]:
    """Decorator: an argument that a function or record does not have is answered with what to give instead.

    `also` names those that it hands on to others (`**options`).
    """

    def decorate(target: Named) -> Named:
        if isinstance(target, type):
            target.__init__ = _explained(target.__init__, lambda self, *_: type(self).__name__, also)  # type: ignore[misc]
            return target
        return _explained(target, lambda *_: f"`{target.__name__}`", also)

    return decorate


def _explained(function, name_of: Callable[..., str], also: Iterable[str]):
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    own = [key for key, parameter in signature(function).parameters.items() if parameter.kind in kinds]
    known = frozenset((*own, *also))
    shown = [key for key in dict.fromkeys((*own, *also)) if key != "self"]

    @wraps(function)
    def call(*args, **named):
        if not named.keys() <= known:
            raise UnknownArgument(name_of(*args), next(key for key in named if key not in known), shown)
        return function(*args, **named)

    return call
