"""Blocks of steps: the unit that a gradient records and pulls back through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.adjoint.dependencies import GraphSources, find_sources, mark
from stepnet.engines.torch_engine.integrators.fixed_steps import FixedStepRun, StateRead
from stepnet.engines.torch_engine.integrators.matrix_program import RowMatrix, backward, forward, stages
from stepnet.engines.torch_engine.integrators.step_program import TensorProgram
from stepnet.engines.torch_engine.rhs.perceptrons import Perceptron, PerceptronWorkspace
from stepnet.engines.torch_engine.rhs.tensor_fields import State

Seeds = Sequence[Sequence[Tensor | None]]
Move = Callable[[tuple[Any, ...], int], tuple[Any, ...]]
"""The rows after a unit from those before it."""


class TapedRun(NamedTuple):
    """A run, the states read during it, and the tensors that its functions depend on and that need gradients.

    `renewed` builds the same run with other tensors in their place, if possible.  `is_batch` means that every row of
    the state is `(batch, features)` with independent samples.  `modules` have the buffers that the functions read and
    change.  If `is_checked`, every block must depend on these tensors and no others.
    """

    run: FixedStepRun
    readings: tuple[StateRead, ...]
    parameters: tuple[Tensor, ...]
    renewed: Callable[[Sequence[Tensor]], FixedStepRun] | None = None
    is_batch: bool = False
    modules: tuple[torch.nn.Module, ...] = ()
    is_checked: bool = False

    @property
    def first(self) -> int:
        """The first unit; an empty starting procedure is skipped."""
        return 0 if self.run.scheme_program.opening.operations else 1

    @property
    def perceptron(self) -> Perceptron | None:
        """The field, if it is a perceptron."""
        (field, *_) = self.run.functions
        return field if isinstance(field, Perceptron) else None

    @property
    def end(self) -> int:
        """The index after the last unit."""
        return self.run.place_of(self.readings[-1].step)

    def select_readings(self, first: int, last: int) -> slice:
        """Which of the states read belong to the units first..last."""
        counts = [(self.run.place_of(reading.step), reading.n) for reading in self.readings]
        is_last = last == self.end
        begin = sum(n for place, n in counts if place < first)
        return slice(begin, sum(n for place, n in counts if place < last or is_last))

    def places(self, units: range) -> list[int]:
        """The units of a block before which a state is read, and the end of the block if it is the end of the run."""
        places = [self.run.place_of(reading.step) for reading in self.readings]
        return [place for place in places if place in units or place == units.stop == self.end]

    def run_units(
        self, move: Move, rows: tuple[Any, ...], first: int, last: int
    ) -> tuple[tuple[Any, ...], list[State]]:
        """The rows after the units first..last, and the states read before each of them and at the end."""
        reads = {self.run.place_of(reading.step): reading.read for reading in self.readings}
        found: list[State] = []
        for unit in range(first, last):
            found += reads[unit](self.run.extract_state(rows)) if unit in reads else []
            rows = move(rows, unit)
        found += reads[last](self.run.extract_state(rows)) if last == self.end else []
        return rows, found


Pulled = tuple[tuple[Any, ...], Tensor | None, Sequence[Tensor | None]]
"""Gradients of the rows before a block, of the nodes and of the parameters."""


class RecordedBlock(NamedTuple):
    """A block recorded by autograd: its first rows and nodes, its last rows, and the states read.

    Its nodes were recorded after `since`.
    """

    before: tuple[Any, ...]
    nodes: Tensor | None
    after: tuple[Any, ...]
    found: list[State]
    since: int

    def sources(self, parameters: Sequence[Tensor] = ()) -> GraphSources:
        """What it depends on besides its inputs and these parameters."""
        outputs = [x for x in (*self.after, *(part for state in self.found for part in state)) if x is not None]
        inputs = [x for x in (*self.before, self.nodes) if x is not None]
        return find_sources(outputs, self.since, (*inputs, *parameters))

    def pull_back(self, taped: TapedRun, rows: tuple[Any, ...], seeds: Seeds) -> Pulled:
        """Pull back the gradients of the rows at its end and of the states read in it."""
        ends = list(zip(self.after, rows, strict=True))
        for state, bars in zip(self.found, seeds, strict=True):
            ends += zip(state, bars, strict=True)
        known = [(end, bar) for end, bar in ends if bar is not None and end.requires_grad]
        n, inputs = len(self.before), (*self.before, self.nodes, *taped.parameters)
        found = pull_back([end for end, _ in known], inputs, [bar for _, bar in known])
        return found[:n], found[n], found[n + 1 :]


class PerceptronTape(NamedTuple):
    """A block of a perceptron: its units, the rows before each of them, and the same data as a recorded block.

    The reverse sweep repeats the calls of one unit at a time.
    """

    field: Perceptron
    units: range
    before: list[tuple[Any, ...]]
    after: tuple[Any, ...]
    found: list[State]

    def pull_back(self, taped: TapedRun, rows: tuple[Any, ...], seeds: Seeds) -> Pulled:
        """Pull back the gradients of the rows at its end and of the states read in it."""
        run, (own,) = taped.run, taped.run.scheme_program.state
        read = dict(zip(taped.places(self.units), [bar for (bar,) in seeds], strict=True))
        bars = [torch.zeros_like(row) if bar is None else bar for row, bar in zip(self.after, rows, strict=True)]
        bars[own] = add(bars[own], read.get(self.units.stop))
        sweeps: dict[bool, _PerceptronBackward] = {}
        for unit, before in zip(reversed(self.units), reversed(self.before), strict=True):
            is_step = unit > 0
            sweeps[is_step] = sweep = sweeps.get(is_step) or _PerceptronBackward(
                self.field, run.script_of(unit), bars[own]
            )
            bars = sweep.run_units(before, bars, run.grid.h[run.step_of(unit)])
            bars[own] = add(bars[own], read.get(unit))
        gradients = zip(*(sweep.workspace.gradients for sweep in sweeps.values()), strict=True)
        return tuple(bars), None, [sum(parts) for parts in gradients]


class _PerceptronBackward:
    """Pullback of a unit of a perceptron: its calls are repeated and pulled back."""

    def __init__(self, field: Perceptron, script: TensorProgram, like: Tensor):
        self.stages, self.backward = RowMatrix(stages(script), like), RowMatrix(backward(script), like)
        self.workspace = PerceptronWorkspace(field, self.backward.program.n_calls, like.shape[1])

    def run_units(self, before: tuple[Any, ...], bars: list[Any], h: float) -> list[Any]:
        self.stages.run(before, h, self.workspace.write)
        bars = self.backward.run(bars, h, self.workspace.backward)
        self.workspace.sum_up()
        return bars


def make_leaf(x: Tensor | None) -> Tensor | None:
    """A detached copy of a tensor as a leaf of a new graph."""
    return None if x is None else x.detach().requires_grad_()


def detach(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if row is None else row.detach() for row in rows)


def record(taped: TapedRun, rows: tuple[Any, ...], first: int, last: int) -> RecordedBlock | PerceptronTape:
    """Run and record the units first..last from these rows."""
    if (field := taped.perceptron) is not None:
        return extend(taped, PerceptronTape(field, range(first, first), [], rows, []), first, last)
    before, nodes = tuple(make_leaf(row) for row in rows), taped.run.grid.nodes
    return extend(taped, RecordedBlock(before, make_leaf(nodes), before, [], mark()), first, last)


def extend(
    taped: TapedRun, block: RecordedBlock | PerceptronTape, first: int, last: int
) -> RecordedBlock | PerceptronTape:
    """A block with the units first..last appended, if there are any."""
    if first == last:
        return block
    if isinstance(block, PerceptronTape):
        return _extend_tape(taped, block, range(first, last))
    with torch.enable_grad():
        after, found = taped.run_units(taped.run.restrict(block.nodes, first, last).unit, block.after, first, last)
    return block._replace(after=after, found=[*block.found, *found])


def _extend_tape(taped: TapedRun, tape: PerceptronTape, units: range) -> PerceptronTape:
    """A tape with these units appended."""
    before, run, like = list(tape.before), taped.run, tape.after[taped.run.scheme_program.state[0]]
    workspace, sheets = PerceptronWorkspace(tape.field, 1, like.shape[1]), dict[bool, RowMatrix]()

    def move(rows: tuple[Any, ...], unit: int) -> tuple[Any, ...]:
        before.append(rows)
        sheet = sheets[unit > 0] = sheets.get(unit > 0) or RowMatrix(forward(run.script_of(unit)), like)
        return tuple(sheet.run(rows, run.grid.h[run.step_of(unit)], workspace.call))

    after, found = taped.run_units(move, tape.after, units.start, units.stop)
    return PerceptronTape(tape.field, range(tape.units.start, units.stop), before, after, [*tape.found, *found])


class BlockGradients:
    """Gradients in the reverse sweep: of the current rows, and the sums for parameters and nodes."""

    def __init__(self, taped: TapedRun):
        self.taped = taped
        self.rows: tuple[Any, ...] = (None,) * len(taped.run.scheme_program.step.outputs)
        self.parameters: list[Tensor | None] = [None] * len(taped.parameters)
        self.nodes: Tensor | None = None

    def pull(self, block: RecordedBlock | PerceptronTape, seeds: Seeds) -> None:
        """Pull back through a block; `seeds` are the gradients with respect to the states read in it."""
        self.rows, nodes, parameters = block.pull_back(self.taped, self.rows, seeds)
        self.nodes = add(self.nodes, nodes)
        self.parameters = [add(a, b) for a, b in zip(self.parameters, parameters, strict=True)]


def pull_back(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor | None], bars: Sequence[Any], **how: Any
) -> tuple[Any, ...]:
    """`torch.autograd.grad`, with None for inputs that are None, frozen or unused."""
    is_wanted = [x is not None and x.requires_grad for x in inputs]
    wanted = [x for x, wants in zip(inputs, is_wanted, strict=True) if wants]
    if not outputs or not wanted:
        return (None,) * len(inputs)
    found = iter(torch.autograd.grad(outputs, wanted, bars, allow_unused=True, **how))  # type: ignore[arg-type]
    return tuple(next(found) if wants else None for wants in is_wanted)


def add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def weigh(taped: TapedRun, state: State, rows: tuple[Any, ...]) -> tuple[RecordedBlock | PerceptronTape, int]:
    """Record the first unit; also the bytes of everything its graph stores except parameters and state."""
    sizes: dict[int, int] = {}
    strange = {key for x in (*taped.parameters, *state) for key in _find_storages(x)}

    def pack(x: Tensor) -> Tensor:
        sizes.update({key: size for key, size in _find_storages(x).items() if key not in strange})
        return x.detach()  # the tensor itself would form a reference cycle with its graph

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        block = record(taped, rows, taped.first, taped.first + 1)
    if isinstance(block, PerceptronTape):
        return block, sum(row.nbytes for row in block.after)
    return block, sum(sizes.values())


def _find_storages(x: Tensor) -> dict[int, int]:
    """The storages of a tensor and their sizes in bytes; a sparse tensor has several."""
    if x.layout == torch.strided:
        storage = x.untyped_storage()
        return {storage._cdata: storage.nbytes()}
    if x.layout == torch.sparse_coo:
        return _find_storages(x._indices()) | _find_storages(x._values())
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return _find_storages(x.crow_indices()) | _find_storages(x.col_indices()) | _find_storages(x.values())
    if x.layout in (torch.sparse_csc, torch.sparse_bsc):
        return _find_storages(x.ccol_indices()) | _find_storages(x.row_indices()) | _find_storages(x.values())
    return {id(x): x.numel() * x.element_size()}
