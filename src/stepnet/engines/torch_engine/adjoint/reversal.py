"""The exact gradient of a run with given steps, in a chosen memory.

The unit of a schedule of `checkpoints` is a block of steps, as long as its graph fits into `BLOCK_BYTES`.  The forward
run keeps the states that the schedule begins with, and the graph of the last block.  The way back follows the rest: it
runs forward to where a state is wanted, writes down a block and pulls the gradient through it.  Steps that can be
undone need no kept states.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from stepnet import checkpoints
from stepnet.checkpoints import Checkpoints, Kind, Schedule
from stepnet.engines.reconstruction import drift_limit, warn_of_drift
from stepnet.engines.torch_engine.adjoint.dependencies import REMEDY, describe
from stepnet.engines.torch_engine.adjoint.step_blocks import (
    BlockGradients,
    PerceptronTape,
    RecordedBlock,
    Seeds,
    TapedRun,
    detach,
    extend,
    pull_back,
    record,
    weigh,
)
from stepnet.engines.torch_engine.rhs.tensor_fields import State
from stepnet.engines.torch_engine.runs.rng_and_autocast import SavedState, SideState

BLOCK_BYTES = 2**24  # of the graph of a block
AUTOMATIC_BYTES = 2**28  # what "auto" may take

Memory = str | Checkpoints  # "all", "auto", "reversible", or how many states


@dataclass
class ForwardRecord:
    """What the forward run leaves for the way back; a schedule, or None if steps are undone."""

    course: TapedRun
    block: int
    schedule: Schedule | None
    state: State
    side: SideState
    at_start: SavedState
    slots: dict[int, tuple[tuple, SavedState]]
    current: tuple[tuple, SavedState]
    last: RecordedBlock | PerceptronTape | None = None
    at_end: SavedState | None = None

    @property
    def n_blocks(self) -> int:
        return -(-(self.course.end - self.course.first) // self.block)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The units of the blocks start..stop."""
        first, end = self.course.first, self.course.end
        return first + start * self.block, min(first + stop * self.block, end)


# ---- the way there --------------------------------------------------------------------------------------------------


class RecordedOpening(NamedTuple):
    """The first unit of a course, recorded: the bytes that its graph takes, and the side state before it."""

    rows: tuple
    graph: RecordedBlock | PerceptronTape
    n_bytes: int
    side: SideState
    saved: SavedState

    @property
    def has_history(self) -> bool:
        """Whether a buffer was replaced by a tensor with a graph, which goes on from block to block."""
        pairs = zip(self.side.save(self.saved).buffers, self.saved.buffers, strict=True)
        return any(now.node is not None and now.node is not before.node for now, before in pairs)


def open_run(course: TapedRun, state: State) -> RecordedOpening:
    """Record the first unit, to see how much that takes and what it depends on."""
    side, rows = SideState(state[0].device, course.modules), course.run.spread(state)
    saved = side.save()
    return RecordedOpening(rows, *weigh(course, state, rows), side, saved)


def run_forward(
    course: TapedRun, state: State, memory: Memory, opened: RecordedOpening
) -> tuple[ForwardRecord, list[State]]:
    """The forward run, and what is read on it."""
    run, first = course.run, course.first
    rows, graph, n_bytes, side, saved = opened
    sizes = _count_bytes_of_step(course, n_bytes), _count_bytes_of_state(course, state, saved)
    block, schedule = _plan(course, memory, *sizes, state[0].device)
    kept = ForwardRecord(course, block, schedule, state, side, saved, {}, (rows, saved))
    places = _choose_first_places(schedule)
    found: list[State] = []
    for number in range(kept.n_blocks - 1):
        begin, end = kept.span(number, number + 1)
        if number in places:
            saved = side.save(saved) if number else saved
            kept.slots[places[number]] = rows, saved
        if number == 0:
            rows, begin, found = detach(graph.after), first + 1, list(graph.found)
        rows, more = course.through(run.unit, rows, begin, end)
        found += more
    begin, end = kept.span(kept.n_blocks - 1, kept.n_blocks)
    if kept.n_blocks > 1:
        kept.current = rows, side.save(saved)
        graph = record(course, rows, begin, end)
    else:
        graph = extend(course, graph, begin + 1, end)
    kept.last, kept.at_end = graph, side.save(kept.current[1])
    return kept, [*found, *graph.found]


