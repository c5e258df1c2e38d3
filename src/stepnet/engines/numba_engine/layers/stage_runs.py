"""Runs of layers on chunks of tiles, forward and with tangents, and the building blocks of reverse sweeps.

A chunk is an array `(tiles, features, TILE)`.
"""

from __future__ import annotations

from functools import cached_property, partial
from threading import Lock
from typing import cast

import numpy as np

from stepnet.engines.numba_engine.codegen.blas import find_gemm_address
from stepnet.engines.numba_engine.codegen.fork_safety import register_lock
from stepnet.engines.numba_engine.codegen.vectors import VECTOR_BYTES
from stepnet.engines.numba_engine.layers import layer_kernels
from stepnet.engines.numba_engine.layers.chains import C_IN, C_OUT, NODES_IN, NODES_OUT, SIZE
from stepnet.engines.numba_engine.layers.implicit.implicit_steps import ImplicitLayers
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
from stepnet.engines.numba_engine.layers.tile_noise import NO_NOISE, TileNoise, group_noise
from stepnet.fields import Chain, Depth, Field, HeldWeights, Mixing
from stepnet.schemes.step_program import SchemeProgram, StepProgram

GROUP = 4  # maximum number of tiles of a dense net that run side by side
NARROW = 64  # rows of such tiles in narrow nets: longer sums per row, within the first- and second-level caches
SLICE_OPERATIONS = 1e9  # multiplications in one kernel call, about 50 ms
BESIDE = 1e4  # other cost of a step, in multiplications
TAKING = register_lock(Lock())  # shared by all stages, so that stages can be copied

NOTHING = SchemeProgram(ONCE, ONCE, (0,))


