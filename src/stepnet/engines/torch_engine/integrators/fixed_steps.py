"""Fixed steps for every family: the step program of a scheme, repeated.

The loop never reads the value of a tensor, so it runs on tensors without values and can be captured and compiled whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise
from math import ceil, isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stepnet.engines.torch_engine.codegen.constants import build_from_constants
from stepnet.engines.torch_engine.integrators.implicit_stages import TO_ROUNDING, NewtonSettings
from stepnet.engines.torch_engine.integrators.step_control import Watch, watch_nothing
from stepnet.engines.torch_engine.integrators.step_program import (
    Rows,
    SlopeNode,
    TensorProgram,
    build_tensor_program,
    execute,
)
from stepnet.engines.torch_engine.random.step_noise import StepNoise
from stepnet.engines.torch_engine.rhs.tensor_fields import (
    Field,
    State,
    join,
    split,
    validate_function,
)
from stepnet.problem import ProblemForm
from stepnet.schemes import catalogue
from stepnet.schemes.capabilities import moves_parts
from stepnet.schemes.step_program import SchemeProgram, build_scheme_program


@dataclass(frozen=True)
class _UniformTimes:
    """The infinite sequence first, first + h, first + 2 h, ..."""

    first: float
    h: float

    def __getitem__(self, i: int) -> float:
        return self.first + i * self.h


class StepGrid(NamedTuple):
    """Times and lengths of the steps by index: floats, or tensors that are not read, possibly computed from `nodes`."""

    t: Any
    h: Any
    nodes: Tensor | None = None

    def times(self, step: int, nodes: tuple[SlopeNode, ...], like: Tensor) -> list[Tensor]:
        """t + c h for all nodes of a step, as scalar tensors in the precision of the state."""
        t, h, real, device = self.t[step], self.h[step], like.real.dtype, like.device
        if isinstance(h, Tensor):
            at = [t if c == 0.0 else torch.add(t, h, alpha=c) for c, _ in nodes]
            return [(x if x.requires_grad else x.detach()).to(real) for x in at]  # functions may modify their argument
        return [torch.full((), t + c * h, dtype=real, device=device) for c, _ in nodes]


def build_endless_grid(t: float, h: float) -> StepGrid:
    """Equal steps from t on."""
    return StepGrid(_UniformTimes(t, h), _UniformTimes(h, 0.0))


def build_grid_of_numbers(times: Sequence[float]) -> StepGrid:
    """A grid of plain numbers."""
    return StepGrid(times, [b - a for a, b in pairwise(times)])


def build_grid_of_tensor(times: Tensor) -> StepGrid:
    """A grid whose values are not read."""
    return StepGrid(times.unbind(), times.diff().unbind(), times)


def read_numbers(t: Tensor) -> list[float]:
    """Times as numbers, strictly monotone."""
    times = t.tolist()
    if not all(map(isfinite, times)):
        raise ValueError(f"`t` must be finite, found {times[:6]}; for a solve of unknown length use `odeint_event`")
    steps = [b - a for a, b in pairwise(times)]
    if not (all(step > 0 for step in steps) or all(step < 0 for step in steps)):
        raise ValueError(f"`t` must be strictly increasing or decreasing, found {times[:6]}")
    return times


def build_even_grid(times: list[float], step_size: float | Tensor) -> list[float]:
    """Steps of one size from the first time on, the last one shorter, as in torchdiffeq."""
    h = float(step_size)
    if not h > 0:
        raise ValueError(f"`step_size` must be positive, found {step_size}")
    span = times[-1] - times[0]
    n = ceil(abs(span) / h)
    signed = h if span > 0 else -h
    return [*(times[0] + i * signed for i in range(n)), times[-1]]


class EvaluationOptions(NamedTuple):
    """How functions are called: the dtype, whether just inside a step instead of at its ends, and the callback `watch`.

    If `is_timeless`, functions do not depend on time and are called without it.  `newton` holds the convergence
    criteria of implicit stages.
    """

    dtype: torch.dtype | None = None
    is_beside: bool = False
    watch: Watch = watch_nothing
    is_timeless: bool = False
    newton: NewtonSettings = TO_ROUNDING


PLAIN = EvaluationOptions()


class CompiledScheme(NamedTuple):
    """The step programs of a scheme for a type of field, prepared for tensors, and whether it acts part by part."""

    scheme_program: SchemeProgram
    is_parted: bool
    opening: TensorProgram
    step: TensorProgram
    back: TensorProgram | None


class StateRead(NamedTuple):
    """What is read after `step` steps: the `n` states that `read` computes from the state."""

    step: int
    read: Callable[[State], list[State]]
    n: int = 1


def read_state(state: State) -> list[State]:
    """Read the state itself."""
    return [state]


class FixedStepRun(NamedTuple):
    """A run with fixed steps: programs, functions and grid; unit 0 is the starting procedure.

    `noise` draws the random variables of stochastic steps.
    """

    field: Any  # a `Field`, or a `StochasticField`
    moves: CompiledScheme
    functions: tuple[Callable[..., Any], ...]
    grid: StepGrid
    evaluation: EvaluationOptions = PLAIN
    noise: StepNoise | None = None

    @property
    def scheme_program(self) -> SchemeProgram:
        return self.moves.scheme_program

    def spread(self, state: State) -> tuple[Tensor | None, ...]:
        """The initial rows; those that a starting procedure computes are None."""
        own = state if self.moves.is_parted else (join(self.field, state),)
        rows: list[Tensor | None] = [None] * self.scheme_program.opening.n_rows
        for place, tensor in zip(self.scheme_program.state, own, strict=True):
            rows[place] = tensor
        opening = self.scheme_program.opening
        return tuple(rows) if opening.operations else tuple([rows[row] for row in opening.outputs])

    def extract_state(self, rows: Rows) -> State:
        """The state among the rows of a program."""
        state = tuple(rows[place] for place in self.scheme_program.state)
        return state if self.moves.is_parted else split(self.field, state[0])

    def unit(self, rows: Rows, index: int) -> Rows:
        """The rows after unit `index`, from those before it."""
        script, step = self.script_of(index), self.step_of(index)
        if self.evaluation.watch is not watch_nothing and script.operations:
            self.evaluation.watch(
                "step", self.grid.t[step], join(self.field, self.extract_state(rows)), self.grid.h[step]
            )
        return self._run(script, rows, step)

    def script_of(self, unit: int) -> TensorProgram:
        """The program of a unit."""
        return self.moves.step if unit else self.moves.opening

    def undo(self, rows: Rows, index: int) -> Rows:
        """The rows before unit `index`, which is a step, from those after it, up to rounding."""
        return self._run(self.moves.back, rows, self.step_of(index))  # type: ignore[arg-type]

    def _run(self, script: TensorProgram, rows: Rows, step: int) -> Rows:
        if not script.operations:
            return tuple(rows[row] for row in script.outputs)
        h, noise = self.grid.h[step], self._draw(script, step)
        if self.evaluation.is_timeless:
            return execute(script, self.functions, rows, [None] * len(script.nodes), h, noise)
        like = rows[self.scheme_program.state[0]]
        times = self.grid.times(step, script.nodes, like)
        if self.evaluation.is_beside:
            times = _shift_times(times, script.nodes, self.grid.t[step], self.grid.t[step + 1], like)
        newton = self.evaluation.newton._replace(is_pair=not self.moves.is_parted and self.field.n_states == 2)
        return execute(script, self.functions, rows, times, h, noise, newton)

    def _draw(self, script: TensorProgram, step: int) -> Sequence[Tensor]:
        """The random variables that a program reads in a step."""
        if self.noise is None or not script.noise:
            return ()
        return self.noise.read(script.noise, step, self.grid.t[step], self.grid.t[step + 1], self.grid.h[step])

    def place_of(self, step: int) -> int:
        """The number of units after which step `step` is complete."""
        return step - self.scheme_program.opening.steps + 1

    def step_of(self, unit: int) -> int:
        """The index of the first step of a unit."""
        return self.scheme_program.opening.steps + unit - 1 if unit else 0

    def restrict(self, nodes: Tensor | None, first: int, last: int) -> FixedStepRun:
        """The same run for the units first..last, with times from another tensor of all nodes."""
        if nodes is None:
            return self
        begin, end = self.step_of(first), self.step_of(last - 1) + 1
        part = nodes[begin : end + 1]
        t = dict(zip(range(begin, end + 1), part.unbind(), strict=True))
        h = dict(zip(range(begin, end), part.diff().unbind(), strict=True))
        return self._replace(grid=StepGrid(t, h, nodes))


def _shift_times(
    times: list[Tensor], nodes: tuple[SlopeNode, ...], t: float | Tensor, t_new: float | Tensor, like: Tensor
) -> list[Tensor]:
    """Replace the time at the beginning of a step by the number after t, that at its end by the one before `t_new`."""
    start, end = (torch.as_tensor(x, dtype=like.real.dtype, device=like.device) for x in (t, t_new))
    with torch.no_grad():
        moves = torch.nextafter(start, end) - start, torch.nextafter(end, start) - end
    moved = {0.0: start + moves[0], 1.0: end + moves[1]}
    return [moved.get(node.c, time) for node, time in zip(nodes, times, strict=True)]


def find_compiled_scheme(scheme: Any, field: Field) -> CompiledScheme:
    """The programs of a scheme for a field; only numbers, so that compilers treat it as a constant."""
    form = len(field.functions), field.form.value
    if torch.compiler.is_compiling():
        return _compile_scheme_by_name(scheme.name, *form)
    return _compile_scheme(scheme, *form)


def _compile_scheme(scheme: Any, n: int, form: str) -> CompiledScheme:
    program = build_scheme_program(scheme, n, form == ProblemForm.SUM.value, form == ProblemForm.SECOND.value)
    return compile_program(program, moves_parts(scheme, ProblemForm(form)))


def compile_program(scheme_program: SchemeProgram, is_parted: bool) -> CompiledScheme:
    """Prepare the programs of a scheme."""
    back = build_tensor_program(scheme_program.back) if scheme_program.back else None
    return CompiledScheme(
        scheme_program,
        is_parted,
        build_tensor_program(scheme_program.opening),
        build_tensor_program(scheme_program.step),
        back,
    )


@build_from_constants
def _compile_scheme_by_name(name: str, *form: Any) -> CompiledScheme:
    return _compile_scheme(catalogue.get(name), *form)


def build_fixed_run(field: Field, scheme: Any, grid: StepGrid, evaluation: EvaluationOptions = PLAIN) -> FixedStepRun:
    """A run of a scheme; without a dtype, functions are evaluated in that of the state."""
    moves = find_compiled_scheme(scheme, field)
    functions = field.functions if moves.is_parted else (field.whole,)
    return FixedStepRun(
        field, moves, tuple(validate_function(f, evaluation.dtype) for f in functions), grid, evaluation
    )


def read_states_at(run: FixedStepRun, state: State, readings: Sequence[StateRead]) -> list[State]:
    """The states read after these numbers of steps, ascending and after the starting procedure."""
    rows: tuple[Any, ...] = run.spread(state)
    found, done = [], 0
    for step, read, _ in readings:
        for unit in range(done, run.place_of(step)):
            rows = run.unit(rows, unit)
        done = run.place_of(step)
        found += read(run.extract_state(rows))
    return found


def read_each_state(run: FixedStepRun, scheme: Any, state: State) -> Iterator[tuple[int, State]]:
    """Iterate over steps indefinitely; a multistep scheme's starting procedure is run step by step."""
    n_opening = run.scheme_program.opening.steps
    if n_opening > 1:
        starting = run._replace(moves=find_compiled_scheme(scheme.starter, run.field))
        yield from islice(read_each_state(starting, scheme.starter, state), n_opening - 1)
    rows: tuple[Any, ...] = run.spread(state)
    for unit in count():
        rows = run.unit(rows, unit)
        if unit + n_opening > 0:
            yield unit + n_opening, run.extract_state(rows)


def split_at_opening(
    run: FixedStepRun, scheme: Any, readings: Sequence[StateRead]
) -> tuple[FixedStepRun, Sequence[StateRead], Sequence[StateRead]]:
    """The run for states inside the starting procedure of a multistep scheme, what it reads, and the later states."""
    n_opening = run.scheme_program.opening.steps
    early, starting = [reading for reading in readings if reading.step < n_opening], run
    if early:
        starting = run._replace(moves=find_compiled_scheme(scheme.starter, run.field))
    return starting, early, readings[len(early) :]
