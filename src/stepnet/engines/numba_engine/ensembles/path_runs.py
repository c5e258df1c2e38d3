"""Paths of stochastic equations: in SIMD lanes if the problem is traced and its steps are equal, else one by one."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from stepnet.engines.contract import EnsembleOutcome, FixedSteps, Members, Outcome, Plan, Saving
from stepnet.engines.numba_engine.adjoint.step_sweeps import ProgramRunner, StepClock, StepNotSolved, SweepFailed
from stepnet.engines.numba_engine.codegen.kernels import as_argument
from stepnet.engines.numba_engine.codegen.machine_code import LANES
from stepnet.engines.numba_engine.codegen.steps.fused_steps import (
    NO_NOISE,
    NoiseLayout,
    write_steps,
    write_sweep,
    write_watch,
)
from stepnet.engines.numba_engine.derivatives.pullbacks import PartPullback, build_stochastic_parts
from stepnet.engines.numba_engine.ensembles.ensemble_runs import (
    ATTEMPTS,
    ChunkRunner,
    NoLanes,
    find_lane_address,
    ignore_progress,
    member_problem,
    run_chunks,
)
from stepnet.engines.numba_engine.ensembles.exit_functions import SinglePathExits
from stepnet.engines.numba_engine.ensembles.lane_kernels import MemberEnds
from stepnet.engines.numba_engine.ensembles.path_exits import ExitSearch, ExitWorkspace, MemberExits, run_to_exits
from stepnet.engines.numba_engine.ensembles.path_kernels import PathGroup, PathStarts, PathSteps, run_paths
from stepnet.engines.numba_engine.integrators.stepping import (
    DONE,
    EVENT,
    FIELD_RAISED,
    NOT_FINITE,
    NOT_SOLVED,
    PAUSED,
)
from stepnet.engines.numba_engine.random.step_noise import (
    SHORT_CHUNK,
    PathNoise,
    StepNoise,
    allocate_buffers,
    build_step_noise,
    choose_chunk,
    round_to_cells,
)
from stepnet.engines.numba_engine.rhs.arguments import pack
from stepnet.engines.numba_engine.rhs.ladder import RUNGS, CompiledRHS
from stepnet.engines.numba_engine.rhs.problem_parts import build_event_fields
from stepnet.engines.numba_engine.rhs.stochastic_parts import (
    build_exit_fields,
    build_stochastic_fields,
    find_stochastic_program,
)
from stepnet.engines.numba_engine.runs.driver import STATUS
from stepnet.events import Event
from stepnet.problem import SDE, StochasticProblem
from stepnet.schemes.step_program import SchemeProgram, Solve, StepProgram
from stepnet.solution import Failure, Statistics, Status

STEPS_ALONE = 256  # of one path between two checks of its state
CHUNK_OF_PATHS = 4 * LANES
SHARED_BYTES = 2**18  # of the random variables of a group, if members with the same paths share them: half of a cache


class StochasticRun(NamedTuple):
    """Drift, diffusion and step program of a run, with the numbers of its steps."""

    problem: StochasticProblem
    fields: tuple[CompiledRHS, ...]
    program: SchemeProgram
    stepping: FixedSteps
    n_components: int
    events: tuple[Event, ...] = ()

    @property
    def layout(self) -> NoiseLayout:
        return NoiseLayout.of(self.program.step, self.n_components)

    @property
    def n(self) -> int:
        """Entries of a row of the step program."""
        return self.problem.initial.size // len(self.program.state)

    @property
    def rung(self) -> str:
        return max((field.rung for field in self.fields), key=RUNGS.index)

    @property
    def reason(self) -> str:
        return "; ".join(field.reason for field in self.fields if field.reason)


def prepare_run(
    problem: StochasticProblem, scheme, stepping: FixedSteps, events: tuple[Event, ...] = ()
) -> StochasticRun:
    """The compiled functions and the step program of a run."""
    fields = build_stochastic_fields(problem, scheme)
    program = find_stochastic_program(problem, scheme, stepping.n_steps)
    return StochasticRun(problem, fields, program, stepping, problem.n_components, events)


def run_stochastic_ensemble(
    problem: StochasticProblem, scheme, plan: Plan, members: Members, workers: int = 1, show=ignore_progress
) -> EnsembleOutcome:
    """Solve for many paths; `members.paths` holds the number of each."""
    own = prepare_run(problem, scheme, cast(FixedSteps, plan.stepping), plan.events)
    return run_members(own, scheme, members, {}, workers, show)


def run_members(
    own: StochasticRun,
    scheme,
    members: Members,
    raised: dict[int, BaseException],
    workers: int = 1,
    show=ignore_progress,
    must_have_lanes: bool = False,
) -> EnsembleOutcome:
    """Run all members; exceptions of the user's functions are added to `raised` by the number of the member."""
    problem = own.problem
    after = find_saved_steps(members.save_at, problem.t_span, own.stepping)
    counts = [np.zeros(members.number, np.int64) for _ in range(4)]
    states = np.full((members.number, max(1, len(after)), problem.initial.size), np.nan)
    ends = MemberEnds(states, np.full(members.number, problem.t_span[1]), *counts, np.full(members.number, PAUSED))
    exits = MemberExits(
        np.full(members.number, -1), np.full(members.number, np.nan), np.full_like(states[:, 0], np.nan)
    )
    try:
        runner = _prepare_lanes(own, members, ends, exits, after)
    except NoLanes as why:
        if must_have_lanes:
            raise
        alone = partial(_run_alone, own, build_own_parts(own), scheme, members, ends, exits, after, raised)
        runner = ChunkRunner(partial(run_one_by_one, alone), "one by one", str(why))
    is_whole = run_chunks(runner, split_into_groups(members.number, workers), workers, show)
    status = _convert_codes(ends.code)
    ends.evaluations[:] += own.program.step.n_slopes * ends.accepted
    ends.t[ends.code == PAUSED] = np.nan
    found = _list_exits(exits, len(own.events)) if own.events else ((), ())
    return EnsembleOutcome(ends.y, ends.t, status, *ends[2:6], runner.rung, runner.reason, *found, not is_whole)


