"""`feynman_kac`: closed forms, bits, intervals, failures."""

from __future__ import annotations

from math import cos, exp, sqrt

import numpy as np
import pytest
from montecarlo.problems import RATE, black_scholes, brownian, call, discount, gbm, interrupt_call, ou, relax, shake
from scipy.special import ndtri

import stepnet as sn
from stepnet.montecarlo import feynman_kac

SIGMAS = 4.5  # a right estimate is farther off with probability 7e-6
SAMPLINGS = ("plain", "antithetic", "quasi")


def first(y):
    return y[0]


def fill(t, y, dy, p):
    dy[0] = -y[0]


def total_square(y):
    return np.sum(y * y)


def wave(y):
    return np.cos(np.sum(y) / np.sqrt(y.size))


def assert_near(found, exact, bias=0.0):
    """Within SIGMAS standard errors and the known discretisation error."""
    assert np.all(np.abs(found.value - exact) <= SIGMAS * np.asarray(found.standard_error) + bias)


# ---- closed forms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_call_has_the_price_of_black_and_scholes(sampling):
    x = np.array([[0.8], [1.0], [1.3]])
    found = feynman_kac(gbm(), call, x, potential=discount, steps=64, paths=2**13, sampling=sampling)
    assert_near(found, [black_scholes(each) for each in x[:, 0]], bias=3e-4)  # Euler, measured 64 steps: below 2e-4
    assert found.rung == "lanes"


def test_time_runs_from_the_start_point_to_the_terminal_values():
    """u_t + f u_x + 1/2 g^2 u_xx = 0 with u(., T) = x^2; reversing the drift gives exp(+2) instead of exp(-2)."""
    found = feynman_kac(ou(), total_square, steps=256, paths=2**13, sampling="quasi")
    exact = exp(-2.0) + 0.25 * (1.0 - exp(-2.0)) / 2.0
    assert_near(found, exact, bias=2e-3)  # (1 - h)^512 is within 6e-4 of exp(-2)


@pytest.mark.parametrize("n", [1, 2, 100])
def test_the_heat_equation_in_one_two_and_a_hundred_dimensions(n):
    """E cos(a . (x + W)) = cos(a . x) exp(-|a|^2 T / 2) with |a| = 1; sums of W are exact, so there is no bias."""
    x = np.linspace(-1.0, 1.0, 5)[:, None] * np.ones(n) / sqrt(n)
    found = feynman_kac(brownian(n), wave, x, steps=4, paths=2**12)
    assert_near(found, [cos(each) * exp(-0.5) for each in np.linspace(-1.0, 1.0, 5)])
    assert np.all(found.standard_error < 0.02)


def test_a_geometric_basket_in_a_hundred_dimensions():
    """The geometric mean of independent geometric Brownian motions is one itself."""
    n, sigma = 100, 0.4

    def drift(t, y):
        return (RATE - 0.5 * sigma**2) + 0.0 * y

    def diffusion(t, y):
        return sigma + 0.0 * y

    def basket(y):
        return np.maximum(np.exp(np.sum(y) / n) - 1.0, 0.0)

    sde = sn.SDE(drift, diffusion, np.zeros(n), (0.0, 1.0))
    found = feynman_kac(sde, basket, potential=discount, steps=2, paths=2**13)
    small, rate = sigma / sqrt(n), RATE - 0.5 * sigma**2 + 0.5 * sigma**2 / n
    price = black_scholes(1.0, rate=rate, sigma=small) * exp(rate - RATE)
    assert_near(found, price)
    assert found.standard_error < 1e-3


def test_a_source_is_integrated_with_the_weight_of_the_potential():
    """V = r and source = y of drift r: the integrand has the mean 1."""
    found = feynman_kac(
        gbm(), lambda y: 0.0 * y[0], potential=discount, source=lambda t, y: y[0], steps=50, paths=2**13
    )
    assert_near(found, 1.0, bias=1e-3)  # (1 + r h) / exp(r h) - 1 in each step


