"""Reductions against closed forms, NumPy and known values; they do not depend on the division into chunks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepnet as sn
from stepnet.ensembles.reductions import Basins, EscapeTimes, Lyapunov, Mean, Quantiles, Rows, States, lyapunov

ROUNDING = 1e-12  # of sums over some thousand members
TIGHT = {"rtol": 1e-10, "atol": 1e-12}


class Known:
    """A chunk whose states are given, to test reductions without a solve."""

    def __init__(self, y: np.ndarray, success=None):
        self.solution, self.options, self.count = self, {}, len(y)
        self.y, self.success = y, np.ones(len(y), bool) if success is None else success


def reduced(reduction, y: np.ndarray, sizes):
    """A reduction of rows of numbers, in chunks that end at the given places."""
    parts = [reduction.reduce_chunk(Known(piece[:, None])) for piece in np.split(y, sizes)]
    whole = parts[0]
    for part in parts[1:]:
        whole = reduction.merge(whole, part)
    return reduction.result(whole)


cuts = st.lists(st.integers(0, 3000), max_size=6).map(sorted)


@settings(max_examples=30, deadline=None)
@given(cuts, st.floats(-1e8, 1e8), st.integers(0, 9))
def test_mean_and_variance(sizes, shift, seed):
    """Far from zero too, where the mean of squares less the square of the mean would lose all digits."""
    y = shift + np.random.default_rng(seed).standard_normal((3000, 2))
    found = reduced(Mean(), y, sizes)
    assert found.members == 3000
    scale = 1 + abs(shift)
    np.testing.assert_allclose(found.mean[0], y.mean(axis=0), atol=ROUNDING * scale)
    np.testing.assert_allclose(found.variance[0], y.var(axis=0, ddof=1), rtol=ROUNDING * scale)


def test_few_members():
    found = reduced(Mean(), np.array([[3.0]]), [])
    assert (found.members, found.mean[0, 0]) == (1, 3.0)
    assert np.isnan(found.variance).all()
    none = Mean().result(Mean().reduce_chunk(Known(np.ones((2, 1, 1)), np.zeros(2, bool))))
    assert none.members == 0
    assert np.isnan(none.mean).all()


def test_members_that_failed_are_left_out():
    problem = sn.ODE(lambda t, y, a: [a * y[0] ** 2], [1.0], (0.0, 1.0), args=(0.1,))
    reduce = {"mean": Mean(), "quantiles": Quantiles((0.0, 1.0))}
    found = sn.sweep(problem, "dopri5", {"a": [0.1, 2.0, 0.5]}, reduce=reduce, chunk=1, **TIGHT).results
    wanted = np.array([1 / 0.9, 2.0])
    assert found["mean"].members == found["quantiles"].members == 2
    np.testing.assert_allclose(found["mean"].mean[0, 0], wanted.mean(), rtol=1e-9)
    np.testing.assert_allclose(found["quantiles"].values[:, 0, 0], wanted, rtol=1e-9)


def require_quantiles(found, y: np.ndarray) -> None:
    """The shares below and up to each value enclose its level, but for the error that is stated."""
    below = (y < found.values).mean(axis=1)
    up_to = (y <= found.values).mean(axis=1)
    wanted, slack = found.levels[:, None], found.rank_error + 1e-12
    assert (below <= wanted + slack).all()
    assert (up_to >= wanted - slack).all()


def promised(members: int, size: int) -> float:
    """Each weight is halved once for every `size` values of it, and there are so many weights."""
    return (np.log2(members / size) + 1) / size


LEVELS = (0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 0.999, 1.0)


@settings(max_examples=40, deadline=None)
@given(cuts, st.integers(2, 400), st.integers(0, 9), st.sampled_from(["normal", "ties", "sorted", "heavy"]))
def test_quantiles_are_within_their_error(sizes, size, seed, kind):
    generator = np.random.default_rng(seed)
    y = generator.standard_normal((3000, 2))
    y = {"normal": y, "ties": np.round(y), "sorted": np.sort(y, axis=0), "heavy": np.exp(5 * y)}[kind]
    found = reduced(Quantiles(LEVELS, size), y, sizes)
    assert found.members == 3000
    assert found.rank_error <= promised(3000, size)
    require_quantiles(found, y[None])


@pytest.mark.parametrize("members", [1, 7, 500])
def test_quantiles_of_few_members_are_exact(members):
    y = np.random.default_rng(3).standard_normal((members, 3))
    found = reduced(Quantiles(LEVELS, 500), y, [members // 3])
    assert found.rank_error == 0.0
    assert np.array_equal(found.values[:, 0], np.quantile(y, LEVELS, axis=0, method="inverted_cdf"))


def test_the_error_of_quantiles_is_as_small_as_they_say():
    y, size = np.random.default_rng(4).standard_normal((1_000_000, 1)), 2048
    found = reduced(Quantiles(LEVELS, size), y, range(8192, 1_000_000, 8192))
    print(f"rank error {found.rank_error:.2e} stated, {promised(1_000_000, size):.2e} promised")
    assert 0 < found.rank_error < 0.5 * promised(1_000_000, size) < 0.003
    require_quantiles(found, y[None])


# ---- one thing for every member -------------------------------------------------------------------------------------


def test_basins_of_a_double_well():
    """x'' = x - x^3 - x'/2 from rest: the nearer well wins below the barrier, at 0 nothing moves."""

    def well(t, y):
        return [y[1], y[0] - y[0] ** 3 - 0.5 * y[1]]

    x = np.array([-1.3, -0.7, -0.1, 0.0, 0.1, 0.7, 1.3])
    problem = sn.ODE(well, [0.0, 0.0], (0.0, 80.0))
    reduce = {"both": Basins([[-1.0, 0.0], [1.0, 0.0]], 1e-3), "x": Basins([[-1.0], [1.0]], 1e-3, entries=(0,))}
    found = sn.sweep(problem, "dopri5", {"y0[0]": x}, reduce=reduce, chunk=3)
    assert found.results["both"].tolist() == [0, 0, 0, -1, 1, 1, 1]
    assert found.results["x"].tolist() == [0, 0, 0, -1, 1, 1, 1]


