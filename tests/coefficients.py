"""Every number of a record, by its place: for tests that change one of them."""

from __future__ import annotations

from dataclasses import is_dataclass, replace

from stepnet.schemes import (
    AdditiveRK,
    Embedded,
    ExplicitRK,
    ImplicitRK,
    LowStorageRK,
    Multistep,
    Rosenbrock,
    Splitting,
    StabilisedRK,
)

EXPLICIT = {
    ExplicitRK: ("a", "b", "embedded"),
    LowStorageRK: ("A", "B"),
    StabilisedRK: ("mu", "nu", "mu_tilde", "gamma_tilde"),
    Splitting: ("a", "b"),
    Multistep: ("alpha", "beta"),
}
IMPLICIT = {
    ImplicitRK: ("A", "b", "embedded", "start"),
    Rosenbrock: ("gamma", "alpha", "gamma_lower", "b", "embedded"),
    AdditiveRK: ("explicit", "implicit", "b_explicit", "b", "embedded"),
}
"""The fields that hold the numbers of a record: of explicit schemes, and of those that solve systems."""


def places(value):
    """All (path, number) of nested tuples and embedded results."""
    if isinstance(value, Embedded):
        yield from places(value.b)
    elif isinstance(value, tuple):
        for i, entry in enumerate(value):
            yield from (((i, *path), number) for path, number in places(entry))
    else:
        yield (), value


def put(value, path, number):
    """A copy with another number at this place."""
    if not path:
        return number
    if is_dataclass(value):
        return replace(value, b=put(value.b, path, number))
    return (*value[: path[0]], put(value[path[0]], path[1:], number), *value[path[0] + 1 :])
