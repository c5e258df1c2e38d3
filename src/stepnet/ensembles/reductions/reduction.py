"""Chunks of a sweep, and the protocols of reductions."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from stepnet.ensembles.ensemble import solve_ensemble
from stepnet.problem import Problem
from stepnet.solution import EnsembleSolution, Status

Arrays = dict[str, np.ndarray]
STATUSES = tuple(Status)  # a member's status is stored as its index here; 0 means that the end was reached


class Chunk:
    """Some members: `rows` holds their `y0` and `args` where they differ, `options` those of `solve_ensemble`.

    The status of each member is stored by its index in `tuple(stepnet.Status)`.

    Parameters
    ----------
    problem : Problem
        The problem with the values that all members share.
    scheme : scheme
        The scheme.
    rows : dict
        `y0` and `args` of the members, where they differ.
    options : dict
        Options of `solve_ensemble`.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    >>> sn.reductions.Chunk(problem, "rk4", {"y0": [[1.0], [2.0]]}, {"steps": 5}).options
    {'steps': 5}
    """

    def __init__(self, problem: Problem, scheme: Any, rows: dict[str, Any], options: dict[str, Any]):
        if not isinstance(rows, dict) or not rows or not all(hasattr(each, "__len__") for each in rows.values()):
            raise TypeError(f"`rows` must be a dictionary of arrays with one row for every member, found {rows!r:.60}")
        self.problem, self.scheme, self.rows, self.options = problem, scheme, rows, options
        self.count = len(next(iter(rows.values())))
        self.statuses = np.zeros(self.count, np.int8)

    @cached_property
    def solution(self) -> EnsembleSolution:
        """The solution of the members, computed once for all reductions."""
        found = solve_ensemble(self.problem, self.scheme, **self.rows, **self.options)
        self.statuses[:] = find_statuses(found)
        return found


def find_statuses(found: EnsembleSolution) -> np.ndarray:
    """The indices of the members' statuses in `STATUSES`."""
    return np.array([STATUSES.index(status) for status in found.status], np.int8)


class PerMember(Protocol):
    """A reduction with one row per member, which the sweep arranges in the shape of its grid."""

    def reduce_chunk(self, chunk: Chunk) -> Arrays: ...

    def result(self, whole: Arrays) -> Any: ...


@runtime_checkable
class Mergeable(Protocol):
    """A reduction over all members: the results of two groups are merged into that of their union."""

    def reduce_chunk(self, chunk: Chunk) -> Arrays: ...

    def merge(self, one: Arrays, other: Arrays) -> Arrays: ...

    def result(self, whole: Arrays) -> Any: ...


Reduction = PerMember | Mergeable
