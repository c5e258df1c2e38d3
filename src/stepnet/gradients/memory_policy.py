"""Where the states of a reverse run come from: what a user says by `memory`, and what is made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stepnet.checkpoints import Checkpoints
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

EXACT = ("auto", "all", "reversible")
CONTINUOUS = ("continuous", "interpolated")
AUTOMATIC_BYTES = 2**28  # what "auto" may store
MOST_DECIDED = 1000  # slots of a run of unknown length: each is looked at for each block; more save less than one run


def require_memory(memory, names: tuple[str, ...]) -> None:
    """Refuse what is none of the choices."""
    is_bytes = isinstance(memory, (int, np.integer)) and not isinstance(memory, bool) and memory > 0
    if not (isinstance(memory, Checkpoints) or is_bytes or (isinstance(memory, str) and memory in names)):
        raise ValueError(
            f"`memory` must be one of {', '.join(map(repr, names))}, a number of bytes or `Checkpoints`, "
            f"found {memory!r:.60}"
        )


def choose_streamed_states(memory, width: int) -> StreamedStates | None:
    """For a run whose steps are still to be chosen: what keeps its states meanwhile, if only some may be kept."""
    if memory == "auto":
        memory = AUTOMATIC_BYTES
    if isinstance(memory, str) or (choice := _find_checkpoints(memory)).disk is not None:
        return None
    block = count_steps_in_block(width, choice.bytes)
    return StreamedStates(min(count_slots_beside_block(choice, width, block), MOST_DECIDED), block)


def find_bytes(memory) -> int | None:
    """The number of bytes that a choice allows, if it says so."""
    return None if isinstance(memory, str) else _find_checkpoints(memory).bytes


def _find_checkpoints(memory) -> Checkpoints:
    return memory if isinstance(memory, Checkpoints) else Checkpoints(bytes=int(memory))


def reverse_after_search(linear, seeds: Seeds, passed: StreamedStates, chosen) -> tuple[Reversal, Cost, str]:
    """The way back of a run that has chosen its steps and collected what the loss reads."""
    seeds.collect_flat(chosen.states, chosen.read)
    run, cost = reverse_after_streaming(linear, seeds, passed)
    return run, cost, "all states kept" if run.n_blocks == 1 else _describe(cost)


def _describe(cost: Cost) -> str:
    return f"checkpoints, {cost.states} states at most"


def reverse_in_memory(linear, seeds: Seeds, memory, identity: Callable[[], tuple]) -> tuple[Reversal, Cost, str]:
    """Run forward and back; the run, what it cost, and how it was done in words.

    `identity` tells the run from all others but for its loss, for the name of its directory.
    """
    everything = 8 * linear.width * (linear.n_steps - linear.begin)
    if memory == "auto":
        memory = "all" if everything <= AUTOMATIC_BYTES else "reversible" if linear.is_reversible else AUTOMATIC_BYTES
    if memory == "all":
        return *reverse_with_all_stored(linear, seeds), "all states kept"
    if memory == "reversible":
        return _reverse_by_reconstruction(linear, seeds)
    choice = _find_checkpoints(memory)
    run, cost = reverse_with_checkpoints(
        linear, seeds, choice, "" if choice.disk is None else _name(choice, identity())
    )
    return run, cost, _describe(cost)


def _reverse_by_reconstruction(linear, seeds: Seeds) -> tuple[Reversal, Cost, str]:
    """Reversible, or with checkpoints if that turns out to be too far off."""
    if not linear.is_reversible:
        raise ValueError(
            f'`memory`="reversible" asks for a scheme that can be run back step by step, which {linear.scheme.name} '
            f"cannot; take `Checkpoints` or a splitting scheme"
        )
    run, cost = reverse_reversibly(linear, seeds)
    if cost.drift <= drift_limit(np.finfo(float).eps):
        return run, cost, "states reconstructed backward"
    seeds = Seeds(linear, seeds.places, seeds.loss)
    run, again = reverse_with_checkpoints(linear, seeds, Checkpoints(bytes=AUTOMATIC_BYTES))
    words = f"checkpoints, because reconstruction missed the initial state by {cost.drift:.1e}"
    return run, replace(again, drift=cost.drift), words


def _name(choice: Checkpoints, identity: tuple) -> str:
    """A name for the directory of a run."""
    return hashlib.sha256(repr((identity, choice.slots, choice.bytes)).encode()).hexdigest()[:24]
