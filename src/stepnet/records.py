"""Functions shared by frozen records: validation of numbers and arguments, lookup by name, and `repr`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from operator import index
from typing import Any, TypeVar, cast

import numpy as np

from stepnet.errors import UnknownArgument, UnknownName

Named = TypeVar("Named", bound=Callable[..., Any])
Record = TypeVar("Record")


def validate_number(name: str, value: Any, interval: str = "(-inf, inf)") -> float:
    """Return a real argument in an interval, as in `validate_number("delta", delta, "(0, inf)")`."""
    try:
        if isinstance(value, (bool, str)) or np.iscomplexobj(value):
            raise TypeError
        found = float(value)
    except OverflowError:
        raise ValueError(f"`{name}` must be a number in {interval}, found {format_integer(value)}") from None
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a number, found {format_value(value)} ({type(value).__name__})") from None
    low, high = map(float, interval[1:-1].split(","))
    above = found >= low if interval[0] == "[" else found > low
    below = found <= high if interval[-1] == "]" else found < high
    if not (above and below):
        raise ValueError(f"`{name}` must be a number in {interval}, found {found:g}")
    return found


MOST_COUNT = 2**62  # counts are 64-bit integers in the kernels
MOST_SEED = 2**64 - 1
MOST_THREADS = 2**16
MANY_BITS = 200  # of integers that are not printed: Python refuses to print more than 4300 digits


def validate_count(name: str, value: Any, least: int, most: int = MOST_COUNT, why: str = "") -> int:
    """Return an integer argument from `least` to `most` (`why` explains this bound); bool and float are refused."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        count = index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an integer, found {format_value(value)} ({type(value).__name__})") from None
    if count < least:
        raise ValueError(f"`{name}` must be at least {least}, found {format_integer(count)}")
    if count > most:
        why = why or ("counts are 64-bit integers" if most == MOST_COUNT else "larger values are useless")
        raise ValueError(f"`{name}` must be at most {most}, found {format_integer(count)}: {why}")
    return count


def validate_thread_count(value: Any, name: str = "workers") -> int:
    """Return a number of threads."""
    return validate_count(name, value, 1, MOST_THREADS, "no machine has as many cores")


def validate_seed(value: Any, name: str = "seed") -> int:
    """Return a seed of random numbers."""
    return validate_count(name, value, 0, MOST_SEED, "seeds are 64-bit integers")


def format_integer(value: int) -> str:
    """An integer as text, huge ones as a power of two."""
    bits = value.bit_length()
    return str(value) if bits <= MANY_BITS else f"{'-' * (value < 0)}2**{bits - 1} or so"


def format_value(value: object) -> str:
    """A value as one short line, even if its `__repr__` fails."""
    try:
        return " ".join(line.strip() for line in repr(value).splitlines())[:80]
    except Exception:  # of a foreign __repr__, or an integer too long to print
        return "one that cannot be shown"


def as_array(name: str, value: Any) -> np.ndarray:
    """Convert a value to an array; refuse ragged sequences."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"`{name}` must be an array, found {format_value(value)} ({type(value).__name__})") from None


def convert_integers(name: str, array: np.ndarray) -> np.ndarray:
    """Convert an array of integers beyond 64 bits to floats; return other arrays unchanged."""
    if array.dtype != object or not all(isinstance(x, (int, float, np.number)) for x in array.flat):
        return array
    try:
        return array.astype(float)
    except OverflowError:
        huge = max((x for x in array.flat if isinstance(x, int)), key=abs)
        raise ValueError(
            f"`{name}` must hold numbers within the range of float64, found {format_integer(huge)}"
        ) from None


def validate_flag(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, found {format_value(value)} ({type(value).__name__})")
    return bool(value)


def keep(record: object, **values: Any) -> None:
    """Set fields of a frozen record while it is built."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def keep_numbers(record: object, **intervals: str) -> None:
    """Check fields of a frozen record while it is built, each by its interval."""
    for name, interval in intervals.items():
        keep(record, **{name: validate_number(name, getattr(record, name), interval)})


LONGEST_ITEM, MOST_ITEMS = 300, 4  # characters of a value, and items of a sequence, that are shown


def shorten(value: object) -> str:
    """A value in one line: arrays by their first and last entries, shape and type, others abbreviated."""
    if isinstance(value, np.ndarray):
        return _shorten_array(value)
    if isinstance(value, Mapping):
        return _join([f"{key!r:.40}: {shorten(item)}" for key, item in list(value.items())[:MOST_ITEMS]], value, "{}")
    if isinstance(value, (list, tuple)) and type(value).__repr__ in (list.__repr__, tuple.__repr__):
        return _join([shorten(item) for item in value[:MOST_ITEMS]], value, "[]" if isinstance(value, list) else "()")
    if is_dataclass(value) and "__repr__" not in vars(type(value)):
        return type(value).__name__
    return _cut(" ".join(repr(value).split()))


