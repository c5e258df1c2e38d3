"""Every family of records executed by plain NumPy in extended precision: what engines are compared with.

Nothing here comes from an engine.  States are flat arrays of np.longdouble (or np.clongdouble, to differentiate a step
by a complex one); Runge-Kutta schemes see the autonomous form z = (y, t), z' = (f(t, y), 1), so that the times of the
stages follow from the recursion itself and not from a table of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

import stepnet
from stepnet.schemes import (
    AdditiveRK,
    Butcher,
    ExplicitRK,
    ExponentialRK,
    FixedBDF,
    LowStorageRK,
    Multistep,
    PartitionedRK,
    SemiImplicitBDF,
    Splitting,
    StabilisedRK,
)
from stepnet.schemes.implicit import ImplicitRK
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.trees import StageWeights, density, trees

TAYLOR_TERMS = 40  # of exponentials of matrices of norm below 2
FIXED_POINT_ITERATIONS = 200  # each gains a factor h |f'| < 1/2, so 70 would do for 21 digits
NEWTON_ITERATIONS = 80  # each gains a factor SLOW at least close to the solution
SLOW = 0.1  # a factor by which changes of Newton's iteration shrink that asks for a new derivative
DIFFERENCE = np.longdouble(1e-10)  # for a derivative to nine digits
STANDING = 1e-17  # relative change of stages that counts as none
FLOAT64 = 1e-14  # below it, changes that no longer shrink are the rounding of a function in float64
NEWTON_STEPS = 3  # each gains ten digits, as the derivative is known to ten
REFINEMENTS = 3  # of a solution in float64, each gaining more than ten digits
SMALLEST_SINGULAR_VALUE = 1e-7  # relative; below it conditions depend on each other


def trajectory(problem, scheme, steps) -> np.ndarray:
    """States (times, entries) after every step; `steps` is the number of even ones or the times of given ones."""
    times = grid(problem, steps)
    if isinstance(scheme, Multistep):
        return _multistep(problem, scheme, times)
    if isinstance(scheme, SemiImplicitBDF):
        return _semi_implicit(problem, scheme, times)
    if isinstance(scheme, FixedBDF):
        return _fixed_bdf(problem, scheme, times)
    return _march(stepper(problem, scheme), times, problem.initial)


def end_state(problem, scheme, steps) -> np.ndarray:
    """The last state of `trajectory`."""
    return trajectory(problem, scheme, steps)[-1]


def grid(problem, steps) -> np.ndarray:
    """The times of even or given steps in extended precision."""
    if not isinstance(steps, int):
        return real(steps)
    t0, t1 = real(problem.t_span)
    return t0 + (t1 - t0) / steps * np.arange(steps + 1)


def applies(problem, scheme) -> bool:
    """Whether the scheme is meant for a problem of this form."""
    if isinstance(scheme, (SemiImplicitBDF, ExponentialRK)):
        is_linear = isinstance(problem, stepnet.Split) and isinstance(problem.parts[1], stepnet.Linear)
        return isinstance(problem, stepnet.Split) and len(problem.parts) == 2 and (
            is_linear or isinstance(scheme, SemiImplicitBDF)
        )  # fmt: skip
    if isinstance(scheme, AdditiveRK):
        return not (isinstance(problem, stepnet.Split) and len(problem.parts) != 2)
    if isinstance(scheme, Multistep) and scheme.derivative == 2:
        return isinstance(problem, stepnet.SecondOrder)
    if isinstance(scheme, PartitionedRK):
        return isinstance(problem, (stepnet.SecondOrder, stepnet.Partitioned))
    if isinstance(scheme, Splitting):
        forms = stepnet.SecondOrder if scheme.nystrom else (stepnet.SecondOrder, stepnet.Partitioned, stepnet.Split)
        return isinstance(problem, forms)
    return True


def stepper(problem, scheme) -> Callable:
    """`step(t, h, y)`: one step of a one-step scheme (or of a bare tableau, implicit ones too)."""
    if isinstance(scheme, Splitting):
        return (_sum_stepper if isinstance(problem, stepnet.Split) else _partitioned_stepper)(problem, scheme)
    if isinstance(scheme, AdditiveRK) and isinstance(problem, stepnet.Split):
        return _additive_stepper(problem, scheme)
    if isinstance(scheme, ExponentialRK):
        return _exponential_stepper(problem, scheme)
    if isinstance(scheme, PartitionedRK):
        return _pair_stepper(problem, scheme)
    field, step = autonomous(slope_of(problem)), _runge_kutta(scheme)
    return lambda t, h, y: step(field, h, with_time(y, t))[:-1]


# ---- right-hand sides -----------------------------------------------------------------------------------------------


def slope_of(problem) -> Callable:
    """f(t, y) of the flat state, whatever the problem is made of."""
    args = problem.args
    match problem:
        case stepnet.ODE():
            return lambda t, y: problem.fun(t, y, *args)
        case stepnet.Split():
            return lambda t, y: sum(part(t, y, *args) for part in problem.parts)
    dq, dp = parts_of(problem)

    def slope(t, y):
        n = len(y) // 2
        return np.concatenate((dq(t, y[n:]), dp(t, y[:n])))

    return slope


def parts_of(problem) -> tuple[Callable, Callable]:
    """dq(t, p) and dp(t, q) of a separable problem."""
    args = problem.args
    if isinstance(problem, stepnet.SecondOrder):
        return lambda t, v: v, lambda t, q: problem.acceleration(t, q, *args)
    return lambda t, p: problem.dq(t, p, *args), lambda t, q: problem.dp(t, q, *args)


def autonomous(slope) -> Callable:
    """z' = (f(t, y), 1) of z = (y, t)."""
    return lambda z: with_time(slope(z[-1], z[:-1]), 1)


