"""Ensembles: members run in SIMD lanes if the problem is traced, else one by one; threads process chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import isqrt
from typing import Any, NamedTuple, cast

import numpy as np

from stepnet.engines.contract import AdaptiveSteps, EnsembleOutcome, FixedSteps, Members, Plan, Saving
from stepnet.engines.numba_engine import run
from stepnet.engines.numba_engine.codegen.kernels import as_argument
from stepnet.engines.numba_engine.codegen.machine_code import LANES
from stepnet.engines.numba_engine.codegen.steps.fused_steps import (
    find_fused_address,
    write_reverse,
    write_steps,
    write_sweep,
)
from stepnet.engines.numba_engine.codegen.steps.lane_steps import (
    ControllerConstants,
    LaneOffsets,
    write_lane_attempts,
)
from stepnet.engines.numba_engine.derivatives.jacobian_fields import trace_entries
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
from stepnet.engines.numba_engine.integrators.dense_output import K, build_cubic_tables
from stepnet.engines.numba_engine.integrators.step_control import RMS
from stepnet.engines.numba_engine.integrators.stepping import DONE, FIELD_RAISED, PAUSED
from stepnet.engines.numba_engine.rhs.arguments import flat_gradients, pack, unpack
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.engines.numba_engine.rhs.problem_parts import build_full_field, build_part_fields
from stepnet.engines.numba_engine.runs.driver import STATUS
from stepnet.engines.numba_engine.runs.job import allocate_work, create_run_state
from stepnet.engines.numba_engine.tracing.graph import TooManyNodes
from stepnet.problem import Problem, ProblemForm, restart, state_shape
from stepnet.schemes.capabilities import admits_lanes, has_history, is_implicit, moves_parts, takes_fixed_steps
from stepnet.schemes.step_program import SchemeProgram, StepProgram, build_scheme_program
from stepnet.solution import Status

ATTEMPTS = 200_000  # in a slice, about 50 ms
MOST_IMPLICIT = 10  # unknowns of linear systems in lanes, whose factors are straight-line code
LONGEST = 6000  # operations of a step in lanes; 3000 take a second to compile
CODE = {status: code for code, status in STATUS.items()}
SMALLEST_CHUNK = 4 * LANES


class NoLanes(Exception):
    """Raised with the reason why the members run one by one."""


class MemberEvents(NamedTuple):
    """The events of a member."""

    t: tuple[np.ndarray, ...] = ()
    y: tuple[np.ndarray, ...] = ()


def finish_nothing() -> None:
    """Do nothing after the last chunk."""


class ChunkRunner(NamedTuple):
    """How chunks are run: `begin(first, last)` returns a function that runs a slice and returns a code.

    `finish()` is called when all chunks are complete.
    """

    begin: Callable
    rung: str
    reason: str = ""
    finish: Callable = finish_nothing


def ignore_progress(n: int) -> None:
    """Show no progress."""


def run_ensemble(
    problem: Problem, scheme, plan: Plan, members: Members, workers: int = 1, show=ignore_progress
) -> EnsembleOutcome:
    """Solve the problem for many members; `show(n)` is called when n more are complete."""
    if problem.form.is_stochastic:
        return _run_stochastic(problem, scheme, plan, members, workers, show)
    n, times = problem.initial.size, max(1, members.save_at.shape[1])
    counts = [np.zeros(members.number, np.int64) for _ in range(4)]
    states = np.full((members.number, times, n), np.nan, problem.initial.dtype)
    ends = MemberEnds(states, np.full(members.number, np.nan), *counts, np.full(members.number, PAUSED))
    events: list[MemberEvents] = [MemberEvents()] * members.number
    run_alone = partial(_run_alone, problem, scheme, plan, members, ends, events)
    try:
        runner = _choose_lane_runner(problem, scheme, plan, members, ends, run_alone)
    except NoLanes as why:
        runner = ChunkRunner(partial(_run_one_by_one, run_alone), "one by one", str(why))
    is_whole = run_chunks(runner, _split_into_chunks(members.number, workers), workers, show)
    runner.finish()
    kinds = {code: Status.INTERRUPTED if code == PAUSED else STATUS[code] for code in np.unique(ends.code).tolist()}
    status = tuple(map(kinds.__getitem__, ends.code.tolist()))
    found = tuple(e.t for e in events), tuple(e.y for e in events)
    return EnsembleOutcome(ends.y, ends.t, status, *ends[2:6], runner.rung, runner.reason, *found, not is_whole)


def _run_stochastic(problem: Any, scheme: Any, plan: Plan, *how: Any) -> EnsembleOutcome:
    """Solve for many paths; the imports load the generators."""
    if isinstance(plan.stepping, AdaptiveSteps):
        from stepnet.engines.numba_engine.ensembles.adaptive_path_runs import run_adaptive_ensemble

        return run_adaptive_ensemble(problem, scheme, plan, *how)
    from stepnet.engines.numba_engine.ensembles.path_runs import run_stochastic_ensemble

    return run_stochastic_ensemble(problem, scheme, plan, *how)


def _split_into_chunks(count: int, workers: int) -> list[tuple[int, int]]:
    """A few chunks per thread, so that the threads finish at about the same time."""
    size = max(SMALLEST_CHUNK, -(-count // (8 * workers * LANES)) * LANES)
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def run_chunks(runner: ChunkRunner, chunks, workers: int, show) -> bool:
    """Run chunks in threads, slice by slice; Ctrl-C stops them after the current slice, and the result is False."""
    is_stopped = threading.Event()

    def run_chunk(chunk):
        advance = runner.begin(*chunk)
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
    build_full_field(problem)  # a function that cannot be called at all is an error, not the status of a member
    if plan.events or plan.project:
        raise NoLanes("events and projections are handled one member at a time")
    if problem.initial.dtype != np.float64:
        raise NoLanes(f"states are {problem.initial.dtype}")
    is_fixed = not isinstance(plan.stepping, AdaptiveSteps)
    if is_implicit(scheme):
        _require_implicit_lanes(problem, scheme, is_fixed)
    if not takes_fixed_steps(scheme):
        raise NoLanes(f"{scheme.name} chooses its order in every step, one member at a time")
    if not is_fixed:
        return _run_adaptive_lanes(problem, scheme, plan, members, ends)
    return _run_lockstep(problem, scheme, plan, members, ends, run_alone)


def _require_implicit_lanes(problem: Problem, scheme, is_fixed: bool) -> None:
    """Raise `NoLanes` unless these implicit steps run in lanes."""
    if not admits_lanes(scheme, problem.form, is_fixed):
        raise NoLanes("implicit steps solve systems of equations, one member at a time")
    n, mass = problem.initial.size, getattr(problem, "mass_matrix", None)
    if n > MOST_IMPLICIT:
        raise NoLanes(f"linear systems of more than {MOST_IMPLICIT} unknowns are solved one member at a time")
    if mass is not None and mass.is_singular:
        raise NoLanes("algebraic equations are solved one member at a time")
    if any(getattr(problem, name, None) is not None for name in ("jac", "jvp", "linear_solver")):
        raise NoLanes("`jac`, `jvp` and `linear_solver` are for one member at a time")


def _collect_starts(plan: Plan, members: Members) -> MemberStarts:
    rows = (members.y0, members.args, members.t_span, members.rtol, members.atol, members.save_at)
    arrays: Any = map(as_argument, rows)
    stepping = plan.stepping
    if isinstance(stepping, FixedSteps):
        return MemberStarts(*arrays, 0.0, np.inf, np.inf)
    return MemberStarts(*arrays, stepping.first_step or 0.0, stepping.max_step, float(stepping.max_steps))


def _run_adaptive_lanes(problem: Problem, scheme, plan: Plan, members: Members, ends: MemberEnds) -> ChunkRunner:
    """Adaptive pairs, with separate step sizes in every lane."""
    field, s, n = build_full_field(problem), len(scheme.b), problem.initial.size
    stepping = cast(AdaptiveSteps, plan.stepping)
    how = step_control.build_control_settings(stepping, 1.0 / explicit_rk.error_power(scheme))
    is_explicit = not is_implicit(scheme)
    is_fsal, differentiate = is_explicit and scheme.is_fsal, None if is_explicit else trace_entries
    betas: Any = tuple(map(float, how.controller.betas))
    numbers: Any = how.controller._replace(betas=betas)
    control = ControllerConstants(how.norm == RMS, *numbers, 10 * step_control.EPS, step_control.LEAST_STEP)
    places = LaneOffsets.of(n, field.p.size, s if is_explicit else 1)

    def make_writer():
        return write_lane_attempts(scheme, control, places, differentiate)

    try:
        code = find_lane_address((field,), scheme, (control, places), "attempts", make_writer, s)
    except TooManyNodes:
        raise NoLanes("df/dy is too long for straight-line code") from None
    dtype = problem.initial.dtype
    tables = explicit_rk.build_tables(scheme, dtype) if is_explicit else build_cubic_tables(dtype)
    is_aside = int(is_explicit and scheme.dense is None and scheme.order > scheme.continuous.order)
    starts = _collect_starts(plan, members)

    def begin(first: int, last: int):
        work = allocate_work(problem.initial, 1, K + 2 * len(tables.c) + len(tables.R))
        scratch = LaneWorkspace(
            _allocate_aligned(places.total),
            work,
            create_run_state(problem, plan),
            field.p.copy(),
            np.full(2 * LANES + 2, IDLE),
        )
        scratch.place[[NEXT, LAST]] = first, last
        own = how._replace(atol=how.atol.copy(), rtol=how.rtol.copy())
        arguments = (code, field.address, tables, own, is_aside, places, starts, ends, scratch, ATTEMPTS)
        return partial(run_lanes, *arguments)

    def finish():
        """Count evaluations, except those that choose the first step."""
        ends.evaluations[:] += (s - 1) * (ends.accepted + ends.rejected)
        if not is_fsal:  # the slope at the beginning of every step but the first
            ends.evaluations[:] += np.maximum(ends.accepted - 1, 0)

    return ChunkRunner(begin, "lanes", finish=finish)


class _LockstepProblem(NamedTuple):
    """Equal steps of a problem in lanes: its right-hand sides, the step program of the scheme, the entries of a row."""

    fields: tuple[CompiledRHS, ...]
    scheme_program: SchemeProgram
    n: int
    n_steps: int

    def address(self, program: StepProgram, which: str, write) -> int:
        return find_lane_address(self.fields, program, ("lanes", self.n), which, write, program.n_slopes)

    def steps(self, program: StepProgram) -> int:
        rows = range(program.n_rows)
        return self.address(program, "steps", partial(write_steps, program, rows, self.n, is_wide=True))

    def step_evenly(self, after: np.ndarray) -> LockstepSteps:
        opening, step = self.scheme_program.opening, self.scheme_program.step
        addresses = self.steps(opening), self.steps(step)
        return LockstepSteps(*addresses, opening.steps, self.n_steps, after, np.array(self.scheme_program.state))

    def group(self, n_parameters: int, first: int, last: int) -> LaneGroup:
        rows = self.scheme_program.step.n_rows * self.n
        clocks = [_allocate_aligned(1)[0] for _ in range(4)]
        work, aside, p = _allocate_aligned(rows), _allocate_aligned(rows), _allocate_aligned(max(1, n_parameters))
        return LaneGroup(*clocks[:2], work, aside, *clocks[2:], p, np.array([first, last, 0, 0]))


def _prepare_lockstep(problem: Problem, scheme, stepping: FixedSteps) -> _LockstepProblem:
    is_parted = moves_parts(scheme, problem.form)
    fields = build_part_fields(problem) if is_parted else (build_full_field(problem),)
    scheme_program = build_scheme_program(scheme, len(fields), problem.form is ProblemForm.SUM, fields[0].address == 0)
    if stepping.grid is not None:
        raise NoLanes("the steps are not equal")
    if not admits_lanes(scheme, problem.form, is_fixed=True):
        raise NoLanes("stages of a three-term recursion would lose accuracy as sums")
    if stepping.n_steps < scheme_program.opening.steps:
        raise NoLanes("there are fewer steps than the starting procedure takes")
    return _LockstepProblem(fields, scheme_program, problem.initial.size // len(scheme_program.state), stepping.n_steps)


def _run_lockstep(problem: Problem, scheme, plan: Plan, members: Members, ends: MemberEnds, run_alone) -> ChunkRunner:
    """Equal steps, as many in every lane; members that become non-finite run again alone, to locate the failure."""
    marching = _prepare_lockstep(problem, scheme, cast(FixedSteps, plan.stepping))
    scheme_program, n_steps = marching.scheme_program, marching.n_steps
    even = marching.step_evenly(_find_wanted_steps(members, n_steps, has_history(scheme)))
    starts = _collect_starts(plan, members)
    ends.accepted[:], ends.t[:], ends.saved[:] = n_steps, members.t_span[:, 1], len(even.after)
    ends.evaluations[:] = scheme_program.opening.n_slopes + scheme_program.step.n_slopes * (
        n_steps - scheme_program.opening.steps
    )

    def begin(first: int, last: int):
        group = marching.group(members.args.shape[1], first, last)
        most = max(1, ATTEMPTS // scheme_program.step.n_slopes)

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
    """Gradients of equal steps in lanes with respect to initial states and parameters, from those of the end states."""
    marching = _prepare_lockstep(problem, scheme, stepping)
    scheme_program, even, n = marching.scheme_program, marching.step_evenly(np.zeros((0, 2))), marching.n
    step, segment = scheme_program.step, max(1, isqrt(stepping.n_steps))
    reverse = partial(write_reverse, is_even=True, has_times=False, is_wide=True)
    sweep = partial(write_sweep, step, is_even=True, is_back=False, is_wide=True)
    addresses = [marching.address(step, "sweep", sweep), marching.address(step, "reverse", partial(reverse, step))]
    has_opening = bool(scheme_program.opening.operations)
    opening = (
        marching.address(scheme_program.opening, "reverse", partial(reverse, scheme_program.opening))
        if has_opening
        else 0
    )
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

    if not run_chunks(
        ChunkRunner(begin, "lanes"), _split_into_chunks(members.number, workers), workers, lambda n: None
    ):
        raise KeyboardInterrupt
    block = pack(problem.args)
    unknown = np.isnan(flat_gradients(unpack(block.values, block.slots), problem.args))
    bars.p[:, unknown] = np.nan  # integers are constants of the code
    return bars


def _find_wanted_steps(members: Members, n_steps: int, is_multistep: bool) -> np.ndarray:
    """The step before each save time, and the fraction of the next step up to it; the same for all members."""
    t0, t1 = members.t_span[:, :1], members.t_span[:, 1:]
    if members.save_at.shape[1] == 0:
        return np.zeros((0, 2))
    with np.errstate(invalid="ignore"):
        place = (members.save_at - t0) / (t1 - t0) * n_steps
    if not np.allclose(place, place[0], rtol=0, atol=1e-9):
        raise NoLanes("the save times lie in different steps")
    near = np.abs(place[0] - np.round(place[0])) < 1e-9
    step = np.where(near, np.round(place[0]), np.floor(place[0]))
    part = np.where(near, 0.0, place[0] - step)
    if is_multistep:
        raise NoLanes("a multistep scheme has no auxiliary steps")
    return np.stack([step, part], axis=1)


def find_lane_address(
    fields: tuple[CompiledRHS, ...], source, variant, which: str, make_writer, n_evaluations: int
) -> int:
    """The address of generated code in lanes; raises `NoLanes` if there is none."""
    address = find_fused_address(fields, source, variant, which, make_writer, max(1, n_evaluations), LONGEST)
    if address == 0:
        reasons = [field.reason for field in fields if field.reason]
        raise NoLanes("; ".join(reasons) or "its steps are too long for straight-line code")
    return address


def _allocate_aligned(rows: int) -> np.ndarray:
    """Rows of lanes, aligned to SIMD registers."""
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
    """Solve for member i with the kernels for a single trajectory."""
    wanted = members.row("save_at", i)
    saving = Saving(wanted if wanted.size else None, 0)
    stepping = plan.stepping
    if isinstance(stepping, AdaptiveSteps):
        stepping = stepping._replace(rtol=members.row("rtol", i), atol=members.row("atol", i))
    own = member_problem(problem, members, i)
    try:
        outcome = run(own, scheme, plan._replace(stepping=stepping, saving=saving))
    except Exception:  # raised by the user's function in its first call for this member
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
