"""What a stored run is a run of: the same in every process, another one for another problem, scheme or plan."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.compile.arguments import pack
from stepnet.engines.numba_engine.compile.reach import reach, value_key
from stepnet.problem import ODE, Partitioned, Problem, SecondOrder, Split


def identity(problem: Problem, scheme, plan: Plan) -> str:
    """A hash of the right-hand sides, their arguments, the shape and type of the state, the scheme and the steps."""
    facts = (
        *_facts(problem),
        scheme,
        type(plan.stepping).__name__,
        [value_key(value) for name, value in plan.stepping._asdict().items() if name != "controller"],
        getattr(plan.stepping, "controller", None),
    )
    return _hash(facts)


def problem_identity(problem: Problem) -> str:
    """A hash of a problem, its initial state included."""
    return _hash((*_facts(problem), problem.initial.tobytes()))


def opaque_reason(problem: Problem, events=()) -> str:
    """Why the functions of a problem cannot be told from others by what they reach; nothing if they can."""
    chosen = events if isinstance(events, (tuple, list)) else (events,)
    functions = (*_functions(problem), *(getattr(event, "fun", event) for event in chosen))
    constants = pack(problem.args).constants
    found = [reach(function, constants).opaque for function in functions if callable(function)]
    return next((reason for reason in found if reason), "")


def value_identity(value) -> str:
    """A hash of any value: numbers, arrays, functions, records and collections of them."""
    return _hash(_stable_key(value))


def _facts(problem: Problem) -> tuple:
    return (
        (type(problem).__name__, getattr(problem, "separable", None)),
        problem.t_span,
        problem.initial.dtype.str,
        problem.initial.shape,
        [function_key(function) for function in _functions(problem)],
        [value_key(value) for value in problem.args],
    )


def _hash(facts) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _stable_key(value):
    """A key of any value; records are known by their fields, wherever their class was installed."""
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *((f.name, _stable_key(getattr(value, f.name))) for f in fields(value)))
    if isinstance(value, (tuple, list)):
        return tuple(_stable_key(item) for item in value)
    if isinstance(value, dict):
        return tuple((str(name), _stable_key(item)) for name, item in value.items())
    return value_key(value)


def function_key(function) -> tuple | None:
    """What a function is, the same in every process; None for None."""
    return None if function is None else reach(function).key


def _functions(problem: Problem) -> tuple:
    match problem:
        case ODE():
            return (problem.fun,)
        case Partitioned():
            return problem.dq, problem.dp
        case SecondOrder():
            return (problem.acceleration,)
        case Split():
            return problem.parts
    raise TypeError(f"no problem: {type(problem).__name__}")
