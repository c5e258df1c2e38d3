"""Programs of splitting schemes: flows of a sum, drifts and kicks of partitioned problems."""

from __future__ import annotations

from typing import Any

from stepnet.schemes.explicit import DOP853, RK4, VERNER65
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.step_program.operations import SchemeProgram, StepProgram
from stepnet.schemes.step_program.program_writer import ProgramWriter
from stepnet.schemes.tableau import ExplicitRK


def find_inner_scheme(order: int) -> ExplicitRK:
    """The Runge-Kutta scheme for the flows of a sum, at least as accurate as the splitting."""
    return RK4 if order <= 4 else VERNER65 if order <= 6 else DOP853


def write_sum_of_flows(scheme: Splitting, n_parts: int) -> StepProgram:
    """Each flow by one step of the inner scheme; each part has its own time."""
    writer, row, clocks = ProgramWriter(1), 0, [0.0] * n_parts
    table = find_inner_scheme(scheme.order).butcher
    for part, fraction in scheme.sequence(n_parts):
        row = writer.runge_kutta_step(table, row, part, clocks[part], fraction)
        clocks[part] += fraction
    return writer.program([row])


def write_drifts_and_kicks(scheme: Splitting, is_second_order: bool, can_carry: bool = True) -> SchemeProgram:
    """q' = dq(t, p), p' = dp(t, q), the slope of q being p itself for second-order problems.

    If `can_carry`, a scheme that ends with the part it begins with receives the slope of that part from the previous
    step and passes it on.
    """
    flows = scheme.sequence()
    first, last = flows[0][0], flows[-1][0]
    is_carried = can_carry and first == last and not (is_second_order and first == 0)
    n_rows = 3 if is_carried else 2

    def slope_of(writer: ProgramWriter, part: int, rows: list[int], clocks: Any) -> int:
        return rows[1] if part == 0 and is_second_order else writer.slope(part, rows[1 - part], clocks[1 - part])

    def with_slope(writer: ProgramWriter, rows: list[int], clocks: Any) -> list[int]:
        return [*rows, slope_of(writer, first, rows, clocks)] if is_carried else rows

    opening, step, back = ProgramWriter(n_rows), ProgramWriter(n_rows), ProgramWriter(n_rows)
    rows, clocks, done = [0, 1], [0.0, 0.0], []
    for i, (part, fraction) in enumerate(flows):
        slope = 2 if i == 0 and is_carried else slope_of(step, part, rows, clocks)
        done.append((part, fraction, tuple(clocks)))
        rows[part] = step.add_slopes(rows[part], [slope], [fraction])
        clocks[part] += fraction
    undone = [0, 1]
    for i, (part, fraction, before) in enumerate(reversed(done)):
        slope = 2 if i == 0 and is_carried else slope_of(back, part, undone, before)
        undone[part] = back.add_slopes(undone[part], [slope], [-fraction])
    return SchemeProgram(
        opening.program(with_slope(opening, [0, 1], (0.0, 0.0)), 0),
        step.program(with_slope(step, rows, clocks)),
        (0, 1),
        back.program(with_slope(back, undone, (0.0, 0.0))),
    )


def ends_with_a_drift(starter: Any) -> bool:
    return isinstance(starter, Splitting) and starter.sequence()[-1][0] == 0


def write_end_velocity(writer: ProgramWriter, new: int, old: int, slope: int) -> int:
    """(q_(n+1) - q_n) / h + h a_(n+1) / 2."""
    return writer.sum([(new, 1.0, -1), (old, -1.0, -1), (slope, 0.5, 1)])


def write_kick_drift_kick(writer: ProgramWriter, scheme: Splitting, q: int, v: int, clock: int) -> tuple[int, int]:
    """A step of a splitting scheme on q'' = a(t, q); a final kick has the slope of the next step's first kick."""
    moved = float(clock)
    for part, fraction in scheme.sequence():
        if part == 0:
            q, moved = writer.add_slopes(q, [v], [fraction]), moved + fraction
        else:
            v = writer.add_slopes(v, [writer.slope(1, q, moved, int(moved))], [fraction])
    return q, v
