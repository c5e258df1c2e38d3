"""Sweeps over a stage of a net: forward, and in reverse under a memory policy.

A sweep is a generator: it yields the end state, receives the gradient there and the array to which gradients of
weights are added, and yields the gradient at the beginning with the drift of reconstructed states, 0 if there are none.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

from stepnet import checkpoints
from stepnet.checkpoints import Checkpoints
from stepnet.checkpoints.budget import Memory
from stepnet.engines.numba_engine.layers.layer_kernels import LayerNoise
from stepnet.engines.numba_engine.layers.matrix_products import TILE
from stepnet.engines.numba_engine.layers.stage_runs import NetStage
from stepnet.engines.numba_engine.layers.tile_noise import TileNoise

BLOCK_BYTES = 2**21  # of the records of a segment that is run again, which then stays in the cache
LEAST_BLOCK = 16  # minimum number of steps in a segment, so that overhead is negligible

RING = 3  # records involved in inverting a step: its own, the previous and the next one
STATES_AT_HAND = 4  # the first state, the current one, its gradient, and a temporary one

Sweep = Generator[Any, tuple[np.ndarray, np.ndarray], None]


class BlockGradient(NamedTuple):
    """The gradient at the beginning of a stage, and the error of its reconstructed state."""

    bar: np.ndarray
    drift: float = 0.0


def sweep(stage: NetStage, theta, theta_bar, x: np.ndarray, memory: Memory) -> Generator[np.ndarray, np.ndarray, None]:
    """Forward, then in reverse when the gradient of the end state is sent; gradients of weights go to `theta_bar`."""
    run = sweep_and_turn(stage, theta, x, memory)
    y_bar = yield next(run)
    yield run.send((y_bar, theta_bar)).bar


def sweep_and_turn(stage: NetStage, theta, x: np.ndarray, memory: Memory, noise: TileNoise | None = None) -> Sweep:
    """As `sweep`, but `theta_bar` is sent together with the gradient of the end state, before which it is not needed.

    Noise is drawn again where steps are run again.
    """
    stage = stage.fit_group_size(len(x))
    if is_kept(stage, memory):
        return _sweep_kept(stage, theta, x, noise)
    if memory == "reversible":
        return _sweep_reversible(stage, theta, x, noise)
    return _sweep_scheduled(stage, theta, x, memory, noise)


def is_kept(stage: NetStage, memory: Memory) -> bool:
    """Whether all records of a stage are kept."""
    return stage.is_single or memory == "all" or stage.count == 0


def _sweep_kept(stage: NetStage, theta, x: np.ndarray, noise: TileNoise | None) -> Sweep:
    """Keep all records."""
    tape = stage.tape(len(x))
    y_bar, theta_bar = yield tape.run(theta, x, noise).copy()
    found = tape.pull(theta, theta_bar, y_bar).copy()
    stage.return_to_pool(tape)
    yield BlockGradient(found)


def _sweep_scheduled(stage: NetStage, theta, x: np.ndarray, memory: Memory, noise: TileNoise | None) -> Sweep:
    """Keep the states that a schedule of segments selects."""
    begun = stage.build_rows(x)
    size, schedule = plan(stage, memory, len(begun))
    segments = SegmentSweep(stage, theta, begun, size, stage.group_noise(noise))
    checkpoints.execute(schedule, segments, end=schedule.turn)
    segments.record(schedule.n_steps - 1)
    y_bar, theta_bar = yield stage.extract_state(segments.end, len(x))
    segments.turn(stage.build_rows(y_bar), theta_bar)
    checkpoints.execute(schedule, segments, schedule.turn)
    stage.release_workspace(segments.workspace)
    yield BlockGradient(stage.extract_state(stage.pull_back_opening(theta, theta_bar, begun, segments.bar), len(x)))


class SegmentSweep:
    """The segments of a stage, driven by a schedule: the current state, those in slots, and the records of one segment.

    States are never modified, so slots hold them without a copy.
    """

    def __init__(self, stage: NetStage, theta, begun: np.ndarray, size: int, noise: LayerNoise):
        self.stage, self.theta, self.size, self.width, self.noise = stage, theta, size, begun.shape[1], noise
        self.state = stage.run_opening(theta, begun)
        self.kept: dict[int, np.ndarray] = {}
        self.workspace = stage.acquire_workspace(stage.stored, len(begun), min(size, max(1, stage.count)) + 1)
        self.records = stage.records(self.workspace)
        self.recorded: int | None = None  # the segment to which the records belong
        self.bar: np.ndarray | None = None
        self.theta_bar: np.ndarray | None = None

    @property
    def end(self) -> np.ndarray:
        """The state after the recorded segment."""
        return self.records[self._span(self.recorded)[1], :, : self.width]

    def turn(self, bar: np.ndarray, theta_bar: np.ndarray) -> None:
        """Take the gradient of the end state, and the array to which gradients of weights are added."""
        self.bar, self.theta_bar = bar, theta_bar

    def advance(self, start: int, stop: int) -> None:
        first, _ = self._span(start)
        self.state = self.stage.advance_rows(self.theta, self.state, first, (stop - start) * self.size, self.noise)

    def keep(self, start: int, slot: int) -> None:
        self.kept[slot] = self.state

    def restore(self, start: int, slot: int) -> None:
        self.state = self.kept[slot]

    def drop(self, start: int, slot: int) -> None:
        del self.kept[slot]

    def record(self, start: int) -> None:
        """Run a segment from the current state and keep all its records."""
        self.records[0, :, : self.width] = self.state
        self.stage.run(self.workspace, self.stage.stored, self.theta, *self._span(start), noise=self.noise)
        self.recorded = start

    def reverse(self, start: int) -> None:
        if self.recorded != start:
            self.record(start)
        first, count = self._span(start)
        self.stage.bars(self.workspace, count)[:] = self.bar
        self.stage.pull(
            self.workspace, self.stage.stored, self.theta, self.theta_bar, first, count, noise=self.noise
        )  # fmt: skip
        self.bar = self.stage.bars(self.workspace, 0).copy()

    def _span(self, start: int) -> tuple[int, int]:
        """The first step of a segment, and its number of steps."""
        first = self.stage.n_opening + start * self.size
        return first, min(self.size, self.stage.n_steps - first)


def _sweep_reversible(stage: NetStage, theta, x: np.ndarray, noise: TileNoise | None) -> Sweep:
    """Keep only both ends; the reverse sweep inverts each step and pulls back through it at once.

    The last step keeps its record, for the tapes of slopes that it passes on.  The drift is the error of the
    reconstructed state before the first step.
    """
    begun, drawn = stage.build_rows(x), stage.group_noise(noise)
    opened = stage.run_opening(theta, begun)
    first, last, width = stage.n_opening, stage.n_steps - 1, begun.shape[1]
    workspace = stage.acquire_workspace(stage.stored, len(begun), RING)
    records = stage.records(workspace)
    records[last % RING, :, :width] = stage.advance_rows(theta, opened, first, stage.count - 1, drawn)
    stage.run(workspace, stage.stored, theta, last, 1, last, drawn)
    y_bar, theta_bar = yield stage.extract_state(records[(last + 1) % RING, :, :width], len(x))
    stage.bars(workspace, last + 1)[:] = stage.build_rows(y_bar)
    stage.pull(workspace, stage.stored, theta, theta_bar, first, stage.count, first, is_undone=True, noise=drawn)
    bar, drift = stage.bars(workspace, first).copy(), _measure_drift(stage, records[first % RING, :, :width], opened)
    stage.release_workspace(workspace)
    yield BlockGradient(stage.extract_state(stage.pull_back_opening(theta, theta_bar, begun, bar), len(x)), drift)


def _measure_drift(stage: NetStage, found: np.ndarray, wanted: np.ndarray) -> float:
    """Distance of rows `(groups, numbers)`, as in `stepnet.engines.reconstruction`; infinite if they are not finite."""
    by_sample = lambda rows: np.abs(rows.reshape(len(rows), -1, stage.group * TILE)).max(axis=1)
    with np.errstate(all="ignore"):
        size, error = by_sample(wanted), by_sample(found - wanted)
        known = size[size > 0]
        middle = len(known) // 2
        least = np.partition(known, middle)[middle] if len(known) else np.finfo(size.dtype).tiny
        drift = float(np.max(error / np.maximum(size, least)))
        return drift if drift == drift else np.inf


# ---- memory ---------------------------------------------------------------------------------------------------------


def choose_block(stage: NetStage, groups: int) -> int:
    """The number of steps whose records stay in the cache."""
    return max(LEAST_BLOCK, BLOCK_BYTES // (stage.stored.record * stage.dtype.itemsize * groups))


def plan(stage: NetStage, memory: Memory, groups: int):
    """Steps in a segment, and the schedule over segments."""
    if isinstance(memory, Checkpoints) and memory.bytes is not None:
        size, slots = _choose_within(stage, memory.bytes, groups)
        return size, checkpoints.binomial(-(-stage.count // size), slots)
    size = min(choose_block(stage, groups), stage.count)
    n_blocks = -(-stage.count // size)
    return size, checkpoints.binomial(n_blocks, n_blocks if isinstance(memory, str) else memory.slots)


def count_least_bytes(stage: NetStage, tiles: int) -> int:
    """Minimum bytes of a sweep: all records of a single chain; else one step at a time and one kept state."""
    stage = stage.fit_group_size(tiles)
    groups = stage.groups(tiles)
    if is_kept(stage, ""):
        return stage.dtype.itemsize * stage.count_workspace_numbers(stage.stored, groups, 2)
    return _count_bytes(stage, groups, 1, 1)


def count_repeated_steps(stage: NetStage, tiles: int, limit: int) -> int:
    """Steps that a sweep within a memory limit runs again after the forward run."""
    stage = stage.fit_group_size(tiles)
    if is_kept(stage, ""):
        return 0
    size, slots = _choose_within(stage, limit, stage.groups(tiles))
    return _count_advances(stage, size, slots) - (stage.count - size)


def _choose_within(stage: NetStage, limit: int, groups: int) -> tuple[int, int]:
    """Steps in a segment and number of kept states with the least cost within a limit in bytes."""
    whole = min(choose_block(stage, groups), stage.count)
    sizes = [whole]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    a_state = _count_bytes(stage, groups, 1, 1) - _count_bytes(stage, groups, 1, 0)
    choices = [(size, (limit - _count_bytes(stage, groups, size, 0)) // a_state) for size in sizes]
    fitting = [(size, slots) for size, slots in choices if slots >= 1]
    return min(fitting or [(1, 1)], key=lambda choice: _count_advances(stage, *choice))


def _count_advances(stage: NetStage, size: int, slots: int) -> int:
    return size * checkpoints.binomial_advances(-(-stage.count // size), slots)


def _count_bytes(stage: NetStage, groups: int, size: int, slots: int) -> int:
    """Bytes of kept and temporary states, of the records of a segment, and of the workspace to advance in."""
    states = (slots + STATES_AT_HAND) * groups * stage.plain.bar_size
    workspaces = stage.count_workspace_numbers(stage.stored, groups, size + 1) + stage.count_workspace_numbers(
        stage.plain, groups, 2
    )
    if stage.has_opening:
        workspaces += stage.count_workspace_numbers(stage.opening, groups, 2)
    return stage.dtype.itemsize * (states + workspaces)
