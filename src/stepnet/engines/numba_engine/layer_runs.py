"""Runs of layers on chunks of tiles: forward, along tangents, and back in a chosen memory.

A chunk is an array `(tiles, features, TILE)`.  A sweep is a generator: it yields the end state, is sent the gradient
there, and yields the gradient at the beginning.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property, partial
from threading import Lock

import numpy as np

from stepnet import checkpoints
from stepnet.checkpoints import Checkpoints, Kind
from stepnet.engines.numba_engine import layers
from stepnet.engines.numba_engine.blas import gemm_address
from stepnet.engines.numba_engine.layer_primitives import TILE
from stepnet.engines.numba_engine.layer_tables import (
    ONCE,
    Layout,
    Steps,
    chains_of,
    layout_of,
    undoing_layout,
    work_size,
)
from stepnet.engines.numba_engine.layer_tapes import Tape
from stepnet.fields import Chain, Depth, Field, Mixing
from stepnet.schemes.programs import Motion

GROUP, NARROW = 4, 32  # tiles of dense nets up to this width run side by side: longer loops
BLOCK_BYTES = 2**20  # of the records of a segment that is run again: it stays in the cache
LEAST_BLOCK = 8  # steps of a segment at least, so that its bookkeeping does not matter
SLICE_OPERATIONS = 1e9  # multiplications in one call of a kernel, some 50 ms
BESIDE = 1e4  # what a step costs besides those
TAKING = Lock()  # one for all stages, so that stages can be copied

NOTHING = Motion(ONCE, ONCE, (0,))


def is_narrow(field: Field) -> bool:
    """Whether all layers are dense and narrow."""
    layers_of_all = [layer for part in field.parts for layer in part.layers]
    return all(
        isinstance(layer.connectivity, Mixing)
        and layer.connectivity.is_dense
        and max(layer.n_in, layer.n_out) <= NARROW
        for layer in layers_of_all
    )


class Stage:
    """A field moved by a scheme over even steps, or a chain by itself.

    Parameters
    ----------
    field : Field or Chain
    motion : Motion
        Of the scheme; of no importance for a chain.
    steps, length : int, float
        Number of steps, and the time they take together.
    depth : Depth
        How weights depend on depth.
    group : int
        Tiles that run side by side, if the field is narrow.
    """

    def __init__(
        self, field: Field | Chain, motion: Motion, steps: int, length: float, depth: Depth, dtype: np.dtype,
        group: int = GROUP,
    ):  # fmt: skip
        self.field, self.dtype, self.samples = field, np.dtype(dtype), TILE
        self.is_single = isinstance(field, Chain)
        self.motion = NOTHING if self.is_single else motion
        self.n_opening = 0 if self.is_single else motion.opening.steps
        self.n_steps, self.h = steps, length / steps
        self.count = steps - self.n_opening
        if self.count < 0:
            raise ValueError(f"`steps` must be at least {self.n_opening} for this scheme, found {steps}")
        parts = (field,) if self.is_single else field.parts
        self.group = 1 if self.is_single or not is_narrow(field) else group
        self._in_groups = partial(Stage, field, motion, steps, length, depth, dtype)
        self._steps = Steps(steps + 1, self.h, length, depth, self.group)
        self.chains = chains_of(parts, field.parameters, depth.controls, self.group, self.dtype)
        self.n_parameters = int((self.chains.slots[:, 1]).sum() * depth.controls)
        self._n_weights = int(self.chains.slots[:, 1].sum())
        self._work_size, self._work = (self.group * size for size in work_size(parts))
        self._free: list[layers.Room] = []
        self._tapes: dict[tuple[int, bool], list[Tape]] = {}
        self._fitted = {self.group: self}
        self.cost = BESIDE + sum(len(parts) * TILE * size for size in self.chains.slots[:, 1])

    @cached_property
    def plain(self) -> Layout:
        return layout_of(self.motion.step, self.field, self._steps, self.dtype, is_stored=False)

    @cached_property
    def stored(self) -> Layout:
        return layout_of(self.motion.step, self.field, self._steps, self.dtype, is_stored=True)

    @cached_property
    def opening(self) -> Layout:
        return layout_of(self.motion.opening, self.field, self._steps, self.dtype, is_stored=True)

    @cached_property
    def back(self) -> Layout:
        return layout_of(self.motion.back, self.field, self._steps, self.dtype, is_stored=False)

    @cached_property
    def undoing(self) -> Layout | None:
        return undoing_layout(self.motion, self.field, self._steps, self.dtype)

    @property
    def has_opening(self) -> bool:
        return not self.is_single and bool(self.motion.opening.operations)

    def fitted(self, tiles: int) -> Stage:
        """The same in groups of which none has empty places: a few tiles are a group of their own."""
        group = self.group if tiles % self.group == 0 else tiles if tiles < self.group else 1
        if group not in self._fitted:
            self._fitted[group] = self._in_groups(group)
        return self._fitted[group]

    def room(self, layout: Layout, tiles: int, period: int, is_dual: bool = False) -> layers.Room:
        """Workspace for `period` records; one that was given back if there is one, as a new one costs more."""
        scratch = period * tiles * layout.record
        bars = scratch + layout.scratch
        work = bars + 2 * tiles * layout.bar_size
        size = work + self._work
        n_slopes, n_rows = len(layout.program.part), len(layout.program.row_kind)
        mixed = n_slopes * self._n_weights if not layout.program.is_direct else n_slopes
        places = (tiles, period, layout.record, scratch, bars, layout.bar_size, work, self._work_size, size)
        lengths = (size * (1 + is_dual), mixed, max(1, n_slopes), n_rows)
        with TAKING:
            for number, room in enumerate(self._free):
                if room[6:] == places and lengths == (room[0].size, room[1].size, len(room[3]), room[4].size):
                    return self._free.pop(number)
        return layers.Room(
            np.zeros(lengths[0], self.dtype), np.zeros(mixed, self.dtype), np.zeros(mixed, self.dtype),
            np.zeros((lengths[2], max(1, len(self.chains.slots))), np.int64), np.zeros(n_rows, np.int64),
            np.zeros(n_rows, np.int64), *places,
        )  # fmt: skip

    def give_back(self, room: layers.Room) -> None:
        """The room is not used any more."""
        with TAKING:
            self._free = [room, *self._free][:8]

    # ---- states -----------------------------------------------------------------------------------------------------

    def carried(self, x: np.ndarray) -> np.ndarray:
        """The rows of a program `(tiles, numbers)` from a state; rows that the opening fills are zero."""
        x = self._grouped(x)
        rows = np.zeros((x.shape[0], self.motion.step.n_rows, x[0].size // len(self.motion.state)), self.dtype)
        rows[:, self.motion.state] = x.reshape(x.shape[0], len(self.motion.state), -1)
        return rows.reshape(x.shape[0], -1)

    def own(self, carry: np.ndarray, tiles: int) -> np.ndarray:
        """The state `(tiles, features, TILE)` among the rows."""
        rows = carry.reshape(carry.shape[0], self.motion.step.n_rows, -1)[:, self.motion.state]
        rows = rows.reshape(carry.shape[0], -1, self.group, TILE).swapaxes(1, 2)
        return rows.reshape(carry.shape[0] * self.group, -1, TILE)[:tiles]

    def _grouped(self, x: np.ndarray) -> np.ndarray:
        """Tiles side by side, `(groups, features, GROUP TILE)`; zeros behind the last."""
        n = self.groups(len(x))
        padded = np.zeros((n * self.group, *x.shape[1:]), self.dtype)
        padded[: len(x)] = x
        return padded.reshape(n, self.group, -1, TILE).swapaxes(1, 2).reshape(n, x.shape[1], -1)

    def groups(self, tiles: int) -> int:
        """How many groups these tiles make."""
        return -(-tiles // self.group)

    def records(self, room: layers.Room, is_dot: bool = False) -> np.ndarray:
        start = room.dots if is_dot else 0
        size = room.period * room.tiles * room.record
        return room.memory[start : start + size].reshape(room.period, room.tiles, room.record)

    def bars(self, room: layers.Room, slot: int) -> np.ndarray:
        start = room.bars + slot % 2 * room.tiles * room.bar_size
        return room.memory[start : start + room.tiles * room.bar_size].reshape(room.tiles, room.bar_size)

    # ---- kernels ----------------------------------------------------------------------------------------------------

    def _slices(self, count: int, tiles: int) -> list[tuple[int, int]]:
        size = max(1, int(SLICE_OPERATIONS / (tiles * self.group * self.cost)))
        if count <= size:
            return [(0, count)]
        return [(done, min(size, count - done)) for done in range(0, count, size)]

    def run(self, room, layout: Layout, theta, step: int, count: int, slot: int = 0, ways=(1, 1)) -> None:
        """`ways`: whether steps, and the slots of their records, go up or down."""
        up, slots_up = ways
        for done, n in self._slices(count, room.tiles):
            layers.forward(
                self.dtype, gemm_address(self.dtype), self.chains, layout.program, room, theta, step + up * done, up,
                slot + slots_up * done, slots_up, n,
            )  # fmt: skip

    def pull(self, room, layout: Layout, theta, theta_bar, step: int, count: int, slot: int = 0) -> None:
        """In reverse over the steps that begin at `step` and `slot`."""
        for done, n in self._slices(count, room.tiles):
            last = count - 1 - done
            layers.pullback(
                self.dtype, gemm_address(self.dtype), self.chains, layout.program, room, theta, theta_bar, step + last,
                slot + last, n,
            )  # fmt: skip

    def push(self, room, layout: Layout, theta, theta_dot, step: int, count: int, is_known: bool) -> None:
        """Along tangents, from the slot 0 of a dual room on; values may be known from a run in the same room."""
        mixed_dot = np.zeros_like(room.mixed)
        for done, n in self._slices(count, room.tiles):
            layers.tangent(
                self.dtype, gemm_address(self.dtype), self.chains, layout.program, room, theta, theta_dot, mixed_dot,
                step + done, done, n, int(is_known),
            )  # fmt: skip

    def _opened(self, theta, carry: np.ndarray, step: int = 0) -> np.ndarray:
        """The rows after the opening."""
        return self._moved(self.opening, theta, carry, step, 1) if self.has_opening else carry

    def _moved(self, layout: Layout, theta, carry: np.ndarray, step: int, count: int, direction: int = 1) -> np.ndarray:
        room = self.room(layout, len(carry), 2)
        records = self.records(room)
        records[0, :, : carry.shape[1]] = carry
        self.run(room, layout, theta, step, count, ways=(direction, 1))
        found = records[count % 2, :, : carry.shape[1]].copy()
        self.give_back(room)
        return found

    def _pulled(self, layout: Layout, theta, theta_bar, carry, bar, step: int, count: int) -> np.ndarray:
        """The gradient before `count` steps from that after them; the steps are run again."""
        room = self.room(layout, len(carry), count + 1)
        self.records(room)[0, :, : carry.shape[1]] = carry
        self.run(room, layout, theta, step, count)
        self.bars(room, count)[:] = bar
        self.pull(room, layout, theta, theta_bar, step, count)
        found = self.bars(room, 0).copy()
        self.give_back(room)
        return found

    def _close(self, theta, theta_bar, carry: np.ndarray, bar: np.ndarray, step: int = 0) -> np.ndarray:
        """The gradient before the opening from that after it."""
        return self._pulled(self.opening, theta, theta_bar, carry, bar, step, 1) if self.has_opening else bar

    def advanced(self, theta, carry: np.ndarray, step: int, count: int) -> np.ndarray:
        """The rows `count` steps on."""
        return self._moved(self.plain, theta, carry, step, count)

    def returned(self, theta, carry: np.ndarray, step: int, count: int) -> np.ndarray:
        """The rows before `count` steps, of which `step` is undone first."""
        return self._moved(self.back, theta, carry, step, count, -1)

    # ---- ways through -----------------------------------------------------------------------------------------------

    def forward(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The end state."""
        if self.is_single:
            tape = self.tape(len(x))
            found = tape.run(theta, x)
            self.put_by(tape)
            return found
        return self.fitted(len(x)).span(theta, x, 0, self.n_steps)

    def span(self, theta: np.ndarray, x: np.ndarray, start: int, stop: int) -> np.ndarray:
        """The state before step `stop` from that before step `start`."""
        carry, first = self._opened(theta, self.carried(x), start), start + self.n_opening
        return self.own(self.advanced(theta, carry, first, stop - first), len(x))

    def span_pullback(self, theta, theta_bar, x: np.ndarray, y_bar: np.ndarray, start: int, stop: int) -> np.ndarray:
        """The gradient of x from that of `span`; weights' gradients are added to `theta_bar`."""
        begun, bar, first = self.carried(x), self.carried(y_bar), start + self.n_opening
        carry = self._opened(theta, begun, start)
        bar = self._pulled(self.stored, theta, theta_bar, carry, bar, first, stop - first)
        return self.own(self._close(theta, theta_bar, begun, bar, start), len(x))

    def states(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The states after the opening and after every step that follows, `(times, tiles, features, TILE)`."""
        carry = self._opened(theta, self.carried(x))
        room = self.room(self.plain, len(carry), self.count + 2)
        records = self.records(room)
        records[0, :, : carry.shape[1]] = carry
        self.run(room, self.plain, theta, self.n_opening, self.count)
        return np.stack([self.own(each[:, : carry.shape[1]], len(x)) for each in records[: self.count + 1]])

    def tangent(self, theta, theta_dot, x: np.ndarray, x_dot: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The end state and its tangent."""
        pair = x.reshape(len(x), -1), x_dot.reshape(len(x), -1)
        if self.is_single:
            pair = self._pushed(self.stored, theta, theta_dot, pair, 0, 1)
            return tuple(each.reshape(len(x), -1, TILE) for each in pair)
        stage = self.fitted(len(x))
        pair = stage.carried(x), stage.carried(x_dot)
        if stage.has_opening:
            pair = stage._pushed(stage.opening, theta, theta_dot, pair, 0, 1)
        pair = stage._pushed(stage.plain, theta, theta_dot, pair, stage.n_opening, stage.count)
        return stage.own(pair[0], len(x)), stage.own(pair[1], len(x))

    def _pushed(self, layout: Layout, theta, theta_dot, pair, step: int, count: int):
        room = self.room(layout, len(pair[0]), 2, is_dual=True)
        for is_dot in (False, True):
            self.records(room, is_dot)[0, :, : pair[0].shape[1]] = pair[is_dot]
        self.push(room, layout, theta, theta_dot, step, count, is_known=False)
        if self.is_single:
            start, stop = self.value_place
            found = tuple(self.records(room, is_dot)[0, :, start:stop].copy() for is_dot in (False, True))
        else:
            found = tuple(
                self.records(room, is_dot)[count % 2, :, : pair[0].shape[1]].copy() for is_dot in (False, True)
            )
        self.give_back(room)
        return found

    @property
    def value_place(self) -> tuple[int, int]:
        """Where a chain by itself has its value in the record."""
        start, size = int(self.stored.program.row_place[1]), int(self.stored.program.row_size[1])
        return start, start + size

    def sweep(self, theta, theta_bar, x: np.ndarray, memory: Memory) -> Generator[np.ndarray, np.ndarray, np.ndarray]:
        """Forward, and back once the gradient of the end state is sent; weights' gradients are added to `theta_bar`."""
        stage = self.fitted(len(x))
        if stage.is_single or memory == "all" or stage.count == 0:
            return stage._kept(theta, theta_bar, x)
        if memory == "reversible":
            return stage._reversible(theta, theta_bar, x)
        return stage._scheduled(theta, theta_bar, x, memory)

    def _kept(self, theta, theta_bar, x: np.ndarray):
        """With everything kept."""
        tape = self.tape(len(x))
        y_bar = yield tape.run(theta, x)
        found = tape.pull(theta, theta_bar, y_bar)
        self.put_by(tape)
        yield found

    def tape(self, tiles: int, is_dual: bool = False) -> Tape:
        """A tape for these tiles, if possible one that was put by."""
        with TAKING:
            tapes = self._tapes.setdefault((tiles, is_dual), [])
            if tapes:
                return tapes.pop()
        return Tape(self, tiles, is_dual)

    def put_by(self, tape: Tape) -> None:
        """The tape is not used any more."""
        key = tape.tiles, tape.is_dual
        with TAKING:
            self._tapes[key] = [tape, *self._tapes[key]][:8]

    def _scheduled(self, theta, theta_bar, x: np.ndarray, memory: Memory):
        begun = self.carried(x)
        state, bar, kept = self._opened(theta, begun), None, {}
        block, schedule = self.plan(memory, len(begun))
        room = self.room(self.stored, len(begun), min(block, max(1, self.count)) + 1)
        records, width = self.records(room), begun.shape[1]
        for action in schedule:
            first = self.n_opening + action.start * block
            if action.kind == Kind.ADVANCE:
                state = self.advanced(theta, state, first, (action.stop - action.start) * block)
            elif action.kind == Kind.KEEP:
                kept[action.slot] = state
            elif action.kind == Kind.RESTORE:
                state = kept[action.slot]
            elif action.kind == Kind.DROP:
                del kept[action.slot]
            else:
                count = min(block, self.n_steps - first)
                records[0, :, :width] = state
                self.run(room, self.stored, theta, first, count)
                if bar is None:
                    bar = self.carried((yield self.own(records[count, :, :width], len(x))))
                self.bars(room, count)[:] = bar
                self.pull(room, self.stored, theta, theta_bar, first, count)
                bar = self.bars(room, 0).copy()
        self.give_back(room)
        yield self.own(self._close(theta, theta_bar, begun, bar), len(x))

    def _reversible(self, theta, theta_bar, x: np.ndarray):
        """Records of a segment are at the slots 1, 2, ...; slot 0 gets what is left for the step before."""
        begun = self.carried(x)
        state = self.advanced(theta, self._opened(theta, begun), self.n_opening, max(0, self.count - 1))
        block, stop, width = min(self.block(len(begun)), max(1, self.count)), self.n_steps, begun.shape[1]
        room = self.room(self.stored, len(begun), block + 2)
        records, last = self.records(room), min(block, self.count)
        records[last, :, :width] = state
        self.run(room, self.stored, theta, stop - 1, min(1, self.count), last)
        bar = self.carried((yield self.own(records[last + (self.count > 0), :, :width], len(x))))
        while stop > self.n_opening:
            first = max(self.n_opening, stop - block)
            count = stop - first
            if stop < self.n_steps:
                records[count], records[count + 1, :, :width] = records[0], records[1, :, :width]
            self._undo(room, theta, first, count)
            self.bars(room, count + 1)[:] = bar
            self.pull(room, self.stored, theta, theta_bar, first, count, 1)
            bar, stop = self.bars(room, 1).copy(), first
        self.give_back(room)
        yield self.own(self._close(theta, theta_bar, begun, bar), len(x))

    def _undo(self, room, theta, first: int, count: int) -> None:
        """Fill the records of a segment from the state behind it."""
        if self.undoing is not None:
            self.run(room, self.undoing, theta, first + count - 1, count, count, (-1, -1))
            return
        records, width = self.records(room), self.stored.bar_size
        before = self.returned(theta, records[count + 1, :, :width], first + count - 1, count)
        records[1, :, :width] = before
        self.run(room, self.stored, theta, first, count, 1)

    def undone(self, theta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The initial state, reconstructed from the end state alone, for one-step schemes that have an inverse."""
        carry = self._opened(theta, self.carried(y), self.n_steps)
        return self.own(self.returned(theta, carry, self.n_steps - 1, self.n_steps), len(y))

    # ---- memory -----------------------------------------------------------------------------------------------------

    def block(self, groups: int) -> int:
        """Steps whose records stay in the cache."""
        return max(LEAST_BLOCK, BLOCK_BYTES // (self.stored.record * self.dtype.itemsize * groups))

    def stored_bytes(self, tiles: int) -> int:
        """Memory of all records."""
        return self.stored.record * self.dtype.itemsize * self.groups(tiles) * (self.count + 1)

    def plan(self, memory: Memory, groups: int):
        """Steps in a segment, and the schedule over segments."""
        block = min(self.block(groups), self.count)
        n_blocks = -(-self.count // block)
        if memory == "segments":
            return block, checkpoints.binomial(n_blocks, n_blocks)
        size = self.dtype.itemsize * groups
        slots = memory.slots or max(1, (memory.bytes // size - self.stored.record * block) // self.plain.bar_size)
        return block, checkpoints.binomial(n_blocks, slots)


Memory = str | Checkpoints
