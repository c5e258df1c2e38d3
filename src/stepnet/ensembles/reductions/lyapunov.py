"""The largest Lyapunov exponent of each member."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from stepnet.ensembles.ensemble import solve_ensemble
from stepnet.ensembles.reductions.reduction import Arrays, Chunk, find_statuses
from stepnet.problem import Problem
from stepnet.validation import arrays, check, having, real

REFUSED = ("save_at", "events", "project")


@check(every=real("(0, inf)"), transient=real("[0, inf)"))
@dataclass(frozen=True)
class Lyapunov:
    """The mean rate log(|v(t1)| / |v(t0)|) / (t1 - t0) at which a tangent vector grows, v' = (df/dy) v.

    The state and its tangent are solved together, and the tangent is rescaled to length 1 at intervals `every`
    (Benettin et al. 1980, Meccanica 15, 9).  Growth during the first fraction `transient` of the time span, while the
    tangent aligns with the fastest direction, is not counted.  NaN for members that do not reach the end.

    Parameters
    ----------
    every : float, optional
        Time between two rescalings of the tangent.
    transient : float, optional
        Fraction of the time span, at its beginning, that is not counted.

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y, k: k * y, [1.0], (0.0, 10.0), args=(1.0,))
    >>> sn.sweep(problem, "dopri5", {"k": [-0.5, 0.5]}, reduce=sn.reductions.Lyapunov()).result.round(4)
    array([-0.5,  0.5])
    """

    every: float = 1.0
    transient: float = 0.0

    @check(chunk=having("options", what="a Chunk"))
    def reduce_chunk(self, chunk: Chunk) -> Arrays:
        times, n_counted, options = self._pieces(chunk)
        problem, rows, parts = _add_tangents(chunk)
        growth, alive = np.zeros(chunk.count), np.arange(chunk.count)
        for k, span in enumerate(pairwise(times)):
            if not alive.size:
                break
            own: dict[str, Any] = {name: values[alive] for name, values in rows.items()}
            found = solve_ensemble(problem, chunk.scheme, t_span=span, **own, **options)
            chunk.statuses[alive] = find_statuses(found)
            ends = found.y_end.reshape(len(alive), *parts[1:])
            with np.errstate(over="ignore"):
                length = np.sqrt((ends[:, :, 1] ** 2).sum(axis=(1, 2)))
            goes_on = found.success & np.isfinite(length) & (length > 0)
            alive, ends, length = alive[goes_on], ends[goes_on], length[goes_on]
            ends[:, :, 1] /= length[:, None, None]
            rows["y0"].reshape(parts)[alive] = ends
            if k >= len(times) - 1 - n_counted:
                growth[alive] += np.log(length)
        exponent = np.full(chunk.count, np.nan)
        exponent[alive] = growth[alive] / abs(times[-1] - times[-1 - n_counted])
        return {"exponent": exponent}

    @check(whole=arrays("exponent"))
    def result(self, whole: Arrays) -> np.ndarray:
        return whole["exponent"]

    def _pieces(self, chunk: Chunk) -> tuple[np.ndarray, int, dict[str, Any]]:
        """The times of rescaling, the number of pieces that enter the mean, and the options of each piece."""
        options = {name: value for name, value in chunk.options.items() if value is not None}
        for name in REFUSED:
            if np.size(options.pop(name, ())):
                raise ValueError(
                    f"`{name}` cannot be combined with `Lyapunov`, which covers the whole time span; leave it out"
                )
        t0, t1 = options.pop("t_span", chunk.problem.t_span)
        n = max(1, round(abs(t1 - t0) / self.every))
        n_before = int(np.ceil(self.transient / abs(t1 - t0) * n - 1e-9)) if t1 != t0 else n
        if n_before >= n:
            raise ValueError(f"`transient` must leave some of the time span ({t0}, {t1}), found {self.transient}")
        steps = options.get("steps")
        if steps is not None:
            if np.ndim(steps) or steps % n:
                raise ValueError(f"`steps` must be a multiple of the {n} pieces of `Lyapunov`, found {steps!r:.60}")
            options["steps"] = steps // n
        return np.linspace(t0, t1, n + 1), n - n_before, options


def _add_tangents(chunk: Chunk) -> tuple[Problem, Arrays, tuple[int, ...]]:
    """The problem augmented by a tangent, the rows of its members, and their shape (members, parts, 2, n)."""
    from stepnet.engines.numba_engine import as_block, tangent_problem

    problem, n = chunk.problem, chunk.problem.initial.size
    if problem.form.is_stochastic:
        raise TypeError(
            f"`Lyapunov` is for problems without noise, found {type(problem).__name__}; use `tangent` of its paths"
        )
    parts = (chunk.count, 2, 2, n // 2) if problem.form.has_halves else (chunk.count, 1, 2, n)
    direction = np.cos(np.arange(n))  # generic
    direction /= np.linalg.norm(direction)
    still = as_block([None] * len(problem.args), problem.args)
    both = np.empty(parts)
    y0 = chunk.rows.get("y0", problem.initial[None])
    both[:, :, 0] = y0.reshape(len(y0), *parts[1:2], parts[3])
    both[:, :, 1] = direction.reshape(parts[1], parts[3])
    rows = {"y0": both.reshape(chunk.count, -1)}
    if "args" in chunk.rows:
        rows["args"] = np.concatenate((chunk.rows["args"], np.zeros_like(chunk.rows["args"])), axis=1)
    return tangent_problem(problem, direction, still), rows, parts
