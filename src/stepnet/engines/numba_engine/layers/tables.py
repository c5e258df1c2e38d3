"""Tables that the kernels of `layer_kernels` read, built from records: chains, programs and memory layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.engines.numba_engine.layers import chains as columns
from stepnet.engines.numba_engine.layers import layer_kernels
from stepnet.engines.numba_engine.layers.instructions import (
    drop_copies,
    fuse_sums,
    tabulate,
    write_forward,
    write_reverse,
)
from stepnet.engines.numba_engine.layers.matrix_products import TILE
from stepnet.fields import Attention, Chain, Depth, Field, Fixed, HeldWeights, Mixing, Normalisation
from stepnet.schemes.step_program import Noise, Product, SchemeProgram, Slope, StepProgram

if TYPE_CHECKING:
    from stepnet.engines.numba_engine.layers.implicit.implicit_steps import ImplicitLayers

ONCE = StepProgram(1, (Slope(0, 0, 0.0),), (1,))
"""A single chain: the new state is its value."""


def tabulate_chains(
    parts: Sequence[Chain], parameters: dict, controls: int, group: int, dtype: np.dtype
) -> columns.Chains:
    """The layers of all parts as numbers; tiles that run in a group are treated as nodes."""
    sparse, slots = _Operators(), _ParameterSlots(parameters, controls)
    rows, shifts, eps = [], [], []
    for chain in parts:
        tape = 0
        for layer in chain.layers:
            row = _tabulate_layer(layer, slots, sparse)
            for column in (columns.NODES_IN, columns.NODES_OUT, columns.N_IN, columns.N_OUT, columns.BIAS_NODES):
                row[column] *= group
            row[columns.TAPE], tape = tape, tape + layer.n_out * group * TILE
            row[columns.SLOPES] = -1
            if not layer.activation.from_value:
                row[columns.SLOPES], tape = tape, tape + layer.n_out * group * TILE
            rows.append(row)
            shifts.append(layer.shift)
            eps.append(getattr(layer.connectivity, "eps", 0.0))
    first = [0, *accumulate(len(chain.layers) for chain in parts)]
    return columns.Chains(
        np.array(first, np.int64), np.array([chain.sign for chain in parts], dtype), np.array(rows, np.int64),
        np.array(shifts, dtype), np.array(eps, dtype), *sparse.arrays(dtype), slots.table,
    )  # fmt: skip


def _tabulate_layer(layer, slots: _ParameterSlots, sparse: _Operators) -> list[int]:
    K, row = layer.connectivity, [0] * columns.N_COLUMNS
    operators: tuple[Any, ...] = ()
    mirror = K.mirror if layer.is_antisymmetric else None
    if isinstance(K, Mixing):
        kind, channels, operators = columns.MIXING, (K.channels_in, K.channels_out), K.operators
        nodes = K.nodes_in, K.nodes_out
    elif isinstance(K, Fixed):
        kind, channels, operators = columns.FIXED, (K.channels, K.channels), (K.operator,)
        nodes = K.operator.shape[::-1]
    elif isinstance(K, Normalisation):
        kind, channels, nodes = columns.NORMALISATION, (K.channels, K.channels), (K.nodes, K.nodes)
        row[columns.IS_CENTRED] = int(K.is_centred)
    else:
        kind, channels, nodes = columns.ATTENTION, (K.channels, K.channels), (K.tokens, K.tokens)
        row[columns.HEADS], row[columns.IS_CAUSAL] = K.heads, int(K.is_causal)
    tap0 = sparse.add(operators, mirror)
    row[: columns.TAP0 + 1] = [kind, *channels, *nodes, len(operators), tap0]
    row[columns.WEIGHTS] = slots.number(layer.weights, mirror, channels[0], tap0)
    row[columns.BIAS], row[columns.CLOCK] = slots.number(layer.bias), slots.number(layer.clock)
    row[columns.ACTIVATION], row[columns.IS_TRANSPOSED] = layer.activation.number, int(layer.is_transposed)
    row[columns.N_IN], row[columns.N_OUT], row[columns.BIAS_NODES] = layer.n_in, layer.n_out, layer.bias_nodes
    return row


class _ParameterSlots:
    """Parameters as layers read them: a K used both as K and as K - K' has a slot for each."""

    def __init__(self, parameters: dict[str, tuple[int, ...]], controls: int):
        sizes = [int(np.prod(shape)) for shape in parameters.values()]
        starts = [0, *accumulate(size * controls for size in sizes)]
        self._places = dict(zip(parameters, zip(starts, sizes, strict=False), strict=True))
        self._numbers: dict[tuple, int] = {}
        self._rows: list[tuple[int, ...]] = []

    def number(self, name: str | None, mirror: tuple[int, ...] | None = None, channels: int = 0, tap0: int = 0) -> int:
        """The slot of a parameter, or of K - K' if there is a mirror; -1 if there is no such parameter."""
        if name not in self._places:
            return -1
        key = name, mirror
        if key not in self._numbers:
            self._numbers[key] = len(self._rows)
            pairs = (0, 0, 0) if mirror is None else (channels, len(mirror), tap0)
            self._rows.append((*self._places[name], *pairs))
        return self._numbers[key]

    @property
    def table(self) -> np.ndarray:
        return np.array(self._rows, np.int64).reshape(-1, 5)


