"""Runs of layers on chunks of tiles, forward and along tangents, and what sweeps back are made of.

A chunk is an array `(tiles, features, TILE)`.
"""

from __future__ import annotations

from functools import cached_property, partial
from threading import Lock

import numpy as np

from stepnet.engines.numba_engine.codegen.blas import find_gemm_address
from stepnet.engines.numba_engine.codegen.fork_safety import free_in_children
from stepnet.engines.numba_engine.codegen.vectors import VECTOR_BYTES
from stepnet.engines.numba_engine.layers import layer_kernels
from stepnet.engines.numba_engine.layers.chains import C_IN, C_OUT, NODES_IN, NODES_OUT, SIZE
from stepnet.engines.numba_engine.layers.matrix_products import SHORT, SMALL, TILE, WIDE, ProductContext
from stepnet.engines.numba_engine.layers.tables import (
    ONCE,
    LayerSteps,
    RowLayout,
    count_work,
    lay_out,
    lay_out_inverse,
    tabulate_chains,
)
from stepnet.engines.numba_engine.layers.tapes import StageTape
from stepnet.fields import Chain, Depth, Field, HeldWeights, Mixing
from stepnet.schemes.step_program import SchemeProgram

GROUP = 4  # tiles of dense nets that run side by side at most
NARROW = 64  # rows of those of narrow nets together: sums over longer rows, in caches of the first and second level
SLICE_OPERATIONS = 1e9  # multiplications in one call of a kernel, some 50 ms
BESIDE = 1e4  # what a step costs besides those
TAKING = free_in_children(Lock())  # one for all stages, so that stages can be copied

NOTHING = SchemeProgram(ONCE, ONCE, (0,))


