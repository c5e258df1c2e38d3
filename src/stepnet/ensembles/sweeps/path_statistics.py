"""Reductions over the Brownian paths of each member of a sweep, block by block, so that not all paths are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.ensembles.reductions import Chunk, Ends, Mergeable, Moments, QuantilesFound, Reduction
from stepnet.ensembles.reductions.reduction import STATUSES, Arrays
from stepnet.problem import MOST_PATH, SDE, Langevin, Problem
from stepnet.records import validate_count

BLOCK = 8192  # paths that are solved at a time
RESULTS: dict[tuple[str, ...], Any] = {each._fields: each for each in (Ends, Moments, QuantilesFound)}
ONLY = "value"


@dataclass(frozen=True)
class OverPaths:
    """A reduction over the paths of each member: its results are those of the `inner` one, in the shape of the grid."""

    inner: Reduction

    def reduce_chunk(self, chunk: Chunk) -> Arrays:
        """The results for each member of a chunk, whose options name the number of paths."""
        return reduce_paths(chunk, {ONLY: self})[0][ONLY]

    def result(self, whole: Arrays) -> Any:
        """Arrays by name as the record that has these fields; a single array as it is."""
        if tuple(whole) == (ONLY,):
            return whole[ONLY]
        return RESULTS.get(tuple(whole), dict)(**whole)


def validate_path_count(problem: Problem, paths: Any) -> int | None:
    """The number of paths of each member of a sweep, None if they have no noise or one path each."""
    if paths is None:
        return None
    if not isinstance(problem, (SDE, Langevin)):
        raise TypeError(f"`paths` is for an `SDE` or `Langevin`, found {type(problem).__name__}")
    if np.ndim(paths) != 0:
        raise ValueError("`paths` of a sweep must be a number, as every member has the same paths")
    return validate_count("paths", paths, 1, MOST_PATH + 1 - problem.path)


def reduce_paths(chunk: Chunk, reductions: dict[str, OverPaths]) -> tuple[dict[str, Arrays], np.ndarray]:
    """The results of reductions over the paths of each member, and the number of paths with each status."""
    counts = np.zeros(len(STATUSES), np.int64)
    rows = []
    for i in range(chunk.count):
        row, found = _reduce_member(chunk, i, {name: each.inner for name, each in reductions.items()})
        rows.append(row)
        counts += found
    return {name: _stack([row[name] for row in rows]) for name in reductions}, counts


def _reduce_member(chunk: Chunk, i: int, reductions: dict[str, Reduction]) -> tuple[dict[str, Arrays], np.ndarray]:
    """The results of reductions over the paths of one member."""
    wholes: dict[str, list[Arrays]] = {name: [] for name in reductions}
    counts = np.zeros(len(STATUSES), np.int64)
    problem: Any = chunk.problem  # an SDE or Langevin
    first, number = problem.path, chunk.options["paths"]
    for at in range(first, first + number, BLOCK):
        paths = np.arange(at, min(at + BLOCK, first + number))
        rows = {name: np.repeat(values[i : i + 1], len(paths), axis=0) for name, values in chunk.rows.items()}
        block = Chunk(chunk.problem, chunk.scheme, rows, {**chunk.options, "paths": paths})
        for name, reduction in reductions.items():
            part = reduction.reduce_chunk(block)
            if isinstance(reduction, Mergeable) and wholes[name]:
                wholes[name] = [reduction.merge(wholes[name][0], part)]
            else:
                wholes[name].append(part)
        counts += np.bincount(block.statuses, minlength=len(STATUSES))
    return {name: _finish(reductions[name], parts) for name, parts in wholes.items()}, counts


def _finish(reduction: Reduction, parts: list[Arrays]) -> Arrays:
    """The result of a reduction as arrays by name."""
    whole = parts[0]
    if len(parts) > 1:
        whole = {name: np.concatenate([part[name] for part in parts]) for name in whole}
    found = reduction.result(whole)
    fields = found._asdict() if hasattr(found, "_asdict") else {ONLY: found}
    return {name: np.asarray(value) for name, value in fields.items()}


def _stack(rows: list[Arrays]) -> Arrays:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