def with_time(y, t) -> np.ndarray:
    """z = (y, t)."""
    z = np.empty(len(y) + 1, y.dtype)
    z[:-1], z[-1] = y, t
    return z


# ---- Runge-Kutta schemes: `step(field, h, z)` -----------------------------------------------------------------------


def _runge_kutta(scheme) -> Callable:
    match scheme:
        case ExplicitRK():
            return _tableau_step(lower_triangle(scheme.a), real(scheme.b))
        case LowStorageRK():
            return _low_storage_step(real(scheme.A), real(scheme.B))
        case StabilisedRK():
            return _stabilised_step(*map(real, (scheme.mu, scheme.nu, scheme.mu_tilde, scheme.gamma_tilde)))
        case ImplicitRK():
            return _tableau_step(real(scheme.A), real(scheme.b))
        case AdditiveRK():
            return _tableau_step(*map(real, (scheme.implicit_table.A, scheme.implicit_table.b)))
        case Rosenbrock():
            return lambda field, h, z: z + h * (real(scheme.b) @ rosenbrock_slopes(field, scheme, h, z))
        case Butcher():
            return _tableau_step(real(scheme.A), real(scheme.b))
    raise TypeError(f"no executor for {type(scheme).__name__}")


def _tableau_step(A, b) -> Callable:
    slopes = implicit_slopes if np.any(np.triu(A)) else explicit_slopes
    return lambda field, h, z: z + h * (b @ slopes(field, A, h, z))


def explicit_slopes(field, A, h, z) -> np.ndarray:
    """k_i = f(z + h sum_{j<i} a_ij k_j) as rows."""
    k = np.zeros((len(A), len(z)), z.dtype)
    for i, row in enumerate(A):
        k[i] = field(z + h * (row[:i] @ k[:i]))
    return k


def implicit_slopes(field, A, h, z) -> np.ndarray:
    """k_i = f(z + h sum_j a_ij k_j) by fixed-point iteration until they stand still, by Newton's where it diverges."""
    k, moved = np.tile(field(z), (len(A), 1)), np.inf
    for _ in range(FIXED_POINT_ITERATIONS):
        before, k = k, np.array([field(z + h * increment) for increment in A @ k])
        if np.array_equal(k, before):
            return k
        last, moved = moved, np.max(np.abs(k - before))
        if moved > last and not np.iscomplexobj(k):  # complex steps are short ones
            break
    is_done = moved < STANDING * np.max(np.abs(k)) or np.iscomplexobj(k)
    return k if is_done else _iterate_by_newton(field, A, h, z)


def _iterate_by_newton(field, A, h, z) -> np.ndarray:
    """The same stages, with the derivative by differences at the last stage, renewed where convergence is slow."""
    k, n, last, matrix = np.tile(field(z), (len(A), 1)), len(z), np.inf, None
    for _ in range(NEWTON_ITERATIONS):
        stages = z + h * (A @ k)
        slopes = np.array([field(stage) for stage in stages])
        if matrix is None:
            columns = [(field(stages[-1] + DIFFERENCE * unit) - slopes[-1]) / DIFFERENCE for unit in np.eye(n)]
            matrix = np.eye(k.size) - h * np.kron(A, np.array(columns).T)
        change = solve_linear(matrix, (slopes - k).ravel())
        k = k + change.reshape(k.shape)
        size = np.max(np.abs(change)) / np.max(np.abs(k))
        if size < STANDING or last <= size < FLOAT64:
            break
        if size > SLOW * last:
            matrix = None
        last = size
    return k