def test_general_noise_and_a_state_of_two_axes():
    def drift(t, y):
        return -y

    def diffusion(t, y):
        return np.stack([np.stack([0.3 + 0.0 * y[0, 0], 0.1 * y[0, 1]]), np.stack([0.0 * y[0, 0], 0.2 * y[0, 0]])])[
            None
        ]

    sde = sn.SDE(drift, diffusion, [[1.0, 2.0]], (0.0, 1.0), noise="general")
    found = feynman_kac(sde, lambda y: y[0, 0] + y[0, 1], potential=lambda t, y: 1.0, steps=128, paths=2**13)
    assert_near(found, 3.0 * exp(-2.0), bias=3.0 * exp(-1.0) * 1.5e-3)


def test_without_noise_the_value_is_that_of_the_equation_to_the_last_bit():
    sde = sn.SDE(relax, lambda t, y: 0.0 * y, [1.0, 0.3], (0.0, 1.0))
    end = sn.solve_ensemble(sde, "euler_maruyama", paths=1, steps=20).y[0, 0]
    for sampling in SAMPLINGS:
        found = feynman_kac(sde, first, steps=20, paths=100, sampling=sampling)
        assert found.value == end[0]
        assert found.standard_error == 0.0


def test_a_terminal_function_that_cannot_be_traced_runs_in_python():
    table = {True: 1.0, False: 0.0}
    found = feynman_kac(ou(), lambda y: table[bool(y[0] > 0.2)], steps=8, paths=512)
    traced = feynman_kac(ou(), lambda y: np.where(y[0] > 0.2, 1.0, 0.0), steps=8, paths=512)
    assert found.value == traced.value


# ---- bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_estimate_at_a_point_depends_on_neither_other_points_nor_threads(sampling):
    x = np.linspace(0.5, 1.5, 600)[:, None]
    how = {"potential": discount, "steps": 10, "paths": 320, "sampling": sampling}
    all_points = feynman_kac(gbm(), call, x, **how, workers=1)
    for workers in (1, 3):
        some = feynman_kac(gbm(), call, x[513:515], **how, workers=workers)
        one = feynman_kac(gbm(), call, x[513], **how, workers=workers)
        for name in ("value", "standard_error"):
            wanted = getattr(all_points, name)
            assert (getattr(some, name) == wanted[513:515]).all()
            assert getattr(one, name) == wanted[513]


def test_blocks_do_not_change_bits(monkeypatch):
    from stepnet.montecarlo import path_averages

    found = [feynman_kac(gbm(), call, steps=4, paths=5000)]
    monkeypatch.setattr(path_averages, "MOST_NUMBERS", 700)
    found.append(feynman_kac(gbm(), call, steps=4, paths=5000))
    assert found[0].value == found[1].value
    assert found[0].standard_error == found[1].standard_error


def test_the_paths_are_those_of_solve_ensemble():
    ends = sn.solve_ensemble(gbm(), "milstein", paths=100, steps=10).y[:, 0, 0]
    found = feynman_kac(gbm(), first, scheme="milstein", steps=10, paths=100)
    assert found.value == pytest.approx(ends.mean(), rel=1e-14)
    assert found.standard_error == pytest.approx(ends.std(ddof=1) / 10.0, rel=1e-12)


# ---- variance -------------------------------------------------------------------------------------------------------


def test_antithetic_pairs_integrate_odd_functions_exactly():
    found = feynman_kac(brownian(2), first, [0.5, 0.0], steps=3, paths=64, sampling="antithetic")
    assert found.value == pytest.approx(0.5, abs=1e-14)
    assert found.standard_error < 1e-15


def test_the_reflected_equation_follows_the_reflected_path():
    from stepnet.montecarlo.path_functional import reflect

    W = sn.noise.BrownianPath(0, 3, (0.0, 1.0), 16, 1).increments(np.linspace(0, 1, 17))
    for scheme in ("euler_maruyama", "milstein"):
        found = sn.solve_ensemble(reflect(gbm()), scheme, paths=[3], steps=16).y
        wanted = sn.solve_ensemble(gbm(), scheme, increments=-W[None], steps=16).y
        assert found == pytest.approx(wanted, rel=1e-15)