def show_fields(record: object) -> str:
    """A `__repr__` of one screen, for records that hold arrays: one line for each field that is shown."""
    names = [name for name, is_shown in _find_fields(record).items() if is_shown]
    width = max(map(len, names), default=0)
    lines = (f"  {name:<{width}}  {shorten(getattr(record, name))}" for name in names)
    return "\n".join([type(record).__name__, *lines])


def list_field_names(record: object) -> list[str]:
    """The names of the fields of a record."""
    return list(_find_fields(record))


def _find_fields(record: Any) -> dict[str, bool]:
    """The fields of a dataclass, of a named tuple or of another class with `_fields`; whether each is shown."""
    named = getattr(record, "_fields", None)
    return dict.fromkeys(named, True) if named else {each.name: each.repr for each in fields(record)}


def _shorten_array(array: np.ndarray) -> str:
    flat = array.ravel() if array.size <= MOST_ITEMS else np.concatenate((array.ravel()[:2], array.ravel()[-1:]))
    entries = [f"{x:.6g}" if x.dtype.kind in "fc" else str(x)[:40] for x in flat]
    if array.size > MOST_ITEMS:
        entries.insert(2, "...")
    return f"[{', '.join(entries)}] of shape {array.shape}, {array.dtype}"


def _join(items: list[str], values: Sized, brackets: str) -> str:
    more = [f"... {len(values)} in all"] if len(values) > MOST_ITEMS else []
    return _cut(brackets[0] + ", ".join(items + more) + brackets[1])


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_ITEM else text[: LONGEST_ITEM - 3] + "..."


def find_by_name(what: str, known: Mapping[str, Callable[..., Any]], name: Any, numbers: Mapping[str, Any]) -> Any:
    """The record of this name, built with these numbers; anything but a name must be a record."""
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
    """Decorator: an unknown argument of a function or record raises an error that says what to use instead.

    `also` names the arguments that are passed on to other functions (`**options`).  Arguments annotated as `bool` must
    be bool.
    """

    def decorate(target: Named) -> Named:
        if isinstance(target, type):
            target.__init__ = _explain(target.__init__, lambda self, *_: type(self).__name__, also)  # type: ignore[misc]
            return target
        return cast(Named, _explain(target, lambda *_: f"`{target.__name__}`", also))

    return decorate


def _explain(function: Callable[..., Any], name_of: Callable[..., str], also: Iterable[str]) -> Callable[..., Any]:
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    parameters = signature(function).parameters
    own = [key for key, parameter in parameters.items() if parameter.kind in kinds]
    places = {key: place for place, key in enumerate(parameters) if parameters[key].kind is not Parameter.KEYWORD_ONLY}
    flags = {
        name: places.get(name, sys.maxsize) for name in own if function.__annotations__.get(name) in ("bool", bool)
    }
    first_flag = min(flags.values(), default=sys.maxsize)  # its place among the positional arguments
    known = frozenset((*own, *also))
    shown = [key for key in dict.fromkeys((*own, *also)) if key != "self"]

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if not named.keys() <= known:
            raise UnknownArgument(name_of(*args), next(key for key in named if key not in known), shown)
        if len(args) > first_flag or not flags.keys().isdisjoint(named):
            for name, place in flags.items():
                if name in named or place < len(args):
                    validate_flag(name, named[name] if name in named else args[place])
        return function(*args, **named)

    return call


def build_record(kind: type[Record], **values: Any) -> Record:
    """The same as `kind(**values)` for a frozen dataclass that checks nothing, in a tenth of the time.

    Its constructor sets each field by a call; here fields that are left out are read from the class.
    """
    record = object.__new__(kind)
    record.__dict__.update(values)
    return record


UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")


def explain_passed_arguments(function: Named) -> Named:
    """Decorator of functions that pass `**options` on: an argument that nothing accepts raises a clear error."""
    known = [key for key, each in signature(function).parameters.items() if each.kind is not Parameter.VAR_KEYWORD]

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except (TypeError, AttributeError) as error:  # the latter from matplotlib
            found = UNEXPECTED.search(str(error))
            if found is None or found[1] not in named or found[1] in known:
                raise
            raise UnknownArgument(f"`{function.__name__}`", found[1], known) from error

    return cast(Named, call)