class _Operators:
    """Operators on nodes, each with its transpose, stored consecutively."""

    def __init__(self):
        self.taps, self.mirror, self.ptr, self.ind, self.val = [], [], [], [], []

    def add(self, operators, mirror) -> int:
        first = len(self.taps)
        for number, P in enumerate(operators):
            is_identity = P.shape[0] == P.shape[1] and P.nnz == P.shape[0] and abs(P.diagonal() - 1).max() == 0
            self.taps.append([int(is_identity), *self._rows(P), *self._rows(P.T.tocsr())])
            self.mirror.append(mirror[number] if mirror is not None else -1)
        return first

    def _rows(self, P) -> tuple[int, int]:
        place = len(self.ptr), len(self.ind)
        self.ptr += P.indptr.tolist()
        self.ind += P.indices.tolist()
        self.val += P.data.tolist()
        return place

    def arrays(self, dtype: np.dtype) -> tuple[np.ndarray, ...]:
        taps = np.array(self.taps, np.int64).reshape(-1, 5)
        whole = [np.array(each, np.int64) for each in (self.mirror, self.ptr, self.ind)]
        return taps, *whole, np.array(self.val, dtype)


class RowLayout(NamedTuple):
    """A program with the offsets of its rows, and the sizes of a record, of a state's gradients and of the scratch.

    Steps of an implicit program are those of `implicit`, and there is nothing in the program of the kernels.
    """

    program: layer_kernels.LayerProgram
    record: int
    bar_size: int
    scratch: int
    implicit: ImplicitLayers | None = None


_NOTHING: Any = [np.zeros(0, np.int64)] * (len(layer_kernels.LayerProgram._fields) - 2)
EMPTY_PROGRAM = layer_kernels.LayerProgram(*_NOTHING, 1, 0)


def lay_out(
    program: StepProgram, field: Field | Chain, steps: LayerSteps, dtype: np.dtype, is_stored: bool
) -> RowLayout:
    """Lay out the rows of a program; `is_stored` keeps in the record what the reverse run needs."""
    return _lay_out(program, _RowOffsets(program, field, is_stored, steps.group), field, steps, dtype)


def lay_out_inverse(scheme_program: SchemeProgram, field: Field, steps: LayerSteps, dtype: np.dtype) -> RowLayout:
    """Lay out an inverted step, which leaves in its record what the forward step had left there.

    The previous step is then inverted in the previous record, which receives the tapes of slopes that it passed on.
    """
    rows = _InverseRows(scheme_program, _RowOffsets(scheme_program.step, field, True, steps.group))
    if not rows.is_complete:
        raise ValueError("the inverse step of this scheme does not compute all the values of the step")
    return _lay_out(scheme_program.back, rows, field, steps, dtype)


