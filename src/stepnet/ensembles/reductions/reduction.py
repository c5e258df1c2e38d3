"""A few members of a sweep, and what a reduction is."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from stepnet.ensembles.ensemble import solve_ensemble
from stepnet.problem import Problem
from stepnet.solution import EnsembleSolution, Status

Arrays = dict[str, np.ndarray]
FATES = tuple(Status)  # members remember the place of their status among these; 0 is the end of the interval


class Chunk:
    """Some members: `rows` holds their `y0` and `args`, as far as they differ, `options` are those of `solve_ensemble`.

    `fates` tells how each member ended, by the place of its status in `FATES`.
    """

    def __init__(self, problem: Problem, scheme, rows: dict[str, Any], options: dict[str, Any]):
        if not isinstance(rows, dict) or not rows or not all(hasattr(each, "__len__") for each in rows.values()):
            raise TypeError(f"`rows` must be a dictionary of arrays with one row for every member, found {rows!r:.60}")
        self.problem, self.scheme, self.rows, self.options = problem, scheme, rows, options
        self.count = len(next(iter(rows.values())))
        self.fates = np.zeros(self.count, np.int8)

    @cached_property
    def solution(self) -> EnsembleSolution:
        """What the members came to; all reductions look at the same run."""
        found = solve_ensemble(self.problem, self.scheme, **self.rows, **self.options)
        self.fates[:] = find_fates(found)
        return found


def find_fates(found: EnsembleSolution) -> np.ndarray:
    """The places of the members' statuses in `FATES`."""
    return np.array([FATES.index(status) for status in found.status], np.int8)


class PerMember(Protocol):
    """Something for every member: arrays with one row each, which the sweep puts into the shape of its grid."""

    def of_chunk(self, chunk: Chunk) -> Arrays: ...

    def result(self, whole: Arrays): ...


@runtime_checkable
class Mergeable(Protocol):
    """Something of all members together: what is known of two groups of members gives what is known of both."""

    def of_chunk(self, chunk: Chunk) -> Arrays: ...

    def merged(self, one: Arrays, other: Arrays) -> Arrays: ...

    def result(self, whole: Arrays): ...


Reduction = PerMember | Mergeable
