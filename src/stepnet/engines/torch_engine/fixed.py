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

from stepnet.engines.torch_engine.constants import made_of_constants
from stepnet.engines.torch_engine.fields import Field, SecondOrder, Split, State, checked, joined, parted
from stepnet.engines.torch_engine.programs import Length, Rows, execute, nodes_of
from stepnet.engines.torch_engine.step_control import Watch, nobody
from stepnet.schemes import catalogue
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.programs import Motion, Program, motion_of
from stepnet.schemes.splitting import Splitting


@dataclass(frozen=True)
class _Line:
    """first, first + h, first + 2 h, ... without an end."""

    first: float
    h: float

    def __getitem__(self, i: int) -> float:
        return self.first + i * self.h


class Grid(NamedTuple):
    """Times of the steps and their lengths, by number: plain numbers, or tensors nobody has read."""

    t: Any
    h: Any


def endless_grid(t: float, h: float) -> Grid:
    """Even steps from t on."""
    return Grid(_Line(t, h), _Line(h, 0.0))


def grid_of_numbers(times: Sequence[float]) -> Grid:
    """A grid of plain numbers."""
    return Grid(times, [b - a for a, b in pairwise(times)])


def grid_of_tensor(times: Tensor) -> Grid:
    """A grid whose values are not read."""
    return Grid(times.unbind(), times.diff().unbind())


class Manner(NamedTuple):
    """How functions are called: in which dtype, whether beside the ends of a step and not at them, watched by whom."""

    dtype: torch.dtype | None = None
    is_beside: bool = False
    watch: Watch = nobody


PLAIN = Manner()


class Choreography(NamedTuple):
    """How a scheme moves a kind of field, whether part by part, and the nodes of opening and step."""

    motion: Motion
    is_parted: bool
    nodes: tuple[tuple[float, ...], tuple[float, ...]]


class Fixed(NamedTuple):
    """A run with given steps: what moves, by which functions, over which grid; unit 0 is the opening."""

    field: Field
    moves: Choreography
    functions: tuple[Callable, ...]
    grid: Grid
    manner: Manner = PLAIN

    @property
    def motion(self) -> Motion:
        return self.moves.motion

    def spread(self, state: State) -> tuple[Tensor | None, ...]:
        """The rows of the opening; those it fills are None."""
        own = state if self.moves.is_parted else (joined(self.field, state),)
        rows: list[Tensor | None] = [None] * self.motion.opening.n_rows
        for place, tensor in zip(self.motion.state, own, strict=True):
            rows[place] = tensor
        return tuple(rows)

    def own(self, rows: tuple) -> State:
        """The state among the rows of a program."""
        state = tuple(rows[place] for place in self.motion.state)
        return state if self.moves.is_parted else parted(self.field, state[0])

    def unit(self, rows, index: int) -> Rows:
        """The rows after unit `index`, from those before it."""
        if index == 0:
            return self._run(self.motion.opening, self.moves.nodes[0], rows, 0)
        return self._run(self.motion.step, self.moves.nodes[1], rows, self.motion.opening.steps + index - 1)

    def _run(self, program: Program, nodes: tuple[float, ...], rows, step: int) -> Rows:
        if not program.operations:
            return tuple(rows[row] for row in program.outputs)
        t, h = self.grid.t[step], self.grid.h[step]
        like = rows[self.motion.state[0]]
        if self.manner.watch is not nobody:
            self.manner.watch("step", t, joined(self.field, self.own(rows)), h)
        times = _times(t, h, nodes, like)
        if self.manner.is_beside:
            times = _beside(times, t, self.grid.t[step + 1], like)
        return execute(program, self.functions, rows, times, h)

    def place_of(self, step: int) -> int:
        """The number of units after which step `step` is done."""
        return step - self.motion.opening.steps + 1


def _times(t, h: Length, nodes: tuple[float, ...], like: Tensor) -> dict[float, Tensor]:
    """t + c h for all nodes c, as tensors without dimensions, in the precision of the state."""
    real = like.real.dtype
    if isinstance(h, Tensor):
        return {c: (t if c == 0.0 else torch.add(t, h, alpha=c)).to(real) for c in nodes}
    return {c: torch.full((), t + c * h, dtype=real, device=like.device) for c in nodes}


def _beside(times: dict[float, Tensor], t, t_new, like: Tensor) -> dict[float, Tensor]:
    """The same with the number after t for the beginning of a step, and the one before `t_new` for its end."""
    start, end = (torch.as_tensor(x, dtype=like.real.dtype, device=like.device) for x in (t, t_new))
    with torch.no_grad():
        moves = {0.0: torch.nextafter(start, end) - start, 1.0: torch.nextafter(end, start) - end}
    return times | {c: x + moves[c] for c, x in ((0.0, start), (1.0, end)) if c in times}


def choreography(scheme, field: Field) -> Choreography:
    """How a scheme moves a field; numbers only, so that compilers take it for a constant."""
    form = len(field.functions), type(field) is Split, type(field) is SecondOrder, field.is_separable
    if torch.compiler.is_compiling():
        return _choreography_by_name(scheme.name, *form)
    return _choreography(scheme, *form)


def _choreography(scheme, n: int, is_sum: bool, is_second: bool, is_separable: bool) -> Choreography:
    is_parted = is_separable and (
        isinstance(scheme, Splitting) or (isinstance(scheme, Multistep) and scheme.derivative == 2 and is_second)
    )
    motion = motion_of(scheme, n, is_sum, is_second)
    return Choreography(motion, is_parted, (nodes_of(motion.opening), nodes_of(motion.step)))


@made_of_constants
def _choreography_by_name(name: str, *form) -> Choreography:
    return _choreography(catalogue.get(name), *form)


def fixed_run(field: Field, scheme, grid: Grid, manner: Manner = PLAIN) -> Fixed:
    """A run of a scheme; without a dtype functions are evaluated in that of the state."""
    moves = choreography(scheme, field)
    functions = field.functions if moves.is_parted else (field.whole,)
    return Fixed(field, moves, tuple(checked(f, manner.dtype) for f in functions), grid, manner)


def states_at(run: Fixed, state: State, steps: Sequence[int]) -> list[State]:
    """The states after these numbers of steps, which ascend and lie behind the opening."""
    rows: tuple = run.spread(state)
    found, done = [], 0
    for step in steps:
        for unit in range(done, run.place_of(step)):
            rows = run.unit(rows, unit)
        done = run.place_of(step)
        found.append(run.own(rows))
    return found


def each_state(run: Fixed, scheme, state: State) -> Iterator[tuple[int, State]]:
    """Step after step without an end; those inside the opening of a multistep scheme come from its starter."""
    n_opening = run.motion.opening.steps
    if n_opening > 1:
        starting = run._replace(moves=choreography(scheme.starter, run.field))
        yield from islice(each_state(starting, scheme.starter, state), n_opening - 1)
    rows: tuple = run.spread(state)
    for unit in count():
        rows = run.unit(rows, unit)
        if unit + n_opening > 0:
            yield unit + n_opening, run.own(rows)


def split_at_opening(run: Fixed, scheme, steps: Sequence[int]) -> tuple[Fixed, list[int], list[int]]:
    """The run that gives the states inside the opening of a multistep scheme, those steps, and the later ones."""
    n_opening = run.motion.opening.steps
    early, starting = [step for step in steps if step < n_opening], run
    if early:
        starting = run._replace(moves=choreography(scheme.starter, run.field))
    return starting, early, list(steps[len(early) :])