def test_a_member_that_fails_has_no_basin():
    problem = sn.ODE(lambda t, y: [y[0] ** 2], [1.0], (0.0, 1.0))
    found = sn.sweep(problem, "dopri5", {"y0[0]": [0.5, 3.0]}, reduce=Basins([[1.0], [1e300]], 1e308))
    assert found.result.tolist() == [0, -1]


def test_escape_times_of_growth():
    """|y| = exp(a t) leaves the circle of radius 2 at log(2) / a; the first wanted time after that is found."""
    a, times = np.array([-1.0, 0.0, 0.3, 1.0, 7.0]), np.linspace(0.0, 5.0, 501)
    problem = sn.ODE(lambda t, y, a: [a * y[0] - y[1], y[0] + a * y[1]], [1.0, 0.0], (0.0, 5.0), args=(0.0,))
    outside = EscapeTimes(condition=lambda t, y: np.hypot(y[..., 0], y[..., 1]) > 2)
    reduce = {"radius": EscapeTimes(2.0), "condition": outside}
    found = sn.sweep(problem, "dopri5", {"a": a}, reduce=reduce, save_at=times, chunk=2, **TIGHT).results
    with np.errstate(divide="ignore"):
        exact = np.where(a > 0, np.log(2) / a, np.inf)
    wanted = [times[times > t].min(initial=np.inf) for t in exact]
    np.testing.assert_array_equal(found["radius"], wanted)
    np.testing.assert_array_equal(found["condition"], wanted)


def test_blow_up_is_escape_and_being_stopped_is_not():
    problem = sn.ODE(lambda t, y, a: [a * y[0] ** 2], [1.0], (0.0, 1.0), args=(0.1,))
    times = np.linspace(0.0, 1.0, 11)
    found = sn.sweep(problem, "dopri5", {"a": [0.5, 2.2]}, reduce=EscapeTimes(1e300), save_at=times).result
    assert found.tolist() == [np.inf, times[5]]  # y = 1 / (1 - a t)
    stopped = sn.sweep(problem, "dopri5", {"a": [0.5]}, reduce=EscapeTimes(9.0), save_at=times, max_steps=2).result
    assert np.isnan(stopped).all()


