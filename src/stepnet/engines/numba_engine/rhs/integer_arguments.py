"""Integers and lists among the arguments of a right-hand side, for derivatives with respect to them.

A parameter 2 is differentiated like 2.0, an array of integers or a list of numbers like an array of floats.  Integers
that control loops, are sizes or indices have no derivative, nor have lists that are needed as lists.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepnet.engines.numba_engine.rhs.ladder import RUNGS, CompiledRHS
from stepnet.engines.numba_engine.rhs.problem_parts import build_event_fields, build_part_fields
from stepnet.events import Event
from stepnet.problem import Problem

SAME = 1e-12  # agreement of slopes with 2.0 instead of 2, relative to the largest


def convert_to_floats(problem: Problem, *others) -> Problem:
    """The problem with integers and lists in `args` replaced by floats, where no function needs them as they are.

    `others` are functions of (t, y, *args) besides the right-hand side, or None.
    """
    places = find_unconverted(problem)
    if not places or any(getattr(problem, name, None) is not None for name in ("jac", "jvp", "vjp")):
        return problem
    fields = _build_fields(problem, others)
    if any(field.reach is not None and field.reach.opaque for field in fields):
        return problem
    for each in (places, *([place] for place in places)):
        trial = replace(problem, args=tuple(_as_floats(x) if i in each else x for i, x in enumerate(problem.args)))
        if _is_same(problem, fields, trial, others):
            problem = trial
            if len(each) == len(places):
                return problem
    return problem


def find_unconverted(problem: Problem) -> list[int]:
    """The positions of the arguments that are real numbers, but neither floats nor arrays of floats."""
    return [i for i, x in enumerate(problem.args) if _holds_numbers(x)]


def _holds_numbers(value) -> bool:
    """Whether it is an integer, an array of integers, a list or tuple of numbers, or an array without dimensions."""
    if isinstance(value, (float, np.floating)) or not (
        isinstance(value, (int, np.integer, np.ndarray)) or type(value) in (list, tuple)
    ):
        return False
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError):  # a ragged list
        return False
    is_packed = isinstance(value, np.ndarray) and array.ndim > 0
    return array.dtype.kind in ("iu" if is_packed else "iuf") and array.size > 0


def _as_floats(value) -> float | np.ndarray:
    array = np.asarray(value, float)
    return array if array.ndim else float(array)


def _build_fields(problem: Problem, others) -> tuple[CompiledRHS, ...]:
    functions = tuple(Event(getattr(each, "fun", each)) for each in others if each is not None)
    return (*build_part_fields(problem), *build_event_fields(problem, functions))


def _is_same(problem: Problem, fields: tuple[CompiledRHS, ...], trial: Problem, others) -> bool:
    """Whether floats give the same slopes, on rungs that are as fast."""
    try:
        found = _build_fields(trial, others)
    except Exception:  # a range, an index or a shape: it needs the integer
        return False
    if any(RUNGS.index(new.rung) > RUNGS.index(old.rung) for new, old in zip(found, fields, strict=True)):
        return False
    return all(_agree(problem, old, new) for old, new in zip(fields, found, strict=True))


def _agree(problem: Problem, old: CompiledRHS, new: CompiledRHS) -> bool:
    if old.replay is None or new.replay is None:
        return True
    t, y = problem.t_span[0], problem.initial
    n = y.size if old.comparison is None else old.comparison.n_in
    x, z = old.replay(t, y[:n]), new.replay(t, y[:n])
    return bool(np.allclose(x, z, rtol=0.0, atol=SAME * np.abs(x).max(initial=0.0), equal_nan=True))
