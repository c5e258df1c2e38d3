"""Sensitivities: derivatives of the states at many steps, accumulated in the forward run.

A block of steps is run forward with its states stored and pulled back at once, one gradient for every entry of the
state.  Gradients are restarted at each requested step, which gives the Jacobian of each segment of steps:
with A = dy_b/dy_a and B = dy_b/dp over the steps from a to b,

    dy_b/dy_0 = A dy_a/dy_0,    dy_b/dp = A dy_a/dp + B.

They are exact to rounding, and only one block of states is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepnet.gradients.reversal import count_steps_in_block

if TYPE_CHECKING:
    from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun


class Sensitivities(NamedTuple):
    """Derivatives of flat states with respect to the initial state (steps, n, n) and the parameters (steps, n, p)."""

    y0: np.ndarray
    p: np.ndarray


def find_sensitivities(linear: DifferentiableRun, places: np.ndarray, most_bytes: int | None = None) -> Sensitivities:
    """Compute the sensitivities at the steps `places`, in ascending order; a step may be repeated."""
    at, again = np.unique(places, return_inverse=True)
    n_early = int(np.searchsorted(at, linear.begin))
    pieces = [_accumulate(linear, at[n_early:], count_steps_in_block(linear.width, most_bytes))]
    if n_early:  # inside the starting procedure of a multistep scheme
        pieces.insert(0, find_sensitivities(linear.starting(), at[:n_early], most_bytes))
    y0, p = (np.concatenate(each)[again] for each in zip(*pieces, strict=True))
    return Sensitivities(y0, p)


def _accumulate(linear: DifferentiableRun, at: np.ndarray, block: int) -> Sensitivities:
    """Accumulate sensitivities at distinct steps, from the beginning of the steps."""
    initial, rows = linear.initial, linear.unit_rows()
    state, now = linear.open(initial), _differentiate_start(linear, initial, rows)
    found = [now] if linear.begin in at[:1] else []
    block = min(block, max(1, linear.n_steps - linear.begin))
    states = np.empty((block, linear.width))
    for first in range(linear.begin, int(at.max(initial=linear.begin)), block):
        last = min(first + block, linear.n_steps)
        inside = at[slice(*np.searchsorted(at, (first + 1, last)))]
        linear.forward(state, first, last - first, states)
        for by_state, by_p in zip(*_split_stretches(linear, states[: last - first], first, inside, rows), strict=True):
            now = Sensitivities(by_state @ now.y0, by_state @ now.p + by_p)
            found.append(now)
        if last not in at:
            found.pop()
    own = linear.list_state_places()
    y0, p = ([each[own] for each in column] for column in zip(*found, strict=True)) if found else ([], [])
    n, n_parameters = initial.size, linear.new_sums().p.size
    return Sensitivities(np.reshape(y0, (-1, n, n)), np.reshape(p, (len(y0), n, n_parameters)))


def _differentiate_start(linear: DifferentiableRun, initial: np.ndarray, rows: np.ndarray) -> Sensitivities:
    """Derivatives of the whole state at the beginning of the steps."""
    by_state, by_p = [], []
    for row in rows:
        sums = linear.new_sums()
        by_state.append(linear.close(initial, row.copy(), sums))
        by_p.append(sums.p)
    return Sensitivities(np.array(by_state), np.array(by_p))


def _split_stretches(
    linear: DifferentiableRun, states: np.ndarray, first: int, inside: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Jacobians over each segment of a block, with respect to the state (.., width, width) and the parameters."""
    width, count = len(rows), len(inside) + 1
    by_state = np.empty((count, width, width))
    by_p = np.empty((count, width, linear.new_sums().p.size))
    for i, row in enumerate(rows):
        marks, bar, sums = linear.stretches(inside, row), row.copy(), linear.new_sums()
        linear.backward(states, first, len(states), bar, sums, marks)
        by_state[0, i], by_p[0, i] = bar.ravel(), sums.p
        by_state[1:, i], by_p[1:, i] = marks.bars.reshape(-1, width), marks.p_bars
    return by_state, by_p
