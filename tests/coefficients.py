"""Every number of a record, by its position: for tests that change one of them."""

from __future__ import annotations

from dataclasses import is_dataclass, replace

from stepnet.schemes import (
    AdditiveRK,
    Embedded,
    ExplicitRK,
    ExponentialRK,
    FixedBDF,
    ImplicitRK,
    LowStorageRK,
    Multistep,
    PartitionedRK,
    PhiTerm,
    Rosenbrock,
    SemiImplicitBDF,
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
    PartitionedRK: ("A", "A_hat", "b"),
    FixedBDF: ("alpha", "gamma"),
}
OF_SUMS = {SemiImplicitBDF: ("alpha", "beta", "gamma"), ExponentialRK: ("A", "b", "c")}
"""The fields that hold the numbers of a record: of explicit schemes, of those that solve systems, and of those for sums
of two parts only.
"""


def places(value):
    """All (path, number) of nested tuples and embedded results."""
    if isinstance(value, Embedded):
        yield from places(value.b)
    elif isinstance(value, PhiTerm):
        yield from places(value.weight)
    elif isinstance(value, tuple):
        for i, entry in enumerate(value):
            yield from (((i, *path), number) for path, number in places(entry))
    else:
        yield (), value


def put(value, path, number):
    """A copy with another number at this place."""
    if isinstance(value, PhiTerm):
        return replace(value, weight=number)
    if not path:
        return number
    if is_dataclass(value):
        return replace(value, b=put(value.b, path, number))
    return (*value[: path[0]], put(value[path[0]], path[1:], number), *value[path[0] + 1 :])