def _lay_out(
    program: StepProgram, rows: _RowOffsets | _InverseRows, field, steps: LayerSteps, dtype: np.dtype
) -> RowLayout:
    parts = field.chains if isinstance(field, Field) else (field,)
    forward = tabulate(fuse_sums(write_forward(program, rows, steps.h)), dtype)
    reverse = tabulate(drop_copies(write_reverse(program, rows, steps.h)), dtype)
    slopes = [operation for operation in program.operations if isinstance(operation, Slope)]
    numbers = np.arange(steps.count)[:, None]
    times = steps.t(numbers, np.array([slope.c for slope in slopes]))
    middles = steps.t(numbers, np.array([slope.step + 0.5 for slope in slopes]))
    first, basis = steps.depth.stage_basis(times.ravel() / steps.length, middles.ravel() / steps.length)
    is_direct = steps.depth.degree == 0 and not any(layer.is_antisymmetric for part in parts for layer in part.layers)
    chains = [field.find_chain(slope.part) if len(parts) > 1 else 0 for slope in slopes]
    offsets: Any = (*rows.places(), *rows.bars(), *rows.tapes())
    tables = layer_kernels.LayerProgram(
        forward, reverse, *offsets, np.array(chains, np.int64), times,
        first.reshape(times.shape), basis.reshape(*times.shape, basis.shape[1]).astype(dtype), int(is_direct),
        rows.wanted,
    )  # fmt: skip
    return RowLayout(tables, rows.record, rows.bar_size, max(rows.scratch, rows.bar_scratch))


class LayerSteps(NamedTuple):
    """Equal steps of length h from 0 to `length`, the weights along them, and how many tiles run side by side."""

    count: int  # type: ignore[assignment]
    h: float
    length: float
    depth: Depth | HeldWeights
    group: int = 1

    def t(self, step, c):
        return (step + c) * self.h