def _convert_codes(codes: np.ndarray) -> tuple[Status, ...]:
    """The status of each member."""
    if (codes == DONE).all():
        return (STATUS[DONE],) * len(codes)
    kinds = {code: Status.INTERRUPTED if code == PAUSED else STATUS[code] for code in np.unique(codes).tolist()}
    return tuple(map(kinds.__getitem__, codes.tolist()))


def _list_exits(exits: MemberExits, n_events: int) -> tuple[tuple, tuple]:
    """Times and states of the events of each member, event by event."""
    nothing = np.zeros(0), exits.y[:0]
    t_events, y_events = [], []
    for i, event in enumerate(exits.event.tolist()):
        t_events.append(tuple(exits.t[i : i + 1] if e == event else nothing[0] for e in range(n_events)))
        y_events.append(tuple(exits.y[i : i + 1] if e == event else nothing[1] for e in range(n_events)))
    return tuple(t_events), tuple(y_events)


def split_into_groups(count: int, workers: int) -> list[tuple[int, int]]:
    """A few chunks of whole groups per thread."""
    size = max(CHUNK_OF_PATHS, -(-count // (8 * workers * LANES)) * LANES)
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def find_saved_steps(save_at: np.ndarray, t_span: tuple[float, float], stepping: FixedSteps) -> np.ndarray:
    """The steps after which states are saved; save times are step times."""
    if save_at.shape[1] == 0:
        return np.zeros(0, np.int64)
    times = save_at[0]
    t0, t1 = t_span
    if stepping.grid is None:
        place = (times - t0) / (t1 - t0) * stepping.n_steps
        step = np.rint(place).astype(np.int64)
        is_step = np.abs(place - step) <= 1e-9 * max(1, stepping.n_steps)
    else:
        step = np.clip(np.searchsorted(stepping.grid, times - 1e-12 * (t1 - t0)), 0, stepping.n_steps)
        is_step = np.abs(stepping.grid[step] - times) <= 1e-12 * (t1 - t0)
    if not is_step.all():
        raise ValueError(
            f"`save_at` of an SDE must be among the times of its steps, and t = {times[~is_step][0]:g} is not; "
            f"choose `steps` so that they contain it, or give them as an array of times"
        )
    return step


# ---- in lanes -------------------------------------------------------------------------------------------------------


def _prepare_lanes(
    own: StochasticRun, members: Members, ends: MemberEnds, exits: MemberExits, after: np.ndarray
) -> ChunkRunner:
    noise = match_noise(own)
    even = generate_steps(own, after, _choose_chunk(own, members, noise))
    search = _generate_search(own) if own.events else None
    starts, n = collect_starts(own, members), own.problem.initial.size

    def begin(first: int, last: int):
        group = allocate_group(own, noise, even, members.args.shape[1], first, last)
        if search is None:
            return partial(run_paths, even, noise, starts, ends, group, n, ATTEMPTS)
        rows, values = (even.chunk + 1) * even.width, (even.chunk + 1) * 2 * len(own.events)
        point = np.zeros((2, (2 + n) * len(own.events))), np.zeros(max(1, members.args.shape[1]))
        space = ExitWorkspace(np.zeros((rows, LANES)), np.zeros((values, LANES)), *point, np.zeros(LANES, int))
        return partial(run_to_exits, even, noise, search, starts, ends, exits, group, space, n, ATTEMPTS)

    return ChunkRunner(begin, "lanes")


def _choose_chunk(own: StochasticRun, members: Members, noise: StepNoise) -> int:
    """Steps whose random variables are drawn at once: all if members share paths and there is space for them."""
    n_steps, paths = own.stepping.n_steps, members.paths
    is_shared = members.number >= 2 * LANES and np.array_equal(paths[:LANES], paths[LANES : 2 * LANES])
    if is_shared and n_steps * own.layout.size * LANES * 8 <= SHARED_BYTES:
        return round_to_cells(noise, n_steps)
    if own.events:  # paths may exit early, and what was drawn for later steps is lost
        return round_to_cells(noise, SHORT_CHUNK)
    return choose_chunk(noise, own.layout.size, n_steps)


def match_noise(own: StochasticRun) -> StepNoise:
    """The numbers of the draws for equal steps."""
    if own.program.step.is_implicit:
        raise NoLanes("implicit steps solve systems of equations, one path at a time")
    if own.stepping.grid is not None:
        raise NoLanes("the steps are not equal")
    noise = build_step_noise(own.problem, own.stepping.n_steps, own.program.step, own.n_components)
    if noise is None:
        raise NoLanes("`steps` and `cells` do not match")
    return noise


def collect_starts(own: StochasticRun, members: Members) -> PathStarts:
    """The initial data of all members."""
    t0, t1 = own.problem.t_span
    clocks = np.full(LANES, t0), np.full(LANES, (t1 - t0) / own.stepping.n_steps)
    increments = np.zeros((0, 0, 0)) if members.increments is None else as_argument(members.increments)
    return PathStarts(*map(as_argument, (members.y0, members.args)), members.paths, *clocks, increments)


def find_address(own: StochasticRun, program: StepProgram, which: str, write, noise: NoiseLayout) -> int:
    """Generated code for a program in lanes."""
    return find_lane_address(own.fields, program, ("paths", own.n, noise.size), which, write, program.n_slopes)


def generate_steps(own: StochasticRun, after: np.ndarray, chunk: int) -> PathSteps:
    """Steps in lanes, `chunk` of them at a time."""
    opening, step, layout = own.program.opening, own.program.step, own.layout

    def find(program, noise):
        write = partial(write_steps, program, range(step.n_rows), own.n, is_wide=True, noise=noise)
        return find_address(own, program, "steps", write, noise)

    addresses = find(opening, NO_NOISE), find(step, layout)
    return PathSteps(*addresses, own.stepping.n_steps, after, step.n_rows * own.n, layout.size, chunk)


def generate_sweep(own: StochasticRun) -> int:
    """Steps in lanes that store their states."""
    write = partial(write_sweep, own.program.step, is_even=True, is_back=False, is_wide=True, noise=own.layout)
    return find_address(own, own.program.step, "sweep", write, own.layout)


def _generate_search(own: StochasticRun) -> ExitSearch:
    """The search for exits in lanes."""
    functions = build_event_fields(own.problem, own.events)
    fields = build_exit_fields(cast(SDE, own.problem), own.fields[1], functions)
    if fields is None:
        raise NoLanes("; ".join(function.reason for function in functions if function.reason) or own.reason)
    watch = find_lane_address(fields[:1], write_watch, own.n, "watch", write_watch, 1)
    directions = np.array([event.direction for event in own.events], float)
    has_bridge = np.array([event.bridge for event in own.events], np.int64)
    return ExitSearch(generate_sweep(own), watch, fields[1].address, directions, has_bridge)


def allocate_group(
    own: StochasticRun, noise: StepNoise, even: PathSteps, n_parameters: int, first: int, last: int
) -> PathGroup:
    """The workspace of a thread."""
    buffers = allocate_buffers(noise, own.n_components, even.chunk)
    return PathGroup(
        np.zeros((even.width, LANES)),
        np.zeros((even.width, LANES)),
        np.zeros((max(1, n_parameters), LANES)),
        np.zeros((even.chunk * even.n_variables, LANES)),
        buffers.W.reshape(-1, LANES),
        np.zeros(LANES, np.int64),
        buffers,
        np.array([first, last, 0, 0, 0, 0, -1]),
    )


# ---- one by one -----------------------------------------------------------------------------------------------------


def build_own_parts(own: StochasticRun) -> tuple[PartPullback, ...]:
    """The functions of a run, with the pullbacks from which implicit operations take their Jacobians."""
    solved = {each.part for each in own.program.step.operations if isinstance(each, Solve)}
    return build_stochastic_parts(own.problem, own.fields, differences=True, needed=solved)


def build_runner(
    own: StochasticRun,
    problem: StochasticProblem,
    parts: tuple[PartPullback, ...],
    increments: np.ndarray | None = None,
) -> partial:
    """`ProgramRunner` of the programs of a run, for one path."""
    t0, t1 = problem.t_span
    stepping = own.stepping
    grid = np.zeros(0) if stepping.grid is None else stepping.grid
    clock = StepClock(t0, (t1 - t0) / stepping.n_steps, grid)
    noise = PathNoise(problem, stepping, own.program.step, own.n_components, increments)
    return partial(ProgramRunner, parts, n=own.n, clock=clock, has_times=False, noise=noise)


def run_one_by_one(run_alone, first: int, last: int):
    """A function that runs the next member with every call, until all are done."""
    left = iter(range(first, last))

    def advance():
        i = next(left, None)
        if i is None:
            return DONE
        run_alone(i)
        return PAUSED

    return advance


def _run_alone(
    own: StochasticRun,
    parts: tuple[PartPullback, ...],
    scheme,
    members: Members,
    ends: MemberEnds,
    exits: MemberExits,
    after: np.ndarray,
    raised: dict,
    i: int,
) -> None:
    """Solve for one path, storing the states of a few steps at a time."""
    problem: Any = replace(cast(Any, member_problem(own.problem, members, i)), path=int(members.paths[i]))
    mine = own
    if problem.args is not own.problem.args:
        mine = prepare_run(problem, scheme, own.stepping)
        parts = build_own_parts(mine)
    increments = None if members.increments is None else members.increments[problem.path]
    runner = build_runner(mine, problem, parts, increments)
    n, n_steps = problem.initial.size, own.stepping.n_steps
    search = SinglePathExits(problem, own.events) if own.events else None
    state = np.zeros((own.program.step.n_rows, own.n))
    flat = state.reshape(-1)[:n]
    flat[:] = problem.initial
    runner(own.program.opening).forward(state, 0, 1)
    step, states = runner(own.program.step), np.empty((STEPS_ALONE, state.size))
    at, code, last = 0, DONE, problem.initial
    while at < n_steps and code == DONE:
        count = min(STEPS_ALONE, n_steps - at)
        states[:] = np.nan
        try:
            step.forward(state, at, count, states[:count])
        except SweepFailed as failed:
            code = NOT_SOLVED if isinstance(failed, StepNotSolved) else NOT_FINITE
        except Exception as exception:  # raised by the user's function
            code, raised[i] = FIELD_RAISED, exception
        n_valid = _count_valid(states[:count])
        if search is not None:
            inside = [*states[:n_valid, :n], flat] if code == DONE and n_valid == count else states[:n_valid, :n]
            times = find_step_times(problem, own.stepping, np.arange(at, at + len(inside)))
            found = search.find(at, times, np.array(inside))
            if found is not None:
                _stop_at(search, ends, exits, after, i, at, times, np.array(inside), found)
                ends.evaluations[i] = step.n_solve_evaluations
                return
        _store_states(ends, after, i, at, states[:n_valid, :n])
        if code == DONE and n_valid == count:
            at, last = at + count, flat
        else:
            code = NOT_FINITE if code == DONE else code
            at, last = at + n_valid - 1, states[n_valid - 1, :n].copy()
    if code == DONE:
        _store_states(ends, after, i, n_steps, flat[None])
    if not len(after):
        ends.y[i, 0] = last
    ends.code[i], ends.accepted[i], ends.t[i] = code, at, find_step_times(problem, own.stepping, np.array(at))
    ends.evaluations[i] = step.n_solve_evaluations


def _stop_at(
    search: SinglePathExits,
    ends: MemberEnds,
    exits: MemberExits,
    after: np.ndarray,
    i: int,
    at: int,
    times: np.ndarray,
    states: np.ndarray,
    found: tuple[int, int, float],
) -> None:
    """Note the exit of a path, given the times and states from step `at` on."""
    s, exits.event[i], theta = found
    t = times[s] + theta * (times[s + 1] - times[s])
    exits.t[i], exits.y[i] = t, search.project(found[1], t, states[s] + theta * (states[s + 1] - states[s]))
    _store_states(ends, after, i, at, states[: s + 1])
    if not len(after):
        ends.y[i, 0] = exits.y[i]
    ends.code[i], ends.accepted[i], ends.t[i] = EVENT, at + s + 1, t


def _count_valid(states: np.ndarray) -> int:
    """The number of states before the first one that is not finite; the first one always is."""
    is_valid = np.isfinite(states).all(axis=1)
    return len(states) if is_valid.all() else int(np.argmin(is_valid))


def _store_states(ends: MemberEnds, after: np.ndarray, i: int, first: int, states: np.ndarray) -> None:
    """Store those of the states after steps `first`, `first` + 1, ... that are to be saved."""
    for j in np.flatnonzero((after >= first) & (after < first + len(states))):
        ends.y[i, j] = states[after[j] - first]
        ends.saved[i] += 1


def find_step_times(problem: StochasticProblem, stepping: FixedSteps, steps: np.ndarray | None = None) -> np.ndarray:
    """The times after some steps, by default after each."""
    if stepping.grid is not None:
        return stepping.grid if steps is None else stepping.grid[steps]
    if steps is None:
        return np.linspace(*problem.t_span, stepping.n_steps + 1)
    (t0, t1), n = problem.t_span, stepping.n_steps
    return np.where(steps == n, t1, steps * ((t1 - t0) / n) + t0)  # the bits of `linspace`


# ---- one path -------------------------------------------------------------------------------------------------------


def run_path(problem: StochasticProblem, scheme, plan: Plan) -> Outcome:
    """Solve for one path: an ensemble of one."""
    stepping = cast(FixedSteps, plan.stepping)
    own, began = prepare_run(problem, scheme, stepping, plan.events), time.perf_counter()
    wanted = _find_wanted_times(problem, stepping, plan.saving)
    raised: dict[int, BaseException] = {}
    one, span = np.ones((1, problem.initial.size)), np.array([problem.t_span])
    start = problem.initial[None], pack(problem.args).values[None]
    members = Members(1, *start, span, one, one, wanted[None], np.array([problem.path]))
    found = run_members(own, scheme, members, raised)
    count, t_end = int(found.saved[0]), float(found.t_end[0])
    numbers = int(found.accepted[0]), 0, int(found.evaluations[0])
    statistics = Statistics(*numbers, own.rung, own.reason, run_time=time.perf_counter() - began)
    failure = None
    if found.status[0] not in (Status.COMPLETED, Status.EVENT, Status.INTERRUPTED):
        failure = _describe_failure(own, found, raised.get(0))
    t, y = wanted[:count], found.y[0, :count]
    events: tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]] = (), ()
    if plan.events:
        events = found.t_events[0], found.y_events[0]
        if found.status[0] is Status.EVENT and plan.saving.at is None:  # the path ends there
            t, y = np.append(t, t_end), np.concatenate((y, *events[1]))
    return Outcome(t, y, found.status[0], statistics, failure, *events, t_end=t_end)


def _find_wanted_times(problem: StochasticProblem, stepping: FixedSteps, saving: Saving) -> np.ndarray:
    """The times at which states are saved."""
    if saving.at is not None:
        return saving.at
    chosen = np.arange(0, stepping.n_steps, saving.every) if saving.every else np.zeros(0)
    return find_step_times(problem, stepping, np.append(chosen, stepping.n_steps).astype(np.int64))


def _describe_failure(own: StochasticRun, found: EnsembleOutcome, exception: BaseException | None) -> Failure:
    t0, t1 = own.problem.t_span
    t, h = float(found.t_end[0]), (t1 - t0) / own.stepping.n_steps
    norm = float(np.linalg.norm(found.y[0, found.saved[0] - 1])) if found.saved[0] else float("nan")
    advice = "use more `steps`: explicit schemes diverge where the drift grows too fast"
    if own.program.step.is_implicit:
        advice = "use more `steps`: shorter steps are solved more easily, and noise is explicit"
    advice = "" if exception else advice
    return Failure(t, h, norm, float("nan"), advice=advice, exception=exception)