def test_controls_keep_the_mean_and_reduce_the_variance():
    plain = feynman_kac(gbm(), call, potential=discount, steps=10, paths=2**13)
    exact = black_scholes(1.0)
    mean = (1.0 + RATE / 10) ** 10
    for control, factor in (({"control": "brownian"}, 1.8), ({"control": first, "control_mean": mean}, 2.4)):
        found = feynman_kac(gbm(), call, potential=discount, steps=10, paths=2**13, **control)
        assert_near(found, exact, bias=2e-3)
        assert found.standard_error < plain.standard_error / factor


def test_a_linearisation_about_the_path_without_noise_removes_more_than_brownian_motion():
    sde = sn.SDE(lambda t, y: -(y**3), lambda t, y: 0.2 * y, [1.0], (0.0, 1.0))
    x = np.array([[1.0], [2.0]])
    found = {
        control: feynman_kac(sde, total_square, x, steps=32, paths=2048, control=control)
        for control in (None, "brownian", "linearisation")
    }
    errors = [each.standard_error for each in found.values()]
    assert np.all(errors[1] < errors[0] / 2)
    assert np.all(errors[2] < errors[0] / 5)
    spread = SIGMAS * (errors[0] + errors[2])
    assert np.all(np.abs(found[None].value - found["linearisation"].value) < spread)


def test_a_linearisation_is_the_functional_where_the_equation_is_linear():
    """An Ornstein-Uhlenbeck process with two components of noise in a state of two axes."""
    G = np.array([[[0.3, 0.1], [0.0, 0.2]]])
    sde = sn.SDE(relax, lambda t, y: G, [[1.0, 2.0]], (0.0, 1.0), noise="additive")
    found = feynman_kac(sde, lambda y: y[0, 0] + 3.0 * y[0, 1], steps=16, paths=512, control="linearisation")
    assert found.value == pytest.approx(7.0 * (1.0 - 1.0 / 16) ** 16, rel=1e-12)
    assert found.standard_error < 1e-9


def test_random_starts_are_stratified():
    """X normal and y = exp(-t) X + noise: the variance of the start is removed, that of the noise remains."""
    start = sn.montecarlo.RandomStart(ndtri)
    found = feynman_kac(ou(), first, start, steps=8, paths=8192)
    random = sn.solve_ensemble(
        ou(), "euler_maruyama", y0=np.random.default_rng(0).normal(size=(8192, 1)), paths=np.arange(8192), steps=8
    ).y[:, 0, 0]
    noise_alone = feynman_kac(ou(), first, [0.0], steps=8, paths=8192).standard_error
    assert abs(found.value) < SIGMAS * found.standard_error
    assert found.standard_error == pytest.approx(noise_alone, rel=0.3)  # from 32 units
    assert found.standard_error < 0.9 * random.std() / sqrt(8192)
    rest, plain_error = sn.SDE(relax, lambda t, y: 0.0 * y, [0.0], (0.0, 1.0)), (1.0 - 1.0 / 8) ** 8 / sqrt(4096)
    assert feynman_kac(rest, first, start, steps=8, paths=4096).standard_error < 0.05 * plain_error


def test_random_starts_do_not_depend_on_blocks_or_threads(monkeypatch):
    from stepnet.montecarlo import random_start

    start = sn.montecarlo.RandomStart(lambda u: 1.0 + u)
    how = {"potential": discount, "steps": 8, "paths": 4096, "sampling": "antithetic"}
    whole = feynman_kac(gbm(), call, start, **how)
    monkeypatch.setattr(random_start, "MOST_NUMBERS", 256)
    parts = feynman_kac(gbm(), call, start, **how, workers=2)
    assert (whole.value, whole.standard_error) == (parts.value, parts.standard_error)
    target = feynman_kac(gbm(), call, start, steps=8, error=2e-3)
    assert target.interval[1] - target.interval[0] <= 4e-3


def test_a_control_equal_to_the_functional_leaves_no_error():
    mean = (1.0 + RATE / 10) ** 10
    found = feynman_kac(gbm(), first, steps=10, paths=512, control=first, control_mean=mean)
    assert found.value == pytest.approx(mean, abs=1e-12)
    assert found.standard_error < 1e-9


def test_quasi_monte_carlo_converges_faster_than_the_square_root():
    """The slope of the error on a smooth functional; plain Monte Carlo has -0.5."""
    paths = 2 ** np.arange(8, 15, 2) * 16
    errors = [feynman_kac(ou(), wave, steps=16, paths=n, sampling="quasi").standard_error for n in paths.tolist()]
    slope = np.polyfit(np.log(paths), np.log(errors), 1)[0]
    assert slope < -0.8


