"""Programs of multistep schemes, whose earlier states and slopes are rows of the state."""

from __future__ import annotations

from stepnet.schemes.backward_differences import FixedBDF
from stepnet.schemes.multistep import Multistep
from stepnet.schemes.semi_implicit import SemiImplicitBDF
from stepnet.schemes.splitting import Splitting
from stepnet.schemes.step_program.one_step import write_additive_step
from stepnet.schemes.step_program.operations import SchemeProgram, StepProgram
from stepnet.schemes.step_program.program_writer import ProgramWriter, write_nothing
from stepnet.schemes.step_program.splitting_steps import ends_with_a_drift, write_end_velocity, write_kick_drift_kick


def write_multistep(scheme: Multistep) -> SchemeProgram:
    """The starting procedure is the opening; states and slopes of earlier steps are passed on.

    Rows: y_n, y_(n-1), ...; then f_n, f_(n-1), ...; a second-order problem has its velocity after them.
    """
    is_second = scheme.derivative == 2
    part, n_states, n_slopes, started = int(is_second), len(scheme.alpha), len(scheme.beta), scheme.n_steps - 1
    n_rows = n_states + n_slopes + is_second
    opening = ProgramWriter(n_rows)
    states, velocity = [0], n_rows - 1
    for j in range(started):
        if isinstance(scheme.starter, Splitting):
            new, velocity = write_kick_drift_kick(opening, scheme.starter, states[0], velocity, j)
        else:
            new = opening.runge_kutta_step(scheme.starter.butcher, states[0], clock=j, step=j)
        states.insert(0, new)
    slopes = [opening.slope(part, states[j], started - j, started - j) for j in range(n_slopes)]
    if is_second and ends_with_a_drift(scheme.starter):  # its velocity is that of the drift, not of the end
        velocity = write_end_velocity(opening, states[0], states[1], slopes[0])
    begun = [*states[:n_states], *slopes, *([velocity] if is_second else [])]
    state = (0, n_rows - 1) if is_second else (0,)
    back = _write_two_steps_back(scheme) if n_states == 2 and n_slopes == 1 and scheme.alpha[1] != 0 else None
    return SchemeProgram(opening.program(begun, started), _write_multistep_step(scheme, n_states, 1), state, back)


def write_semi_implicit(scheme: SemiImplicitBDF) -> SchemeProgram:
    """Rows: y_n, y_(n-1), ...; then the slopes of the explicit part at all of them but the first."""
    k = scheme.n_steps
    opening, states = ProgramWriter(2 * k - 1), [0]
    for j in range(k - 1):
        states.insert(0, write_additive_step(opening, scheme.starter, states[0], j))
    slopes = [opening.slope(0, states[j], k - 1 - j) for j in range(1, k)]
    step = ProgramWriter(2 * k - 1)
    f = [step.slope(0, 0, 0.0), *range(k, 2 * k - 1)]
    terms = [(row, a, 0) for row, a in enumerate(scheme.alpha)]
    base = step.sum([*terms, *((row, b, 1) for row, b in zip(f, scheme.beta, strict=True))])
    new = step.add_slopes(base, [step.solve(1, base, [[scheme.gamma]], [1.0])], [scheme.gamma])
    begun, moved = opening.program([*states, *slopes], k - 1), step.program([new, *range(k - 1), *f[: k - 1]])
    return SchemeProgram(begun, moved, (0,))


def write_fixed_bdf(scheme: FixedBDF) -> SchemeProgram:
    """Rows: y_n, y_(n-1), ..."""
    k = scheme.n_steps
    opening, states = ProgramWriter(k), [0]
    for j in range(k - 1):
        states.insert(0, opening.runge_kutta_step(scheme.starter.butcher, states[0], clock=j, step=j))
    step = ProgramWriter(k)
    base = step.sum((row, a, 0) for row, a in enumerate(scheme.alpha))
    new = step.add_slopes(base, [step.solve(0, base, [[scheme.gamma]], [1.0])], [scheme.gamma])
    return SchemeProgram(opening.program(states, k - 1), step.program([new, *range(k - 1)]), (0,))


