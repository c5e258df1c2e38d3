"""What frozen records share: numbers and arguments they refuse, how they are found by name, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from operator import index
from typing import Any, TypeVar

import numpy as np

from stepnet.errors import UnknownArgument, UnknownName

Named = TypeVar("Named", bound=Callable[..., Any])


def validate_number(name: str, value, interval: str = "(-inf, inf)") -> float:
    """A real argument in an interval, as in `validate_number("delta", delta, "(0, inf)")`."""
    try:
        if isinstance(value, (bool, str)) or np.iscomplexobj(value):
            raise TypeError
        found = float(value)
    except OverflowError:
        raise ValueError(f"`{name}` must be a number in {interval}, found {shown_integer(value)}") from None
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a number, found {shown_value(value)} ({type(value).__name__})") from None
    low, high = map(float, interval[1:-1].split(","))
    above = found >= low if interval[0] == "[" else found > low
    below = found <= high if interval[-1] == "]" else found < high
    if not (above and below):
        raise ValueError(f"`{name}` must be a number in {interval}, found {found:g}")
    return found


MOST_COUNT = 2**62  # counts are 64-bit integers in the kernels
MOST_SEED = 2**64 - 1
MOST_THREADS = 2**16
MANY_BITS = 200  # of integers that are not written out: Python refuses to write more than 4300 digits


def validate_count(name: str, value, least: int, most: int = MOST_COUNT, why: str = "") -> int:
    """An integer argument from `least` to `most`, beyond which it cannot work (`why`); bool and float are refused."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        count = index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an integer, found {shown_value(value)} ({type(value).__name__})") from None
    if count < least:
        raise ValueError(f"`{name}` must be at least {least}, found {shown_integer(count)}")
    if count > most:
        why = why or ("counts are 64-bit integers" if most == MOST_COUNT else "more cannot work")
        raise ValueError(f"`{name}` must be at most {most}, found {shown_integer(count)}: {why}")
    return count


def checked_thread_count(value, name: str = "workers") -> int:
    """A number of threads."""
    return validate_count(name, value, 1, MOST_THREADS, "no machine has as many cores")


def checked_seed(value, name: str = "seed") -> int:
    """A seed of random numbers."""
    return validate_count(name, value, 0, MOST_SEED, "seeds are 64-bit integers")


def shown_integer(value: int) -> str:
    """An integer as text, huge ones by the power of two below them."""
    bits = value.bit_length()
    return str(value) if bits <= MANY_BITS else f"{'-' * (value < 0)}2**{bits - 1} or so"


def shown_value(value) -> str:
    """A value as short text, whatever its `__repr__` does."""
    try:
        return f"{value!r:.80}"
    except Exception:  # of somebody else's __repr__, or an integer too long to be written
        return "one that cannot be shown"


def as_array(name: str, value) -> np.ndarray:
    """An array of whatever NumPy makes of a value, which must not be ragged."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"`{name}` must be an array, found {shown_value(value)} ({type(value).__name__})") from None


def convert_integers(name: str, array: np.ndarray) -> np.ndarray:
    """An array of numbers whose integers do not fit 64 bits as one of floats; other arrays as they are."""
    if array.dtype != object or not all(isinstance(x, (int, float, np.number)) for x in array.flat):
        return array
    try:
        return array.astype(float)
    except OverflowError:
        huge = max((x for x in array.flat if isinstance(x, int)), key=abs)
        raise ValueError(
            f"`{name}` must hold numbers within the range of float64, found {shown_integer(huge)}"
        ) from None


def flag(name: str, value) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, found {shown_value(value)} ({type(value).__name__})")
    return bool(value)


def keep(record, **values) -> None:
    """Set fields of a frozen record while it is built."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def keep_numbers(record, **intervals: str) -> None:
    """Check fields of a frozen record while it is built, each by its interval."""
    for name, interval in intervals.items():
        keep(record, **{name: validate_number(name, getattr(record, name), interval)})


LONGEST_ITEM, MOST_ITEMS = 300, 4  # characters of a value, and members of a sequence, that are shown


def shorten(value) -> str:
    """A value in one line: arrays by their first and last entries, shape and type, records and sequences in short."""
    if isinstance(value, np.ndarray):
        return _shorten_array(value)
    if isinstance(value, Mapping):
        return _join([f"{key!r:.40}: {shorten(item)}" for key, item in list(value.items())[:MOST_ITEMS]], value, "{}")
    if isinstance(value, (list, tuple)) and type(value).__repr__ in (list.__repr__, tuple.__repr__):
        return _join([shorten(item) for item in value[:MOST_ITEMS]], value, "[]" if isinstance(value, list) else "()")
    if is_dataclass(value) and "__repr__" not in vars(type(value)):
        return type(value).__name__
    return _cut(" ".join(repr(value).split()))


def show_fields(record) -> str:
    """A `__repr__` of one screen, for records that hold arrays: a line for every field that is to be shown."""
    shown = getattr(record, "_fields", None)  # of a named tuple
    names = shown or [each.name for each in fields(record) if each.repr]
    width = max(map(len, names), default=0)
    lines = (f"  {name:<{width}}  {shorten(getattr(record, name))}" for name in names)
    return "\n".join([type(record).__name__, *lines])


def _shorten_array(array: np.ndarray) -> str:
    flat = array.ravel() if array.size <= MOST_ITEMS else np.concatenate((array.ravel()[:2], array.ravel()[-1:]))
    entries = [f"{x:.6g}" if x.dtype.kind in "fc" else str(x)[:40] for x in flat]
    if array.size > MOST_ITEMS:
        entries.insert(2, "...")
    return f"[{', '.join(entries)}] of shape {array.shape}, {array.dtype}"


def _join(items: list[str], values, brackets: str) -> str:
    more = [f"... {len(values)} in all"] if len(values) > MOST_ITEMS else []
    return _cut(brackets[0] + ", ".join(items + more) + brackets[1])


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_ITEM else text[: LONGEST_ITEM - 3] + "..."


def find_by_name(what: str, known: Mapping[str, Callable[..., Any]], name, numbers: Mapping[str, Any]):
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

    `also` names those that it hands on to others (`**options`).  Arguments that are annotated as `bool` must be.
    """

    def decorate(target: Named) -> Named:
        if isinstance(target, type):
            target.__init__ = _explain(target.__init__, lambda self, *_: type(self).__name__, also)  # type: ignore[misc]
            return target
        return _explain(target, lambda *_: f"`{target.__name__}`", also)

    return decorate


def _explain(function, name_of: Callable[..., str], also: Iterable[str]):
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    own = [key for key, parameter in signature(function).parameters.items() if parameter.kind in kinds]
    flags = [(name, place) for place, name in enumerate(own) if function.__annotations__.get(name) in ("bool", bool)]
    known = frozenset((*own, *also))
    shown = [key for key in dict.fromkeys((*own, *also)) if key != "self"]

    @wraps(function)
    def call(*args, **named):
        if not named.keys() <= known:
            raise UnknownArgument(name_of(*args), next(key for key in named if key not in known), shown)
        for name, place in flags:
            if name in named or place < len(args):
                flag(name, named[name] if name in named else args[place])
        return function(*args, **named)

    return call