def test_the_brownian_bridge_has_the_covariance_of_brownian_motion():
    from stepnet.montecarlo.quasi import build_increments

    for steps in (1, 2, 5, 8):
        maps = build_increments(np.eye(steps)[:, :, None], 0.25)[:, :, 0].T
        assert maps @ maps.T == pytest.approx(0.25 * np.eye(steps), abs=1e-15)


# ---- targets and failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_target_error_is_reached(sampling):
    found = feynman_kac(gbm(), call, potential=discount, steps=4, error=2e-3, sampling=sampling)
    low, high = found.interval
    assert (high - low) / 2 <= 2e-3
    assert_near(found, black_scholes(1.0), bias=3e-3)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_target_out_of_reach_is_refused_with_its_cost_after_the_pilot_run(sampling):
    what = r"`error` = 1e-12 would take about .* paths .* steps and .* seconds .* 1024 paths reach"
    with pytest.raises(ValueError, match=what):
        feynman_kac(gbm(), call, steps=2, error=1e-12, sampling=sampling)


def test_exploding_paths_are_reported_with_the_estimate_of_the_others():
    sde = sn.SDE(lambda t, y: y**3, lambda t, y: y**2, [1.0], (0.0, 1.0))
    with pytest.raises(sn.SolveFailed, match="of 1000 paths became NaN or infinite") as failed:
        feynman_kac(sde, call, steps=100, paths=1000)
    found = feynman_kac(sde, call, steps=100, paths=1000, check=False)
    assert 0 < found.exploded == failed.value.solution.exploded < 1000


