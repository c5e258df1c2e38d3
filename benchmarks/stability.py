"""Rows of stability studies: a region on a grid, the Lyapunov spectrum of Lorenz-96, the certificate of a deep net.

Regions must agree to rounding.  Lyapunov spectra take the same RK4 steps from the same tangents, so that the sums of
rates must agree; single rates of a chaotic solution do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

import stepnet as sn
from benchmarks.sdes import on_one_core
from benchmarks.timing import Answer, Measured, Prepared, Row, by_turns, first_line

WORKLOAD = "stability"
SECONDS = 3.0
REGION, LYAPUNOV, CERTIFICATE = "region of dopri5, 1000 x 1000", "Lyapunov spectrum, Lorenz-96", "certificate"
OURS, POLYNOMIAL, DETERMINANTS = "stepnet", "numpy, polynomial", "numpy, determinants"
SCAN, DIFFRAX = "jax, jitted scan", "diffrax"
POINTS = 1000
UNKNOWNS, FORCING, STEPS, PIECES, H = 40, 8.0, 2000, 20, 0.01
LAYERS, WIDTH = 100, 64
AGREEMENT = {REGION: 1e-10, LYAPUNOV: 1e-6, CERTIFICATE: np.inf}  # relative to 1 + |R|; of the mean divergence


class Contender(NamedTuple):
    """Who computes what; `answer` is compared with that of stepnet."""

    task: str
    name: str
    package: str
    build: Callable[[], Callable[[], np.ndarray]]


def rows(name: str = WORKLOAD) -> Iterator[Row]:
    """Seconds of each task."""
    with on_one_core():
        for task in (REGION, LYAPUNOV, CERTIFICATE):
            yield from _measure_task(task)


def _measure_task(task: str) -> Iterator[Row]:
    here = [each for each in CONTENDERS if each.task == task]
    prepared: dict[str, Prepared] = {}
    found: dict[str, Measured | Exception] = {}
    for each in here:
        try:
            prepared[each.name] = Prepared(each.build(), lambda found: Answer(np.asarray(found)))
        except Exception as exception:  # a failing peer is a line of the table
            found[each.name] = exception
    found |= by_turns(prepared, SECONDS)
    ours = found[OURS]
    for each in here:
        measured, label = found[each.name], f"{task}, {each.name}"
        if isinstance(measured, Exception) or isinstance(ours, Exception):
            why = first_line(measured) if isinstance(measured, Exception) else "nothing to compare with"
            yield Row(WORKLOAD, label, each.package, note=why)
            continue
        wanted, answer = ours.answer.y, measured.answer.y
        error = float(np.max(np.abs(answer - wanted) / (1 + np.abs(wanted))))
        if error <= AGREEMENT[task]:
            yield Row(WORKLOAD, label, each.package, time=measured.time, error=error, calls=measured.calls)
        else:
            yield Row(WORKLOAD, label, each.package, note=f"differs from ours by {error:.0e}")


# ---- a region -------------------------------------------------------------------------------------------------------

AXES = np.linspace(-5.0, 1.0, POINTS), np.linspace(-4.0, 4.0, POINTS)


def region_by_stepnet() -> Callable[[], np.ndarray]:
    return lambda: sn.stability.region("dopri5", real=AXES[0], imaginary=AXES[1], angles=8).amplification


def region_by_polynomial() -> Callable[[], np.ndarray]:
    """|p(z)| of the stability polynomial by numpy.poly1d, as NodePy evaluates it."""
    coefficients = np.array(sn.stability.report("dopri5").numerator)[::-1]

    def call() -> np.ndarray:
        x, y = np.meshgrid(*AXES)
        return np.abs(np.poly1d(coefficients)(x + 1j * y))

    return call


def region_by_determinants() -> Callable[[], np.ndarray]:
    """det(I - zA + z 1 b') / det(I - zA) for every point, without the polynomial."""
    table = sn.schemes.get("dopri5").butcher
    A, b, unit = np.asarray(table.A, float), np.asarray(table.b, float), np.eye(len(table.b))

    def call() -> np.ndarray:
        found = np.empty((POINTS, POINTS))
        for k, y in enumerate(AXES[1]):
            z = (AXES[0] + 1j * y)[:, None, None]
            found[k] = np.abs(np.linalg.det(unit - z * A + z * b) / np.linalg.det(unit - z * A))
        return found

    return call


# ---- a Lyapunov spectrum --------------------------------------------------------------------------------------------

START = FORCING + 0.01 * np.sin(np.arange(UNKNOWNS))


def lorenz96(t, y):
    return (np.roll(y, -1) - np.roll(y, 2)) * np.roll(y, 1) - y + FORCING


def lyapunov_by_stepnet() -> Callable[[], np.ndarray]:
    problem = sn.ODE(lorenz96, START, (0.0, STEPS * H))
    call = lambda: sn.stability.lyapunov(problem, "rk4", every=STEPS * H / PIECES, steps=STEPS).exponents.sum()
    call()
    return call


def lyapunov_by_scan() -> Callable[[], np.ndarray]:
    """One jitted scan of RK4 steps of state and tangents, with a QR decomposition after each piece."""
    import jax
    import jax.numpy as jnp

    both = _augmented_field()

    def piece(state, _):
        def step(now, _):
            k1 = both(now)
            k2 = both(_add(now, k1, 0.5 * H))
            k3 = both(_add(now, k2, 0.5 * H))
            k4 = both(_add(now, k3, H))
            return tuple(
                a + H / 6 * (b + 2 * c + 2 * d + e) for a, b, c, d, e in zip(now, k1, k2, k3, k4, strict=True)
            ), None

        (y, V), _ = jax.lax.scan(step, state, length=STEPS // PIECES)
        Q, R = jnp.linalg.qr(V)
        return (y, Q), jnp.log(jnp.abs(jnp.diag(R)))

    run = jax.jit(lambda start: jax.lax.scan(piece, start, length=PIECES)[1].sum() / (STEPS * H))
    start = jnp.asarray(START), jnp.eye(UNKNOWNS)
    return lambda: np.asarray(jax.block_until_ready(run(start)))


def lyapunov_by_diffrax() -> Callable[[], np.ndarray]:
    """diffrax with RK4 for each piece, inside a jitted scan over the pieces."""
    import diffrax as dx
    import jax
    import jax.numpy as jnp

    from benchmarks.gradient_contenders import diffrax_rk4

    both = _augmented_field()
    term, solver = dx.ODETerm(lambda t, state, args: both(state)), diffrax_rk4()

    def piece(state, _):
        span = STEPS // PIECES * H
        found = dx.diffeqsolve(term, solver, 0.0, span, H, state, stepsize_controller=dx.ConstantStepSize(),
                               max_steps=2 * STEPS // PIECES)  # fmt: skip
        y, V = found.ys[0][-1], found.ys[1][-1]
        Q, R = jnp.linalg.qr(V)
        return (y, Q), jnp.log(jnp.abs(jnp.diag(R)))

    run = jax.jit(lambda start: jax.lax.scan(piece, start, length=PIECES)[1].sum() / (STEPS * H))
    start = jnp.asarray(START), jnp.eye(UNKNOWNS)
    return lambda: np.asarray(jax.block_until_ready(run(start)))


def _augmented_field():
    """y' and V' = (df/dy) V of Lorenz-96 as a function of (y, V)."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def field(y):
        return (jnp.roll(y, -1) - jnp.roll(y, 2)) * jnp.roll(y, 1) - y + FORCING

    def both(state):
        y, V = state
        slopes, pushforward = jax.linearize(field, y)
        return slopes, jax.vmap(pushforward, in_axes=1, out_axes=1)(V)

    return both


def _add(state, slopes, h):
    return tuple(a + h * b for a, b in zip(state, slopes, strict=True))


# ---- a certificate --------------------------------------------------------------------------------------------------


def certificate_by_stepnet() -> Callable[[], np.ndarray]:
    net = sn.nets.antisymmetric(2, 2, WIDTH, LAYERS, workers=1)
    return lambda: np.asarray(sn.stability.certificate(net).blocks[0].upper)


CONTENDERS = (
    Contender(REGION, OURS, "stepnet", region_by_stepnet),
    Contender(REGION, POLYNOMIAL, "numpy", region_by_polynomial),
    Contender(REGION, DETERMINANTS, "numpy", region_by_determinants),
    Contender(LYAPUNOV, OURS, "stepnet", lyapunov_by_stepnet),
    Contender(LYAPUNOV, SCAN, "jax", lyapunov_by_scan),
    Contender(LYAPUNOV, DIFFRAX, "diffrax", lyapunov_by_diffrax),
    Contender(CERTIFICATE, OURS, "stepnet", certificate_by_stepnet),
)