class _RowOffsets:
    """The rows of a program: their sizes, which of them are outputs, and the offsets of rows, gradients and tapes.

    The rows of the program are followed by those of the state after the step, to which rows that are passed on are
    copied.  A single chain (`field` is a Chain) has its value in the record, as nothing follows it.
    """

    def __init__(self, program: StepProgram, field: Any, is_stored: bool, group: int):
        self.n_state, self.outputs, self.is_stored = program.n_rows, program.outputs, is_stored
        self.slopes = [i for i, operation in enumerate(program.operations) if isinstance(operation, Slope)]
        is_single = isinstance(field, Chain)
        chains = [field if is_single else field.chain(program.operations[i].part) for i in self.slopes]
        width = (field.n_in if is_single else field.row_size) * group * TILE
        self.sizes = [width] * (self.n_state + len(program.operations))
        for i, chain in zip(self.slopes, chains, strict=True):
            self.sizes[self.n_state + i] = chain.n_out * group * TILE
        self.n_rows = len(self.sizes)
        self.sizes += self.sizes[: self.n_state]
        self.passed = {} if is_single else _find_passed(program)
        kept = {program.operations[i].row for i in self.slopes if is_stored}
        for i, chain in zip(self.slopes, chains, strict=True):
            if is_single or (is_stored and chain.layers[-1].activation.name != "identity"):
                kept.add(self.n_state + i)
        self.finals = {self.n_state} if is_single else set()
        self.copied = [] if is_single else [j for j, row in enumerate(self.outputs) if self.passed.get(row) != j]
        self.record, self.scratch, self.bar_scratch = 0, 0, 0
        self.state_places = [self._allocate_in_record(size) for size in self.sizes[: self.n_state]]
        self.bar_size = self.record + sum(self.sizes[row] for row in self.finals)
        self.row_places = [self._choose_place(row, kept) for row in range(len(self.sizes))]
        place = self._allocate_in_record if is_stored else self._allocate_in_scratch
        here = [start for kind, start in map(self.row_places.__getitem__, kept) if kind == layer_kernels.HERE]
        self.wanted = min(here, default=self.record)
        self.tape_places = [place(_count_tape(chain) * group) for chain in chains]

    def _allocate_in_record(self, size: int) -> int:
        self.record += size
        return self.record - size

    def _allocate_in_scratch(self, size: int) -> int:
        self.scratch += size
        return self.scratch - size

    def _allocate_in_bar_scratch(self, size: int) -> int:
        self.bar_scratch += size
        return self.bar_scratch - size

    def _find_in_state(self, row: int) -> tuple[int, int] | None:
        """The position of a row in the state before or after the step, if it is there."""
        if row < self.n_state:
            return layer_kernels.HERE, self.state_places[row]
        if row in self.passed:
            return layer_kernels.NEXT, self.state_places[self.passed[row]]
        if row >= self.n_rows:
            return layer_kernels.NEXT, self.state_places[row - self.n_rows]
        return None

    def _choose_place(self, row: int, kept: set[int]) -> tuple[int, int]:
        if row in kept and self._find_in_state(row) is None:
            return layer_kernels.HERE, self._allocate_in_record(self.sizes[row])
        return self._find_in_state(row) or (layer_kernels.SCRATCH, self._allocate_in_scratch(self.sizes[row]))

    def _choose_bar_place(self, row: int) -> tuple[int, int]:
        if row in self.finals:
            return layer_kernels.HERE, self.bar_size - self.sizes[row]
        return self._find_in_state(row) or (layer_kernels.SCRATCH, self._allocate_in_bar_scratch(self.sizes[row]))

    def places(self) -> tuple[np.ndarray, ...]:
        return _tabulate_places(self.row_places, self.sizes)

    def bars(self) -> tuple[np.ndarray, ...]:
        kinds, places = np.array([self._choose_bar_place(row) for row in range(len(self.sizes))], np.int64).T.copy()
        return kinds, places

    def tapes(self) -> tuple[np.ndarray, ...]:
        kind = layer_kernels.HERE if self.is_stored else layer_kernels.SCRATCH
        return np.full(len(self.tape_places), kind, np.int64), np.array(self.tape_places, np.int64)


def _find_passed(program: StepProgram) -> dict[int, int]:
    """Rows computed in a step that are written directly into the state of the next step."""
    found: dict[int, int] = {}
    for place, row in enumerate(program.outputs):
        if row >= program.n_rows:
            found.setdefault(row, place)
    return found


def _tabulate_places(places: list[tuple[int, int]], sizes: list[int]) -> tuple[np.ndarray, ...]:
    """Kinds and offsets of rows, and their sizes."""
    kinds, offsets = np.array(places, np.int64).T.copy()
    return kinds, offsets, np.array(sizes, np.int64)