def build_window(scheme: Multistep) -> SchemeProgram:
    """A multistep scheme as a one-step scheme: its state consists of all earlier states it uses, the latest first.

    The opening computes their slopes.  A second-order problem has a velocity with every state.
    """
    is_second, n, n_slopes = scheme.derivative == 2, scheme.n_steps, len(scheme.beta)
    opening = ProgramWriter(n + n_slopes + is_second * n)
    slopes = [opening.slope(int(is_second), j, -j, -j) for j in range(n_slopes)]
    velocities = list(range(n + n_slopes, opening.n_rows))
    state = [row for pair in zip(range(n), velocities, strict=True) for row in pair] if is_second else range(n)
    return SchemeProgram(
        opening.program([*range(n), *slopes, *velocities], 0), _write_multistep_step(scheme, n, n), tuple(state)
    )  # fmt: skip


def build_long_window(scheme: Multistep, factor: int) -> SchemeProgram | None:
    """A step `factor` times as long on a window with unchanged spacing of states; None if none is known."""
    numbers = scheme.derivative, scheme.alpha, scheme.beta
    if numbers == (1, (0.0, 1.0), (2.0,)):
        return SchemeProgram(write_nothing(2), _write_long_midpoint(factor), (0, 1))
    if numbers == (2, (2.0, -1.0), (1.0,)):
        return SchemeProgram(write_nothing(4), _write_long_leapfrog(1 / factor), (0, 1, 2, 3))
    return None


def _write_long_midpoint(factor: int) -> StepProgram:
    """A step of Verlet's for x' = f(z), z' = f(x), x and z being every other state.

    The two-step midpoint rule is the leapfrog of this system, so errors of alternating sign propagate backward in time
    in both.
    """
    step, apart = ProgramWriter(2), 1 / factor
    z = step.add_slopes(1, [step.slope(0, 0, 0.0)], [0.5 + apart])
    x = step.add_slopes(0, [step.slope(0, z, 0.5)], [1.0])
    slope = step.slope(0, x, 1.0)
    if factor % 2 == 0:
        return step.program([x, step.add_slopes(z, [slope], [0.5 - apart])])
    z = step.add_slopes(z, [slope], [0.5])
    return step.program([z, step.add_slopes(x, [step.slope(0, z, 1.0)], [-apart])])


def _write_long_leapfrog(apart: float) -> StepProgram:
    """Verlet's step from q and its velocity, (q - q_old) / (apart h) + apart h a / 2; rows are q, v, q_old, v_old."""
    step = ProgramWriter(4)
    slope = step.slope(1, 0, 0.0)
    half = step.sum([(0, 1 / apart, -1), (2, -1 / apart, -1), (slope, 0.5 * (apart + 1), 1)])
    q = step.add_slopes(0, [half], [1.0])
    slope = step.slope(1, q, 1.0)
    v = step.add_slopes(half, [slope], [0.5])
    old = step.sum([(q, 1.0, 0), (v, -apart, 1), (slope, 0.5 * apart**2, 2)])
    slopes = [slope, step.slope(1, old, 1.0 - apart)]
    return step.program([q, v, old, step.add_slopes(v, slopes, [-0.5 * apart] * 2)])


def _write_multistep_step(scheme: Multistep, n_states: int, n_velocities: int) -> StepProgram:
    """A step that passes on `n_states` states, their slopes, and `n_velocities` velocities."""
    is_second, n_slopes = scheme.derivative == 2, len(scheme.beta)
    step = ProgramWriter(n_states + n_slopes + is_second * n_velocities)
    y, f = list(range(n_states)), list(range(n_states, n_states + n_slopes))
    terms = [(row, a, 0) for row, a in zip(y, scheme.alpha, strict=False)]
    new = step.sum([*terms, *((row, b, scheme.derivative) for row, b in zip(f, scheme.beta, strict=True))])
    slope = step.slope(int(is_second), new, 1.0, step=1)  # for the next step
    moved = [new, *y[:-1], slope, *f[:-1]]
    if is_second:
        velocity = write_end_velocity(step, new, 0, slope)
        moved += [velocity, *range(n_states + n_slopes, step.n_rows - 1)]
    return step.program(moved)


def _write_two_steps_back(scheme: Multistep) -> StepProgram:
    """y_(n-1) from y_(n+1) and y_n; time is that of step n."""
    is_second = scheme.derivative == 2
    part, power, (a0, a1), (b0,) = int(is_second), scheme.derivative, scheme.alpha, scheme.beta
    writer = ProgramWriter(4 if is_second else 3)
    slope = writer.slope(part, 1, 0.0)
    old = writer.sum([(0, 1 / a1, 0), (1, -a0 / a1, 0), (slope, -b0 / a1, power)])
    moved = [1, old, slope]
    if is_second:
        moved.append(writer.sum([(1, 1.0, -1), (old, -1.0, -1), (slope, 0.5, 1)]))
    return writer.program(moved)