def rosenbrock_slopes(field, scheme, h, z) -> np.ndarray:
    """(I - h gamma J) k_i = f(z + h sum alpha_ij k_j) + h J sum_{j<i} gamma_ij k_j as rows, for the autonomous form."""
    J, alpha, gamma = _complex_derivative(field, z), lower_triangle(scheme.alpha), lower_triangle(scheme.gamma_lower)
    k = np.zeros((len(alpha), len(z)), z.dtype)
    for i in range(len(alpha)):
        right = field(z + h * (alpha[i, :i] @ k[:i])) + h * (J @ (gamma[i, :i] @ k[:i]))
        k[i] = solve_linear(np.eye(len(z)) - h * real(scheme.gamma) * J, right)
    return k


def solve_linear(matrix, right) -> np.ndarray:
    """The solution of a linear system in extended precision, by refinement."""
    inverse, x = np.linalg.inv(matrix.astype(float)), np.zeros_like(right)
    for _ in range(1 + REFINEMENTS):
        x = x + inverse @ (right - matrix @ x)
    return x


def _low_storage_step(A, B) -> Callable:
    def step(field, h, z):
        d = np.zeros_like(z)
        for i in range(len(A)):
            d = A[i] * d + h * field(z)
            z = z + B[i] * d
        return z

    return step


def _stabilised_step(mu, nu, mu_tilde, gamma_tilde) -> Callable:
    def step(field, h, z):
        slope = field(z)
        before, last = z, z + mu_tilde[0] * h * slope
        for j in range(1, len(mu)):
            kept = (1 - mu[j] - nu[j]) * z + mu[j] * last + nu[j] * before
            before, last = last, kept + mu_tilde[j] * h * field(last) + gamma_tilde[j] * h * slope
        return last

    return step


def error_estimates(problem, scheme, t, h, y) -> list[np.ndarray]:
    """h (b - b^) k for every embedded result; of implicit schemes also with the slope at the start, and damped."""
    scheme = scheme.implicit_scheme if isinstance(scheme, AdditiveRK) else scheme
    field, z = autonomous(slope_of(problem)), with_time(y, t)
    if isinstance(scheme, Rosenbrock):
        k = rosenbrock_slopes(field, scheme, h, z)
    elif isinstance(scheme, ImplicitRK):
        k = implicit_slopes(field, real(scheme.A), h, z)
    else:
        k = explicit_slopes(field, lower_triangle(scheme.a), h, z)
    found = [h * ((real(scheme.b) - real(hat.b)) @ k)[:-1] for hat in scheme.embedded]
    if not isinstance(scheme, ImplicitRK):
        return found
    J = _complex_derivative(lambda x: slope_of(problem)(t, x), y)
    matrix = np.eye(len(y)) - h * real(scheme.damping) * J
    return [solve_linear(matrix, e - h * real(scheme.start) * field(z)[:-1]) for e in found]


# ---- splitting: every part has a clock of its own, which moves with it ----------------------------------------------


