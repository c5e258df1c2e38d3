"""Whole steps of linear equations on grids, for executors of schemes."""

from __future__ import annotations

from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.schemes.step_program import StepProgram


def find_stencil(fields: tuple[CompiledRHS, ...]):
    """The machine code of the last part, if it is a linear equation on a grid and the others are q' = v; else None."""
    *others, last = fields
    is_own = all(field.address == 0 for field in others) and hasattr(last.keep_alive, "find_steps")
    return last.keep_alive if is_own else None


def count_spare_rows(fields: tuple[CompiledRHS, ...], program: StepProgram | None) -> int:
    """The rows of `work` that generated steps need besides the state; 0 if there are no such steps."""
    code = find_stencil(fields)
    return 0 if code is None or program is None else code.count_spare_rows(program) or 0


def find_stencil_steps(
    fields: tuple[CompiledRHS, ...], program: StepProgram, rows: tuple[int, ...], spare: int, stride: int
) -> int:
    """The address of equal steps of a program on `rows` of `work`, whose rows from `spare` on are free; or 0."""
    code = find_stencil(fields)
    if code is None or code.count_spare_rows(program) is None:
        return 0
    return code.find_steps(program, rows, spare, stride)
