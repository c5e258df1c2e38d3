"""Hostile values for arguments, by name, each built again for every call, so that a call can be repeated."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


class HostileLength:
    """Its length is an error, and so are its items."""

    def __len__(self):
        raise RuntimeError("hostile length")

    def __getitem__(self, i):
        raise RuntimeError("hostile item")


class HostileFloat:
    """Becoming a number is an error."""

    def __float__(self):
        raise RuntimeError("hostile float")

    __index__ = __int__ = __float__


class HostileBool:
    """Neither true nor false."""

    def __bool__(self):
        raise RuntimeError("hostile truth")


class HostileArray:
    """Becoming an array is an error."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("hostile array")


class HostileEquality:
    """Compares as an array does."""

    def __eq__(self, other):
        return np.array([True, False])

    __hash__ = None


def no_arguments():
    return 0.0


def many_arguments(a, b, c, d, e, f, g, h):
    return 0.0


def raising(*args, **named):
    raise RuntimeError("hostile function")


def returning(value) -> Callable:
    def hostile(*args, **named):
        return value

    return hostile


def _read_only() -> np.ndarray:
    array = np.array([1.0, 0.5])
    array.flags.writeable = False
    return array


SPANS = {
    "NaN span": lambda: (0.0, math.nan),
    "reversed span": lambda: (1.0, 0.0),
    "endless span": lambda: (0.0, math.inf),
    "empty span": lambda: (0.5, 0.5),
}
HUGE = {  # also for whole numbers, where they ask for more memory or time than there is
    "2**31": lambda: 2**31,
    "2**62": lambda: 2**62,
    "10**400": lambda: 10**400,
    "-10**400": lambda: -(10**400),
    "1e18": lambda: 1e18,
}
FUNCTIONS = {
    "function of nothing": lambda: no_arguments,
    "function of too much": lambda: many_arguments,
    "function that raises": lambda: raising,
    "function returning None": lambda: returning(None),
    "function returning text": lambda: returning("text"),
    "function returning NaN": lambda: returning(math.nan),
    "function returning an empty array": lambda: returning(np.zeros(0)),
    "function returning a tuple": lambda: returning((1.0, 2.0, 3.0)),
    "function returning objects": lambda: returning(np.array([None, 1], object)),
    "function returning itself": lambda: returning(returning),
    "builtin class": lambda: memoryview,
}
ARRAYS = {
    "empty array": lambda: np.zeros(0),
    "empty matrix": lambda: np.zeros((0, 3)),
    "wrong shape": lambda: np.ones((2, 3, 4)),
    "scalar array": lambda: np.array(1.5),
    "long array": lambda: np.linspace(0.0, 1.0, 17),
    "objects": lambda: np.array([1.0, None], object),
    "numbers as objects": lambda: np.array([1.0, 0.5], object),
    "complex": lambda: np.array([1.0 + 1j, 0.5]),
    "float16": lambda: np.array([1.0, 0.5], np.float16),
    "longdouble": lambda: np.array([1.0, 0.5], np.longdouble),
    "byteswapped": lambda: np.array([1.0, 0.5], ">f8"),
    "Fortran order": lambda: np.asfortranarray(np.ones((2, 2))),
    "read-only": _read_only,
    "texts": lambda: np.array(["a", "b"]),
    "times of day": lambda: np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"),
    "records": lambda: np.zeros(2, [("a", float), ("b", int)]),
    "NaN array": lambda: np.array([1.0, math.nan]),
    "flags": lambda: np.array([True, False]),
    "ragged": lambda: [[1.0], [1.0, 2.0]],
    "negative whole numbers": lambda: np.array([-1, 2]),
}
OTHERS = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "-2**62": lambda: -(2**62),
    "1.5": lambda: 1.5,
    "-1.5": lambda: -1.5,
    "1e-300": lambda: 1e-300,
    "NaN": lambda: math.nan,
    "inf": lambda: math.inf,
    "1j": lambda: 1j,
    "float64": lambda: np.float64(0.25),
    "text": lambda: "text",
    "empty text": lambda: "",
    "null character": lambda: "a\0b",
    "bytes": lambda: b"bytes",
    "missing path": lambda: "/no/such/folder/file",
    "empty list": list,
    "list": lambda: [1.0, 2.0, 3.0],
    "nested list": lambda: [[[]]],
    "list of None": lambda: [None, None],
    "tuple of texts": lambda: ("a", "b"),
    "dict": lambda: {"a": 1},
    "empty dict": dict,
    "dict of numbers": lambda: {1: 2},
    "set": lambda: {1, 2},
    "class": lambda: HostileFloat,
    "module": lambda: math,
    "object": object,
    "range": lambda: range(3),
    "generator": lambda: (x for x in [1.0, 2.0]),
    "hostile length": HostileLength,
    "hostile float": HostileFloat,
    "hostile truth": HostileBool,
    "hostile array": HostileArray,
    "hostile equality": HostileEquality,
    "exception": lambda: ValueError("hostile"),
    "Ellipsis": lambda: ...,
}
VALUES: dict[str, Callable] = {**OTHERS, **ARRAYS, **FUNCTIONS, **HUGE, **SPANS}