def _partitioned_stepper(problem, scheme: Splitting) -> Callable:
    (dq, dp), drifts, kicks = parts_of(problem), real(scheme.a), real(scheme.b)

    def step(t, h, y):
        q, p = y[: len(y) // 2], y[len(y) // 2 :]
        q_clock = p_clock = t
        for a, b in zip(drifts * h, kicks * h, strict=True):
            q, q_clock = q + a * dq(p_clock, p), q_clock + a
            p, p_clock = p + b * dp(q_clock, q), p_clock + b
        return np.concatenate((q, p))

    return step


def _pair_stepper(problem, scheme: PartitionedRK) -> Callable:
    """The stages of q and p by fixed-point iteration until they stand still."""
    slope, A, A_hat, b = slope_of(problem), real(scheme.A), real(scheme.A_hat), real(scheme.b)
    c = A.sum(axis=1)

    def step(t, h, y):
        half, k = len(y) // 2, np.tile(slope(t, y), (len(b), 1))
        for _ in range(FIXED_POINT_ITERATIONS):
            before = k
            stages = y + h * np.hstack((A @ k[:, :half], A_hat @ k[:, half:]))
            k = np.array([slope(t + node * h, stage) for node, stage in zip(c, stages, strict=True)])
            if np.array_equal(k, before):
                break
        return y + h * (b @ k)

    return step


def _sum_stepper(problem, scheme: Splitting) -> Callable:
    """Each flow is one step of a Runge-Kutta scheme of at least the same order: rk4, verner65 or dop853."""
    inner = _runge_kutta(
        stepnet.schemes.get("rk4" if scheme.order <= 4 else "verner65" if scheme.order <= 6 else "dop853")
    )
    fields = [autonomous(lambda t, y, f=part: f(t, y, *problem.args)) for part in problem.parts]
    flows = [(part, np.longdouble(fraction)) for part, fraction in scheme.sequence(len(fields))]

    def step(t, h, y):
        clocks = [t] * len(fields)
        for part, fraction in flows:
            z = inner(fields[part], fraction * h, with_time(y, clocks[part]))
            y, clocks[part] = z[:-1], z[-1]
        return y

    return step


# ---- sums of an explicit part and another one -----------------------------------------------------------------------


def _parts_of_sum(problem) -> list[Callable]:
    """The parts in the autonomous form; time runs in the first one."""
    f, g = (lambda t, y, part=part: part(t, y, *problem.args) for part in problem.parts)
    return [autonomous(f), lambda z: with_time(np.asarray(g(z[-1], z[:-1])), 0)]


def _solve_stage(field, base, factor, t) -> np.ndarray:
    """The slope k = g(base + factor k) with time t, by fixed-point iteration."""
    k = field(with_time(base[:-1], t))
    for _ in range(FIXED_POINT_ITERATIONS):
        before, k = k, field(with_time((base + factor * k)[:-1], t))
        if np.array_equal(before, k):
            break
    return k


def _additive_stepper(problem, scheme: AdditiveRK) -> Callable:
    f, g = _parts_of_sum(problem)
    explicit, implicit = (real(table.A) for table in (scheme.explicit_table, scheme.implicit_table))
    b_f, b_g, s = real(scheme.b_explicit), real(scheme.b), len(scheme.b)

    def step(t, h, y):
        z = with_time(y, t)
        k, m = np.zeros((2, s, len(z)), z.dtype)
        for i in range(s):
            base = z + h * (explicit[i, :i] @ k[:i] + implicit[i, :i] @ m[:i])
            clock = t + h * implicit[i].sum()
            m[i] = _solve_stage(g, base, h * implicit[i, i], clock)
            k[i] = f(with_time((base + h * implicit[i, i] * m[i])[:-1], clock))
        return (z + h * (b_f @ k + b_g @ m))[:-1]

    return step


def _semi_implicit(problem, scheme: SemiImplicitBDF, times) -> np.ndarray:
    states = list(_march(stepper(problem, scheme.starter), times[: scheme.n_steps], problem.initial))
    f, g = (lambda t, y, part=part: np.asarray(part(t, y, *problem.args)) for part in problem.parts)
    slopes = [f(t, y) for t, y in zip(times, states, strict=False)]
    h, gamma = times[1] - times[0], real(scheme.gamma)
    while len(states) < len(times):
        base, t = newest(scheme.alpha, states) + h * newest(scheme.beta, slopes), times[len(states)]
        k = _solve_stage(lambda z: with_time(g(z[-1], z[:-1]), 0), with_time(base, t), h * gamma, t)
        states.append(base + h * gamma * k[:-1])
        slopes.append(f(t, states[-1]))
    return np.array(states)


def _fixed_bdf(problem, scheme: FixedBDF, times) -> np.ndarray:
    states = list(_march(stepper(problem, scheme.starter), times[: scheme.n_steps], problem.initial))
    field, h = autonomous(slope_of(problem)), real(scheme.gamma) * (times[1] - times[0])
    while len(states) < len(times):
        base, t = newest(scheme.alpha, states), times[len(states)]
        states.append(base + h * _solve_stage(field, with_time(base, t), h, t)[:-1])
    return np.array(states)


def _exponential_stepper(problem, scheme: ExponentialRK) -> Callable:
    """Coefficients are summed as Taylor series of the matrix."""
    L, part = real(np.asarray(problem.parts[1].matrix)), problem.parts[0]

    def phi(k: int, z) -> np.ndarray:
        total = term = np.eye(len(z), dtype=z.dtype) / math.factorial(k)
        for m in range(1, TAYLOR_TERMS):
            term = term @ z / (k + m)
            total = total + term
        return total

    def weigh(terms, h):
        zero = np.zeros_like(L)
        return sum((real(term.weight) * phi(term.k, real(term.c) * h * L) for term in terms), zero)

    def step(t, h, y):
        slopes: list = []

        def advance(c, coefficients):
            start = phi(0, real(c) * h * L) @ y
            return start + h * sum((weigh(a, h) @ k for a, k in zip(coefficients, slopes, strict=True)), 0 * y)

        for c, row in zip(scheme.c, scheme.A, strict=True):
            slopes.append(np.asarray(part(t + real(c) * h, advance(c, row), *problem.args)))
        return advance(1.0, scheme.b)

    return step


# ---- multistep ------------------------------------------------------------------------------------------------------


def _multistep(problem, scheme: Multistep, times) -> np.ndarray:
    opening = _march(stepper(problem, scheme.starter), times[: scheme.n_steps], problem.initial)
    return (_first_order if scheme.derivative == 1 else _second_order)(problem, scheme, times, opening)


def _first_order(problem, scheme, times, opening) -> np.ndarray:
    h, slope = times[1] - times[0], slope_of(problem)
    states = list(opening)
    slopes = [slope(t, y) for t, y in zip(times, states, strict=False)]
    while len(states) < len(times):
        states.append(newest(scheme.alpha, states) + h * newest(scheme.beta, slopes))
        slopes.append(slope(times[len(slopes)], states[-1]))
    return np.array(states)


def _second_order(problem, scheme, times, opening) -> np.ndarray:
    """Positions by the recursion; v_{n+1} = (q_{n+1} - q_n) / h + h a_{n+1} / 2."""
    h, (_, acceleration) = times[1] - times[0], parts_of(problem)
    positions, velocities = (list(half) for half in np.split(opening, 2, axis=1))
    slopes = [acceleration(t, q) for t, q in zip(times, positions, strict=False)]
    while len(positions) < len(times):
        positions.append(newest(scheme.alpha, positions) + h * h * newest(scheme.beta, slopes))
        slopes.append(acceleration(times[len(slopes)], positions[-1]))
        velocities.append((positions[-1] - positions[-2]) / h + h * slopes[-1] / 2)
    return np.hstack((positions, velocities))


def newest(coefficients, history):
    """sum_j c_j history_{n-j}."""
    return sum(c * value for c, value in zip(real(coefficients), reversed(history), strict=False))


# ---- tools ----------------------------------------------------------------------------------------------------------


def without_rounding(scheme: ExplicitRK) -> Butcher:
    """The tableau next to the record's which satisfies the order conditions to 18 digits, by Newton's method.

    A table rounded to float64 misses its conditions by 1e-16, which hides the errors of good pairs at short steps.
    """
    A, b = scheme.butcher.A, scheme.butcher.b
    places = np.nonzero(np.vstack((A, b)))
    shapes = [tree for p in range(1, scheme.order + 1) for tree in trees(p)]

    def table(x):
        rows = np.zeros((len(b) + 1, len(b)), x.dtype)
        rows[places] = x
        return rows[:-1], rows[-1]

    def defects(x):
        A, b = table(x)
        weights = StageWeights(A)
        return np.array([b @ weights(tree) - 1 / np.longdouble(density(tree)) for tree in shapes])

    x = np.vstack((A, b))[places]
    inverse = np.linalg.pinv(_complex_derivative(defects, x).astype(float), SMALLEST_SINGULAR_VALUE)
    x = real(x)
    for _ in range(NEWTON_STEPS):
        x = x - inverse @ defects(x)
    A, b = table(x)
    return Butcher(A, b, A.sum(axis=1))


def step_jacobian(step, t, h, y) -> np.ndarray:
    """d step / dy."""
    return _complex_derivative(lambda x: step(t, h, x), y)


def _complex_derivative(function, x) -> np.ndarray:
    """Column by column, by a complex step so short that it costs no digit."""
    tiny = np.longdouble(1e-30)
    columns = [function(x + 1j * tiny * unit).imag / tiny for unit in np.eye(len(x), dtype=np.longdouble)]
    return np.array(columns).T


def lower_triangle(rows) -> np.ndarray:
    """The rows of an explicit tableau as a square matrix."""
    A = np.zeros((len(rows), len(rows)), np.longdouble)
    for i, row in enumerate(rows):
        A[i, :i] = row
    return A


def _march(step, times, y0) -> np.ndarray:
    states = np.empty((len(times), len(y0)), np.longdouble)
    states[0] = y0
    for i, (t, t_new) in enumerate(pairwise(times)):
        states[i + 1] = step(t, t_new - t, states[i])
    return states


def real(numbers) -> np.ndarray:
    """Numbers in extended precision."""
    return np.array(numbers, np.longdouble)
