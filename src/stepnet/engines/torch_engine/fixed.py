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
from stepnet.engines.torch_engine.programs import Node, Rows, Script, execute, script_of
from stepnet.engines.torch_engine.step_control import Watch, nobody
from stepnet.schemes import catalogue
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.programs import Motion, motion_of
from stepnet.schemes.splitting import Splitting


@dataclass(frozen=True)
class _Line:
    """first, first + h, first + 2 h, ... without an end."""

    first: float
    h: float

    def __getitem__(self, i: int) -> float:
        return self.first + i * self.h


class Grid(NamedTuple):
    """Times of the steps and their lengths by number: floats, or tensors nobody has read, perhaps made from `nodes`."""

    t: Any
    h: Any
    nodes: Tensor | None = None

    def times(self, step: int, nodes: tuple[Node, ...], like: Tensor) -> list[Tensor]:
        """t + c h for all nodes of a step, as tensors without dimensions, in the precision of the state."""
        t, h, real, device = self.t[step], self.h[step], like.real.dtype, like.device
        if isinstance(h, Tensor):
            at = [t if c == 0.0 else torch.add(t, h, alpha=c) for c, _ in nodes]
            return [(x if x.requires_grad else x.detach()).to(real) for x in at]  # functions may change their own
        return [torch.full((), t + c * h, dtype=real, device=device) for c, _ in nodes]


def endless_grid(t: float, h: float) -> Grid:
    """Even steps from t on."""
    return Grid(_Line(t, h), _Line(h, 0.0))


def grid_of_numbers(times: Sequence[float]) -> Grid:
    """A grid of plain numbers."""
    return Grid(times, [b - a for a, b in pairwise(times)])


def grid_of_tensor(times: Tensor) -> Grid:
    """A grid whose values are not read."""
    return Grid(times.unbind(), times.diff().unbind(), times)


class Manner(NamedTuple):
    """How functions are called: in which dtype, whether beside the ends of a step and not at them, watched by whom.

    Those that do not look at the time are told none.
    """

    dtype: torch.dtype | None = None
    is_beside: bool = False
    watch: Watch = nobody
    is_timeless: bool = False


PLAIN = Manner()


class Choreography(NamedTuple):
    """How a scheme moves a kind of field, whether part by part, and its programs made ready."""

    motion: Motion
    is_parted: bool
    opening: Script
    step: Script
    back: Script | None


class Reading(NamedTuple):
    """What is wanted of the state after `step` steps: the `n` states that `read` makes from it."""

    step: int
    read: Callable[[State], list[State]]
    n: int = 1


def itself(state: State) -> list[State]:
    """Read the state as it is."""
    return [state]


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
        script, step = self.script_of(index), self.step_of(index)
        if self.manner.watch is not nobody and script.operations:
            self.manner.watch("step", self.grid.t[step], joined(self.field, self.own(rows)), self.grid.h[step])
        return self._run(script, rows, step)

    def script_of(self, unit: int) -> Script:
        """What a unit does."""
        return self.moves.step if unit else self.moves.opening

    def undo(self, rows, index: int) -> Rows:
        """The rows before unit `index`, which is a step, from those after it, up to rounding."""
        return self._run(self.moves.back, rows, self.step_of(index))  # type: ignore[arg-type]

    def _run(self, script: Script, rows, step: int) -> Rows:
        if not script.operations:
            return tuple(rows[row] for row in script.outputs)
        if self.manner.is_timeless:
            return execute(script, self.functions, rows, [None] * len(script.nodes), self.grid.h[step])
        like = rows[self.motion.state[0]]
        times = self.grid.times(step, script.nodes, like)
        if self.manner.is_beside:
            times = _beside(times, script.nodes, self.grid.t[step], self.grid.t[step + 1], like)
        return execute(script, self.functions, rows, times, self.grid.h[step])

    def place_of(self, step: int) -> int:
        """The number of units after which step `step` is done."""
        return step - self.motion.opening.steps + 1

    def step_of(self, unit: int) -> int:
        """The number of the first step of a unit."""
        return self.motion.opening.steps + unit - 1 if unit else 0

    def over(self, nodes: Tensor | None, first: int, last: int) -> Fixed:
        """The same run for the units first..last, with times from another tensor of all nodes."""
        if nodes is None:
            return self
        begin, end = self.step_of(first), self.step_of(last - 1) + 1
        part = nodes[begin : end + 1]
        t = dict(zip(range(begin, end + 1), part.unbind(), strict=True))
        h = dict(zip(range(begin, end), part.diff().unbind(), strict=True))
        return self._replace(grid=Grid(t, h, nodes))


def _beside(times: list[Tensor], nodes: tuple[Node, ...], t, t_new, like: Tensor) -> list[Tensor]:
    """The same with the number after t for the beginning of a step, and the one before `t_new` for its end."""
    start, end = (torch.as_tensor(x, dtype=like.real.dtype, device=like.device) for x in (t, t_new))
    with torch.no_grad():
        moves = torch.nextafter(start, end) - start, torch.nextafter(end, start) - end
    moved = {0.0: start + moves[0], 1.0: end + moves[1]}
    return [moved.get(node.c, time) for node, time in zip(nodes, times, strict=True)]


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
    return choreographed(motion_of(scheme, n, is_sum, is_second), is_parted)


def choreographed(motion: Motion, is_parted: bool) -> Choreography:
    """A motion made ready."""
    back = script_of(motion.back) if motion.back else None
    return Choreography(motion, is_parted, script_of(motion.opening), script_of(motion.step), back)


@made_of_constants
def _choreography_by_name(name: str, *form) -> Choreography:
    return _choreography(catalogue.get(name), *form)


def fixed_run(field: Field, scheme, grid: Grid, manner: Manner = PLAIN) -> Fixed:
    """A run of a scheme; without a dtype functions are evaluated in that of the state."""
    moves = choreography(scheme, field)
    functions = field.functions if moves.is_parted else (field.whole,)
    return Fixed(field, moves, tuple(checked(f, manner.dtype) for f in functions), grid, manner)


def states_at(run: Fixed, state: State, readings: Sequence[Reading]) -> list[State]:
    """What is read after these numbers of steps, which ascend and lie behind the opening."""
    rows: tuple = run.spread(state)
    found, done = [], 0
    for step, read, _ in readings:
        for unit in range(done, run.place_of(step)):
            rows = run.unit(rows, unit)
        done = run.place_of(step)
        found += read(run.own(rows))
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


def split_at_opening(run: Fixed, scheme, readings: Sequence[Reading]) -> tuple[Fixed, Sequence, Sequence]:
    """The run that gives the states inside the opening of a multistep scheme, those readings, and the later ones."""
    n_opening = run.motion.opening.steps
    early, starting = [reading for reading in readings if reading.step < n_opening], run
    if early:
        starting = run._replace(moves=choreography(scheme.starter, run.field))
    return starting, early, readings[len(early) :]