def test_rows_of_a_function():
    problem = sn.ODE(lambda t, y, a: [-a * y[0]], [1.0], (0.0, 1.0), args=(0.1,))
    rows = Rows(lambda found: np.stack([found.y_end[:, 0], found.t_end], axis=1))
    found = sn.sweep(problem, "dopri5", {"a": np.linspace(0, 1, 9)}, reduce=rows, chunk=2, **TIGHT).result
    np.testing.assert_allclose(found, np.stack([np.exp(-np.linspace(0, 1, 9)), np.ones(9)], axis=1), rtol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quantiles(()), "`levels`"),
        (lambda: Quantiles((0.5, 1.5)), "`levels`"),
        (lambda: Quantiles(size=1), "`size`"),
        (lambda: Basins([1.0, 2.0], 1.0), "`attractors`"),
        (lambda: Basins([[np.nan]], 1.0), "`attractors`"),
        (lambda: Basins([[1.0]], 0.0), "`tolerance`"),
        (lambda: EscapeTimes(), "either `radius` or `condition`"),
        (lambda: EscapeTimes(1.0, abs), "either `radius` or `condition`"),
        (lambda: EscapeTimes(-1.0), "`radius`"),
        (lambda: EscapeTimes(condition=3), "`condition`"),
        (lambda: Rows(3), "`function`"),
        (lambda: Lyapunov(0.0), "`every`"),
        (lambda: Lyapunov(1.0, -1.0), "`transient`"),
    ],
)
def test_wrong_numbers_are_refused_when_a_reduction_is_built(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    ("reduction", "options", "message"),
    [
        (EscapeTimes(1.0), {}, "give `save_at`"),
        (EscapeTimes(condition=lambda t, y: y > 1), {"save_at": [1.0]}, "`condition` must return"),
        (Basins([[0.0, 0.0]], 1.0), {}, "`attractors` must have one number"),
        (Basins([[0.0]], 1.0, entries=(3,)), {}, "`attractors` must have one number"),
        (Rows(lambda found: 1.0), {}, "one row for every member"),
        (Lyapunov(1.0), {"save_at": [1.0]}, "`save_at` cannot be combined"),
        (Lyapunov(0.1), {"steps": 12}, "`steps` must be a multiple"),
        (Lyapunov(0.1, 1.0), {}, "`transient` must leave"),
    ],
)
def test_reductions_that_do_not_fit_the_sweep(reduction, options, message):
    problem = sn.ODE(lambda t, y, a: [-a * y[0]], [1.0], (0.0, 1.0), args=(0.1,))
    scheme = "rk4" if "steps" in options else "dopri5"
    with pytest.raises(ValueError, match=message):
        sn.sweep(problem, scheme, {"a": [0.5, 1.0]}, reduce=reduction, **options)


# ---- Lyapunov exponents ---------------------------------------------------------------------------------------------


def test_exponents_of_a_growing_rotation():
    """df/dy = a + w J stretches every tangent alike, so the exponent is a, without any transient."""

    def spiral(t, y, a, w):
        return [a * y[0] - w * y[1], w * y[0] + a * y[1]]

    a = np.array([-0.7, -0.1, 0.0, 0.4])
    problem = sn.ODE(spiral, [1.0, 0.0], (0.0, 10.0), args=(0.0, 2.0))
    found = sn.sweep(problem, "dop853", {"a": a, "w": [0.0, 2.0]}, reduce=Lyapunov(1.0), chunk=3, **TIGHT).result
    np.testing.assert_allclose(found, np.broadcast_to(a[:, None], (4, 2)), atol=1e-9)


@pytest.mark.parametrize("split", [False, True])
def test_exponents_are_the_largest_eigenvalues_of_linear_systems(split):
    """After a transient the tangent has turned to the direction that grows fastest, whatever the basis."""
    rotation = np.linalg.qr(np.random.default_rng(5).standard_normal((3, 3)))[0]
    A = rotation @ np.diag([0.5, -1.0, -2.0]) @ rotation.T

    def linear(t, y, c):
        return c * (A @ y)

    start, span = np.ones(3), (0.0, 40.0)
    if split:
        problem = sn.Split((lambda t, y, c: c * (A @ y), lambda t, y, c: -0.25 * y), start, span, args=(1.0,))
        options, scheme, shift = {"steps": 4000}, "rk4", -0.25
    else:
        problem, options, scheme, shift = sn.ODE(linear, start, span, args=(1.0,)), TIGHT, "dop853", 0.0
    found = sn.sweep(problem, scheme, {"c": [0.5, 1.0]}, reduce=Lyapunov(0.5, 30.0), **options).result
    np.testing.assert_allclose(found, np.array([0.25, 0.5]) + shift, atol=1e-8)


