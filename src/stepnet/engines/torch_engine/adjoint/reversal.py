"""The exact gradient of a run with fixed steps under a memory policy.

The unit of a schedule of `checkpoints` is a block of steps whose graph fits into `BLOCK_BYTES`.  The forward run keeps
the states that the schedule selects, and the graph of the last block.  The reverse sweep follows the rest of the
schedule: it runs forward to the required state, records a block and pulls the gradient back through it.  Steps that
can be inverted need no kept states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet import checkpoints
from stepnet.checkpoints import Checkpoints, Schedule
from stepnet.checkpoints.budget import AUTOMATIC_BYTES, Memory
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

BLOCK_BYTES = 2**24  # largest size of the graph of a block


@dataclass
class ForwardRecord:
    """What the forward run stores for the reverse sweep; `schedule` is None if steps are inverted."""

    taped: TapedRun
    block: int
    schedule: Schedule | None
    state: State
    side: SideState
    at_start: SavedState
    slots: dict[int, tuple[tuple[Any, ...], SavedState]]
    current: tuple[tuple[Any, ...], SavedState]
    last: RecordedBlock | PerceptronTape | None = None
    at_end: SavedState | None = None

    @property
    def n_blocks(self) -> int:
        return -(-(self.taped.end - self.taped.first) // self.block)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The units of the blocks start..stop."""
        first, end = self.taped.first, self.taped.end
        return first + start * self.block, min(first + stop * self.block, end)


# ---- forward --------------------------------------------------------------------------------------------------------


class RecordedOpening(NamedTuple):
    """The first unit of a taped run, recorded: the size of its graph in bytes, and the side state before it."""

    rows: tuple[Any, ...]
    graph: RecordedBlock | PerceptronTape
    n_bytes: int
    side: SideState
    saved: SavedState

    @property
    def has_history(self) -> bool:
        """Whether a buffer was replaced by a tensor with a graph, which then extends from block to block."""
        pairs = zip(self.side.save(self.saved).buffers, self.saved.buffers, strict=True)
        return any(now.node is not None and now.node is not before.node for now, before in pairs)


def open_run(taped: TapedRun, state: State) -> RecordedOpening:
    """Record the first unit, to measure its memory and find what it depends on."""
    side, rows = SideState(state[0].device, taped.modules), taped.run.spread(state)
    saved = side.save()
    return RecordedOpening(rows, *weigh(taped, state, rows), side, saved)


def run_forward(
    taped: TapedRun, state: State, memory: Memory, opened: RecordedOpening
) -> tuple[ForwardRecord, list[State]]:
    """The forward run, and the states read during it."""
    rows, graph, n_bytes, side, saved = opened
    sizes = _count_bytes_of_step(taped, n_bytes), _count_bytes_of_state(taped, state, saved)
    block, schedule = _plan(taped, memory, *sizes, state[0].device)
    kept = ForwardRecord(taped, block, schedule, state, side, saved, {}, (rows, saved))
    forward = TapedBlocks(kept, opened)
    if schedule is None:
        forward.advance(0, kept.n_blocks - 1)
    else:
        checkpoints.execute(schedule, forward, end=schedule.turn)
        kept.slots = forward.slots
    begin, end = kept.span(kept.n_blocks - 1, kept.n_blocks)
    if kept.n_blocks > 1:
        kept.current = forward.rows, side.save(forward.saved)
        graph = record(taped, forward.rows, begin, end)
    else:
        graph = extend(taped, graph, begin + 1, end)
    kept.last, kept.at_end = graph, side.save(kept.current[1])
    return kept, [*forward.found, *graph.found]


