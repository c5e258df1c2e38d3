"""Lists of indices folded into loop nests.

Indices into several arrays, one row for each entry, are written as a few rows

    base + i_1 stride_1 + i_2 stride_2 + ...,    0 <= i_k < count_k

without knowing the shape of the grid they come from: rows with constant differences form runs, runs whose bases have
constant differences form runs of runs, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST_RUN = 4
MOST_LEVELS = 8
MOST_KINDS = 4000


@dataclass(frozen=True)
class LoopNest:
    """The indices base + sum_k i_k strides[k]; the first loop is the outermost."""

    base: np.ndarray
    counts: tuple[int, ...]
    strides: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class _Runs:
    """Runs with equal counts and strides; their bases are the rows of `base`."""

    base: np.ndarray
    counts: tuple[int, ...] = ()
    strides: tuple[np.ndarray, ...] = ()


def fold(places: np.ndarray) -> list[LoopNest]:
    """The rows of `places` as loop nests; which rows form a nest depends on their order."""
    runs = [_Runs(places)]
    for _ in range(MOST_LEVELS):
        before = len(runs), sum(len(run.base) for run in runs)
        runs = [part for run in runs for part in _fold_once(run)]
        after = len(runs), sum(len(run.base) for run in runs)
        if before == after or after[0] > MOST_KINDS:
            break
    return [LoopNest(base, run.counts, run.strides) for run in runs for base in run.base]


def _fold_once(runs: _Runs) -> list[_Runs]:
    """Merge runs whose bases have constant differences; group the others by their differences to both neighbours."""
    base = runs.base
    if len(base) < LEAST_RUN:
        return [runs]
    steps = np.diff(base, axis=0)
    numbers = hash_rows(steps)
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
    counts = np.diff(np.r_[starts, len(numbers)])  # number of equal differences from `start` on
    is_long = counts >= LEAST_RUN - 1
    starts, counts = starts[is_long], counts[is_long]
    shares = np.r_[False, starts[1:] == starts[:-1] + counts[:-1]][: len(starts)]  # first row ends the previous run
    starts, counts = starts + shares, counts - shares + 1
    folds = []
    for rows in group_equal(hash_rows(np.stack((numbers[starts].view(np.int64), counts), axis=1))):
        first, count = starts[rows[0]], int(counts[rows[0]])
        folds.append(_Runs(base[starts[rows]], (count, *runs.counts), (steps[first], *runs.strides)))
    ends = np.zeros(len(base) + 1, int)
    ends[starts] += 1
    ends[starts + counts] -= 1
    rest = np.flatnonzero(np.cumsum(ends)[:-1] == 0)
    around = np.stack((np.r_[np.uint64(0), numbers][rest], np.r_[numbers, np.uint64(0)][rest]), axis=1)
    singles = [rest[rows] for rows in group_equal(hash_rows(around.view(np.int64)))]
    return folds + [_Runs(base[rows], runs.counts, runs.strides) for rows in singles]


def hash_rows(rows: np.ndarray) -> np.ndarray:
    """A hash of each row."""
    weights = np.random.default_rng(rows.shape[1]).integers(1, 2**63, rows.shape[1], np.uint64) | np.uint64(1)
    return rows.astype(np.int64).view(np.uint64) @ weights


def group_equal(keys: np.ndarray) -> list[np.ndarray]:
    """The indices of equal keys, in order."""
    order = np.argsort(keys, kind="stable")
    ends = np.flatnonzero(np.diff(keys[order])) + 1
    return np.split(order, ends) if len(keys) else []