def test_a_potential_that_explodes_is_reported():
    with pytest.raises(sn.SolveFailed, match="a potential that is bounded below"):
        feynman_kac(gbm(), call, potential=lambda t, y: -1e6 * y[0] ** 2, steps=4, paths=64)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_ctrl_c_returns_the_estimate_so_far(sampling, monkeypatch):
    from stepnet.montecarlo import path_averages

    monkeypatch.setattr(path_averages, "MOST_NUMBERS", 2**16)
    interrupt_call(monkeypatch, path_averages, 37)
    with pytest.raises(sn.Interrupted) as interrupted:
        feynman_kac(gbm(), call, potential=discount, steps=20, paths=2**24, sampling=sampling)
    found = interrupted.value.solution
    assert 0 < found.paths < 2**24
    assert_near(found, black_scholes(1.0), bias=2e-3)
    assert "interrupted after" in found.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": 0}, "`paths` must be at least 2"),
        ({"paths": -5}, "`paths` must be at least 2"),
        ({"paths": 100, "error": 0.1}, "either `paths` or `error`"),
        ({"error": 0.0}, "`error` must be a number in"),
        ({"confidence": 1.0}, "`confidence` must be a number in"),
        ({"terminal": lambda y: y}, "`terminal` must return a number"),
        ({"potential": lambda t, y: y}, "`potential` must return a number"),
        ({"source": lambda t, y: np.nan}, "`source` must be finite"),
        ({"x": [1.0, 2.0]}, "`x` must have the shape"),
        ({"x": [[np.nan]]}, "`x` must be finite"),
        ({"sampling": "sobol"}, "there is no sampling 'sobol'"),
        ({"sampling": "quasi", "steps": 30000}, "at most 21201 dimensions"),
        ({"sampling": "quasi", "control": "brownian"}, "`control` cannot be combined with"),
        ({"sampling": "quasi", "scheme": "sriw1"}, "increments of W only"),
        ({"sampling": "antithetic", "control": "brownian"}, "antithetic pairs already remove"),
        ({"control": first}, "`control` needs its mean"),
        ({"control": "martingale"}, "there is no control 'martingale'"),
        ({"x": sn.montecarlo.RandomStart(lambda u: [u[0], 1.0])}, "`quantile` of a RandomStart must return finite"),
        (
            {"x": sn.montecarlo.RandomStart(ndtri), "control": "brownian"},
            "`control` cannot be combined with a `RandomStart`",
        ),
        ({"x": sn.montecarlo.RandomStart(ndtri), "sampling": "quasi"}, "whose points are stratified"),
        ({"control_mean": 1.0}, "`control_mean` needs `control`"),
        ({"sde": sn.SDE(fill, shake, [1.0], (0.0, 1.0)), "potential": discount}, "returns its result"),
        ({"sde": sn.ODE(relax, [1.0], (0.0, 1.0))}, "`sde` must be an `SDE`"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        feynman_kac(**{"sde": gbm(), "terminal": call, "steps": 2, **changes})


# ---- coverage -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["plain", "antithetic", "quasi", "control", "linearisation", "start"])
def test_intervals_cover_in_95_percent_of_repetitions(sampling, capsys):
    repetitions, steps = 2000, 4
    exact = 1.0
    for _ in range(steps):  # of Euler's scheme: E y_new^2 = (1 - h)^2 E y^2 + h / 4
        exact = exact * (1.0 - 1.0 / steps) ** 2 + 0.25 / steps
    how: dict = {"sampling": sampling, "paths": 512}
    if sampling == "control":
        how = {"paths": 512, "control": first, "control_mean": (1.0 - 1.0 / steps) ** steps}
    if sampling == "linearisation":
        how = {"paths": 512, "control": "linearisation"}
    start = None
    if sampling == "start":  # uniform on [0, 2]: E X^2 = 4 / 3 in place of 1
        how, start = {"paths": 4096}, sn.montecarlo.RandomStart(lambda u: 2.0 * u)
        exact += (1.0 - 1.0 / steps) ** (2 * steps) / 3.0
    hits = 0
    for seed in range(repetitions):
        low, high = feynman_kac(ou(seed=seed), total_square, start, steps=steps, **how).interval
        hits += low <= exact <= high
    with capsys.disabled():
        print(f"\n{sampling}: 95 % intervals cover in {hits / repetitions:.2%} of {repetitions} repetitions")
    assert abs(hits / repetitions - 0.95) <= 0.02


def test_solve_ensemble_takes_increments_in_lanes_and_alone():
    W = np.random.default_rng(0).normal(size=(5, 8, 1)) * 0.3
    y = np.ones(5)
    for n in range(8):
        y = y + RATE * y / 8 + 0.2 * y * W[:, n, 0]
    for trace in (True, False):
        found = sn.solve_ensemble(gbm(trace=trace), "euler_maruyama", increments=W, steps=8)
        assert found.rung == ("lanes" if trace else "one by one")
        assert found.y[:, 0, 0] == pytest.approx(y, rel=1e-14)
    chosen = sn.solve_ensemble(gbm(), "euler_maruyama", increments=W, paths=[4, 0, 4], steps=8).y[:, 0, 0]
    assert chosen == pytest.approx(y[[4, 0, 4]], rel=1e-14)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"increments": np.zeros((2, 3, 1))}, "`increments` must have the shape"),
        ({"increments": np.zeros(3)}, r"\(paths, steps, components\)"),
        ({"increments": np.full((2, 8, 1), np.nan)}, "`increments` must be finite"),
        ({"scheme": "sriw1"}, "`increments` do not suffice for sriw1"),
        ({"paths": [2]}, "`paths` must be less than 2"),
        ({"problem": sn.ODE(relax, [1.0], (0.0, 1.0))}, "`increments` are for an `SDE`"),
    ],
)
def test_wrong_increments_are_refused(changes, message):
    how = {"problem": gbm(), "scheme": "euler_maruyama", "increments": np.zeros((2, 8, 1)), "steps": 8}
    with pytest.raises((ValueError, TypeError), match=message):
        sn.solve_ensemble(**{**how, **changes})


def test_members_with_the_same_paths_share_draws_without_changing_bits():
    alone = sn.solve_ensemble(gbm(), "euler_maruyama", paths=32, steps=50).y[:, 0]
    paths = np.tile(np.arange(32).reshape(2, 1, 16), (1, 9, 1)).ravel()
    many = sn.solve_ensemble(gbm(), "euler_maruyama", y0=np.ones((len(paths), 1)), paths=paths, steps=50).y[:, 0]
    assert (many == alone[paths]).all()