def choose_group(field: Field) -> int:
    """Tiles that run side by side: several if all layers are dense, and narrow or so wide that BLAS is called."""
    layers_of_all = [layer for part in field.parts for layer in part.layers]
    if not all(isinstance(layer.connectivity, Mixing) and layer.connectivity.is_dense for layer in layers_of_all):
        return 1
    widest = max(max(layer.n_in, layer.n_out) for layer in layers_of_all)
    return GROUP if widest > SMALL else max(1, min(GROUP, NARROW // (widest * len(field.parts))))


def allocate_aligned(count: int, dtype: np.dtype) -> np.ndarray:
    """Zeros from the beginning of a line of the cache on, so that no vector lies in two of them."""
    whole = np.zeros(count + VECTOR_BYTES // dtype.itemsize, dtype)
    start = -whole.ctypes.data % VECTOR_BYTES // dtype.itemsize
    return whole[start : start + count]


class NetStage:
    """A field moved by a scheme over even steps, or a chain by itself.

    Parameters
    ----------
    field : Field or Chain
    motion : Motion
        Of the scheme; of no importance for a chain.
    steps, length : int, float
        Number of steps, and the time they take together.
    depth : Depth or HeldWeights
        How weights depend on depth.
    group : int
        Tiles that run side by side, if the field is narrow.
    """

    def __init__(
        self, field: Field | Chain, motion: SchemeProgram, steps: int, length: float, depth: Depth | HeldWeights,
        dtype: np.dtype, group: int = GROUP,
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
        self.group = 1 if self.is_single else min(group, choose_group(field))
        self._in_groups = partial(NetStage, field, motion, steps, length, depth, dtype)
        self._steps = LayerSteps(steps + 1, self.h, length, depth, self.group)
        self.chains = tabulate_chains(parts, field.parameters, depth.controls, self.group, self.dtype)
        self._n_weights = int(self.chains.slots[:, SIZE].sum())
        self.n_parameters = depth.controls * sum(int(np.prod(shape)) for shape in field.parameters.values())
        self._work_size, self._work = (self.group * size for size in count_work(parts))
        self._free: list[layer_kernels.LayerWorkspace] = []
        self._tapes: dict[tuple[int, bool], list[StageTape]] = {}
        self._fitted = {self.group: self}
        self.cost = BESIDE + sum(len(parts) * TILE * size for size in self.chains.slots[:, SIZE])

    @cached_property
    def plain(self) -> RowLayout:
        return lay_out(self.motion.step, self.field, self._steps, self.dtype, is_stored=False)

    @cached_property
    def stored(self) -> RowLayout:
        return lay_out(self.motion.step, self.field, self._steps, self.dtype, is_stored=True)

    @cached_property
    def opening(self) -> RowLayout:
        return lay_out(self.motion.opening, self.field, self._steps, self.dtype, is_stored=True)

    @cached_property
    def undoing(self) -> RowLayout:
        return lay_out_inverse(self.motion, self.field, self._steps, self.dtype)

    @property
    def calls_blas(self) -> bool:
        """Whether some products do not stay in registers."""
        widest = self.chains.layers[:, [C_IN, C_OUT]].max(axis=1)
        columns = TILE * self.chains.layers[:, [NODES_IN, NODES_OUT]].max(axis=1)
        return bool(((widest > SMALL) & ((widest > WIDE) | (columns > SHORT))).any())

    @property
    def has_opening(self) -> bool:
        return not self.is_single and bool(self.motion.opening.operations)

    def fitted(self, tiles: int) -> NetStage:
        """The same in groups of which none has empty places: a few tiles are a group of their own."""
        group = self.group if tiles % self.group == 0 else tiles if tiles < self.group else 1
        if group not in self._fitted:
            self._fitted[group] = self._in_groups(group)
        return self._fitted[group]

    def room_size(self, layout: RowLayout, tiles: int, period: int) -> int:
        """Numbers in the memory of a room without tangents."""
        return tiles * (period * layout.record + 2 * layout.bar_size) + layout.scratch + self._work

    def room(self, layout: RowLayout, tiles: int, period: int, is_dual: bool = False) -> layer_kernels.LayerWorkspace:
        """Workspace for `period` records; one that was given back if there is one, as a new one costs more."""
        scratch = period * tiles * layout.record
        bars = scratch + layout.scratch
        work = bars + 2 * tiles * layout.bar_size
        size = self.room_size(layout, tiles, period)
        whole = size + is_dual * (2 * tiles * layout.record + layout.scratch)
        n_slopes, n_rows = len(layout.program.part), len(layout.program.row_kind)
        mixed = n_slopes * self._n_weights if not layout.program.is_direct else n_slopes
        places = (tiles, period, layout.record, scratch, bars, layout.bar_size, work, self._work_size, size)
        lengths = (whole, mixed, max(1, n_slopes), n_rows)
        with TAKING:
            for number, room in enumerate(self._free):
                if room[8:] == places and lengths == (room[0].size, room[1].size, len(room[3]), room[4].size):
                    return self._free.pop(number)
        return layer_kernels.LayerWorkspace(
            allocate_aligned(lengths[0], self.dtype), np.zeros(mixed, self.dtype), np.zeros(mixed, self.dtype),
            np.zeros((lengths[2], max(1, len(self.chains.slots))), np.int64), np.zeros(n_rows, np.int64),
            np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64), np.zeros(2, np.int64), *places,
        )  # fmt: skip

    def give_back(self, room: layer_kernels.LayerWorkspace) -> None:
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
        """Tiles side by side, `(groups, features, group TILE)`; zeros behind the last."""
        n = self.groups(len(x))
        padded = np.zeros((n * self.group, *x.shape[1:]), self.dtype)
        padded[: len(x)] = x
        return padded.reshape(n, self.group, -1, TILE).swapaxes(1, 2).reshape(n, x.shape[1], -1)

    def groups(self, tiles: int) -> int:
        """How many groups these tiles make."""
        return -(-tiles // self.group)

    def records(self, room: layer_kernels.LayerWorkspace, is_dot: bool = False) -> np.ndarray:
        """The records of a room by slot and tile; those of tangents are two, which take turns."""
        start, period = (room.dots, 2) if is_dot else (0, room.period)
        size = period * room.tiles * room.record
        return room.memory[start : start + size].reshape(period, room.tiles, room.record)

    def bars(self, room: layer_kernels.LayerWorkspace, slot: int) -> np.ndarray:
        """The gradients of the state before the step whose record is at a slot."""
        start = room.bars + slot % 2 * room.tiles * room.bar_size
        return room.memory[start : start + room.tiles * room.bar_size].reshape(room.tiles, room.bar_size)

    # ---- kernels ----------------------------------------------------------------------------------------------------

    def _slices(self, count: int, tiles: int) -> list[tuple[int, int]]:
        size = max(1, int(SLICE_OPERATIONS / (tiles * self.group * self.cost)))
        if count <= size:
            return [(0, count)]
        return [(done, min(size, count - done)) for done in range(0, count, size)]

    def _machine(self, room: layer_kernels.LayerWorkspace) -> ProductContext:
        return ProductContext(find_gemm_address(self.dtype), room.ahead)

    def run(self, room, layout: RowLayout, theta, step: int, count: int, slot: int = 0) -> None:
        """Steps from `step` on; their records begin at `slot`."""
        for done, n in self._slices(count, room.tiles):
            layer_kernels.forward(
                self._machine(room), self.chains, layout.program, room, theta, step + done,
                slot + done, n,
            )  # fmt: skip

    def pull(
        self, room, layout: RowLayout, theta, theta_bar, step: int, count: int, slot: int = 0, is_undone: bool = False,
        is_x_wanted: bool = True,
    ) -> None:  # fmt: skip
        """In reverse over the steps that begin at `step` and `slot`; they are undone on the way, or records are there.

        Behind a last step that is undone is its state, and in its record are the tapes of slopes that it hands on.  The
        gradient of x may be left out for a chain by itself.
        """
        undoing = (self.undoing if is_undone else layout).program
        for done, n in self._slices(count, room.tiles):
            last = count - 1 - done
            layer_kernels.pullback(
                self._machine(room), self.chains, layout.program, undoing, int(is_undone), room, theta,
                theta_bar, step + last, slot + last, n, int(is_x_wanted),
            )  # fmt: skip

    def push(self, room, layout: RowLayout, theta, theta_dot, step: int, count: int, is_known: bool) -> None:
        """Along tangents, from the slot 0 of a dual room on; values may be known from a run in the same room."""
        mixed_dot = np.zeros_like(room.mixed)
        for done, n in self._slices(count, room.tiles):
            layer_kernels.tangent(
                self._machine(room), self.chains, layout.program, room, theta, theta_dot, mixed_dot,
                step + done, done, n, int(is_known),
            )  # fmt: skip

    def opened(self, theta, carry: np.ndarray, step: int = 0) -> np.ndarray:
        """The rows after the opening."""
        return self._moved(self.opening, theta, carry, step, 1) if self.has_opening else carry

    def _moved(self, layout: RowLayout, theta, carry: np.ndarray, step: int, count: int) -> np.ndarray:
        room = self.room(layout, len(carry), 2)
        records = self.records(room)
        records[0, :, : carry.shape[1]] = carry
        self.run(room, layout, theta, step, count)
        found = records[count % 2, :, : carry.shape[1]].copy()
        self.give_back(room)
        return found

    def _pulled(self, layout: RowLayout, theta, theta_bar, carry, bar, step: int, count: int) -> np.ndarray:
        """The gradient before `count` steps from that after them; the steps are run again."""
        room = self.room(layout, len(carry), count + 1)
        self.records(room)[0, :, : carry.shape[1]] = carry
        self.run(room, layout, theta, step, count)
        self.bars(room, count)[:] = bar
        self.pull(room, layout, theta, theta_bar, step, count)
        found = self.bars(room, 0).copy()
        self.give_back(room)
        return found

    def closed(self, theta, theta_bar, carry: np.ndarray, bar: np.ndarray, step: int = 0) -> np.ndarray:
        """The gradient before the opening from that after it."""
        return self._pulled(self.opening, theta, theta_bar, carry, bar, step, 1) if self.has_opening else bar

    def advanced(self, theta, carry: np.ndarray, step: int, count: int) -> np.ndarray:
        """The rows `count` steps on."""
        return self._moved(self.plain, theta, carry, step, count)

    # ---- ways through -----------------------------------------------------------------------------------------------

    def forward(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The end state."""
        if self.is_single:
            tape = self.tape(len(x))
            found = tape.run(theta, x).copy()
            self.put_by(tape)
            return found
        return self.fitted(len(x)).span(theta, x, 0, self.n_steps)

    def span(self, theta: np.ndarray, x: np.ndarray, start: int, stop: int) -> np.ndarray:
        """The state before step `stop` from that before step `start`."""
        carry, first = self.opened(theta, self.carried(x), start), start + self.n_opening
        return self.own(self.advanced(theta, carry, first, stop - first), len(x))

    def span_pullback(self, theta, theta_bar, x: np.ndarray, y_bar: np.ndarray, start: int, stop: int) -> np.ndarray:
        """The gradient of x from that of `span`; weights' gradients are added to `theta_bar`."""
        begun, bar, first = self.carried(x), self.carried(y_bar), start + self.n_opening
        carry = self.opened(theta, begun, start)
        bar = self._pulled(self.stored, theta, theta_bar, carry, bar, first, stop - first)
        return self.own(self.closed(theta, theta_bar, begun, bar, start), len(x))

    def states(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The states after the opening and after every step that follows, `(times, tiles, features, TILE)`."""
        carry = self.opened(theta, self.carried(x))
        room = self.room(self.plain, len(carry), self.count + 2)
        records = self.records(room)
        records[0, :, : carry.shape[1]] = carry
        self.run(room, self.plain, theta, self.n_opening, self.count)
        return np.stack([self.own(each[:, : carry.shape[1]], len(x)) for each in records[: self.count + 1]])

    def tangent(self, theta, theta_dot, x: np.ndarray, x_dot: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The end state and its tangent."""
        if self.is_single:
            pair = x.reshape(len(x), -1), x_dot.reshape(len(x), -1)
            pair = self._pushed(self.stored, theta, theta_dot, pair, 0, 1)
            return tuple(each.reshape(len(x), -1, TILE) for each in pair)
        stage = self.fitted(len(x))
        pair = stage.carried(x), stage.carried(x_dot)
        if stage.has_opening:
            pair = stage._pushed(stage.opening, theta, theta_dot, pair, 0, 1)
        pair = stage._pushed(stage.plain, theta, theta_dot, pair, stage.n_opening, stage.count)
        return stage.own(pair[0], len(x)), stage.own(pair[1], len(x))

    def _pushed(self, layout: RowLayout, theta, theta_dot, pair, step: int, count: int):
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

    def tape(self, tiles: int, is_dual: bool = False) -> StageTape:
        """A tape for these tiles, if possible one that was put by."""
        with TAKING:
            tapes = self._tapes.setdefault((tiles, is_dual), [])
            if tapes:
                return tapes.pop()
        return StageTape(self, tiles, is_dual)

    def put_by(self, tape: StageTape) -> None:
        """The tape is not used any more."""
        key = tape.tiles, tape.is_dual
        with TAKING:
            self._tapes[key] = [tape, *self._tapes[key]][:8]

    def stored_bytes(self, tiles: int) -> int:
        """Memory of the records of all steps."""
        return self.stored.record * self.dtype.itemsize * self.groups(tiles) * (self.count + 1)