class TapedBlocks:
    """A taped run driven by a schedule, forward and in reverse.

    It holds the current rows and side state, those stored in slots, the states read, and the gradients.
    `opened` is set for the forward run, whose first unit has been recorded.
    """

    def __init__(self, kept: ForwardRecord, opened: RecordedOpening | None = None, seeds: Seeds = ()):
        self.kept, self.opened, self.seeds, self.slots = kept, opened, seeds, dict(kept.slots)
        self.rows, self.saved = kept.current
        self.found: list[State] = []
        self.bars = BlockGradients(kept.taped)

    def advance(self, start: int, stop: int) -> None:
        taped, (begin, end) = self.kept.taped, self.kept.span(start, stop)
        if self.opened is not None and begin < end:
            graph, self.opened = self.opened.graph, None
            self.rows, self.found, begin = detach(graph.after), list(graph.found), begin + 1
        with torch.no_grad():
            self.rows, found = taped.run_units(taped.run.unit, self.rows, begin, end)
        self.found += found

    def keep(self, start: int, slot: int) -> None:
        if start > 0:  # else it is the initial side state, saved before the first unit was recorded
            self.saved = self.kept.side.save(self.saved)
        self.slots[slot] = self.rows, self.saved

    def restore(self, start: int, slot: int) -> None:
        self.rows, self.saved = self.slots[slot]
        self.kept.side.restore(self.saved)

    def drop(self, start: int, slot: int) -> None:
        del self.slots[slot]

    def reverse(self, start: int) -> None:
        begin, end = self.kept.span(start, start + 1)
        self.bars.pull(
            _find_graph(self.kept, self.rows, begin, end), self.seeds[self.kept.taped.select_readings(begin, end)]
        )


