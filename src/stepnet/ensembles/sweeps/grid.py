"""The grid of a sweep: all combinations of values of some numbers of a problem."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from stepnet.errors import UnknownName
from stepnet.problem import ODE, SDE, Partitioned, Problem, Split
from stepnet.solving.integrate import import_engine

NAME = re.compile(r"(\w+)(?:\[([\d,\s]+)\])?")
EVERY_ARGUMENT = "args"  # args[i] is number i of all arguments


class SweptEntry(NamedTuple):
    """The position of a swept number: entry `entry` of the rows `kind`, "y0" or "args"."""

    kind: str
    entry: int


class GridBox(NamedTuple):
    """A part of the grid whose members `first` to `last` are consecutive."""

    slices: tuple[slice, ...]
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class SweepGrid:
    """The values of each axis and the entries they set; `base` holds the rows that they are written into.

    Members are numbered with the last axis fastest, in C order.
    """

    values: dict[str, np.ndarray]
    places: tuple[SweptEntry, ...]
    base: dict[str, np.ndarray]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(values) for values in self.values.values())

    @property
    def count(self) -> int:
        """The number of members."""
        return prod(self.shape)

    def rows(self, first: int, last: int) -> dict[str, Any]:
        """The rows `y0` and `args` of some members, where they differ."""
        rows = {kind: np.tile(values, (last - first, 1)) for kind, values in self.base.items()}
        indices = np.unravel_index(np.arange(first, last), self.shape) if self.shape else ()
        for place, values, index in zip(self.places, self.values.values(), indices, strict=True):
            rows[place.kind][:, place.entry] = values[index]
        return rows

    def box_shape(self, chunk: int) -> tuple[int, ...]:
        """The shape of boxes of up to `chunk` members: whole trailing axes and equal pieces of one axis."""
        shape = [1] * len(self.shape)
        for axis in reversed(range(len(shape))):
            capacity = chunk // prod(shape)
            if capacity < self.shape[axis]:
                shape[axis] = -(-self.shape[axis] // -(-self.shape[axis] // max(1, capacity)))
                break
            shape[axis] = self.shape[axis]
        return tuple(shape)

    def boxes(self, chunk: int) -> Iterator[GridBox]:
        """The whole grid in boxes of up to `chunk` members, in order."""
        shape = self.box_shape(chunk)
        first = 0
        for corner in np.ndindex(*(-(-n // m) for n, m in zip(self.shape, shape, strict=True))):
            edges = zip(corner, shape, self.shape, strict=True)
            slices = tuple(slice(i * m, min((i + 1) * m, n)) for i, m, n in edges)
            last = first + prod(s.stop - s.start for s in slices)
            yield GridBox(slices, first, last)
            first = last


def build_grid(problem: Problem, grid: Any, may_be_empty: bool = False) -> tuple[Problem, SweepGrid]:
    """Build the grid, and the problem with all its arguments; missing ones are taken from the grid."""
    from stepnet.engines.numba_engine import list_argument_names

    if may_be_empty and grid is None:  # one member, the problem itself
        return problem, SweepGrid({}, (), {"y0": problem.initial})
    if not isinstance(grid, Mapping) or not grid:
        raise TypeError(f'`grid` must map names to values, such as {{"rho": [0.0, 28.0]}}, found {grid!r:.60}')
    values = {str(name): _validate_values(name, given) for name, given in grid.items()}
    names = list_argument_names(problem)
    if not problem.args and names and set(names) <= set(values):
        problem = replace(problem, args=tuple(float(values[name][0]) for name in names))
    places = tuple(_find_entry(problem, name, names) for name in values)
    taken: dict[SweptEntry, str] = {}
    for name, place in zip(values, places, strict=True):
        if place in taken:
            raise ValueError(f"`grid` names one number twice: {taken[place]!r} and {name!r}")
        taken[place] = name
    flat = {"y0": problem.initial, "args": import_engine().collect_numbers(problem.args)}
    return problem, SweepGrid(values, places, {kind: flat[kind] for kind in dict.fromkeys(p.kind for p in places)})


def _validate_values(name: str, given: Any) -> np.ndarray:
    try:
        values = np.array(given)
    except ValueError:
        values = np.array(None)
    if values.ndim != 1 or values.dtype.kind not in "biuf" or not values.size:
        raise ValueError(f"`grid` must have a row of real numbers for {name!r}, found {given!r:.60}")
    values = values.astype(float)
    if not np.isfinite(values).all():
        raise ValueError(f"`grid` must be finite, found {values[~np.isfinite(values)][0]} for {name!r}")
    return values


def _find_entry(problem: Problem, name: str, names: tuple[str, ...]) -> SweptEntry:
    match = NAME.fullmatch(name)
    word, text = match.groups() if match else (name, None)
    indices = () if text is None else tuple(int(i) for i in text.split(",") if i.strip())
    states, numbers = _validate_states(problem), import_engine().collect_numbers
    if word in states:
        kind, (offset, shape) = "y0", states[word]
    elif word in names and names.index(word) < len(problem.args):
        i = names.index(word)
        kind, offset, shape = "args", numbers(problem.args[:i]).size, np.shape(problem.args[i])
    elif word == EVERY_ARGUMENT and problem.args:
        kind, offset, shape = "args", 0, numbers(problem.args).shape
    else:
        if word in names:
            raise ValueError(
                f"`grid` has {name!r}, but the problem has only {len(problem.args)} of the {len(names)} arguments; "
                f"give all in its `args`, or all in `grid`"
            )
        raise UnknownName("number of the problem named", name, [*names, *(_show(*item) for item in states.items())])
    if len(indices) != len(shape) or any(i >= n for i, n in zip(indices, shape, strict=True)):
        wanted = _show(word, (0, shape))
        raise ValueError(f"`grid` must name one number, such as {wanted!r} of the shape {shape}; found {name!r}")
    return SweptEntry(kind, offset + (int(np.ravel_multi_index(indices, shape)) if shape else 0))


def _validate_states(problem: Problem) -> dict[str, tuple[int, tuple[int, ...]]]:
    """The parts of the initial state, with their offsets in the flat state and their shapes."""
    if isinstance(problem, (ODE, Split, SDE)):
        return {"y0": (0, problem.y0.shape)}
    shape, second = problem.q0.shape, "p0" if isinstance(problem, Partitioned) else "v0"
    return {"q0": (0, shape), second: (prod(shape), shape)}


def _show(word: str, part: tuple[int, tuple[int, ...]]) -> str:
    """The name of the first number of a part."""
    return f"{word}[{','.join('0' for _ in part[1])}]" if part[1] else word
