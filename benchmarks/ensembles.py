"""Rows of ensembles: Lorenz with rho from 0 to 28, T = 10, rtol = atol = 1e-6; seconds are those of one member.

Who solves members one after the other does so for a few of them, evenly spread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks import c_loops, problems
from benchmarks.timing import Answer, Prepared, Row, by_turns, first_line

WORKLOAD = "ensemble"
T_END, TOLERANCE = 10.0, 1e-6
MANY, MOST = 10_000, 100_000
ORBITS, ORBIT_STEPS, PLEIADES, PLEIADES_END = 1000, 1000, 1024, 3.0
SECONDS = 4.0

IN_LANES, MORE_IN_LANES = f"stepnet dopri5, {MANY} members", f"stepnet dopri5, {MOST} members"
ON_TWO = f"{MORE_IN_LANES}, 2 threads"
C_LANES = f"C dopri5, {MANY} members in vectors"
ONE_ORBIT, MANY_ORBITS = "stepnet verlet, one orbit", f"stepnet verlet, {ORBITS} orbits"
ONE_PLEIADES, MANY_PLEIADES = "stepnet dopri5, Pleiades one by one", f"stepnet dopri5, {PLEIADES} Pleiades"


def lorenz(t, y, sigma, rho, beta):
    return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]


def rhos(count: int) -> np.ndarray:
    return np.linspace(0.0, 28.0, count)


def numbers(count: int) -> np.ndarray:
    return np.stack([np.full(count, 10.0), rhos(count), np.full(count, 8 / 3)], axis=1)


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    contenders = {
        IN_LANES: (MANY, partial(in_lanes, MANY, 1)),
        MORE_IN_LANES: (MOST, partial(in_lanes, MOST, 1)),
        ON_TWO: (MOST, partial(in_lanes, MOST, 2)),
        C_LANES: (MANY, partial(c_lanes, MANY)),
        "Numba dopri5, naive prange": (1000, partial(naive_loop, 1000)),
        "stepnet dopri5, one by one": (20, partial(one_by_one, 20)),
        "diffrax Dopri5, vmap": (1000, partial(diffrax, 1000, "vmap")),
        "diffrax Dopri5, lax.map": (1000, partial(diffrax, 1000, "map")),
        "torchode Dopri5": (1000, partial(torchode, 1000)),
        "torchdiffeq dopri5, one batch": (1000, partial(torchdiffeq, 1000)),
        "pydiffsol tsit45, loop": (200, partial(pydiffsol, 200)),
        "SciPy RK45, loop": (4, partial(scipy, 4)),
        ONE_ORBIT: (1, partial(orbits, 1)),
        MANY_ORBITS: (ORBITS, partial(orbits, ORBITS)),
        ONE_PLEIADES: (16, pleiades_one_by_one),
        MANY_PLEIADES: (PLEIADES, pleiades),
    }
    prepared, failed = {}, {}
    for who, (_, prepare) in contenders.items():
        try:
            prepared[who] = prepare()
        except Exception as exception:  # a failing peer is a line of the table
            failed[who] = exception
    found = failed | by_turns(prepared, SECONDS)
    for who, (count, _) in contenders.items():
        measured, package = found[who], "C" if who.startswith("C ") else who.split()[0].lower()
        if isinstance(measured, Exception):
            yield Row(WORKLOAD, who, package, note=first_line(measured))
        else:
            steps = measured.answer.accepted
            yield Row(WORKLOAD, who, package, time=measured.time / count, accepted=steps, calls=measured.calls)


def in_lanes(count: int, workers: int) -> Prepared:
    import stepnet as sn

    problem = sn.ODE(lorenz, [1.0, 1.0, 1.0], (0.0, T_END), args=(10.0, 28.0, 8 / 3))
    return _prepared(problem, "dopri5", args=numbers(count), rtol=TOLERANCE, atol=TOLERANCE, workers=workers)


def _prepared(problem, scheme: str, **how) -> Prepared:
    import stepnet as sn

    def call():
        return sn.solve_ensemble(problem, scheme, **how)

    told = call()
    if told.rung != "lanes" or not told.success.all():
        raise RuntimeError(f"the members ran {told.rung}: {told.reason}")
    return Prepared(call, lambda found: Answer(found.y_end, int(found.accepted.sum()), int(found.rejected.sum())))


def c_lanes(count: int) -> Prepared:
    call = c_loops.lanes(rhos(count), T_END, 1e-3, TOLERANCE)
    call()
    return Prepared(call, lambda raw: Answer(raw[0], raw[1]))


def naive_loop(count: int) -> Prepared:
    from benchmarks import naive

    return Prepared(naive.prepared(rhos(count), T_END, TOLERANCE), lambda raw: Answer(*raw))


def one_by_one(count: int) -> Prepared:
    import stepnet as sn

    members = [sn.ODE(lorenz, [1.0, 1.0, 1.0], (0.0, T_END), args=tuple(row)) for row in numbers(count)]

    def call():
        return [sn.solve(one, "dopri5", rtol=TOLERANCE, atol=TOLERANCE, save_every=0) for one in members]

    call()
    return Prepared(call, _ends)


def _ends(solutions) -> Answer:
    return Answer(np.array([s.y[-1] for s in solutions]), sum(s.statistics.accepted for s in solutions))


def orbits(count: int) -> Prepared:
    """Kepler's problem by leapfrog, a thousand steps."""
    import stepnet as sn

    def attraction(t, q):
        return -q / np.sum(q * q) ** 1.5

    start = np.tile([1.0, 0.0, 0.0, 1.0], (count, 1)) + 0.1 * np.linspace(0.0, 1.0, count)[:, None]
    problem = sn.SecondOrder(attraction, start[0, :2], start[0, 2:], (0.0, 10.0))
    if count > 1:
        return _prepared(problem, "verlet", y0=start, steps=ORBIT_STEPS, workers=1)

    def call():
        return sn.solve(problem, "verlet", steps=ORBIT_STEPS, save_every=0)

    call()
    return Prepared(call, lambda solution: Answer(solution.y[-1], ORBIT_STEPS))


