"""Many members of one problem: in lanes side by side where it is traced, else one by one; threads over chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import isqrt
from typing import NamedTuple

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, EnsembleOutcome, FixedSteps, Members, Plan, Saving
from stepnet.engines.numba_engine import run
from stepnet.engines.numba_engine.codegen.fused_steps import find_fused_address, write_reverse, write_steps, write_sweep
from stepnet.engines.numba_engine.codegen.kernels import as_argument
from stepnet.engines.numba_engine.codegen.lane_steps import (
    ControllerConstants,
    LaneOffsets,
    is_new_a_stage,
    write_lane_attempts,
)
from stepnet.engines.numba_engine.codegen.machine_code import LANES
from stepnet.engines.numba_engine.ensembles.lane_kernels import (
    IDLE,
    LAST,
    NEXT,
    LaneWorkspace,
    MemberEnds,
    MemberStarts,
    run_lanes,
)
from stepnet.engines.numba_engine.ensembles.lockstep import (
    LaneCheckpoints,
    LaneGroup,
    LockstepAdjoint,
    LockstepSteps,
    MemberGradients,
    pull_back,
    run_lockstep,
)
from stepnet.engines.numba_engine.integrators import explicit_rk, step_control
from stepnet.engines.numba_engine.integrators.dense_output import K
from stepnet.engines.numba_engine.integrators.step_control import RMS
from stepnet.engines.numba_engine.integrators.stepping import DONE, FIELD_RAISED, PAUSED
from stepnet.engines.numba_engine.rhs.arguments import flat_gradients, pack, unpack
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.engines.numba_engine.rhs.problem_parts import build_full_field, build_part_fields
from stepnet.engines.numba_engine.runs.driver import STATUS
from stepnet.engines.numba_engine.runs.job import allocate_work, create_run_state
from stepnet.problem import Problem, Split, restart, state_shape
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.step_program import SchemeProgram, StepProgram, build_scheme_program
from stepnet.schemes.tableau import StabilisedRK
from stepnet.solution import Status

ATTEMPTS = 200_000  # in a slice, about 50 ms
LONGEST = 6000  # operations of a step in lanes; 3000 take a second to compile
CODE = {status: code for code, status in STATUS.items()}
SMALLEST_CHUNK = 4 * LANES


class NoLanes(Exception):
    """Why the members run one by one."""


class MemberEvents(NamedTuple):
    """The events of a member."""

    t: tuple[np.ndarray, ...] = ()
    y: tuple[np.ndarray, ...] = ()


def finish_nothing() -> None:
    """What most crews do at the end."""


class ChunkRunner(NamedTuple):
    """How chunks are run: `begin(first, last)` gives a function that runs a slice and returns a code.

    `finish()` is called when all chunks are through.
    """

    begin: Callable
    rung: str
    reason: str = ""
    finish: Callable = finish_nothing


def run_ensemble(problem: Problem, scheme, plan: Plan, members: Members, workers: int, show) -> EnsembleOutcome:
    """Solve the problem for many members; `show(n)` is told when n more are done."""
    n, times = problem.initial.size, max(1, members.save_at.shape[1])
    counts = [np.zeros(members.number, np.int64) for _ in range(4)]
    states = np.full((members.number, times, n), np.nan, problem.initial.dtype)
    ends = MemberEnds(states, np.full(members.number, np.nan), *counts, np.full(members.number, PAUSED))
    events: list[MemberEvents] = [MemberEvents()] * members.number
    run_alone = partial(_run_alone, problem, scheme, plan, members, ends, events)
    try:
        crew = _choose_lane_runner(problem, scheme, plan, members, ends, run_alone)
    except NoLanes as why:
        crew = ChunkRunner(partial(_run_one_by_one, run_alone), "one by one", str(why))
    is_whole = _run_chunks(crew, _split_into_chunks(members.number, workers), workers, show)
    crew.finish()
    status = tuple(Status.INTERRUPTED if code == PAUSED else STATUS[code] for code in ends.code.tolist())
    found = tuple(e.t for e in events), tuple(e.y for e in events)
    return EnsembleOutcome(ends.y, ends.t, status, *ends[2:6], crew.rung, crew.reason, *found, not is_whole)


def _split_into_chunks(count: int, workers: int) -> list[tuple[int, int]]:
    """A few chunks for every thread, so that they finish together."""
    size = max(SMALLEST_CHUNK, -(-count // (8 * workers * LANES)) * LANES)
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def _run_chunks(crew: ChunkRunner, chunks, workers: int, show) -> bool:
    """Run chunks in threads, slice by slice; Ctrl-C ends them after the present slice, and the result is False."""
    is_stopped = threading.Event()

    def run_chunk(chunk):
        advance = crew.begin(*chunk)
        while not is_stopped.is_set() and advance() == PAUSED:
            pass
        return chunk[1] - chunk[0]

    try:
        if workers == 1 or len(chunks) == 1:
            for chunk in chunks:
                show(run_chunk(chunk))
            return True
        with ThreadPoolExecutor(workers) as pool:
            try:
                for done in pool.map(run_chunk, chunks):
                    show(done)
            except BaseException:
                is_stopped.set()
                raise
    except KeyboardInterrupt:
        return False
    return True


def _choose_lane_runner(
    problem: Problem, scheme, plan: Plan, members: Members, ends: MemberEnds, run_alone
) -> ChunkRunner:
    build_full_field(problem)  # a function that does not run at all is no fate of a member
    if plan.events or plan.project:
        raise NoLanes("events and projections are looked after one member at a time")
    if problem.initial.dtype != np.float64:
        raise NoLanes(f"states are {problem.initial.dtype}")
    if isinstance(plan.stepping, AdaptiveSteps):
        return _run_adaptive_lanes(problem, scheme, plan, members, ends)
    return _run_lockstep(problem, scheme, plan, members, ends, run_alone)


def _collect_starts(plan: Plan, members: Members) -> MemberStarts:
    rows = (members.y0, members.args, members.t_span, members.rtol, members.atol, members.save_at)
    arrays = map(as_argument, rows)
    stepping = plan.stepping
    if isinstance(stepping, FixedSteps):
        return MemberStarts(*arrays, 0.0, np.inf, np.inf)
    return MemberStarts(*arrays, stepping.first_step or 0.0, stepping.max_step, float(stepping.max_steps))


def _run_adaptive_lanes(problem: Problem, scheme, plan: Plan, members: Members, ends: MemberEnds) -> ChunkRunner:
    """Pairs with steps of their own in every lane."""
    field, s, n = build_full_field(problem), len(scheme.b), problem.initial.size
    how = step_control.build_control_settings(plan.stepping, 1.0 / explicit_rk.error_power(scheme))
    betas = tuple(map(float, how.betas))
    control = ControllerConstants(how.norm == RMS, betas, *how[4:], 10 * step_control.EPS, step_control.LEAST_STEP)
    places = LaneOffsets.of(n, field.p.size, s)
    code = _find_address(
        (field,), scheme, (control, places), "herd", lambda: write_lane_attempts(scheme, control, places), s
    )
    extension = scheme.continuous
    is_aside = int(scheme.dense is None and scheme.order > extension.order)
    starts = _collect_starts(plan, members)

    def begin(first: int, last: int):
        work = allocate_work(problem.initial, 1, K + 2 * len(extension.c) + len(extension.R))
        scratch = LaneWorkspace(
            _allocate_aligned(places.total),
            work,
            create_run_state(problem, plan),
            field.p.copy(),
            np.full(2 * LANES + 2, IDLE),
        )
        scratch.place[[NEXT, LAST]] = first, last
        own = how._replace(atol=how.atol.copy(), rtol=how.rtol.copy())
        tables = explicit_rk.build_tables(scheme, work.dtype)
        arguments = (code, field.address, tables, own, is_aside, places, starts, ends, scratch, ATTEMPTS)
        return partial(run_lanes, *arguments)

    def finish():
        """Evaluations, besides those of the first look."""
        ends.evaluations[:] += (s - 1) * (ends.accepted + ends.rejected)
        if not is_new_a_stage(scheme):  # the slope at the beginning of every step but the first
            ends.evaluations[:] += np.maximum(ends.accepted - 1, 0)

    return ChunkRunner(begin, "lanes", finish=finish)


class _LockstepProblem(NamedTuple):
    """Even steps of a problem in lanes: its right-hand sides, how the scheme moves, the entries of a row."""

    fields: tuple[CompiledRHS, ...]
    motion: SchemeProgram
    n: int
    n_steps: int

    def address(self, program: StepProgram, which: str, write) -> int:
        return _find_address(self.fields, program, ("lanes", self.n), which, write, program.n_slopes)

    def steps(self, program: StepProgram) -> int:
        rows = range(program.n_rows)
        return self.address(program, "steps", partial(write_steps, program, rows, self.n, is_wide=True))

    def even(self, after: np.ndarray) -> LockstepSteps:
        opening, step = self.motion.opening, self.motion.step
        addresses = self.steps(opening), self.steps(step)
        return LockstepSteps(*addresses, opening.steps, self.n_steps, after, np.array(self.motion.state))

    def group(self, n_parameters: int, first: int, last: int) -> LaneGroup:
        rows = self.motion.step.n_rows * self.n
        clocks = [_allocate_aligned(1)[0] for _ in range(4)]
        work, aside, p = _allocate_aligned(rows), _allocate_aligned(rows), _allocate_aligned(max(1, n_parameters))
        return LaneGroup(*clocks[:2], work, aside, *clocks[2:], p, np.array([first, last, 0, 0]))


def _prepare_lockstep(problem: Problem, scheme, stepping: FixedSteps) -> _LockstepProblem:
    is_sum = isinstance(problem, Split)
    is_whole = not isinstance(scheme, Splitting) and not (isinstance(scheme, Multistep) and scheme.derivative == 2)
    fields = (build_full_field(problem),) if is_whole else build_part_fields(problem)
    motion = build_scheme_program(scheme, len(fields), is_sum, fields[0].address == 0)
    if stepping.grid is not None:
        raise NoLanes("the steps are not even")
    if isinstance(scheme, StabilisedRK):
        raise NoLanes("stages of a three-term recursion would lose digits as sums")
    if stepping.n_steps < motion.opening.steps:
        raise NoLanes("there are fewer steps than the scheme begins with")
    return _LockstepProblem(fields, motion, problem.initial.size // len(motion.state), stepping.n_steps)


def _run_lockstep(problem: Problem, scheme, plan: Plan, members: Members, ends: MemberEnds, run_alone) -> ChunkRunner:
    """Even steps, equally many in every lane; members that leave the finite numbers run again alone, to see where."""
    marching = _prepare_lockstep(problem, scheme, plan.stepping)
    motion, n_steps = marching.motion, marching.n_steps
    even = marching.even(_find_wanted_steps(members, n_steps, isinstance(scheme, Multistep)))
    starts = _collect_starts(plan, members)
    ends.accepted[:], ends.t[:], ends.saved[:] = n_steps, members.t_span[:, 1], len(even.after)
    ends.evaluations[:] = motion.opening.n_slopes + motion.step.n_slopes * (n_steps - motion.opening.steps)

    def begin(first: int, last: int):
        group = marching.group(members.args.shape[1], first, last)
        most = max(1, ATTEMPTS // motion.step.n_slopes)

        def advance():
            code = run_lockstep(even, starts, ends, group, marching.n, most)
            ends.code[first : group.place[0]] = DONE
            return code

        return advance

    def finish():
        for i in np.flatnonzero((ends.code == DONE) & ~np.isfinite(ends.y).all(axis=(1, 2))):
            run_alone(int(i))

    return ChunkRunner(begin, "lanes", finish=finish)


def pull_back_members(
    problem: Problem, scheme, stepping: FixedSteps, members: Members, end_bars: np.ndarray, workers: int
):
    """Gradients of even steps in lanes: with respect to the initial states and the parameters, from the end's."""
    marching = _prepare_lockstep(problem, scheme, stepping)
    motion, even, n = marching.motion, marching.even(np.zeros((0, 2))), marching.n
    step, segment = motion.step, max(1, isqrt(stepping.n_steps))
    reverse = partial(write_reverse, is_even=True, has_times=False, is_wide=True)
    sweep = partial(write_sweep, step, is_even=True, is_back=False, is_wide=True)
    addresses = [marching.address(step, "sweep", sweep), marching.address(step, "reverse", partial(reverse, step))]
    has_opening = bool(motion.opening.operations)
    opening = marching.address(motion.opening, "reverse", partial(reverse, motion.opening)) if has_opening else 0
    back, starts = (
        LockstepAdjoint(*addresses, opening, segment),
        _collect_starts(Plan(stepping, Saving(None, 0)), members),
    )
    bars = MemberGradients(end_bars, np.zeros_like(end_bars), np.zeros((members.number, members.args.shape[1])))

    def begin(first: int, last: int):
        rows, n_parameters = step.n_rows * n, max(1, members.args.shape[1])
        sizes = (rows, rows * -(-stepping.n_steps // segment), rows * segment, rows, n_parameters, 1)
        kept = LaneCheckpoints(*map(_allocate_aligned, sizes))
        group = marching.group(n_parameters, first, last)
        return partial(pull_back, even, back, starts, bars, group, kept, n)

    if not _run_chunks(
        ChunkRunner(begin, "lanes"), _split_into_chunks(members.number, workers), workers, lambda n: None
    ):
        raise KeyboardInterrupt
    block = pack(problem.args)
    unknown = np.isnan(flat_gradients(unpack(block.values, block.slots), problem.args))
    bars.p[:, unknown] = np.nan  # whole numbers are constants of the code
    return bars


def _find_wanted_steps(members: Members, n_steps: int, is_multistep: bool) -> np.ndarray:
    """Behind which step a wanted time lies, and by what part of it; the same in all members."""
    t0, t1 = members.t_span[:, :1], members.t_span[:, 1:]
    if members.save_at.shape[1] == 0:
        return np.zeros((0, 2))
    with np.errstate(invalid="ignore"):
        place = (members.save_at - t0) / (t1 - t0) * n_steps
    if not np.allclose(place, place[0], rtol=0, atol=1e-9):
        raise NoLanes("wanted times lie in different steps")
    near = np.abs(place[0] - np.round(place[0])) < 1e-9
    step = np.where(near, np.round(place[0]), np.floor(place[0]))
    part = np.where(near, 0.0, place[0] - step)
    if is_multistep:
        raise NoLanes("a multistep scheme has no steps aside")
    return np.stack([step, part], axis=1)


def _find_address(fields: tuple[CompiledRHS, ...], source, variant, which: str, make_writer, n_evaluations: int) -> int:
    address = find_fused_address(fields, source, variant, which, make_writer, max(1, n_evaluations), LONGEST)
    if address == 0:
        reasons = [field.reason for field in fields if field.reason]
        raise NoLanes("; ".join(reasons) or "its steps are too long for straight-line code")
    return address


def _allocate_aligned(rows: int) -> np.ndarray:
    """Rows of lanes that begin where a register does."""
    raw = np.zeros(rows * LANES + 8)
    skip = -(raw.ctypes.data // 8) % 8
    return raw[skip : skip + rows * LANES].reshape(rows, LANES)


def _run_one_by_one(run_alone, first: int, last: int):
    left = iter(range(first, last))

    def advance():
        i = next(left, None)
        if i is None:
            return DONE
        run_alone(i)
        return PAUSED

    return advance


def _run_alone(problem: Problem, scheme, plan: Plan, members: Members, ends: MemberEnds, events, i: int) -> None:
    """Solve for member i by the kernels for one trajectory."""
    wanted = members.row("save_at", i)
    saving = Saving(wanted if wanted.size else None, 0)
    stepping = plan.stepping
    if isinstance(stepping, AdaptiveSteps):
        stepping = stepping._replace(rtol=members.row("rtol", i), atol=members.row("atol", i))
    own = member_problem(problem, members, i)
    try:
        outcome = run(own, scheme, plan._replace(stepping=stepping, saving=saving))
    except Exception:  # the user's function, at its first look at this member
        ends.y[i, 0], ends.t[i], ends.code[i] = own.initial, own.t_span[0], FIELD_RAISED
        return
    if outcome.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    count = len(outcome.t)
    ends.y[i] = np.nan
    ends.y[i, :count] = outcome.y[:count] if wanted.size else outcome.y[-1:]
    ends.t[i], ends.saved[i] = outcome.t_end, count if wanted.size else 0
    events[i] = MemberEvents(outcome.t_events, outcome.y_events)
    s = outcome.statistics
    ends.accepted[i], ends.rejected[i], ends.evaluations[i] = s.accepted, s.rejected, s.evaluations
    ends.code[i] = CODE.get(outcome.status, PAUSED)


def member_problem(problem: Problem, members: Members, i: int) -> Problem:
    """The problem of one member."""
    own = restart(problem, members.row("y0", i).reshape(state_shape(problem)), tuple(members.row("t_span", i)))
    values, block = members.row("args", i), pack(problem.args)
    return own if np.array_equal(values, block.values) else replace(own, args=unpack(values, block.slots))
