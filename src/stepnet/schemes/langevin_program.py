"""Step programs of schemes for Langevin dynamics.

Weights that depend on the friction c through exp(-c h) are numbers of the program, which is therefore built for one
step size.  Rows are positions and velocities, and the acceleration where a step ends with the one the next begins with.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, expm1, sqrt

from stepnet.schemes.langevin import LangevinSplitting, StochasticVerlet
from stepnet.schemes.step_program import DIFFUSION, DRIFT, ELEMENTWISE, ProgramWriter, SchemeProgram, StepProgram

POSITION, VELOCITY, ACCELERATION = range(3)


@lru_cache(maxsize=256)
def build_langevin_program(scheme: LangevinSplitting | StochasticVerlet, friction: float, h: float) -> SchemeProgram:
    """Build the programs of a scheme for steps of the length h."""
    if isinstance(scheme, StochasticVerlet):
        return SchemeProgram(_write_first_acceleration(), _write_verlet(friction * h), (POSITION, VELOCITY))
    is_carried = scheme.sequence[0] == scheme.sequence[-1] == "B"
    opening = _write_first_acceleration() if is_carried else StepProgram(2, (), (POSITION, VELOCITY), 0)
    return SchemeProgram(opening, _write_splitting(scheme.sequence, friction * h, is_carried), (POSITION, VELOCITY))


def scale_noise(decay: float) -> float:
    """sqrt((1 - exp(-2 x)) / (2 x)), by which the noise of the Ornstein-Uhlenbeck process is smaller than s dW."""
    return sqrt(-expm1(-2.0 * decay) / (2.0 * decay)) if decay > 0.0 else 1.0


def _write_first_acceleration() -> StepProgram:
    opening = ProgramWriter(3)
    return opening.program([POSITION, VELOCITY, opening.slope(DRIFT, POSITION, 0.0)], 0)


def _write_splitting(sequence: str, decay: float, is_carried: bool) -> StepProgram:
    writer = ProgramWriter(3 if is_carried else 2)
    q, v, moved = POSITION, VELOCITY, 0.0
    for i, part in enumerate(sequence):
        fraction = 1.0 / sequence.count(part)
        if part == "A":
            q, moved = writer.add_slopes(q, [v], [fraction]), moved + fraction
        elif part == "B":
            slope = ACCELERATION if i == 0 and is_carried else writer.slope(DRIFT, q, moved)
            v = writer.add_slopes(v, [slope], [fraction])
        else:
            noise = writer.noise_of(writer.slope(DIFFUSION, POSITION, 0.0), "W", ELEMENTWISE)
            v = writer.sum([(v, exp(-decay), 0), (noise, scale_noise(decay), 0)])
    return writer.program([q, v, writer.slope(DRIFT, q, 1.0)] if is_carried else [q, v])


def _write_verlet(decay: float) -> StepProgram:
    b = 1.0 / (1.0 + 0.5 * decay)
    a = (1.0 - 0.5 * decay) * b
    writer = ProgramWriter(3)
    noise = writer.noise_of(writer.slope(DIFFUSION, POSITION, 0.0), "W", ELEMENTWISE)
    q = writer.sum([(POSITION, 1.0, 0), (VELOCITY, b, 1), (noise, 0.5 * b, 1), (ACCELERATION, 0.5 * b, 2)])
    slope = writer.slope(DRIFT, q, 1.0)
    v = writer.sum([(VELOCITY, a, 0), (noise, b, 0), (ACCELERATION, 0.5 * a, 1), (slope, 0.5, 1)])
    return writer.program([q, v, slope])
