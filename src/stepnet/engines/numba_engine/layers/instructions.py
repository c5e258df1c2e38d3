"""The instructions of a step program and of its transpose, as the kernels of `layer_kernels` read them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from stepnet.schemes.step_program import Noise, Product, Slope, StepProgram

SLOPE, SUM, SCALED, ZERO, NOISE, PRODUCT = range(6)


class Instruction(NamedTuple):
    """One instruction on rows.

    SUM: out = v one + w other.  SCALED: out = v one, or out += v one if `is_added`.  ZERO: out = 0.

    NOISE: out = the Brownian increments of the step.  PRODUCT: out = one times other, or out += it if `is_added`.

    SLOPE, forward: out = f(one), slope number `slope` of the step; if `is_added`, also total = v other + w out.

    SLOPE, reverse: out = other + K' (v total), K' the pullback of `slope` at the row `out`, without `other` unless
    `is_added`; `one` is the row of the slope.
    """

    kind: int
    out: int
    one: int = 0
    other: int = 0
    slope: int = 0
    is_added: int = 0
    total: int = 0
    v: float = 0.0
    w: float = 0.0


def _make_dtype(real: type) -> np.dtype:
    return np.dtype([(name, real if name in "vw" else np.int64) for name in Instruction._fields], align=True)


DTYPES = {np.dtype(real): _make_dtype(real) for real in (np.float32, np.float64)}
"""Instructions as records that kernels read, for weights of each real type."""


class ProgramRows(Protocol):
    """The rows of a program: those stored in the next state, those copied there, and those read at the end."""

    n_rows: int
    passed: dict[int, int]
    copied: list[int]
    finals: set[int]
    slopes: list[int]


def tabulate(code: list[Instruction], dtype: np.dtype) -> np.ndarray:
    """Instructions as an array of records, with weights of a real type."""
    return np.array(code, DTYPES[np.dtype(dtype)])


# ---- forward --------------------------------------------------------------------------------------------------------


def write_forward(program: StepProgram, rows: ProgramRows, h: float) -> list[Instruction]:
    """Slopes and sums; rows of the state that pass to the next step are copied at the end."""
    code: list[Instruction] = []
    slope = 0
    for i, operation in enumerate(program.operations):
        out = program.n_rows + i
        if isinstance(operation, Slope):
            code.append(Instruction(SLOPE, out, operation.row, slope=slope))
            slope += 1
        elif isinstance(operation, Noise):
            code.append(Instruction(NOISE, out))
        elif isinstance(operation, Product):
            code.append(Instruction(PRODUCT, out, operation.diffusion, operation.noise))
        else:
            code += _write_sum(out, [(term.row, term.weight * h**term.power) for term in operation.terms])
    return code + [Instruction(SCALED, rows.n_rows + j, program.outputs[j], v=1.0) for j in rows.copied]


def _write_sum(out: int, terms: list[tuple[int, float]]) -> list[Instruction]:
    """The first two terms in one instruction, then the others one by one."""
    if len(terms) == 1:
        return [Instruction(SCALED, out, terms[0][0], v=terms[0][1])]
    (one, v), (other, w) = terms[:2]
    more = [Instruction(SCALED, out, row, is_added=1, v=weight) for row, weight in terms[2:]]
    return [Instruction(SUM, out, one, other, v=v, w=w), *more]


def fuse_sums(code: list[Instruction]) -> list[Instruction]:
    """Merge a slope and the sum v y + w k that follows it into one instruction."""
    fused: list[Instruction] = []
    for each in code:
        last = fused[-1] if fused else None
        follows = last is not None and last.kind == SLOPE and not last.is_added
        if follows and each.kind == SUM and each.other == last.out and each.one != last.out:
            fused[-1] = last._replace(other=each.one, is_added=1, total=each.out, v=each.v, w=each.w)
        else:
            fused.append(each)
    return fused


# ---- reverse --------------------------------------------------------------------------------------------------------


def write_reverse(program: StepProgram, rows: ProgramRows, h: float) -> list[Instruction]:
    """The transposed program, whose rows are gradients.  A row is set at its first occurrence, then added to.

    Rows of noise have no gradient: they hold the noise, which is drawn again.
    """
    code: list[Instruction] = []
    met = {*rows.passed, *rows.finals}
    noise = {program.n_rows + i for i, operation in enumerate(program.operations) if isinstance(operation, Noise)}

    def add(target: int, source: int, weight: float) -> None:
        code.append(Instruction(SCALED, target, source, is_added=int(target in met), v=weight))
        met.add(target)

    for j in rows.copied:
        add(program.outputs[j], rows.n_rows + j, 1.0)
    slope = len(rows.slopes)
    for i in range(len(program.operations) - 1, -1, -1):
        operation, out = program.operations[i], program.n_rows + i
        slope -= isinstance(operation, Slope)
        if out not in met:
            continue
        if isinstance(operation, Slope):
            x, is_begun = operation.row, int(operation.row in met)
            code.append(Instruction(SLOPE, x, out, x, slope, is_begun, out, 1.0))
            met.add(x)
        elif isinstance(operation, Product):
            g = operation.diffusion
            code.append(Instruction(NOISE, operation.noise))
            code.append(Instruction(PRODUCT, g, out, operation.noise, is_added=int(g in met)))
            met.add(g)
        else:
            for term in operation.terms:
                if term.row not in noise:
                    add(term.row, out, term.weight * h**term.power)
    return code + [Instruction(ZERO, row) for row in range(program.n_rows) if row not in met]


def drop_copies(code: list[Instruction]) -> list[Instruction]:
    """Make pullbacks of slopes read the rows of which theirs are multiples or copies, which are then not computed."""
    kept: list[Instruction] = []
    for each in code:
        if each.kind == SLOPE:
            source, weight = _take_source(kept, each.one)
            begin, _ = _take_source(kept, each.out, 1.0)
            each = each._replace(other=begin, total=source, v=weight)
        kept.append(each)
    return kept


def _take_source(code: list[Instruction], target: int, weight: float | None = None) -> tuple[int, float]:
    """The source of a row, if neither has changed since; the instruction is then removed.  Else the row itself."""
    touched: set[int] = set()
    for k in range(len(code) - 1, -1, -1):
        kind, out, source, is_added, v = code[k].kind, code[k].out, code[k].one, code[k].is_added, code[k].v
        if kind != SCALED or target in touched:
            break
        if out == target and not is_added and source not in touched and weight in (None, v):
            del code[k]
            return source, v
        touched |= {out, source} if source == target else {out}  # the instruction that reads it needs the row itself
    return target, 1.0
