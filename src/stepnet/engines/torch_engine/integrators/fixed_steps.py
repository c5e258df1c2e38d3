"""Steps of given length, for every family: the program of a scheme's step again and again.

Nothing in the loop asks a tensor for its value, so it runs on tensors without values, is captured and compiled whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.codegen.constants import build_from_constants
from stepnet.engines.torch_engine.integrators.step_control import Watch, watch_nothing
from stepnet.engines.torch_engine.integrators.step_program import (
    Rows,
    SlopeNode,
    TensorProgram,
    build_tensor_program,
    execute,
)
from stepnet.engines.torch_engine.rhs.tensor_fields import (
    Field,
    SecondOrder,
    Split,
    State,
    join,
    part,
    validate_function,
)
from stepnet.schemes import catalogue
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.step_program import SchemeProgram, build_scheme_program


@dataclass(frozen=True)
class _UniformTimes:
    """first, first + h, first + 2 h, ... without an end."""

    first: float
    h: float

    def __getitem__(self, i: int) -> float:
        return self.first + i * self.h


class StepGrid(NamedTuple):
    """Times of the steps and their lengths by number: floats, or tensors nobody has read, perhaps made from `nodes`."""

    t: Any
    h: Any
    nodes: Tensor | None = None

    def times(self, step: int, nodes: tuple[SlopeNode, ...], like: Tensor) -> list[Tensor]:
        """t + c h for all nodes of a step, as tensors without dimensions, in the precision of the state."""
        t, h, real, device = self.t[step], self.h[step], like.real.dtype, like.device
        if isinstance(h, Tensor):
            at = [t if c == 0.0 else torch.add(t, h, alpha=c) for c, _ in nodes]
            return [(x if x.requires_grad else x.detach()).to(real) for x in at]  # functions may change their own
        return [torch.full((), t + c * h, dtype=real, device=device) for c, _ in nodes]


def build_endless_grid(t: float, h: float) -> StepGrid:
    """Even steps from t on."""
    return StepGrid(_UniformTimes(t, h), _UniformTimes(h, 0.0))


def build_grid_of_numbers(times: Sequence[float]) -> StepGrid:
    """A grid of plain numbers."""
    return StepGrid(times, [b - a for a, b in pairwise(times)])


def build_grid_of_tensor(times: Tensor) -> StepGrid:
    """A grid whose values are not read."""
    return StepGrid(times.unbind(), times.diff().unbind(), times)


class EvaluationOptions(NamedTuple):
    """How functions are called: in which dtype, whether beside the ends of a step and not at them, watched by whom.

    Those that do not look at the time are told none.
    """

    dtype: torch.dtype | None = None
    is_beside: bool = False
    watch: Watch = watch_nothing
    is_timeless: bool = False


PLAIN = EvaluationOptions()


class CompiledScheme(NamedTuple):
    """How a scheme moves a kind of field, whether part by part, and its programs made ready."""

    motion: SchemeProgram
    is_parted: bool
    opening: TensorProgram
    step: TensorProgram
    back: TensorProgram | None


class StateRead(NamedTuple):
    """What is wanted of the state after `step` steps: the `n` states that `read` makes from it."""

    step: int
    read: Callable[[State], list[State]]
    n: int = 1


def read_state(state: State) -> list[State]:
    """Read the state as it is."""
    return [state]


class FixedStepRun(NamedTuple):
    """A run with given steps: what moves, by which functions, over which grid; unit 0 is the opening."""

    field: Field
    moves: CompiledScheme
    functions: tuple[Callable, ...]
    grid: StepGrid
    manner: EvaluationOptions = PLAIN

    @property
    def motion(self) -> SchemeProgram:
        return self.moves.motion

    def spread(self, state: State) -> tuple[Tensor | None, ...]:
        """The rows of the opening; those it fills are None."""
        own = state if self.moves.is_parted else (join(self.field, state),)
        rows: list[Tensor | None] = [None] * self.motion.opening.n_rows
        for place, tensor in zip(self.motion.state, own, strict=True):
            rows[place] = tensor
        return tuple(rows)

    def own(self, rows: tuple) -> State:
        """The state among the rows of a program."""
        state = tuple(rows[place] for place in self.motion.state)
        return state if self.moves.is_parted else part(self.field, state[0])

    def unit(self, rows, index: int) -> Rows:
        """The rows after unit `index`, from those before it."""
        script, step = self.script_of(index), self.step_of(index)
        if self.manner.watch is not watch_nothing and script.operations:
            self.manner.watch("step", self.grid.t[step], join(self.field, self.own(rows)), self.grid.h[step])
        return self._run(script, rows, step)

    def script_of(self, unit: int) -> TensorProgram:
        """What a unit does."""
        return self.moves.step if unit else self.moves.opening

    def undo(self, rows, index: int) -> Rows:
        """The rows before unit `index`, which is a step, from those after it, up to rounding."""
        return self._run(self.moves.back, rows, self.step_of(index))  # type: ignore[arg-type]

    def _run(self, script: TensorProgram, rows, step: int) -> Rows:
        if not script.operations:
            return tuple(rows[row] for row in script.outputs)
        if self.manner.is_timeless:
            return execute(script, self.functions, rows, [None] * len(script.nodes), self.grid.h[step])
        like = rows[self.motion.state[0]]
        times = self.grid.times(step, script.nodes, like)
        if self.manner.is_beside:
            times = _shift_times(times, script.nodes, self.grid.t[step], self.grid.t[step + 1], like)
        return execute(script, self.functions, rows, times, self.grid.h[step])

    def place_of(self, step: int) -> int:
        """The number of units after which step `step` is done."""
        return step - self.motion.opening.steps + 1

    def step_of(self, unit: int) -> int:
        """The number of the first step of a unit."""
        return self.motion.opening.steps + unit - 1 if unit else 0

    def over(self, nodes: Tensor | None, first: int, last: int) -> FixedStepRun:
        """The same run for the units first..last, with times from another tensor of all nodes."""
        if nodes is None:
            return self
        begin, end = self.step_of(first), self.step_of(last - 1) + 1
        part = nodes[begin : end + 1]
        t = dict(zip(range(begin, end + 1), part.unbind(), strict=True))
        h = dict(zip(range(begin, end), part.diff().unbind(), strict=True))
        return self._replace(grid=StepGrid(t, h, nodes))


def _shift_times(times: list[Tensor], nodes: tuple[SlopeNode, ...], t, t_new, like: Tensor) -> list[Tensor]:
    """The same with the number after t for the beginning of a step, and the one before `t_new` for its end."""
    start, end = (torch.as_tensor(x, dtype=like.real.dtype, device=like.device) for x in (t, t_new))
    with torch.no_grad():
        moves = torch.nextafter(start, end) - start, torch.nextafter(end, start) - end
    moved = {0.0: start + moves[0], 1.0: end + moves[1]}
    return [moved.get(node.c, time) for node, time in zip(nodes, times, strict=True)]


def find_compiled_scheme(scheme, field: Field) -> CompiledScheme:
    """How a scheme moves a field; numbers only, so that compilers take it for a constant."""
    form = len(field.functions), type(field) is Split, type(field) is SecondOrder, field.is_separable
    if torch.compiler.is_compiling():
        return _compile_scheme_by_name(scheme.name, *form)
    return _compile_scheme(scheme, *form)


def _compile_scheme(scheme, n: int, is_sum: bool, is_second: bool, is_separable: bool) -> CompiledScheme:
    is_parted = is_separable and (
        isinstance(scheme, Splitting) or (isinstance(scheme, Multistep) and scheme.derivative == 2 and is_second)
    )
    return compile_program(build_scheme_program(scheme, n, is_sum, is_second), is_parted)


def compile_program(motion: SchemeProgram, is_parted: bool) -> CompiledScheme:
    """A motion made ready."""
    back = build_tensor_program(motion.back) if motion.back else None
    return CompiledScheme(
        motion, is_parted, build_tensor_program(motion.opening), build_tensor_program(motion.step), back
    )


@build_from_constants
def _compile_scheme_by_name(name: str, *form) -> CompiledScheme:
    return _compile_scheme(catalogue.get(name), *form)


def build_fixed_run(field: Field, scheme, grid: StepGrid, manner: EvaluationOptions = PLAIN) -> FixedStepRun:
    """A run of a scheme; without a dtype functions are evaluated in that of the state."""
    moves = find_compiled_scheme(scheme, field)
    functions = field.functions if moves.is_parted else (field.whole,)
    return FixedStepRun(field, moves, tuple(validate_function(f, manner.dtype) for f in functions), grid, manner)


def read_states_at(run: FixedStepRun, state: State, readings: Sequence[StateRead]) -> list[State]:
    """What is read after these numbers of steps, which ascend and lie behind the opening."""
    rows: tuple = run.spread(state)
    found, done = [], 0
    for step, read, _ in readings:
        for unit in range(done, run.place_of(step)):
            rows = run.unit(rows, unit)
        done = run.place_of(step)
        found += read(run.own(rows))
    return found


def read_each_state(run: FixedStepRun, scheme, state: State) -> Iterator[tuple[int, State]]:
    """Step after step without an end; those inside the opening of a multistep scheme come from its starter."""
    n_opening = run.motion.opening.steps
    if n_opening > 1:
        starting = run._replace(moves=find_compiled_scheme(scheme.starter, run.field))
        yield from islice(read_each_state(starting, scheme.starter, state), n_opening - 1)
    rows: tuple = run.spread(state)
    for unit in count():
        rows = run.unit(rows, unit)
        if unit + n_opening > 0:
            yield unit + n_opening, run.own(rows)


def split_at_opening(
    run: FixedStepRun, scheme, readings: Sequence[StateRead]
) -> tuple[FixedStepRun, Sequence, Sequence]:
    """The run that gives the states inside the opening of a multistep scheme, those readings, and the later ones."""
    n_opening = run.motion.opening.steps
    early, starting = [reading for reading in readings if reading.step < n_opening], run
    if early:
        starting = run._replace(moves=find_compiled_scheme(scheme.starter, run.field))
    return starting, early, readings[len(early) :]
