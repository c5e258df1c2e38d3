"""The exact gradient of a run with given steps, in a chosen memory.

The unit of a schedule of `checkpoints` is a block of steps, as long as its graph fits into `BLOCK_BYTES`.  The forward
run keeps the states that the schedule begins with, and the graph of the last block.  The way back follows the rest: it
runs forward to where a state is wanted, writes down a block and pulls the gradient through it.  Steps that can be
undone need no kept states.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from stepnet import checkpoints
from stepnet.checkpoints import Checkpoints, Kind, Schedule
from stepnet.engines.torch_engine.blocks import (
    Bars,
    Course,
    Graph,
    Seeds,
    Tape,
    detached,
    extended,
    pulled,
    weighed,
    written,
)
from stepnet.engines.torch_engine.fields import State
from stepnet.engines.torch_engine.surroundings import Draws, random_state, set_random_state
from stepnet.reconstruction import drift_limit, warn_of_drift

BLOCK_BYTES = 2**24  # of the graph of a block
AUTOMATIC_BYTES = 2**28  # what "auto" may take

Memory = str | Checkpoints  # "all", "auto", "reversible", or how many states


@dataclass
class Kept:
    """What the forward run leaves for the way back; a schedule, or None if steps are undone."""

    course: Course
    block: int
    schedule: Schedule | None
    state: State
    opening_draws: Draws
    slots: dict[int, tuple[tuple, Draws]]
    current: tuple[tuple, Draws]
    last: Graph | Tape | None

    @property
    def n_blocks(self) -> int:
        return -(-(self.course.end - self.course.first) // self.block)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The units of the blocks start..stop."""
        first, end = self.course.first, self.course.end
        return first + start * self.block, min(first + stop * self.block, end)


# ---- the way there --------------------------------------------------------------------------------------------------


def there(course: Course, state: State, memory: Memory) -> tuple[Kept, list[State]]:
    """The forward run, and what is read on it.  The first unit is written down, to see how much that takes."""
    run, first = course.run, course.first
    rows, device = run.spread(state), state[0].device
    draws = random_state(device)
    graph, size = weighed(course, state, rows)
    block, schedule = _planned(course, memory, _bytes_of_step(course, size), _bytes_of_state(course, state, draws))
    kept = Kept(course, block, schedule, state, draws, {}, (rows, draws), None)
    places = _first_places(schedule)
    found: list[State] = []
    for number in range(kept.n_blocks - 1):
        begin, end = kept.span(number, number + 1)
        if number in places:
            kept.slots[places[number]] = rows, (random_state(device) if number else draws)
        if number == 0:
            rows, begin, found = detached(graph.after), first + 1, list(graph.found)
        rows, more = course.through(run.unit, rows, begin, end)
        found += more
    begin, end = kept.span(kept.n_blocks - 1, kept.n_blocks)
    if kept.n_blocks > 1:
        kept.current = rows, random_state(device)
        graph = written(course, rows, begin, end)
    else:
        graph = extended(course, graph, begin + 1, end)
    kept.last = graph
    return kept, [*found, *graph.found]


