"""Rows of the symplectic schemes: equal steps, so every contender does the same work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from benchmarks import c_loops
from benchmarks.contenders import prepared_solve
from benchmarks.orbits import HENON_HEILES, OUTER_PLANETS, PLANETS, G, Orbit
from benchmarks.timing import Answer, Measured, Prepared, Row, by_turns, first_line

SECONDS = 2.0
AGREEMENT = 1e-9  # between C and stepnet: on regular orbits rounding grows no faster than the number of steps


class Contender(NamedTuple):
    name: str
    package: str
    prepare: Callable[[Orbit], Prepared]


def c_loop(scheme: str, is_called: bool = False):
    def prepare(orbit):
        call = c_loops.fixed(scheme, orbit, is_called)
        return Prepared(call, lambda y: Answer(y, orbit.steps))

    return prepare


def stepnet(scheme: str):
    import stepnet as sn

    def prepare(orbit):
        problem = sn.SecondOrder(orbit.acceleration, orbit.q0, orbit.v0, (0.0, orbit.t_end), orbit.args)
        return prepared_solve(problem, scheme, steps=orbit.steps)

    return prepare


def jax_leapfrog(orbit: Orbit) -> Prepared:
    """A jitted loop, what a JAX user without a library writes."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    h = orbit.h

    def accelerate(q):
        return jnp.stack(orbit.acceleration(0.0, q))

    def step(_, state):
        q, v, a = state
        v = v + 0.5 * h * a
        q = q + h * v
        a = accelerate(q)
        return q, v + 0.5 * h * a, a

    @jax.jit
    def run(q, v):
        q, v, _ = jax.lax.fori_loop(0, orbit.steps, step, (q, v, accelerate(q)))
        return jnp.concatenate([q, v])

    q0, v0 = jnp.asarray(orbit.q0), jnp.asarray(orbit.v0)

    def call():
        return run(q0, v0).block_until_ready()

    call()
    return Prepared(call, lambda y: Answer(np.asarray(y), orbit.steps))


def rebound_leapfrog(orbit: Orbit) -> Prepared:
    """REBOUND's leapfrog, which drifts first; making the simulation costs less than a thousandth of the run."""
    import rebound

    def call():
        simulation = rebound.Simulation()
        simulation.G, simulation.integrator, simulation.dt = G, "leapfrog", orbit.h
        for m, x, y, z, vx, vy, vz in PLANETS:
            simulation.add(m=m, x=x, y=y, z=z, vx=vx, vy=vy, vz=vz)
        simulation.steps(orbit.steps)
        return simulation

    def read(simulation):
        bodies = simulation.particles
        q, v = [b.xyz for b in bodies], [b.vxyz for b in bodies]
        return Answer(np.concatenate((np.ravel(q), np.ravel(v))), orbit.steps)

    return Prepared(call, read)


SCHEMES = ("leapfrog", "yoshida4")
BOTH = tuple(
    contender
    for scheme in SCHEMES
    for contender in (
        Contender(f"C {scheme}", "C", c_loop(scheme)),
        Contender(f"C {scheme}, field called", "C", c_loop(scheme, is_called=True)),
        Contender(f"stepnet {scheme}", "stepnet", stepnet(scheme)),
    )
)
WORKLOADS = {
    HENON_HEILES.name: (HENON_HEILES, (*BOTH, Contender("jax leapfrog", "jax", jax_leapfrog))),
    OUTER_PLANETS.name: (OUTER_PLANETS, (*BOTH, Contender("rebound leapfrog", "rebound", rebound_leapfrog))),
}


class Disagreement(RuntimeError):
    """stepnet and the C loop came to different ends."""


def rows(name: str) -> Iterator[Row]:
    """Measure one workload."""
    orbit, contenders = WORKLOADS[name]
    prepared: dict[str, Prepared] = {}
    failed: dict[str, Exception] = {}
    for contender in contenders:
        try:
            prepared[contender.name] = contender.prepare(orbit)
        except Exception as exception:
            failed[contender.name] = exception
    found = failed | by_turns(prepared, SECONDS)
    for scheme in SCHEMES:
        require_agreement(orbit, found[f"C {scheme}"], found[f"stepnet {scheme}"])
    for contender in contenders:
        yield _row(orbit, contender, found[contender.name])


def require_agreement(orbit: Orbit, in_c, in_stepnet) -> None:
    """Both codes must have run the same orbit."""
    for found in (in_c, in_stepnet):
        if isinstance(found, Exception):
            raise found
    difference = float(np.max(np.abs(in_c.answer.y - in_stepnet.answer.y)))
    if not difference <= AGREEMENT:
        raise Disagreement(f"{orbit.name}: C and stepnet differ by {difference:.1e} at the end")


def _row(orbit: Orbit, contender: Contender, found: Measured | Exception) -> Row:
    if isinstance(found, Exception):
        return Row(orbit.name, contender.name, contender.package, note=first_line(found))
    answer = found.answer
    return Row(
        orbit.name, contender.name, contender.package, None, found.time, found.kernel_time, orbit.error(answer.y),
        answer.accepted, answer.rejected, answer.evaluations, found.calls,
    )  # fmt: skip