def pleiades_starts(count: int) -> np.ndarray:
    y0 = problems.PLEIADES.y0
    return y0 + 0.005 * np.random.default_rng(0).standard_normal((count, y0.size))


def pleiades() -> Prepared:
    import stepnet as sn

    problem = sn.ODE(problems.PLEIADES.plain, problems.PLEIADES.y0, (0.0, PLEIADES_END))
    return _prepared(problem, "dopri5", y0=pleiades_starts(PLEIADES), rtol=TOLERANCE, atol=TOLERANCE, workers=1)


def pleiades_one_by_one() -> Prepared:
    import stepnet as sn

    members = [sn.ODE(problems.PLEIADES.plain, y, (0.0, PLEIADES_END)) for y in pleiades_starts(PLEIADES)[::64]]

    def call():
        return [sn.solve(one, "dopri5", rtol=TOLERANCE, atol=TOLERANCE, save_every=0) for one in members]

    call()
    return Prepared(call, _ends)


def diffrax(count: int, how: str) -> Prepared:
    import diffrax as dx
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def field(t, y, rho):
        return jnp.array([10.0 * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]])

    def end(rho):
        control = dx.PIDController(rtol=TOLERANCE, atol=TOLERANCE)
        found = dx.diffeqsolve(
            dx.ODETerm(field), dx.Dopri5(), 0.0, T_END, None, jnp.ones(3), rho, saveat=dx.SaveAt(t1=True),
            stepsize_controller=control, max_steps=100_000,
        )  # fmt: skip
        return found.ys[-1], found.stats["num_accepted_steps"]

    many = jax.jit(jax.vmap(end) if how == "vmap" else partial(jax.lax.map, end))
    given = jnp.asarray(rhos(count))

    def call():
        return jax.block_until_ready(many(given))

    call()
    return Prepared(call, lambda raw: Answer(np.asarray(raw[0]), int(raw[1].sum())))


def _tensors(count: int):
    """The right-hand side on tensors, and where it starts."""
    import torch

    torch.set_num_threads(1)
    rho = torch.from_numpy(rhos(count))

    def field(t, y):
        x, v, z = y.unbind(-1)
        return torch.stack((10.0 * (v - x), x * (rho - z) - v, x * v - 8.0 / 3.0 * z), -1)

    return field, torch.ones(count, 3, dtype=torch.float64)


def torchode(count: int) -> Prepared:
    import torch
    import torchode as to

    field, y0 = _tensors(count)
    term = to.ODETerm(field)
    solver = to.AutoDiffAdjoint(to.Dopri5(term=term), to.IntegralController(atol=TOLERANCE, rtol=TOLERANCE, term=term))
    t0 = torch.zeros(count, dtype=torch.float64)
    problem = to.InitialValueProblem(y0=y0, t_start=t0, t_end=t0 + T_END)

    def call():
        with torch.no_grad():
            return solver.solve(problem)

    return Prepared(call, lambda s: Answer(s.ys[:, -1].numpy(), int(s.stats["n_accepted"].sum())))


def torchdiffeq(count: int) -> Prepared:
    import torch
    from torchdiffeq import odeint

    field, y0 = _tensors(count)
    times = torch.tensor([0.0, T_END], dtype=torch.float64)

    def call():
        with torch.no_grad():
            return odeint(field, y0, times, rtol=TOLERANCE, atol=TOLERANCE, method="dopri5")

    return Prepared(call, lambda y: Answer(y[-1].numpy()))


def pydiffsol(count: int) -> Prepared:
    import pydiffsol as ds

    text = """
in { rho = 28.0 }
u_i { x = 1.0, y = 1.0, z = 1.0 }
F_i { 10.0 * (y - x), x * (rho - z) - y, x * y - 8.0 / 3.0 * z }
"""
    ode = ds.Ode(text, matrix_type=ds.nalgebra_dense, ode_solver=ds.tsit45)
    ode.rtol = ode.atol = TOLERANCE
    times, given = np.array([T_END]), [np.array([rho]) for rho in rhos(count)]

    def call():
        return [ode.solve_dense(rho, times).ys[:, -1] for rho in given]

    call()
    return Prepared(call, lambda ends: Answer(np.array(ends)))


def scipy(count: int) -> Prepared:
    from scipy.integrate import solve_ivp

    def call():
        return [
            solve_ivp(lorenz, (0.0, T_END), [1.0, 1.0, 1.0], args=tuple(row), rtol=TOLERANCE, atol=TOLERANCE)
            for row in numbers(count)
        ]

    return Prepared(call, lambda found: Answer(np.array([s.y[:, -1] for s in found])))