class _InverseRows:
    """Rows of the program that inverts a step, at the offsets that they have in the step itself."""

    def __init__(self, scheme_program: SchemeProgram, done: _RowOffsets):
        back, (n_state, matches) = scheme_program.back, _find_matches(scheme_program)
        self.record, self.bar_size, self.scratch, self.bar_scratch = done.record, done.bar_size, done.scratch, 0
        self.wanted = done.wanted
        self.n_rows = len(matches)
        self.passed: dict[int, int] = {}
        self.finals: set[int] = set()
        self.slopes = [i for i, operation in enumerate(back.operations) if isinstance(operation, Slope)]
        self.row_places = [(layer_kernels.NEXT, done.state_places[row]) for row in range(n_state)]
        self.row_places += [done.row_places[match] if match is not None else (-1, 0) for match in matches[n_state:]]
        self.row_places += [(layer_kernels.HERE, place) for place in done.state_places]
        self.sizes = [*done.sizes[: len(matches)], *done.sizes[:n_state]]
        targets = self.row_places[self.n_rows :]
        self.copied = [j for j, row in enumerate(back.outputs) if self.row_places[row] != targets[j]]
        numbers = {row: number for number, row in enumerate(n_state + i for i in done.slopes)}
        self.tape_places = []
        for row, operation in enumerate(back.operations, n_state):
            if isinstance(operation, Slope):
                match = matches[row]
                kind = layer_kernels.HERE
                if match is not None and match < n_state:  # the slope was passed on by the previous step
                    kind, match = layer_kernels.PREVIOUS, scheme_program.step.outputs[match]
                self.tape_places.append((kind, done.tape_places[numbers[match]]) if match in numbers else (-1, 0))
        places = {*self.row_places, *((layer_kernels.HERE, place) for place in done.state_places)}
        wanted = {place for place in done.row_places if place[0] == layer_kernels.HERE}
        is_known = all(place[0] >= 0 for place in (*self.row_places, *self.tape_places))
        tapes = {place for _, place in self.tape_places}
        self.is_complete = is_known and wanted <= places and tapes == set(done.tape_places)

    def places(self) -> tuple[np.ndarray, ...]:
        return _tabulate_places(self.row_places, self.sizes)

    def bars(self) -> tuple[np.ndarray, ...]:
        """Empty: the adjoint of an inverted step is not needed."""
        return np.zeros(len(self.sizes), np.int64), np.zeros(len(self.sizes), np.int64)

    def tapes(self) -> tuple[np.ndarray, ...]:
        kinds, places = np.array(self.tape_places, np.int64).reshape(-1, 2).T.copy()
        return kinds, places


def _find_matches(scheme_program: SchemeProgram) -> tuple[int, list[int | None]]:
    """For every row of the inverse program, the row of the step that equals it, found by comparing values."""
    begun, n = scheme_program.opening.steps, scheme_program.step.n_rows
    state = _evaluate_rows(scheme_program.opening, [0.3 + 0.1 * row for row in range(n)], 0)[1]
    state = _evaluate_rows(scheme_program.step, state, begun)[1]
    done, after = _evaluate_rows(scheme_program.step, state, begun + 1)
    undone, _ = _evaluate_rows(scheme_program.back, after, begun + 1)

    def match(value):
        return next((row for row, other in enumerate(done) if abs(value - other) < 1e-9), None)

    return n, [match(value) for value in undone]


def _evaluate_rows(program: StepProgram, rows: list[float], step: int) -> tuple[list[float], list[float]]:
    """All rows of a program, and those of the new state, for some scalar right-hand side."""
    made, h = list(rows), 0.1
    for operation in program.operations:
        if isinstance(operation, Slope):
            made.append(math.sin(1.7 * made[operation.row] + operation.part + 0.4 * (step + operation.c)) + 0.3)
        elif isinstance(operation, Noise):
            made.append(0.23 + 0.4 * step)
        elif isinstance(operation, Product):
            made.append(made[operation.diffusion] * made[operation.noise])
        else:
            made.append(sum((term.weight * h**term.power * made[term.row] for term in operation.terms), 0.0))
    return made, [made[row] for row in program.outputs]


def _count_tape(chain: Chain) -> int:
    """Tape size: values of all layers but the last, which is the slope, and derivatives not given by values."""
    rows = [layer.n_out * (1 if layer.activation.from_value else 2) for layer in chain.layers]
    if chain.layers[-1].activation.from_value:
        rows[-1] = 0
    return sum(rows) * TILE


def count_work(parts: Sequence[Chain]) -> tuple[int, int]:
    """Sizes of an inner gradient, and of all scratch that a chain needs."""
    widest, extra = 0, 0
    for chain in parts:
        for layer in chain.layers:
            K = layer.connectivity
            widest = max(widest, layer.n_in, layer.n_out)
            if isinstance(K, Attention):
                extra = max(extra, 5 * K.n_in + 2 * K.heads * K.tokens**2)
            elif isinstance(K, Normalisation):
                extra = max(extra, 3 * K.nodes)
            elif isinstance(K, Mixing):
                channels, nodes = max(K.channels_in, K.channels_out), max(K.nodes_in, K.nodes_out)
                extra = max(extra, channels * nodes)
    return widest * TILE, (3 * widest + extra) * TILE
