"""Storage for the states that a run saves."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from stepnet.engines.contract import FixedSteps, Plan
from stepnet.engines.numba_engine.integrators.events import grow, is_crowded
from stepnet.engines.numba_engine.runs.job import Job
from stepnet.solution import Pieces

FIRST_ROOM = 256  # rows if their number is not known beforehand


class TrajectoryBuffer:
    """Rows that the kernel fills, doubled as needed if their number is not known beforehand."""

    def __init__(self, job: Job, plan: Plan):
        self._run = job.run
        self._has_wanted_times = plan.saving.at is not None
        self._passing = plan.saving.passing
        width = job.rows * self._run["reals"].item()
        capacity = _estimate_capacity(plan)
        try:
            self.t = np.empty(capacity)
            self.y = np.empty((capacity, width), job.real_dtype)
        except (MemoryError, ValueError):  # from NumPy, if the size in bytes overflows an integer
            size = capacity * width * job.real_dtype.itemsize / 2**30
            raise MemoryError(
                f"saving {capacity} states takes {size:.0f} GiB; use `save_every` or `save_at` to save fewer"
            ) from None
        self._put_first_rows(job, plan)
        self.watch = job.watch
        if plan.dense:
            self.piece_t = np.empty((FIRST_ROOM, 2))
            self.pieces = np.empty((FIRST_ROOM, job.rows_per_piece * width), job.real_dtype)
        else:
            self.piece_t, self.pieces = make_no_pieces(job.real_dtype)

    def _put_first_rows(self, job: Job, plan: Plan) -> None:
        """Save what precedes the kernel: the prefix of the job, or the initial state as often as required."""
        t0, t_end = self._run["t0"].item(), self._run["t_end"].item()
        rows = _count_at_beginning(plan, t0, t_end) if job.prefix is None else len(job.prefix[0])
        if rows > 0:
            if job.prefix is None:
                self.t[:rows] = t0
                self.y[:rows] = job.work[: job.rows, : self._run["reals"].item()].reshape(1, -1)
            else:
                self.t[:rows], self.y[:rows] = job.prefix[0], job.prefix[1].view(job.real_dtype)
            self._run["saved"] = self._run["next_save"] = rows

    def follow(self, job: Job) -> None:
        """Continue with a job that was prepared again, with the events found so far."""
        self._run = job.run
        if self.watch is not None and job.watch is not None:
            self.watch = self.watch._replace(addresses=job.watch.addresses, p=job.watch.p)

    def grow(self, job: Job) -> None:
        """Double the buffers that are full, or reuse the same space if its content is passed on."""
        is_full = self._run["saved"].item() == len(self.t) and not self._has_wanted_times
        if is_full and self._passing is not None:
            self._passing.take(self.t, self.y.view(job.dtype))
            self._run["saved"] = 0
        elif is_full:
            self.t = np.concatenate((self.t, np.empty_like(self.t)))
            self.y = np.concatenate((self.y, np.empty_like(self.y)))
        if self._run["n_pieces"].item() == len(self.piece_t):
            self.piece_t = np.concatenate((self.piece_t, np.empty_like(self.piece_t)))
            self.pieces = np.concatenate((self.pieces, np.empty_like(self.pieces)))
        if self.watch is not None and is_crowded(self.watch, self._run["n_found"].item()):
            self.watch = grow(self.watch)

    def keep(self, job: Job, t: float, state: np.ndarray) -> None:
        """Append a state."""
        if self._run["saved"].item() == len(self.t):
            self.grow(job)
        saved = self._run["saved"].item()
        self.t[saved], self.y[saved] = t, state.view(job.real_dtype)
        self._run["saved"] += 1

    def keep_last(self, job: Job) -> None:
        """Append the last valid state of a run that ended early, unless only save times are kept."""
        saved, t = self._run["saved"].item(), self._run["t"].item()
        if not self._has_wanted_times and not (saved and self.t[saved - 1] == t):
            self.keep(job, t, job.state)

    def keep_reset(self, job: Job, t: float, state: np.ndarray, every: int) -> None:
        """Append the state after a reset, replacing the end state if only the end is saved."""
        saved = self._run["saved"].item()
        if every > 0 and not self._has_wanted_times:
            self.keep(job, t, state)
        elif saved and not self._has_wanted_times:
            self.y[saved - 1] = state.view(job.real_dtype)

    def events(self, job: Job, count: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Times and flat states of the zeros of each event."""
        if count == 0:
            return (), ()
        n = self._run["n_found"].item()
        which, t, y = self.watch.which[:n], self.watch.t[:n], self.watch.y[:n].view(job.dtype)
        return tuple(t[which == e] for e in range(count)), tuple(y[which == e] for e in range(count))

    def dense_output(self, job: Job) -> Pieces:
        """The polynomials of all steps; a constant one if there was no step."""
        n = self._run["n_pieces"].item()
        if n == 0:
            data = np.zeros((1, 4, job.state.size), job.dtype)
            data[0, :2] = job.state
            return Pieces(self._run["t"].copy(), np.ones(1), data)
        data = self.pieces[:n].reshape(n, job.rows_per_piece, -1).view(job.dtype).copy()
        return Pieces(self.piece_t[:n, 0].copy(), self.piece_t[:n, 1].copy(), data)

    def result(self, dtype) -> tuple[np.ndarray, np.ndarray]:
        """Times and flat states; a view of the buffer if little of it is unused."""
        saved = self._run["saved"].item()
        t, y = self.t[:saved], self.y[:saved].view(dtype)
        return (t, y) if 2 * saved > len(self.t) else (t.copy(), y.copy())


@lru_cache(maxsize=8)
def make_no_pieces(dtype) -> tuple[np.ndarray, np.ndarray]:
    """No dense output: empty arrays that are never written to, so one instance per dtype is shared."""
    return np.empty((0, 2)), np.empty((0, 0), dtype)


def _count_at_beginning(plan: Plan, t0: float, t_end: float) -> int:
    """How often the initial state is saved."""
    if plan.saving.at is None:
        return int(plan.saving.every > 0 or t0 == t_end)
    return int(np.count_nonzero(plan.saving.at == t0))


def _estimate_capacity(plan: Plan) -> int:
    """The number of states that will be saved, or a first guess."""
    every, passing = plan.saving.every, plan.saving.passing
    if passing is not None:
        return passing.capacity
    if plan.saving.at is not None:
        return len(plan.saving.at)
    if isinstance(plan.stepping, FixedSteps):
        return plan.stepping.n_steps // every + 2 if every else 1
    return FIRST_ROOM if every else 1
