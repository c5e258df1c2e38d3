"""Rows of stiff problems: every contender at tolerances atol = 1e-4 rtol, with the relative error at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from benchmarks.timing import Answer, Measured, Prepared, Row, by_turns, first_line

TOLERANCES = (1e-4, 1e-6, 1e-8)
ATOL = 1e-4  # of rtol: small components matter
SECONDS = 0.3  # for a contender at one tolerance
MOST_STEPS = 1_000_000
SCHEMES = ("rodas3", "rodas4", "rodas5p", "radau5", "radau9", "kvaerno5", "ndf", "lsoda", "auto")
BANDED_SCHEMES = ("trbdf2", "rodas3", "rodas4", "rodas5p", "ndf", "lsoda")
N_LONG = 500


class Stiff(NamedTuple):
    """y' = f(t, y) on [0, t_end]; `arrays(stack)` is f for diffrax, `diffsl` for pydiffsol.

    A banded problem has `band` diagonals below and above the main one and is measured beside SciPy alone.
    """

    name: str
    plain: Callable
    arrays: Callable
    diffsl: str
    y0: np.ndarray
    t_end: float
    band: int = 0


def robertson(t, y):
    slow, back, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return [-slow + back, slow - back - fast, fast]


def van_der_pol(t, y):
    return [y[1], 1e3 * (1.0 - y[0] * y[0]) * y[1] - y[0]]


def brusselator(t, z):
    """Two reactants at 250 points, interleaved, with diffusion; Hairer & Wanner (1996), IV.10."""
    k = 0.02 * (N_LONG // 2 + 1) ** 2
    u, v = z[::2], z[1::2]
    left, right = np.concatenate(([1.0], u[:-1])), np.concatenate((u[1:], [1.0]))
    below, above = np.concatenate(([3.0], v[:-1])), np.concatenate((v[1:], [3.0]))
    slope = np.zeros(N_LONG)
    slope[::2] = 1 + u * u * v - 4 * u + k * (left - 2 * u + right)
    slope[1::2] = 3 * u - u * u * v + k * (below - 2 * v + above)
    return slope


PLACES = np.linspace(0, 1, N_LONG // 2 + 2)[1:-1]
PROBLEMS = {
    "robertson": Stiff(
        "robertson", robertson, lambda stack: lambda t, y: stack(robertson(t, y)),
        "u_i { x = 1.0, y = 0.0, z = 0.0 }\n"
        "F_i { -0.04 * x + 10000.0 * y * z, 0.04 * x - 10000.0 * y * z - 30000000.0 * y * y, 30000000.0 * y * y }",
        np.array([1.0, 0.0, 0.0]), 1e5,
    ),
    "van der pol": Stiff(
        "van der pol", van_der_pol, lambda stack: lambda t, y: stack(van_der_pol(t, y)),
        "u_i { x = 2.0, y = 0.0 }\nF_i { y, 1000.0 * (1.0 - x * x) * y - x }",
        np.array([2.0, 0.0]), 2000.0,
    ),
    "brusselator": Stiff(
        "brusselator", brusselator, lambda stack: brusselator, "",
        np.ravel(np.column_stack((1 + np.sin(2 * np.pi * PLACES), np.full(N_LONG // 2, 3.0)))), 10.0, 2,
    ),
}  # fmt: skip
WORKLOADS = tuple(PROBLEMS)
ENSEMBLE, MANY, FEW, RATIO = "robertson ensemble", 10_000, 1_000, 1e-6
LANES, VMAP = "stepnet rodas5p", "diffrax Kvaerno5, vmap"
MEMBERS = {"stepnet rodas4": MANY, LANES: MANY, f"{LANES}, one by one": FEW, VMAP: FEW}


def rows(name: str) -> Iterator[Row]:
    """Measure one problem."""
    problem = PROBLEMS[name]
    for tolerance in TOLERANCES:
        prepared: dict[str, Prepared] = {}
        found: dict[str, Measured | Exception] = {}
        contenders = BANDED_CONTENDERS if problem.band else CONTENDERS
        for contender, (_, prepare) in contenders.items():
            try:
                prepared[contender] = prepare(problem, tolerance)
            except Exception as exception:
                found[contender] = exception
        found |= by_turns(prepared, SECONDS)
        for contender, (package, _) in contenders.items():
            yield _row(problem, tolerance, contender, package, found[contender])


def rows_of_members(name: str = ENSEMBLE) -> Iterator[Row]:
    """Robertson to t = 1e5 with the first rate from 0.02 to 0.08; seconds are those of one member."""
    prepared: dict[str, Prepared] = {}
    found: dict[str, Measured | Exception] = {}
    for contender, count in MEMBERS.items():
        prepare = _diffrax_members if contender.startswith("diffrax") else _stepnet_members
        try:
            prepared[contender] = prepare(contender, np.linspace(0.02, 0.08, count))
        except Exception as exception:
            found[contender] = exception
    found |= by_turns(prepared, SECONDS)
    reference = _reference(PROBLEMS["robertson"].name)
    for contender, count in MEMBERS.items():
        measured, package = found[contender], contender.split()[0]
        if isinstance(measured, Exception):
            yield Row(name, contender, package, RATIO, note=first_line(measured))
            continue
        middle = measured.answer.y[np.argmin(np.abs(np.linspace(0.02, 0.08, count) - 0.04))]
        error = float(np.max(np.abs(middle - reference) / np.abs(reference)))
        note = "error of the member nearest to the rate 0.04"
        time = measured.time / count
        yield Row(name, contender, package, RATIO, time, None, error, measured.answer.accepted, calls=measured.calls,
                  note=note)  # fmt: skip


def _rated_robertson(t, y, rate):
    slow, back, fast = rate * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return [-slow + back, slow - back - fast, fast]


def _stepnet_members(contender: str, rates: np.ndarray) -> Prepared:
    import stepnet as sn

    scheme, given = contender.split()[1].rstrip(","), {}
    if contender.endswith("one by one"):
        given = {"linear_solver": "dense"}
    problem = sn.ODE(_rated_robertson, [1.0, 0.0, 0.0], (0.0, 1e5), (0.04,), **given)

    def call():
        return sn.solve_ensemble(problem, scheme, args=rates[:, None], rtol=RATIO, atol=ATOL * RATIO, workers=1)

    call()
    return Prepared(call, lambda found: Answer(found.y_end, int(found.accepted.sum())))


def _diffrax_members(contender: str, rates: np.ndarray) -> Prepared:
    import diffrax as dx
    import jax

    jax.config.update("jax_enable_x64", True)
    jnp = jax.numpy
    term = dx.ODETerm(lambda t, y, rate: jnp.stack(_rated_robertson(t, y, rate)))
    control = dx.PIDController(rtol=RATIO, atol=ATOL * RATIO)
    choices = {"saveat": dx.SaveAt(t1=True), "max_steps": MOST_STEPS, "stepsize_controller": control}
    y0 = jnp.array([1.0, 0.0, 0.0])

    def end(rate):
        found = dx.diffeqsolve(term, dx.Kvaerno5(), 0.0, 1e5, None, y0, rate, **choices)
        return found.ys[-1], found.stats["num_accepted_steps"]

    many, given = jax.jit(jax.vmap(end)), jnp.asarray(rates)

    def call():
        return jax.block_until_ready(many(given))

    call()
    return Prepared(call, lambda raw: Answer(np.asarray(raw[0]), int(raw[1].sum())))


def _row(problem: Stiff, tolerance: float, contender: str, package: str, found: Measured | Exception) -> Row:
    if isinstance(found, Exception):
        return Row(problem.name, contender, package, tolerance, note=first_line(found))
    answer = found.answer
    return Row(
        problem.name, contender, package, tolerance, found.time, found.kernel_time, _error(problem, answer.y),
        answer.accepted, answer.rejected, answer.evaluations, found.calls,
    )  # fmt: skip


def _error(problem: Stiff, y: np.ndarray) -> float:
    reference = _reference(problem.name)
    return float(np.max(np.abs(y - reference) / np.abs(reference)))


@cache
def _reference(name: str) -> np.ndarray:
    from scipy.integrate import solve_ivp

    problem = PROBLEMS[name]
    choices = {"method": "Radau", "rtol": 1e-12, "atol": 1e-16}
    if problem.band:  # dense factorisations would take minutes
        choices = {"method": "LSODA", "rtol": 1e-12, "atol": 1e-13, "lband": problem.band, "uband": problem.band}
    return solve_ivp(problem.plain, (0.0, problem.t_end), problem.y0, **choices).y[:, -1]


def _stepnet(scheme: str):
    def prepare(problem: Stiff, tolerance: float) -> Prepared:
        import stepnet as sn

        ode = sn.ODE(problem.plain, problem.y0, (0.0, problem.t_end))

        def call():
            return sn.solve(ode, scheme, rtol=tolerance, atol=ATOL * tolerance, save_every=0)

        def read(solution):
            told = solution.statistics
            return Answer(solution.y[-1], told.accepted, told.rejected, told.evaluations, told.run_time)

        call()
        return Prepared(call, read)

    return prepare


def _scipy(method: str):
    def prepare(problem: Stiff, tolerance: float) -> Prepared:
        from scipy.integrate import solve_ivp
        from scipy.sparse import diags_array

        choices = {"method": method, "rtol": tolerance, "atol": ATOL * tolerance}
        if problem.band and method == "LSODA":
            choices |= {"lband": problem.band, "uband": problem.band}
        elif problem.band:
            choices["jac_sparsity"] = diags_array([1.0] * 5, offsets=range(-2, 3), shape=(N_LONG, N_LONG)).tocsc()

        def call():
            return solve_ivp(problem.plain, (0.0, problem.t_end), problem.y0, **choices)

        return Prepared(call, lambda s: Answer(s.y[:, -1], len(s.t) - 1, None, s.nfev))

    return prepare


def _odeint(problem: Stiff, tolerance: float) -> Prepared:
    """LSODA in Fortran, with the right-hand side compiled by Numba."""
    from numba import njit
    from scipy.integrate import odeint

    field, times = njit(problem.plain), [0.0, problem.t_end]
    choices = {"rtol": tolerance, "atol": ATOL * tolerance, "tfirst": True, "mxstep": MOST_STEPS}

    def call():
        return odeint(field, problem.y0, times, **choices)

    call()
    return Prepared(call, lambda y: Answer(y[-1]))


def _diffrax(problem: Stiff, tolerance: float) -> Prepared:
    import diffrax as dx
    import jax

    jax.config.update("jax_enable_x64", True)
    field = problem.arrays(jax.numpy.stack)
    term = dx.ODETerm(lambda t, y, args: field(t, y))
    control = dx.PIDController(rtol=tolerance, atol=ATOL * tolerance)
    choices = {"saveat": dx.SaveAt(t1=True), "max_steps": MOST_STEPS, "stepsize_controller": control}

    @jax.jit
    def solve(y0):
        return dx.diffeqsolve(term, dx.Kvaerno5(), 0.0, problem.t_end, None, y0, **choices).ys

    y0 = jax.numpy.asarray(problem.y0)

    def call():
        return jax.block_until_ready(solve(y0))

    call()
    return Prepared(call, lambda y: Answer(np.asarray(y[-1])))


def _pydiffsol(problem: Stiff, tolerance: float) -> Prepared:
    import pydiffsol as ds

    ode = ds.Ode(problem.diffsl, matrix_type=ds.nalgebra_dense, ode_solver=ds.bdf)
    ode.rtol, ode.atol = tolerance, ATOL * tolerance
    none, times = np.array([]), np.array([problem.t_end])

    def call():
        return ode.solve_dense(none, times)

    call()
    return Prepared(call, lambda solution: Answer(solution.ys[:, -1]))


CONTENDERS: dict[str, tuple[str, Callable]] = {
    **{f"stepnet {scheme}": ("stepnet", _stepnet(scheme)) for scheme in SCHEMES},
    **{f"SciPy {method}": ("scipy", _scipy(method)) for method in ("Radau", "BDF", "LSODA")},
    "SciPy odeint": ("scipy", _odeint),
    "diffrax Kvaerno5": ("diffrax", _diffrax),
    "pydiffsol bdf": ("pydiffsol", _pydiffsol),
}
BANDED_CONTENDERS: dict[str, tuple[str, Callable]] = {
    **{f"stepnet {scheme}": ("stepnet", _stepnet(scheme)) for scheme in BANDED_SCHEMES},
    **{f"SciPy {method}": ("scipy", _scipy(method)) for method in ("BDF", "LSODA")},
}
