"""The right-hand sides of a problem as fields: one for each part, or all of them joined into one of the flat state.

A joined field is a C function of this package whose parameters are the addresses of its parts, then the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import carray

from stepnet.engines.contract import FixedSteps, Plan, Saving
from stepnet.engines.numba_engine.array_tracing.array_trace import MOST_NODES, MOST_UNKNOWNS
from stepnet.engines.numba_engine.codegen.intrinsics.address_calls import call_rhs_at
from stepnet.engines.numba_engine.codegen.kernels import FieldKernel
from stepnet.engines.numba_engine.codegen.machine_code import MachineCode
from stepnet.engines.numba_engine.rhs.arguments import pack
from stepnet.engines.numba_engine.rhs.call_form import IN_PLACE_NAMES, CallForm, find_call_form, list_parameter_names
from stepnet.engines.numba_engine.rhs.ladder import (
    ANY,
    RUNGS,
    UNTRACED,
    CompiledRHS,
    PythonOnly,
    RungLimit,
    build_identity_field,
    find_c_address,
    make_field,
)
from stepnet.engines.numba_engine.rhs.mass_slopes import (
    build_algebraic_system,
    drop_mass,
    find_consistent_slope,
    find_consistent_state,
    is_regular,
    solve_for_slopes,
)
from stepnet.engines.numba_engine.tracing.function_key import FunctionKey, reach
from stepnet.engines.numba_engine.tracing.joint_trace import compile_joined
from stepnet.events import Event
from stepnet.problem import (
    ODE,
    SDE,
    Flow,
    Langevin,
    Linear,
    Partitioned,
    Problem,
    SecondOrder,
    Split,
    list_part_shapes,
    state_shape,
)

NO_PLAN = Plan(FixedSteps(1, None), Saving(None, 0))


def build_full_field(problem: Problem) -> CompiledRHS:
    """y' = f(t, y) of the flat state, for any kind of problem; consistent slopes for a singular mass matrix."""
    if isinstance(problem, ODE):
        if not is_regular(problem):
            return _build_consistent_slopes(problem)
        return _build_field(problem, list_functions(problem)[0])
    _refuse_flows(problem)
    parts = build_part_fields(problem)
    facts = {
        "rung": max((part.rung for part in parts), key=RUNGS.index),
        "reason": "; ".join(part.reason for part in parts if part.reason),
        "replay": _replay_of(problem, parts),
        "callbacks": tuple(callback for part in parts for callback in part.callbacks),
        "compile_time": sum(part.compile_time for part in parts),
        "n_calls": sum(part.n_calls for part in parts),
        "cost": sum(part.cost for part in parts),
        "reach": _join_keys(parts),
        "comparison": PartsComparison(problem, parts),
    }
    code = compile_joined(problem, parts, MOST_NODES) if problem.initial.size <= MOST_UNKNOWNS else None
    if code is not None:
        return CompiledRHS(code.address, parts[-1].p, **facts, keep_alive=code)
    reals = problem.initial.view(problem.initial.real.dtype).size
    addresses = [part.address for part in parts]
    if isinstance(problem, Split):
        header, scratch, function = [len(parts), reals, *addresses], reals, _sum
    else:
        is_separable = int(getattr(problem, "separable", True))
        header, scratch, function = [*addresses, reals // 2, is_separable], 0, _pair
    block = np.concatenate((np.array(header, np.int64).view(np.float64), np.zeros(scratch), parts[0].p))
    return CompiledRHS(function.address(problem.initial.real.dtype), block, **facts, keep_alive=(parts, block))


class PartFunction(NamedTuple):
    """A part of a problem: the user's function, its input and output shapes, and the flat state of its trial call."""

    function: object
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    y: np.ndarray
    label: str


def list_functions(problem: Problem) -> tuple[PartFunction | None, ...]:
    """The parts of a problem; None stands for q' = v.  Of M y' = f it is M^-1 f, or f if M is singular."""
    match problem:
        case ODE():
            problem, shape = solve_for_slopes(problem) if is_regular(problem) else problem, problem.y0.shape
            return (PartFunction(problem.fun, (shape,), shape, problem.initial, "fun"),)
        case Split():
            shape, parts = problem.y0.shape, enumerate(problem.parts)
            functions = ((i, part.fun if isinstance(part, Flow) else part) for i, part in parts)
            return tuple(PartFunction(each, (shape,), shape, problem.initial, f"parts[{i}]") for i, each in functions)
        case SecondOrder():
            shape = problem.q0.shape
            return None, PartFunction(problem.acceleration, (shape,), shape, problem.q0.ravel(), "acceleration")
        case Partitioned(separable=True):
            shape = problem.q0.shape
            dq = PartFunction(problem.dq, (shape,), shape, problem.p0.ravel(), "dq")
            return dq, PartFunction(problem.dp, (shape,), shape, problem.q0.ravel(), "dp")
        case Partitioned():
            shape = problem.q0.shape
            dq = PartFunction(problem.dq, (shape, shape), shape, problem.initial, "dq")
            return dq, PartFunction(problem.dp, (shape, shape), shape, problem.initial, "dp")
        case SDE():
            shape, y = problem.y0.shape, problem.initial
            drift = PartFunction(problem.drift, (shape,), shape, y, "drift")
            return drift, PartFunction(problem.diffusion, (shape,), problem.diffusion_shape, y, "diffusion")
        case Langevin():
            shape, q = problem.q0.shape, problem.q0.ravel()
            force = PartFunction(problem.acceleration, (shape,), shape, q, "force")
            return force, PartFunction(problem.amplitude, (shape,), shape, q, "amplitude")
    raise TypeError(
        f"`problem` must be an ODE, Partitioned, SecondOrder, Split, SDE or Langevin, found {type(problem).__name__}"
    )


def list_argument_names(problem: Problem) -> tuple[str, ...]:
    """The names of the right-hand side's extra arguments; () if it takes them in one block."""
    part = list_functions(problem)[-1]
    function = problem.force if isinstance(problem, Langevin) else part.function
    names = list_parameter_names(function)[1 + len(part.inputs) :]
    return () if names[:1] and names[0] in IN_PLACE_NAMES else tuple(names)


def _build_field(problem: Problem, part: PartFunction) -> CompiledRHS:
    function, inputs, output, y, label = part
    return make_field(function, problem.args, inputs, output, problem.t_span, y, label, _limit(problem))


def build_part_field(problem: Problem, i: int) -> CompiledRHS:
    """The field of one part that has a right-hand side; other parts may be flows."""
    part = list_functions(problem)[i]
    return _name_part(_build_field(problem, part), part.label)


def build_part_problem(problem: Split, i: int) -> ODE:
    """One part of a sum as an equation of its own; the last part has the options for its linear systems."""
    part = problem.parts[i]
    given: dict[str, Any] = {}
    if i == len(problem.parts) - 1:
        given = {name: getattr(problem, name) for name in ("jac", "jac_sparsity", "linear_solver")}
    if given.get("jac") is None and isinstance(part, Linear) and part.n == problem.y0.size:
        given["jac"] = part.matrix
    return ODE(part, problem.y0, problem.t_span, problem.args, trace=problem.trace, **given)


def _limit(problem: Problem) -> RungLimit:
    return ANY if problem.trace else UNTRACED


def build_part_fields(problem: Problem) -> tuple[CompiledRHS, ...]:
    """The fields of the parts, q' = v of a second-order problem among them."""
    _refuse_flows(problem)
    functions = list_functions(problem)
    found = [each and _build_field(problem, each) for each in functions]
    reason = _explain_python(tuple(field for field in found if field is not None))
    if reason:
        problem, _ = force_python(problem, NO_PLAN, reason)
        functions = list_functions(problem)
        found = [each and _build_field(problem, each) for each in functions]
    if len(functions) > 1 and None not in functions:
        found = [_name_part(field, each.label) for field, each in zip(found, functions, strict=True)]
    return tuple(field or build_identity_field(found[-1].p) for field in found)


def _name_part(field: CompiledRHS, label: str) -> CompiledRHS:
    """A field whose reason names the part."""
    return replace(field, reason=f"`{label}` {field.reason}") if field.reason else field


def build_jacobian(problem: ODE):
    """df/dy as a `Jacobian`: the user's own derivatives first, then traces, then dual numbers."""
    from stepnet.engines.numba_engine.derivatives.jacobian import make_jacobian  # loads scipy.sparse

    problem = solve_for_slopes(problem) if is_regular(problem) else problem
    form, block, rungs = _prepare_derivatives(problem)
    supplied = {name: getattr(problem, name) for name in ("jac", "jac_sparsity", "jvp", "vjp")}
    return make_jacobian(form, block, problem.t_span[0], problem.initial, **supplied, rungs=rungs)


def build_products(problem: ODE):
    """v -> (df/dy) v as a `Pushforward`; by differences where the right-hand side cannot be differentiated."""
    from stepnet.engines.numba_engine.derivatives.jacobian import make_products  # loads scipy.sparse

    form, block, rungs = _prepare_derivatives(problem)
    supplied = {name: getattr(problem, name) for name in ("jac", "jvp")}
    rungs = (*rungs, "differences") if rungs else rungs
    return make_products(form, block, problem.t_span[0], problem.initial, **supplied, rungs=rungs)


def _prepare_derivatives(problem: ODE) -> tuple[CallForm, Any, tuple[str, ...]]:
    """The call form of the right-hand side, its packed arguments, and the rungs that may differentiate it."""
    shape, block = problem.y0.shape, pack(problem.args)
    if find_c_address(problem.fun) is not None:
        form = CallForm(problem.fun, problem.args, (shape,), shape, problem.y0.dtype, "fun", False, False)
        return form, block, ()
    form = find_call_form(problem.fun, problem.args, (shape,), shape, problem.y0.dtype, "fun")
    return form, block, ("traced", "dual") if problem.trace else ("dual",)


def find_consistent_problem(problem: Problem) -> Problem:
    """The problem with a `y0` that satisfies the algebraic equations of a singular mass matrix."""
    mass = getattr(problem, "mass_matrix", None)
    if mass is None or not mass.is_singular:
        return problem
    system = _build_algebraic_system(problem)  # type: ignore[arg-type]
    y0 = find_consistent_state(system, mass, problem.t_span[0], problem.initial)
    return problem if y0 is problem.initial else replace(problem, y0=y0.reshape(problem.y0.shape))  # type: ignore


def _build_algebraic_system(problem: ODE):
    from stepnet.engines.numba_engine.derivatives.jacobian_fields import build_jacobian_field, evaluate_entries

    plain = drop_mass(problem)
    field = build_full_field(plain)
    jacobian = build_jacobian_field(plain, field)
    places = jacobian.rows, jacobian.columns
    return build_algebraic_system(problem, field, partial(evaluate_entries, jacobian, field), places)


def _build_consistent_slopes(problem: ODE) -> CompiledRHS:
    """y' of a differential-algebraic equation, in Python."""
    system, mass, shape = _build_algebraic_system(problem), problem.mass_matrix, problem.y0.shape

    def slopes(t, y, *args):
        return find_consistent_slope(system, mass, t, np.ravel(y)).reshape(shape)

    where = (shape,), shape, problem.t_span, problem.initial, "fun"
    return make_field(PythonOnly(slopes, "slopes of algebraic unknowns"), problem.args, *where)


class StepFunction(NamedTuple):
    """The function of a `Flow` with its step in an array, in which a kernel stores it."""

    fun: Callable[..., Any]

    def __call__(self, t, y, step, *args):
        return self.fun(t, y, step[0], *args)


def build_flow_field(problem: Split, i: int, step: np.ndarray) -> CompiledRHS:
    """The field y(t + h) of a part that is a `Flow`; h is in `step` and the first parameter."""
    shape, args, label = problem.y0.shape, (step, *problem.args), f"parts[{i}]"
    function = StepFunction(problem.parts[i].fun)  # type: ignore[attr-defined]
    field = make_field(function, args, (shape,), shape, problem.t_span, problem.initial, label, _limit(problem))
    for callback in field.callbacks:
        callback.forget_trial()  # the trial call used another step size
    return _name_part(field, label)


def is_flow(problem: Problem, i: int) -> bool:
    """Whether part i of a problem is given by its solution."""
    return isinstance(problem, Split) and isinstance(problem.parts[i], Flow)


def _refuse_flows(problem: Problem) -> None:
    if isinstance(problem, Split) and any(is_flow(problem, i) for i in range(len(problem.parts))):
        raise TypeError(
            "`parts` hold a `Flow`, which has no right-hand side: derivatives, ensembles, events and dense output need "
            "right-hand sides of all parts"
        )


class RunFunctions(NamedTuple):
    """The right-hand side of a run, the functions of its events, and its projection, if there is one."""

    slopes: CompiledRHS
    events: tuple[CompiledRHS, ...]
    projection: tuple[CompiledRHS, ...]


def build_fields(problem: Problem, plan: Plan) -> RunFunctions:
    """All functions of a run; all of them run in Python if one that does may change what another one reads."""
    if not plan.events and plan.project is None:
        return RunFunctions(build_full_field(problem), (), ())
    found = RunFunctions(
        build_full_field(problem),
        build_event_fields(problem, plan.events),
        build_projection_fields(problem, plan.project),
    )
    reason = _explain_python((found.slopes, *found.events, *found.projection))
    if not reason:
        return found
    problem, plan = force_python(problem, plan, reason)
    slopes = build_full_field(problem) if _is_compiled(found.slopes) else found.slopes
    events = (
        _build_event_field(problem, event, i) if _is_compiled(field) else field
        for i, (event, field) in enumerate(zip(plan.events, found.events, strict=True))
    )
    is_moved_in_python = not any(map(_is_compiled, found.projection))
    moved = found.projection if is_moved_in_python else build_projection_fields(problem, plan.project)
    return RunFunctions(slopes, tuple(events), moved)


def _is_compiled(field: CompiledRHS) -> bool:
    """Whether at least a part of it does not run in Python."""
    return field.n_calls > len(field.callbacks)


def _explain_python(fields: tuple[CompiledRHS, ...]) -> str:
    """Why all functions must run in Python: one of them may change what another one reads; "" if they need not."""
    for writer in fields:
        change = writer.reach
        if not writer.callbacks or change is None:
            continue
        for reader in fields:
            read = reader.reach
            if reader is writer or read is None or not _is_compiled(reader):
                continue
            if (read.reads_variables and (change.opaque or change.rebinds)) or (
                read.reads_objects and (change.opaque or change.mutates)
            ):
                return "run in Python: another function of the run may change what it reads"
    return ""


def force_python(problem: Problem, plan: Plan, reason: str) -> tuple[Problem, Plan]:
    """The same problem and plan with functions that are called in Python."""

    def called(function):
        if function is None or isinstance(function, (Flow, PythonOnly)) or find_c_address(function) is not None:
            return function
        return PythonOnly(function, reason)

    match problem:
        case ODE():
            problem = replace(problem, fun=called(problem.fun))
        case Split():
            problem = replace(problem, parts=tuple(called(part) for part in problem.parts))
        case SecondOrder():
            problem = replace(problem, acceleration=called(problem.acceleration))
        case Partitioned():
            problem = replace(problem, dq=called(problem.dq), dp=called(problem.dp))
        case SDE():
            problem = replace(problem, drift=called(problem.drift), diffusion=called(problem.diffusion))
    events = tuple(replace(event, fun=called(event.fun)) for event in plan.events)
    return problem, plan._replace(events=events, project=called(plan.project))


def read_values(problem: Problem, plan: Plan) -> tuple:
    """The current values that the functions of a run read, and the numbers of their arguments.

    Functions that are called in Python read the current values anyway.
    """
    block = pack(problem.args)
    parts = [part.function for part in list_functions(problem) if part is not None]
    functions = [*parts, *(event.fun for event in plan.events), plan.project]
    reaches = [reach(f, block.constants) for f in functions if f is not None and not _is_fixed(f)]
    keys = tuple([each.key for each in reaches if not each.opaque])
    return (keys, block.slots, block.frozen), block.values.tobytes()


def _is_fixed(function) -> bool:
    return isinstance(function, (PythonOnly, MachineCode)) or find_c_address(function) is not None


def build_event_fields(problem: Problem, events) -> tuple[CompiledRHS, ...]:
    """The functions g(t, y) of events, each with a scalar result."""
    return tuple([_build_event_field(problem, event, i) for i, event in enumerate(events)])


def _build_event_field(problem: Problem, event: Event, i: int) -> CompiledRHS:
    where = problem.t_span, problem.initial, f"events[{i}]"
    inputs = list_part_shapes(problem)
    return _name_part(make_field(event.fun, problem.args, inputs, (), *where, _limit(problem)), where[-1])


def build_projection_fields(problem: Problem, project) -> tuple[CompiledRHS, ...]:
    """The function y = project(t, y) that is applied to each new state, if there is one."""
    if project is None:
        return ()
    shape = state_shape(problem)
    span, args, y = problem.t_span, problem.args, problem.initial
    return (_name_part(make_field(project, args, (shape,), shape, span, y, "project", _limit(problem)), "project"),)


class PartsComparison:
    """Compares the machine code of each part with its Python function."""

    def __init__(self, problem: Problem, parts: tuple[CompiledRHS, ...]):
        self._problem, self._parts = problem, parts

    def agrees_somewhere(self, t_span: tuple[float, float], y: np.ndarray) -> bool:
        """Whether all parts agree, each at its own point."""
        inputs = split_state(self._problem, y, len(self._parts))
        return all(
            part.comparison is None or part.comparison.agrees_somewhere(t_span, state)
            for part, state in zip(self._parts, inputs, strict=True)
        )


def _join_keys(parts: tuple[CompiledRHS, ...]) -> FunctionKey:
    """What several functions reach together."""
    found = [part.reach for part in parts if part.reach is not None]
    flags = [any(flags) for flags in zip(*[each[2:] for each in found], strict=True)]
    return FunctionKey(
        tuple(each.key for each in found), "; ".join(each.opaque for each in found if each.opaque), *flags
    )


def split_state(problem: Problem, y: np.ndarray, n_parts: int) -> tuple[np.ndarray, ...]:
    """The part of the flat state that each function takes."""
    half = y.size // 2
    is_separable = isinstance(problem, SecondOrder) or getattr(problem, "separable", False)
    return (y[half:], y[:half]) if is_separable else (y,) * n_parts


def _replay_of(problem: Problem, parts):
    """Run the Python originals of all parts, so that the user's exception is raised; returns their joint slopes."""

    def replay(t, y):
        inputs = split_state(problem, y, len(parts))
        slopes = [
            part(t, state) if part.replay is None else part.replay(t, state)
            for part, state in zip(parts, inputs, strict=True)
        ]
        return sum(slopes) if isinstance(problem, Split) else np.concatenate(slopes)

    return replay


@FieldKernel
def _pair(t, y_, dy_, p_, n):
    """(dq(t, p), dp(t, q)), or (dq(t, q, p), dp(t, q, p)) if not separable; the address 0 stands for q' = p."""
    header = carray(p_, (4,)).view(np.int64)
    dq, dp, half, is_separable = header[0], header[1], header[2], header[3]
    y, dy = carray(y_, (2 * half,)), carray(dy_, (2 * half,))
    q, p = y.ctypes.data, y[half:].ctypes.data
    parameters = carray(p_, (5,))[4:].ctypes.data
    status = np.int32(0)
    if dq == 0:
        for k in range(half):
            dy[k] = y[half + k]
    elif is_separable:
        status = call_rhs_at(dq, t, p, dy.ctypes.data, parameters, n // 2)
    else:
        status = call_rhs_at(dq, t, q, dy.ctypes.data, parameters, n)
    if status != 0:
        return status
    return call_rhs_at(dp, t, q, dy[half:].ctypes.data, parameters, n // 2 if is_separable else n)


@FieldKernel
def _sum(t, y_, dy_, p_, n):
    """f1(t, y) + f2(t, y) + ...; a row of workspace lies between the addresses and the user's parameters."""
    sizes = carray(p_, (2,)).view(np.int64)
    count, reals = sizes[0], sizes[1]
    block = carray(p_, (2 + count + reals + 1,))
    addresses = block[2 : 2 + count].view(np.int64)
    scratch = block[2 + count : 2 + count + reals].view(carray(y_, (1,)).dtype)
    parameters = block[2 + count + reals :].ctypes.data
    y, dy = carray(y_, (reals,)), carray(dy_, (reals,))
    status = call_rhs_at(addresses[0], t, y.ctypes.data, dy.ctypes.data, parameters, n)
    for part in range(1, count):
        if status != 0:
            return status
        status = call_rhs_at(addresses[part], t, y.ctypes.data, scratch.ctypes.data, parameters, n)
        for k in range(reals):
            dy[k] += scratch[k]
    return status