def choose_group(field: Field) -> int:
    """Tiles that run side by side: several if all layers are dense, and narrow or so wide that BLAS is called."""
    layers_of_all = [layer for part in field.chains for layer in part.layers]
    if not all(isinstance(layer.connectivity, Mixing) and layer.connectivity.is_dense for layer in layers_of_all):
        return 1
    widest = max(max(layer.n_in, layer.n_out) for layer in layers_of_all)
    return GROUP if widest > SMALL else max(1, min(GROUP, NARROW // (widest * len(field.chains))))


def allocate_aligned(count: int, dtype: np.dtype) -> np.ndarray:
    """Zeros aligned to a cache line, so that no vector crosses a line boundary."""
    whole = np.zeros(count + VECTOR_BYTES // dtype.itemsize, dtype)
    start = -whole.ctypes.data % VECTOR_BYTES // dtype.itemsize
    return whole[start : start + count]


class NetStage:
    """A field advanced by a scheme over equal steps, or a single chain.

    Parameters
    ----------
    field : Field or Chain
    scheme_program : SchemeProgram
        The step programs of the scheme; ignored for a chain.
    steps, length : int, float
        Number of steps, and their total length in time.
    depth : Depth or HeldWeights
        How weights depend on depth.
    group : int
        Tiles that run side by side, if the field is narrow.
    name : str
        For errors.
    """

    def __init__(
        self, field: Field | Chain, scheme_program: SchemeProgram, steps: int, length: float,
        depth: Depth | HeldWeights,
        dtype: np.dtype, group: int = GROUP, name: str = "the net",
    ):  # fmt: skip
        self.field, self.dtype, self.samples, self.name = field, np.dtype(dtype), TILE, name
        self.is_single = isinstance(field, Chain)
        self.scheme_program = NOTHING if self.is_single else scheme_program
        self.n_opening = 0 if self.is_single else scheme_program.opening.steps
        self.n_steps, self.h, self.length = steps, length / steps, length
        self.count = steps - self.n_opening
        if self.count < 0:
            raise ValueError(f"`steps` must be at least {self.n_opening} for this scheme, found {steps}")
        parts: tuple[Chain, ...] = (field,) if isinstance(field, Chain) else field.chains
        self.group = 1 if isinstance(field, Chain) else min(group, choose_group(field))
        self._in_groups = partial(NetStage, field, scheme_program, steps, length, depth, dtype, name=name)
        self.layer_steps = LayerSteps(steps + 1, self.h, length, depth, self.group)
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
        return self._lay_out(self.scheme_program.step, is_stored=False)

    @cached_property
    def stored(self) -> RowLayout:
        return self._lay_out(self.scheme_program.step, is_stored=True)

    def _lay_out(self, program: StepProgram, is_stored: bool) -> RowLayout:
        """The layout for the kernels, or for the steps in Python of an implicit program."""
        if program.is_implicit:
            return ImplicitLayers(self, program).lay_out(is_stored)
        return lay_out(program, self.field, self.layer_steps, self.dtype, is_stored)

    @cached_property
    def opening(self) -> RowLayout:
        return self._lay_out(self.scheme_program.opening, is_stored=True)

    @cached_property
    def undoing(self) -> RowLayout:
        return lay_out_inverse(self.scheme_program, cast(Field, self.field), self.layer_steps, self.dtype)

    @property
    def calls_blas(self) -> bool:
        """Whether some products are not computed in registers."""
        widest = self.chains.layers[:, [C_IN, C_OUT]].max(axis=1)
        columns = TILE * self.chains.layers[:, [NODES_IN, NODES_OUT]].max(axis=1)
        return bool(((widest > SMALL) & ((widest > WIDE) | (columns > SHORT))).any())

    @property
    def has_opening(self) -> bool:
        return not self.is_single and bool(self.scheme_program.opening.operations)

    def fit_group_size(self, tiles: int) -> NetStage:
        """The same stage with a group size that leaves no empty tiles in a group: a few tiles form a single group."""
        group = self.group if tiles % self.group == 0 else tiles if tiles < self.group else 1
        if group not in self._fitted:
            self._fitted[group] = self._in_groups(group)
        return self._fitted[group]

    def count_workspace_numbers(self, layout: RowLayout, tiles: int, period: int) -> int:
        """Numbers in the memory of a workspace without tangents."""
        return tiles * (period * layout.record + 2 * layout.bar_size) + layout.scratch + self._work

    def acquire_workspace(
        self, layout: RowLayout, tiles: int, period: int, is_dual: bool = False
    ) -> layer_kernels.LayerWorkspace:
        """Workspace for `period` records; reuses one that was given back if possible, because allocation is slow."""
        scratch = period * tiles * layout.record
        bars = scratch + layout.scratch
        work = bars + 2 * tiles * layout.bar_size
        size = self.count_workspace_numbers(layout, tiles, period)
        whole = size + is_dual * (2 * tiles * layout.record + layout.scratch)
        n_slopes, n_rows = len(layout.program.part), len(layout.program.row_kind)
        mixed = n_slopes * self._n_weights if not layout.program.is_direct else n_slopes
        places = (tiles, period, layout.record, scratch, bars, layout.bar_size, work, self._work_size, size)
        lengths = (whole, mixed, max(1, n_slopes), n_rows)
        with TAKING:
            for number, workspace in enumerate(self._free):
                if workspace[8:] == places and lengths == (
                    workspace[0].size,
                    workspace[1].size,
                    len(workspace[3]),
                    workspace[4].size,
                ):
                    return self._free.pop(number)
        return layer_kernels.LayerWorkspace(
            allocate_aligned(lengths[0], self.dtype), np.zeros(mixed, self.dtype), np.zeros(mixed, self.dtype),
            np.zeros((lengths[2], max(1, len(self.chains.slots))), np.int64), np.zeros(n_rows, np.int64),
            np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64), np.zeros(2, np.int64), *places,
        )  # fmt: skip

    def release_workspace(self, workspace: layer_kernels.LayerWorkspace) -> None:
        """Return a workspace that is no longer used."""
        with TAKING:
            self._free = [workspace, *self._free][:8]

    # ---- states -----------------------------------------------------------------------------------------------------

    @property
    def has_noise(self) -> bool:
        """Whether steps read Brownian increments."""
        return bool(self.scheme_program.step.noise)

    def group_noise(self, noise: TileNoise | None) -> layer_kernels.LayerNoise:
        """The noise of tiles as kernels read it."""
        if self.has_noise and noise is None:
            raise ValueError("a stage with diffusion needs the noise of its samples")
        return group_noise(noise if self.has_noise else None, self.n_steps, self.length, self.group)

    def build_rows(self, x: np.ndarray) -> np.ndarray:
        """The rows of a program `(tiles, numbers)` from a state; rows that the starting procedure fills are zero."""
        x = self._group_tiles(x)
        rows = np.zeros(
            (x.shape[0], self.scheme_program.step.n_rows, x[0].size // len(self.scheme_program.state)), self.dtype
        )
        rows[:, self.scheme_program.state] = x.reshape(x.shape[0], len(self.scheme_program.state), -1)
        return rows.reshape(x.shape[0], -1)

    def extract_state(self, carry: np.ndarray, tiles: int) -> np.ndarray:
        """The state `(tiles, features, TILE)` from the rows of a program."""
        rows = carry.reshape(carry.shape[0], self.scheme_program.step.n_rows, -1)[:, self.scheme_program.state]
        rows = rows.reshape(carry.shape[0], -1, self.group, TILE).swapaxes(1, 2)
        return rows.reshape(carry.shape[0] * self.group, -1, TILE)[:tiles]

    def _group_tiles(self, x: np.ndarray) -> np.ndarray:
        """Tiles side by side, `(groups, features, group TILE)`, padded with zeros."""
        n = self.groups(len(x))
        padded = np.zeros((n * self.group, *x.shape[1:]), self.dtype)
        padded[: len(x)] = x
        return padded.reshape(n, self.group, -1, TILE).swapaxes(1, 2).reshape(n, x.shape[1], -1)

    def groups(self, tiles: int) -> int:
        """The number of groups for these tiles."""
        return -(-tiles // self.group)

    def records(self, workspace: layer_kernels.LayerWorkspace, is_dot: bool = False) -> np.ndarray:
        """The records of a workspace by slot and tile; for tangents, the two that alternate."""
        start, period = (workspace.dots, 2) if is_dot else (0, workspace.period)
        size = period * workspace.tiles * workspace.record
        return workspace.memory[start : start + size].reshape(period, workspace.tiles, workspace.record)

    def bars(self, workspace: layer_kernels.LayerWorkspace, slot: int) -> np.ndarray:
        """The gradients of the state before the step whose record is at a slot."""
        start = workspace.bars + slot % 2 * workspace.tiles * workspace.bar_size
        return workspace.memory[start : start + workspace.tiles * workspace.bar_size].reshape(
            workspace.tiles, workspace.bar_size
        )

    # ---- kernels ----------------------------------------------------------------------------------------------------

    def _slices(self, count: int, tiles: int) -> list[tuple[int, int]]:
        size = max(1, int(SLICE_OPERATIONS / (tiles * self.group * self.cost)))
        if count <= size:
            return [(0, count)]
        return [(done, min(size, count - done)) for done in range(0, count, size)]

    def machine(self, workspace: layer_kernels.LayerWorkspace) -> ProductContext:
        return ProductContext(find_gemm_address(self.dtype), workspace.ahead)

    def run(
        self, workspace, layout: RowLayout, theta, step: int, count: int, slot: int = 0, noise=NO_NOISE
    ) -> None:  # fmt: skip
        """Run steps from `step` on; their records begin at `slot`."""
        if layout.implicit is not None:
            layout.implicit.run(workspace, layout, theta, step, count, slot, noise)
            return
        for done, n in self._slices(count, workspace.tiles):
            layer_kernels.forward(
                self.machine(workspace), self.chains, layout.program, workspace, noise, theta, step + done,
                slot + done, n,
            )  # fmt: skip

    def pull(
        self, workspace, layout: RowLayout, theta, theta_bar, step: int, count: int, slot: int = 0,
        is_undone: bool = False,
        is_x_wanted: bool = True, noise=NO_NOISE,
    ) -> None:  # fmt: skip
        """Pull back through the steps that begin at `step` and `slot`, inverting them or reading their records.

        If the last step is inverted, its end state must follow its record, which holds the tapes of slopes that it
        passes on.  The gradient of x may be left out for a single chain.
        """
        if layout.implicit is not None:
            layout.implicit.pull(workspace, theta, theta_bar, step, count, slot, noise)
            return
        undoing = (self.undoing if is_undone else layout).program
        for done, n in self._slices(count, workspace.tiles):
            last = count - 1 - done
            layer_kernels.pullback(
                self.machine(workspace), self.chains, layout.program, undoing, int(is_undone), workspace, noise, theta,
                theta_bar, step + last, slot + last, n, int(is_x_wanted),
            )  # fmt: skip

    def push(
        self, workspace, layout: RowLayout, theta, theta_dot, step: int, count: int, is_known: bool, noise=NO_NOISE
    ) -> None:  # fmt: skip
        """Compute tangents from slot 0 of a dual workspace; values may be known from a run in the same workspace."""
        if layout.implicit is not None:
            layout.implicit.push(workspace, layout, theta, theta_dot, step, count, is_known, noise)
            return
        mixed_dot = np.zeros_like(workspace.mixed)
        for done, n in self._slices(count, workspace.tiles):
            layer_kernels.tangent(
                self.machine(workspace), self.chains, layout.program, workspace, noise, theta, theta_dot, mixed_dot,
                step + done, done, n, int(is_known),
            )  # fmt: skip

    def run_opening(self, theta, carry: np.ndarray, step: int = 0) -> np.ndarray:
        """The rows after the starting procedure."""
        return self._advance_rows(self.opening, theta, carry, step, 1) if self.has_opening else carry

    def _advance_rows(
        self, layout: RowLayout, theta, carry: np.ndarray, step: int, count: int, noise=NO_NOISE
    ) -> np.ndarray:  # fmt: skip
        workspace = self.acquire_workspace(layout, len(carry), 2)
        records = self.records(workspace)
        records[0, :, : carry.shape[1]] = carry
        self.run(workspace, layout, theta, step, count, noise=noise)
        found = records[count % 2, :, : carry.shape[1]].copy()
        self.release_workspace(workspace)
        return found

    def _pull_rows(
        self, layout: RowLayout, theta, theta_bar, carry, bar, step: int, count: int, noise=NO_NOISE
    ) -> np.ndarray:  # fmt: skip
        """The gradient before `count` steps from that after them; the steps are run again."""
        workspace = self.acquire_workspace(layout, len(carry), count + 1)
        self.records(workspace)[0, :, : carry.shape[1]] = carry
        self.run(workspace, layout, theta, step, count, noise=noise)
        self.bars(workspace, count)[:] = bar
        self.pull(workspace, layout, theta, theta_bar, step, count, noise=noise)
        found = self.bars(workspace, 0).copy()
        self.release_workspace(workspace)
        return found

    def pull_back_opening(self, theta, theta_bar, carry: np.ndarray, bar: np.ndarray, step: int = 0) -> np.ndarray:
        """The gradient before the starting procedure from that after it."""
        return self._pull_rows(self.opening, theta, theta_bar, carry, bar, step, 1) if self.has_opening else bar

    def advance_rows(self, theta, carry: np.ndarray, step: int, count: int, noise=NO_NOISE) -> np.ndarray:
        """The rows after `count` more steps."""
        return self._advance_rows(self.plain, theta, carry, step, count, noise)

    # ---- forward, tangent and pullback ------------------------------------------------------------------------------

    def forward(self, theta: np.ndarray, x: np.ndarray, noise: TileNoise | None = None) -> np.ndarray:
        """The end state."""
        if self.is_single:
            tape = self.tape(len(x))
            found = tape.run(theta, x).copy()
            self.return_to_pool(tape)
            return found
        return self.fit_group_size(len(x)).span(theta, x, 0, self.n_steps, noise)

    def span(
        self, theta: np.ndarray, x: np.ndarray, start: int, stop: int, noise: TileNoise | None = None
    ) -> np.ndarray:  # fmt: skip
        """The state before step `stop` from that before step `start`."""
        carry, first = self.run_opening(theta, self.build_rows(x), start), start + self.n_opening
        return self.extract_state(self.advance_rows(theta, carry, first, stop - first, self.group_noise(noise)), len(x))

    def span_pullback(
        self, theta, theta_bar, x: np.ndarray, y_bar: np.ndarray, start: int, stop: int, noise: TileNoise | None = None
    ) -> np.ndarray:  # fmt: skip
        """The gradient of x from that of `span`; gradients of the weights are added to `theta_bar`."""
        begun, bar, first = self.build_rows(x), self.build_rows(y_bar), start + self.n_opening
        carry, drawn = self.run_opening(theta, begun, start), self.group_noise(noise)
        bar = self._pull_rows(self.stored, theta, theta_bar, carry, bar, first, stop - first, drawn)
        return self.extract_state(self.pull_back_opening(theta, theta_bar, begun, bar, start), len(x))

    def states(self, theta: np.ndarray, x: np.ndarray, noise: TileNoise | None = None) -> np.ndarray:
        """The states after the starting procedure and after every later step, `(times, tiles, features, TILE)`."""
        carry = self.run_opening(theta, self.build_rows(x))
        workspace = self.acquire_workspace(self.plain, len(carry), self.count + 2)
        records = self.records(workspace)
        records[0, :, : carry.shape[1]] = carry
        self.run(workspace, self.plain, theta, self.n_opening, self.count, noise=self.group_noise(noise))
        return np.stack([self.extract_state(each[:, : carry.shape[1]], len(x)) for each in records[: self.count + 1]])

    def tangent(
        self, theta, theta_dot, x: np.ndarray, x_dot: np.ndarray, noise: TileNoise | None = None
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """The end state and its tangent."""
        if self.is_single:
            pair = x.reshape(len(x), -1), x_dot.reshape(len(x), -1)
            pair = self._push_rows(self.stored, theta, theta_dot, pair, 0, 1)
            return tuple(each.reshape(len(x), -1, TILE) for each in pair)
        stage = self.fit_group_size(len(x))
        pair = stage.build_rows(x), stage.build_rows(x_dot)
        if stage.has_opening:
            pair = stage._push_rows(stage.opening, theta, theta_dot, pair, 0, 1)
        drawn = stage.group_noise(noise)
        pair = stage._push_rows(stage.plain, theta, theta_dot, pair, stage.n_opening, stage.count, drawn)
        return stage.extract_state(pair[0], len(x)), stage.extract_state(pair[1], len(x))

    def _push_rows(self, layout: RowLayout, theta, theta_dot, pair, step: int, count: int, noise=NO_NOISE):
        workspace = self.acquire_workspace(layout, len(pair[0]), 2, is_dual=True)
        for is_dot in (False, True):
            self.records(workspace, is_dot)[0, :, : pair[0].shape[1]] = pair[is_dot]
        self.push(workspace, layout, theta, theta_dot, step, count, is_known=False, noise=noise)
        if self.is_single:
            start, stop = self.value_place
            found = tuple(self.records(workspace, is_dot)[0, :, start:stop].copy() for is_dot in (False, True))
        else:
            found = tuple(
                self.records(workspace, is_dot)[count % 2, :, : pair[0].shape[1]].copy() for is_dot in (False, True)
            )
        self.release_workspace(workspace)
        return found

    @property
    def value_place(self) -> tuple[int, int]:
        """Position of the value of a single chain in its record."""
        start, size = int(self.stored.program.row_place[1]), int(self.stored.program.row_size[1])
        return start, start + size

    def tape(self, tiles: int, is_dual: bool = False) -> StageTape:
        """A tape for these tiles, reused from the pool if possible."""
        with TAKING:
            tapes = self._tapes.setdefault((tiles, is_dual), [])
            if tapes:
                return tapes.pop()
        return StageTape(self, tiles, is_dual)

    def return_to_pool(self, tape: StageTape) -> None:
        """Return a tape that is no longer used to the pool."""
        key = tape.tiles, tape.is_dual
        with TAKING:
            self._tapes[key] = [tape, *self._tapes[key]][:8]

    def count_stored_bytes(self, tiles: int) -> int:
        """Bytes of the records of all steps."""
        return self.stored.record * self.dtype.itemsize * self.groups(tiles) * (self.count + 1)


def build_stage(
    field: Field | Chain, scheme_program: SchemeProgram, steps: int, length: float, depth: Depth | HeldWeights,
    dtype: np.dtype | type = np.float64, name: str = "the net",
) -> NetStage:  # fmt: skip
    """A stage of a net."""
    return NetStage(field, scheme_program, steps, length, depth, np.dtype(dtype), name=name)
