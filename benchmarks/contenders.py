"""Contenders on the adaptive problems: each prepares a problem, so that the timed call is one solve.

Peers are imported where they are used; one that is not installed becomes a line that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from benchmarks import c_loops
from benchmarks.problems import Adaptive
from benchmarks.timing import Answer, Prepared

MOST_STEPS = 10_000_000


class Contender(NamedTuple):
    """`prepare(problem, tolerance)` compiles what is to be compiled; rtol = atol = tolerance.

    `tightest` spares minutes where a slow contender would only repeat itself.
    """

    name: str
    package: str
    prepare: Callable[[Adaptive, float], Prepared]
    tightest: float = 0.0


def stepnet(scheme: str, has_first_step: bool = False):
    """With the first step of the C loop where the two are compared."""
    import stepnet as sn

    def prepare(problem, tolerance):
        ode = sn.ODE(problem.plain, problem.y0, (0.0, problem.t_end))
        first_step = problem.first_step if has_first_step else None
        return prepared_solve(ode, scheme, rtol=tolerance, atol=tolerance, first_step=first_step)

    return prepare


def prepared_solve(problem, scheme: str, **how) -> Prepared:
    """The whole call `sn.solve`, as a user makes it; only the end is saved."""
    import stepnet as sn

    def call():
        return sn.solve(problem, scheme, save_every=0, **how)

    def read(solution):
        s = solution.statistics
        return Answer(solution.y[-1], s.accepted, s.rejected, s.evaluations, s.run_time)

    told = call().statistics
    if told.rung == "python":  # it would be timed for something else
        raise RuntimeError(f"the right-hand side ran as {told.rung}: {told.rung_reason}")
    return Prepared(call, read)


def c_dopri5(is_called: bool = False):
    """The loop written by hand, its right-hand side inlined or called."""

    def prepare(problem, tolerance):
        call = c_loops.adaptive(problem, tolerance, is_called)
        call()
        return Prepared(call, lambda raw: Answer(*raw))

    return prepare


def solve_ivp(method: str):
    def prepare(problem, tolerance):
        from scipy.integrate import solve_ivp

        def call():
            return solve_ivp(
                problem.python, (0.0, problem.t_end), problem.y0, method=method, rtol=tolerance, atol=tolerance
            )

        return Prepared(call, lambda s: Answer(s.y[:, -1], len(s.t) - 1, None, s.nfev))

    return prepare


def odeint(problem: Adaptive, tolerance: float) -> Prepared:
    """LSODA in Fortran."""
    from scipy.integrate import odeint

    def call():
        return odeint(
            problem.python, problem.y0, [0.0, problem.t_end], rtol=tolerance, atol=tolerance, tfirst=True,
            mxstep=MOST_STEPS, full_output=True,
        )  # fmt: skip

    def read(raw):
        y, told = raw
        return Answer(y[-1], int(told["nst"][-1]), None, int(told["nfe"][-1]))

    return Prepared(call, read)


def diffrax(solver: str):
    def prepare(problem, tolerance):
        import jax

        jax.config.update("jax_enable_x64", True)
        solve = _jitted(problem, solver)
        y0 = jax.numpy.asarray(problem.y0)

        def call():
            return jax.block_until_ready(solve(y0, problem.t_end, tolerance))

        call()
        return Prepared(call, read)

    def read(raw):
        y, told = raw
        return Answer(np.asarray(y[-1]), int(told["num_accepted_steps"]), int(told["num_rejected_steps"]))

    return prepare


@cache
def _jitted(problem: Adaptive, solver: str):
    """One compilation for all tolerances."""
    import diffrax as dx
    import jax
    import jax.numpy as jnp

    field = problem.arrays(jnp)
    term, scheme = dx.ODETerm(lambda t, y, args: field(t, y)), getattr(dx, solver)()

    @jax.jit
    def solve(y0, t_end, tolerance):
        solution = dx.diffeqsolve(
            term, scheme, 0.0, t_end, None, y0, saveat=dx.SaveAt(t1=True), max_steps=MOST_STEPS,
            stepsize_controller=dx.PIDController(rtol=tolerance, atol=tolerance),
        )  # fmt: skip
        return solution.ys, solution.stats

    return solve


def pydiffsol(problem: Adaptive, tolerance: float) -> Prepared:
    ode = _diffsol(problem)
    none, times = np.array([]), np.array([problem.t_end])

    def call():
        ode.rtol = ode.atol = tolerance
        return ode.solve_dense(none, times)

    call()
    return Prepared(call, lambda solution: Answer(solution.ys[:, -1]))


@cache
def _diffsol(problem: Adaptive):
    import pydiffsol as ds

    return ds.Ode(problem.diffsl, matrix_type=ds.nalgebra_dense, ode_solver=ds.tsit45)


def torchdiffeq(problem: Adaptive, tolerance: float) -> Prepared:
    import torch
    from torchdiffeq import odeint

    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    field, evaluations = problem.arrays(torch), [0]
    y0, times = torch.from_numpy(problem.y0), torch.tensor([0.0, problem.t_end])

    def counted(t, y):
        evaluations[0] += 1
        return field(t, y)

    def call():
        evaluations[0] = 0
        with torch.no_grad():
            return odeint(counted, y0, times, rtol=tolerance, atol=tolerance, method="dopri5")

    return Prepared(call, lambda y: Answer(y[-1].numpy(), evaluations=evaluations[0]))


C_LOOP = Contender("C dopri5", "C", c_dopri5())
C_CALLED = Contender("C dopri5, field called", "C", c_dopri5(is_called=True))
BESIDE_C = Contender("stepnet dopri5, first step of C", "stepnet", stepnet("dopri5", has_first_step=True))
CONTENDERS = (
    C_LOOP,
    C_CALLED,
    BESIDE_C,
    Contender("stepnet dopri5", "stepnet", stepnet("dopri5")),
    Contender("stepnet tsit5", "stepnet", stepnet("tsit5")),
    Contender("stepnet dop853", "stepnet", stepnet("dop853")),
    Contender("diffrax Dopri5", "diffrax", diffrax("Dopri5")),
    Contender("diffrax Tsit5", "diffrax", diffrax("Tsit5")),
    Contender("diffrax Dopri8", "diffrax", diffrax("Dopri8")),
    Contender("pydiffsol tsit45", "pydiffsol", pydiffsol),
    Contender("SciPy RK45", "scipy", solve_ivp("RK45")),
    Contender("SciPy DOP853", "scipy", solve_ivp("DOP853")),
    Contender("SciPy odeint", "scipy", odeint),
    Contender("torchdiffeq dopri5", "torchdiffeq", torchdiffeq, tightest=1e-8),
)
