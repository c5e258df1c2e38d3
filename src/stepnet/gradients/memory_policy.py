"""Memory policies: where the reverse sweep gets its states from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.checkpoints import Checkpoints
from stepnet.checkpoints.budget import AUTOMATIC_BYTES, Memory, require_undoable
from stepnet.engines.reconstruction import drift_limit
from stepnet.gradients.reversal import (
    Cost,
    Reversal,
    Seeds,
    count_slots_beside_block,
    count_steps_in_block,
    reverse_after_streaming,
    reverse_reversibly,
    reverse_with_all_stored,
    reverse_with_checkpoints,
)
from stepnet.gradients.state_store import StreamedStates

if TYPE_CHECKING:
    from stepnet.engines.numba_engine.adjoint.differentiable_run import DifferentiableRun
    from stepnet.gradients.step_selection import StepSelection

EXACT = ("auto", "all", "reversible")
CONTINUOUS = ("continuous", "interpolated")
MOST_DECIDED = 1000  # slots of a run of unknown length, all inspected for each block; more save less than a run


def choose_streamed_states(memory: Memory, width: int) -> StreamedStates | None:
    """The store for states of a run whose steps are still being chosen, if only some may be kept."""
    choice = Checkpoints(bytes=AUTOMATIC_BYTES) if memory == "auto" else memory
    if isinstance(choice, str) or choice.disk is not None:
        return None
    block = count_steps_in_block(width, choice.bytes)
    return StreamedStates(min(count_slots_beside_block(choice, width, block), MOST_DECIDED), block)


def find_bytes(memory: Memory) -> int | None:
    """The number of bytes that a memory policy allows, if it states one."""
    return None if isinstance(memory, str) else memory.bytes


def reverse_after_search(
    linear: DifferentiableRun, seeds: Seeds, passed: StreamedStates, chosen: StepSelection
) -> tuple[Reversal, Cost, str]:
    """The reverse sweep of a run that has chosen its steps and collected the states for the loss."""
    seeds.collect_flat(chosen.states, chosen.read)
    run, cost = reverse_after_streaming(linear, seeds, passed)
    return run, cost, "all states kept" if run.n_blocks == 1 else _describe(cost)


def _describe(cost: Cost) -> str:
    return f"checkpoints, {cost.states} states at most"


def reverse_in_memory(
    linear: DifferentiableRun, seeds: Seeds, memory: Memory, identity: Callable[[], tuple[Any, ...]]
) -> tuple[Reversal, Cost, str]:
    """Run forward and in reverse; return the run, its cost, and a description of the memory policy.

    `identity` identifies the run, except for its loss, in the name of its directory.
    """
    if memory == "auto":
        memory = _choose_memory(linear)
    if memory == "all":
        return *reverse_with_all_stored(linear, seeds), "all states kept"
    if isinstance(memory, str):
        require_undoable(linear.is_reversible, linear.scheme.name)
        return _reverse_by_reconstruction(linear, seeds)
    name = "" if memory.disk is None else _name(memory, identity())
    run, cost = reverse_with_checkpoints(linear, seeds, memory, name)
    return run, cost, _describe(cost)


def _choose_memory(linear: DifferentiableRun) -> Memory:
    """Choose the memory policy for "auto"."""
    if 8 * linear.width * (linear.n_steps - linear.begin) <= AUTOMATIC_BYTES:
        return "all"
    return "reversible" if linear.is_reversible else Checkpoints(bytes=AUTOMATIC_BYTES)


def _reverse_by_reconstruction(linear: DifferentiableRun, seeds: Seeds) -> tuple[Reversal, Cost, str]:
    """Reverse by reconstruction, or with checkpoints if the reconstruction error is too large."""
    run, cost = reverse_reversibly(linear, seeds)
    if cost.drift <= drift_limit(np.finfo(float).eps):
        return run, cost, "states reconstructed backward"
    seeds = Seeds(linear, seeds.places, seeds.loss)
    run, again = reverse_with_checkpoints(linear, seeds, Checkpoints(bytes=AUTOMATIC_BYTES))
    words = f"checkpoints, because reconstruction missed the initial state by {cost.drift:.1e}"
    return run, replace(again, drift=cost.drift), words


def _name(choice: Checkpoints, identity: tuple[Any, ...]) -> str:
    """The name of the directory of a run."""
    return hashlib.sha256(repr((identity, choice.slots, choice.bytes)).encode()).hexdigest()[:24]