def _plan(taped: TapedRun, memory: Memory, step: int, state: int, device: torch.device) -> tuple[int, Schedule | None]:
    """Steps in a block, and the schedule of blocks, None if steps are inverted.

    Inverted steps end with a check of the drift, which would force other devices to synchronise.
    """
    n = taped.end - taped.first
    if memory == "all":
        return n, checkpoints.binomial(1, 1)
    if memory == "auto" and n * step > AUTOMATIC_BYTES and taped.run.scheme_program.back and device.type == "cpu":
        memory = "reversible"
    if memory == "reversible":
        return _clip(BLOCK_BYTES // step, n), None
    choice = memory if isinstance(memory, Checkpoints) else Checkpoints(bytes=AUTOMATIC_BYTES)
    if choice.bytes is None:
        block, slots = _clip(BLOCK_BYTES // step, n), choice.slots
    else:
        half = choice.bytes // 2  # one half for the graph of a block, one for states
        block = n if n * step <= choice.bytes else _clip(half // step, n)
        slots = max(1, half // state)
    return block, checkpoints.binomial(-(-n // block), slots)  # type: ignore[arg-type]


def _clip(block: int, n: int) -> int:
    return max(1, min(block, n))


def _count_bytes_of_step(taped: TapedRun, size: int) -> int:
    """Estimate the bytes of a step from those of the first unit, which may be a starting procedure of other cost."""
    opening, step = taped.run.scheme_program.opening.n_slopes, taped.run.scheme_program.step.n_slopes
    return max(1, size * max(1, step) // max(1, step if taped.first else opening))


def _count_bytes_of_state(taped: TapedRun, state: State, saved: SavedState) -> int:
    rows = len(taped.run.scheme_program.step.outputs) * sum(part.numel() * part.element_size() for part in state)
    return rows // len(state) + saved.n_bytes


# ---- reverse --------------------------------------------------------------------------------------------------------


def run_backward(kept: ForwardRecord, seeds: Seeds) -> BlockGradients:
    """Gradients of the first rows, the parameters and the nodes; `seeds` are those of all states read."""
    if kept.schedule is not None:
        return _reverse_by_schedule(kept, kept.schedule, seeds)
    bars, drift = _reverse_by_reconstruction(kept, seeds)
    limit = drift_limit(torch.finfo(kept.state[0].dtype).eps)
    if drift <= limit:
        return bars
    warn_of_drift(drift, limit)
    kept.side.restore(kept.at_start)
    with torch.no_grad():
        opened = open_run(kept.taped, kept.state)
        again, _ = run_forward(kept.taped, kept.state, Checkpoints(bytes=AUTOMATIC_BYTES), opened)
    return run_backward(again, seeds)


def _reverse_by_schedule(kept: ForwardRecord, schedule: Schedule, seeds: Seeds) -> BlockGradients:
    backward = TapedBlocks(kept, seeds=seeds)
    kept.side.restore(backward.saved)
    checkpoints.execute(schedule, backward, schedule.turn)
    return backward.bars


def _find_graph(kept: ForwardRecord, rows: tuple[Any, ...], begin: int, end: int) -> RecordedBlock | PerceptronTape:
    """The graph of a block; that of the last block is still available the first time."""
    if end == kept.taped.end and kept.last is not None:
        graph, kept.last = kept.last, None
        kept.side.restore(kept.at_end)  # type: ignore[arg-type]
    else:
        graph = record(kept.taped, rows, begin, end)
    if kept.taped.is_checked and isinstance(graph, RecordedBlock):
        _require_known(kept, graph, begin, end)
    return graph


def _require_known(kept: ForwardRecord, graph: RecordedBlock, begin: int, end: int) -> None:
    """Refuse a block that depends on unknown tensors, except leaves that are created again whenever it is recorded."""
    taped = kept.taped
    unknown = graph.sources(taped.parameters)
    if unknown and not unknown.older:
        with kept.side.preserve():
            again = record(taped, graph.before, begin, end)
        unknown = unknown.find_shared(again.sources(taped.parameters))  # type: ignore[union-attr]
    if unknown:
        raise RuntimeError(
            f"`func` depends on tensors at some times that the first step does not depend on: {describe(unknown)}; "
            f"their gradients would be lost: {REMEDY}"
        )


def _reverse_by_reconstruction(kept: ForwardRecord, seeds: Seeds) -> tuple[BlockGradients, float]:
    """As `run_backward`, with states reconstructed by inverting steps; also the error of the reconstructed states."""
    taped, (rows, _) = kept.taped, kept.current
    bars, drift = BlockGradients(taped), 0.0
    for number in range(kept.n_blocks - 1, -1, -1):
        begin, end = kept.span(number, number + 1)
        if number == 0:
            reached, rows = rows, taped.run.spread(kept.state)
            kept.side.restore(kept.at_start)
        elif number < kept.n_blocks - 1:
            with torch.no_grad():
                for unit in range(end - 1, begin - 1, -1):
                    rows = taped.run.undo(rows, unit)
        graph = _find_graph(kept, rows, begin, end)
        if number == 0 and kept.n_blocks > 1:
            drift = _measure_drift(reached, graph.after, taped.is_batch)
        bars.pull(graph, seeds[taped.select_readings(begin, end)])
    return bars, drift


def _measure_drift(found: tuple[Any, ...], wanted: tuple[Any, ...], is_batch: bool) -> float:
    """Distance of rows, as in `stepnet.engines.reconstruction`; `is_batch` means that they are `(batch, features)`."""
    largest = lambda row: row.detach().abs().flatten(1 if is_batch else 0).amax(-1)
    size = torch.stack([largest(row) for row in wanted]).amax(0)
    error = torch.stack([largest(a - b.detach()) for a, b in zip(found, wanted, strict=True)]).amax(0)
    if is_batch and bool((size > 0).any()):
        size = size.clamp(min=size[size > 0].median())
    return float((error / size.clamp(min=torch.finfo(size.dtype).tiny)).max())


def gather_state_gradients(taped: TapedRun, state: State, bars: BlockGradients) -> tuple[Tensor | None, ...]:
    """Gradients of the state from those of the rows in which it was placed."""
    with torch.enable_grad():
        leaves = tuple(part.detach().requires_grad_() for part in state)
        rows = taped.run.spread(leaves)
    known = [(row, bar) for row, bar in zip(rows, bars.rows, strict=True) if row is not None and bar is not None]
    return pull_back([row for row, _ in known], leaves, [bar for _, bar in known])
