"""What a stored run is a run of: the same in every process, another one for another problem, scheme or plan."""

from __future__ import annotations

import hashlib

from stepnet.engines.contract import Plan
from stepnet.engines.numba_engine.compile.fingerprint import fingerprint, value_key
from stepnet.problem import ODE, Partitioned, Problem, SecondOrder, Split


def identity(problem: Problem, scheme, plan: Plan) -> str:
    """A hash of the right-hand sides, their arguments, the shape and type of the state, the scheme and the steps."""
    facts = (
        (type(problem).__name__, getattr(problem, "separable", None)),
        problem.t_span,
        problem.initial.dtype.str,
        problem.initial.shape,
        [function_key(function) for function in _functions(problem)],
        [_without_addresses(value_key(value)) for value in problem.args],
        scheme,
        type(plan.stepping).__name__,
        [value_key(value) for name, value in plan.stepping._asdict().items() if name != "controller"],
        getattr(plan.stepping, "controller", None),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def function_key(function) -> tuple | None:
    """What a function is, the same in every process; None for None."""
    return None if function is None else _without_addresses(fingerprint(function))


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


def _without_addresses(key):
    """A fingerprint without the addresses of objects that are known by nothing else; they differ between processes."""
    if not isinstance(key, tuple):
        return key
    if len(key) > 1 and key[0] == "object":
        return ("object", *key[2:])
    return tuple(_without_addresses(part) for part in key)