def _plan(course: TapedRun, memory: Memory, step: int, state: int, device: torch.device) -> tuple[int, Schedule | None]:
    """Steps in a block, and the schedule of blocks, None if steps are undone.

    Undone steps end with a look at how far they came, for which other devices would have to wait.
    """
    n = course.end - course.first
    if memory == "all":
        return n, checkpoints.binomial(1, 1)
    if memory == "auto" and n * step > AUTOMATIC_BYTES and course.run.motion.back and device.type == "cpu":
        memory = "reversible"
    if memory == "reversible":
        return _clip(BLOCK_BYTES // step, n), None
    choice = memory if isinstance(memory, Checkpoints) else Checkpoints(bytes=AUTOMATIC_BYTES)
    if choice.bytes is None:
        block, slots = _clip(BLOCK_BYTES // step, n), choice.slots
    else:
        half = choice.bytes // 2  # one for the graph of a block, one for states
        block = n if n * step <= choice.bytes else _clip(half // step, n)
        slots = max(1, half // state)
    return block, checkpoints.binomial(-(-n // block), slots)  # type: ignore[arg-type]


def _clip(block: int, n: int) -> int:
    return max(1, min(block, n))


def _count_bytes_of_step(course: TapedRun, size: int) -> int:
    """From what the first unit took, which may be an opening with another number of slopes."""
    opening, step = course.run.motion.opening.n_slopes, course.run.motion.step.n_slopes
    return max(1, size * step // (step if course.first else max(1, opening)))


def _count_bytes_of_state(course: TapedRun, state: State, saved: SavedState) -> int:
    rows = len(course.run.motion.step.outputs) * sum(part.numel() * part.element_size() for part in state)
    return rows // len(state) + saved.n_bytes


def _choose_first_places(schedule: Schedule | None) -> dict[int, int]:
    """Blocks before which the forward run keeps its state, and the slots."""
    if schedule is None:
        return {}
    return {start: slot for kind, start, _, slot in islice(schedule, schedule.turn) if kind == Kind.KEEP}


# ---- the way back ---------------------------------------------------------------------------------------------------


def run_backward(kept: ForwardRecord, seeds: Seeds) -> BlockGradients:
    """Gradients of the first rows, the parameters and the nodes; `seeds` are those of all that was read."""
    if kept.schedule is not None:
        return _reverse_by_schedule(kept, kept.schedule, seeds)
    bars, drift = _reverse_by_reconstruction(kept, seeds)
    limit = drift_limit(torch.finfo(kept.state[0].dtype).eps)
    if drift <= limit:
        return bars
    warn_of_drift(drift, limit)
    kept.side.restore(kept.at_start)
    with torch.no_grad():
        opened = open_run(kept.course, kept.state)
        again, _ = run_forward(kept.course, kept.state, Checkpoints(bytes=AUTOMATIC_BYTES), opened)
    return run_backward(again, seeds)


def _reverse_by_schedule(kept: ForwardRecord, schedule: Schedule, seeds: Seeds) -> BlockGradients:
    course, slots, side, (rows, saved) = kept.course, dict(kept.slots), kept.side, kept.current
    side.restore(saved)
    bars = BlockGradients(course)
    for kind, start, stop, slot in islice(schedule, schedule.turn, None):
        begin, end = kept.span(start, stop)
        match kind:
            case Kind.ADVANCE:
                with torch.no_grad():
                    rows, _ = course.through(course.run.unit, rows, begin, end)
            case Kind.KEEP:
                saved = side.save(saved)
                slots[slot] = rows, saved
            case Kind.RESTORE:
                rows, saved = slots[slot]
                side.restore(saved)
            case Kind.DROP:
                del slots[slot]
            case Kind.REVERSE:
                bars.pull(_find_graph(kept, rows, begin, end), seeds[course.inside(begin, end)])
    return bars


def _find_graph(kept: ForwardRecord, rows: tuple, begin: int, end: int) -> RecordedBlock | PerceptronTape:
    """The graph of a block: the last one is still there, the first time."""
    if end == kept.course.end and kept.last is not None:
        graph, kept.last = kept.last, None
        kept.side.restore(kept.at_end)  # type: ignore[arg-type]
    else:
        graph = record(kept.course, rows, begin, end)
    if kept.course.is_checked and isinstance(graph, RecordedBlock):
        _require_known(kept, graph, begin, end)
    return graph


def _require_known(kept: ForwardRecord, graph: RecordedBlock, begin: int, end: int) -> None:
    """Refuse a block that depends on other tensors than the course; leaves made inside are others the second time."""
    course = kept.course
    unknown = graph.sources(course.parameters)
    if unknown and not unknown.older:
        with kept.side.kept():
            again = record(course, graph.before, begin, end)
        unknown = unknown.shared_with(again.sources(course.parameters))  # type: ignore[union-attr]
    if unknown:
        raise RuntimeError(
            f"`func` depends on tensors at some times that the first step does not depend on: {describe(unknown)}; "
            f"their gradients would be lost: {REMEDY}"
        )


def _reverse_by_reconstruction(kept: ForwardRecord, seeds: Seeds) -> tuple[BlockGradients, float]:
    """The same from the end backward, and how far the state after the first block was missed."""
    course, (rows, _) = kept.course, kept.current
    bars, drift = BlockGradients(course), 0.0
    for number in range(kept.n_blocks - 1, -1, -1):
        begin, end = kept.span(number, number + 1)
        if number == 0:
            reached, rows = rows, course.run.spread(kept.state)
            kept.side.restore(kept.at_start)
        elif number < kept.n_blocks - 1:
            with torch.no_grad():
                for unit in range(end - 1, begin - 1, -1):
                    rows = course.run.undo(rows, unit)
        graph = _find_graph(kept, rows, begin, end)
        if number == 0 and kept.n_blocks > 1:
            drift = _measure_drift(reached, graph.after, course.is_batch)
        bars.pull(graph, seeds[course.inside(begin, end)])
    return bars, drift


def _measure_drift(found: tuple, wanted: tuple, is_batch: bool) -> float:
    """How far rows miss others, as in `stepnet.engines.reconstruction`; `is_batch` tells that they are `(batch,
    features)`."""
    largest = lambda row: row.detach().abs().flatten(1 if is_batch else 0).amax(-1)
    size = torch.stack([largest(row) for row in wanted]).amax(0)
    error = torch.stack([largest(a - b.detach()) for a, b in zip(found, wanted, strict=True)]).amax(0)
    if is_batch and bool((size > 0).any()):
        size = size.clamp(min=size[size > 0].median())
    return float((error / size.clamp(min=torch.finfo(size.dtype).tiny)).max())


def gather_state_gradients(course: TapedRun, state: State, bars: BlockGradients) -> tuple[Tensor | None, ...]:
    """Gradients of the state from those of the rows it was spread to."""
    with torch.enable_grad():
        leaves = tuple(part.detach().requires_grad_() for part in state)
        rows = course.run.spread(leaves)
    known = [(row, bar) for row, bar in zip(rows, bars.rows, strict=True) if row is not None and bar is not None]
    return pull_back([row for row, _ in known], leaves, [bar for _, bar in known])