def _planned(course: Course, memory: Memory, step: int, state: int) -> tuple[int, Schedule | None]:
    """Steps in a block, and the schedule of blocks, None if steps are undone."""
    n = course.end - course.first
    if memory == "all":
        return n, checkpoints.binomial(1, 1)
    if memory == "auto" and n * step > AUTOMATIC_BYTES and course.run.motion.back:
        memory = "reversible"
    if memory == "reversible":
        return _clipped(BLOCK_BYTES // step, n), None
    choice = memory if isinstance(memory, Checkpoints) else Checkpoints(bytes=AUTOMATIC_BYTES)
    if choice.bytes is None:
        block, slots = _clipped(BLOCK_BYTES // step, n), choice.slots
    else:
        half = choice.bytes // 2  # one for the graph of a block, one for states
        block = n if n * step <= choice.bytes else _clipped(half // step, n)
        slots = max(1, half // state)
    return block, checkpoints.binomial(-(-n // block), slots)  # type: ignore[arg-type]


def _clipped(block: int, n: int) -> int:
    return max(1, min(block, n))


def _bytes_of_step(course: Course, size: int) -> int:
    """From what the first unit took, which may be an opening with another number of slopes."""
    opening, step = course.run.motion.opening.n_slopes, course.run.motion.step.n_slopes
    return max(1, size * step // (step if course.first else max(1, opening)))


def _bytes_of_state(course: Course, state: State, draws: Draws) -> int:
    rows = len(course.run.motion.step.outputs) * sum(part.numel() * part.element_size() for part in state)
    return rows // len(state) + sum(draw.numel() for draw in draws if draw is not None)


def _first_places(schedule: Schedule | None) -> dict[int, int]:
    """Blocks before which the forward run keeps its state, and the slots."""
    if schedule is None:
        return {}
    return {start: slot for kind, start, _, slot in islice(schedule, schedule.turn) if kind == Kind.KEEP}


# ---- the way back ---------------------------------------------------------------------------------------------------


def back(kept: Kept, seeds: Seeds) -> Bars:
    """Gradients of the first rows, the parameters and the nodes; `seeds` are those of all that was read."""
    if kept.schedule is not None:
        return _by_schedule(kept, kept.schedule, seeds)
    bars, drift = _by_reconstruction(kept, seeds)
    limit = drift_limit(torch.finfo(kept.state[0].dtype).eps)
    if drift <= limit:
        return bars
    warn_of_drift(drift, limit)
    set_random_state(kept.state[0].device, kept.opening_draws)
    with torch.no_grad():
        again, _ = there(kept.course, kept.state, Checkpoints(bytes=AUTOMATIC_BYTES))
    return back(again, seeds)


def _by_schedule(kept: Kept, schedule: Schedule, seeds: Seeds) -> Bars:
    course, slots, (rows, draws) = kept.course, dict(kept.slots), kept.current
    device = kept.state[0].device
    set_random_state(device, draws)
    bars = Bars(course)
    for kind, start, stop, slot in islice(schedule, schedule.turn, None):
        begin, end = kept.span(start, stop)
        match kind:
            case Kind.ADVANCE:
                with torch.no_grad():
                    rows, _ = course.through(course.run.unit, rows, begin, end)
            case Kind.KEEP:
                slots[slot] = rows, random_state(device)
            case Kind.RESTORE:
                rows, draws = slots[slot]
                set_random_state(device, draws)
            case Kind.DROP:
                del slots[slot]
            case Kind.REVERSE:
                bars.pull(_graph(kept, rows, begin, end), seeds[course.inside(begin, end)])
    return bars


def _graph(kept: Kept, rows: tuple, begin: int, end: int) -> Graph | Tape:
    """The graph of a block: the last one is still there, the first time."""
    if end == kept.course.end and kept.last is not None:
        graph, kept.last = kept.last, None
        return graph
    return written(kept.course, rows, begin, end)


def _by_reconstruction(kept: Kept, seeds: Seeds) -> tuple[Bars, float]:
    """The same from the end backward, and how far the state after the first block was missed."""
    course, (rows, _) = kept.course, kept.current
    bars, drift = Bars(course), 0.0
    for number in range(kept.n_blocks - 1, -1, -1):
        begin, end = kept.span(number, number + 1)
        if number == 0:
            reached, rows = rows, course.run.spread(kept.state)
            set_random_state(kept.state[0].device, kept.opening_draws)
        elif number < kept.n_blocks - 1:
            with torch.no_grad():
                for unit in range(end - 1, begin - 1, -1):
                    rows = course.run.undo(rows, unit)
        graph = _graph(kept, rows, begin, end)
        if number == 0 and kept.n_blocks > 1:
            drift = _drift(reached, graph.after, course.is_batch)
        bars.pull(graph, seeds[course.inside(begin, end)])
    return bars, drift


def _drift(found: tuple, wanted: tuple, is_batch: bool) -> float:
    """How far rows miss others, as in `stepnet.reconstruction`; `is_batch` tells that they are `(batch, features)`."""
    largest = lambda row: row.detach().abs().flatten(1 if is_batch else 0).amax(-1)
    size = torch.stack([largest(row) for row in wanted]).amax(0)
    error = torch.stack([largest(a - b.detach()) for a, b in zip(found, wanted, strict=True)]).amax(0)
    if is_batch and bool((size > 0).any()):
        size = size.clamp(min=size[size > 0].median())
    return float((error / size.clamp(min=torch.finfo(size.dtype).tiny)).max())


def of_state(course: Course, state: State, bars: Bars) -> tuple[Tensor | None, ...]:
    """Gradients of the state from those of the rows it was spread to."""
    with torch.enable_grad():
        leaves = tuple(part.detach().requires_grad_() for part in state)
        rows = course.run.spread(leaves)
    known = [(row, bar) for row, bar in zip(rows, bars.rows, strict=True) if row is not None and bar is not None]
    return pulled([row for row, _ in known], leaves, [bar for _, bar in known])