def test_exponents_of_problems_in_halves():
    """q'' = k q has the exponent sqrt(k), by a symplectic scheme and as a partitioned problem."""
    k = np.array([1.0, 4.0])
    second = sn.SecondOrder(lambda t, q, k: k * q, [1.0, 0.5], [0.0, 0.1], (0.0, 20.0), args=(1.0,))
    halves = sn.Partitioned(lambda t, p, k: p, lambda t, q, k: k * q, [1.0], [0.0], (0.0, 20.0), args=(1.0,))
    for problem in (second, halves):
        found = sn.sweep(problem, "yoshida8", {"k": k}, reduce=Lyapunov(1.0, 15.0), steps=4000).result
        np.testing.assert_allclose(found, np.sqrt(k), rtol=1e-8)


def test_exponents_in_lanes_are_those_of_the_tangent_of_a_single_solve(monkeypatch):
    rungs = []

    def spy(*arguments, **options):
        found = sn.solve_ensemble(*arguments, **options)
        rungs.append(found.rung)
        return found

    monkeypatch.setattr(lyapunov, "solve_ensemble", spy)

    def duffing(t, y, c):
        return [y[1], y[0] - y[0] ** 3 - c * y[1] + 0.3 * np.cos(1.2 * t)]

    c = np.array([0.1, 0.25, 0.5])
    problem = sn.ODE(duffing, [1.0, 0.0], (0.0, 3.0), args=(0.1,))
    found = sn.sweep(problem, "dop853", {"c": c}, reduce=Lyapunov(3.0), **TIGHT).result
    assert rungs == ["lanes"]
    direction = np.cos(np.arange(2.0))
    direction /= np.linalg.norm(direction)
    for value, exponent in zip(c, found, strict=True):
        own = sn.ODE(duffing, [1.0, 0.0], (0.0, 3.0), args=(float(value),))
        tangent = sn.tangent(own, "dop853", y0=direction, **TIGHT).dy
        np.testing.assert_allclose(exponent, np.log(np.linalg.norm(tangent)) / 3.0, rtol=1e-7)


def test_a_member_that_fails_has_no_exponent():
    problem = sn.ODE(lambda t, y, a: [a * y[0] ** 2], [1.0], (0.0, 1.0), args=(0.1,))
    found = sn.sweep(problem, "dopri5", {"a": [0.5, 2.0, 0.1]}, reduce=Lyapunov(0.1), **TIGHT)
    assert np.isnan(found.result).tolist() == [False, True, False]
    np.testing.assert_allclose(found.result[[0, 2]], 2 * np.log([2.0, 1 / 0.9]), rtol=1e-7)  # v = y^2
    assert found.counts[sn.Status.COMPLETED] == 2
    assert np.isnan(sn.sweep(problem, "dopri5", {"a": [2.0]}, reduce=Lyapunov(0.1)).result).all()


def test_exponents_need_a_trace():
    def branching(t, y, a):
        return [-a * y[0]] if y[0] > 0.5 else [-a]

    problem = sn.ODE(branching, [1.0], (0.0, 1.0), args=(0.1,))
    with pytest.raises(sn.NoDerivative, match="trace"):
        sn.sweep(problem, "dopri5", {"a": [0.5]}, reduce=Lyapunov(0.1))


@pytest.mark.slow
def test_the_exponent_of_lorenz():
    """0.9056 (Viswanath 1998, thesis, Cornell), by 64 starts over 2000 units of time."""

    def lorenz(t, y):
        return [10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]

    problem = sn.ODE(lorenz, [1.0, 1.0, 20.0], (0.0, 2000.0))
    found = sn.sweep(
        problem, "dopri5", {"y0[0]": np.linspace(1.0, 2.0, 64)}, reduce=Lyapunov(1.0, 20.0), rtol=1e-8
    ).result
    print(f"mean {found.mean():.4f}, deviation of one {found.std():.4f}")
    assert np.abs(found - 0.906).max() < 0.02
    assert abs(found.mean() - 0.9056) < 0.002


def test_states_are_what_a_sweep_keeps_by_default():
    problem = sn.ODE(lambda t, y, a: [-a * y[0]], [1.0], (0.0, 1.0), args=(0.1,))
    one, other = (sn.sweep(problem, "dopri5", {"a": [0.5, 1.0]}, reduce=r).result for r in (None, States()))
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(a, b)
