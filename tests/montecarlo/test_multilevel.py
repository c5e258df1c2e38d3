"""`multilevel`: rates, errors, costs and failures."""

from __future__ import annotations

from dataclasses import replace
from math import cosh, sqrt

import numpy as np
import pytest
from montecarlo.problems import black_scholes, call, discount, gbm, interrupt_call, ou

import stepnet as sn
from stepnet.montecarlo import feynman_kac, multilevel

SIGMAS = 4.5
HEAVY_TAILS = pytest.mark.filterwarnings("ignore::stepnet.errors.MonteCarloWarning")  # in a few of many repetitions


def first(y):
    return y[0]


def wave(y):
    return np.cos(y[1])


def clark_cameron(seed: int = 0) -> sn.SDE:
    """dX = dW_1, dY = X dW_2: without Levy areas no scheme has a strong order above 1/2; E cos Y = cosh(1)^(-1/2)."""

    def drift(t, y):
        return 0.0 * y

    def diffusion(t, y):
        zero = 0.0 * y[0]
        return np.stack([np.stack([1.0 + zero, zero]), np.stack([zero, y[0]])])

    return sn.SDE(drift, diffusion, [0.0, 0.0], (0.0, 1.0), noise="general", seed=seed)


@pytest.mark.parametrize(("scheme", "beta"), [("euler_maruyama", 1.0), ("milstein", 2.0)])
def test_variances_fall_with_twice_the_strong_order(scheme, beta):
    found = multilevel(gbm(), call, error=3e-4, potential=discount, scheme=scheme, steps=1)
    assert found.beta == pytest.approx(beta, abs=0.35)  # 1024 samples on the finest levels
    assert found.gamma == pytest.approx(1.0, abs=1e-12)
    assert abs(found.value - black_scholes(1.0)) < SIGMAS * found.standard_error + 2 * found.bias
    assert found.error <= 3e-4 * 1.01
    assert all(level.consistency < 1.0 for level in found.levels)


def test_exchanged_increments_restore_the_rate_of_general_noise():
    same = multilevel(clark_cameron(), wave, error=5e-3, scheme="euler_maruyama")
    exchanged = multilevel(clark_cameron(), wave, error=5e-3, coupling="antithetic")
    assert same.beta == pytest.approx(1.0, abs=0.3)
    assert exchanged.beta > 1.7
    exact = cosh(1.0) ** -0.5
    for found in (same, exchanged):
        assert abs(found.value - exact) < SIGMAS * found.standard_error + 2 * found.bias


def test_levels_see_the_same_path():
    """Without drift and with constant noise all grids agree to rounding: differences vanish."""
    sde = sn.SDE(lambda t, y: 0.0 * y, lambda t, y: 0.5 + 0.0 * y, [1.0], (0.0, 1.0))
    found = multilevel(sde, first, error=1e-2)
    assert all(level.variance < 1e-28 for level in found.levels[1:])


def test_potential_and_source_work_on_all_levels():
    zero = lambda y: 0.0 * y[0]
    found = multilevel(gbm(), zero, error=2e-3, potential=discount, source=lambda t, y: y[0], scheme="milstein")
    assert abs(found.value - 1.0) < SIGMAS * found.standard_error + 2 * found.bias + 1e-4


def test_bits_depend_on_neither_threads_nor_blocks(monkeypatch):
    from stepnet.montecarlo import coupled_paths

    wanted = multilevel(gbm(), call, error=2e-3, workers=1)
    again = multilevel(gbm(), call, error=2e-3, workers=3)
    monkeypatch.setattr(coupled_paths, "MOST_NUMBERS", 256)
    blocks = multilevel(gbm(), call, error=2e-3)
    assert wanted.value == again.value == blocks.value
    assert wanted.standard_error == again.standard_error == blocks.standard_error


def test_the_table_lists_all_levels_and_the_cost_of_plain_monte_carlo():
    found = multilevel(gbm(), call, error=2e-3, scheme="milstein")
    lines = found.table().splitlines()
    assert len(lines) == len(found.levels) + 2
    assert "plain Monte Carlo costs" in lines[-1]


def test_ctrl_c_returns_the_estimate_so_far(monkeypatch):
    from stepnet.montecarlo import coupled_paths

    interrupt_call(monkeypatch, coupled_paths, 8)
    with pytest.raises(sn.Interrupted) as interrupted:
        multilevel(gbm(), call, error=3e-6, potential=discount, max_cost=1e15)
    found = interrupted.value.solution
    assert abs(found.value - black_scholes(1.0)) < SIGMAS * found.standard_error + 2e-3


def test_a_target_out_of_reach_is_refused_with_its_cost():
    with pytest.raises(ValueError, match=r"`error` = 1e-10 would take about .* steps or more"):
        multilevel(gbm(), call, error=1e-10)


def test_too_few_levels_keep_the_estimate_so_far():
    with pytest.raises(sn.SolveFailed, match="was not reached with `max_levels` = 3") as failed:
        multilevel(ou(), lambda y: y[0] ** 2, error=2e-3, steps=1, max_levels=3)
    assert failed.value.solution.bias > 1e-3


def test_exploding_paths_are_reported():
    sde = sn.SDE(lambda t, y: y**3, lambda t, y: y**2, [1.0], (0.0, 1.0))
    with pytest.raises(sn.SolveFailed, match="paths became NaN or infinite"):
        multilevel(sde, first, error=1e-2, steps=64)


def test_values_that_are_never_finite_are_reported():
    with pytest.raises(sn.SolveFailed, match="paths became NaN or infinite") as failed:
        multilevel(gbm(), lambda y: np.nan, error=1e-2)
    assert np.isnan(failed.value.solution.value)


def test_large_values_keep_the_digits_of_their_differences():
    """A shift of the functional shifts the estimate, to the rounding of the shifted values."""
    shift, how = 2.0**27, {"error": 5e-3, "scheme": "milstein"}
    wanted, found = multilevel(gbm(), first, **how), multilevel(gbm(), lambda y: shift + y[0], **how)
    assert found.value - shift == pytest.approx(wanted.value, abs=1e-6)
    assert found.standard_error == pytest.approx(wanted.standard_error, rel=1e-6)
    assert found.levels[0].kurtosis == pytest.approx(wanted.levels[0].kurtosis, rel=1e-5)


def test_a_rare_event_warns_of_its_kurtosis():
    rare = lambda y: np.where(y[0] > 1.55, 1.0, 0.0)
    with pytest.warns(sn.MonteCarloWarning, match="the kurtosis of the differences"):
        multilevel(gbm(), rare, error=2e-3, scheme="milstein")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"error": 0.0}, "`error` must be a number in"),
        ({"error": -1.0}, "`error` must be a number in"),
        ({"terminal": lambda y: y}, "`terminal` must return a number"),
        ({"x": [[1.0], [2.0]]}, "`x` must be one start point"),
        ({"steps": 0}, "`steps` must be at least 1"),
        ({"coupling": "none"}, "there is no coupling"),
        ({"coupling": "antithetic", "scheme": "sriw1"}, "increments of W only"),
        ({"max_levels": 1}, "`max_levels` must be at least 3"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        multilevel(**{"sde": gbm(), "terminal": call, "error": 1e-2, **changes})


# ---- slow -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@HEAVY_TAILS
def test_intervals_cover_in_95_percent_of_repetitions(capsys):
    repetitions, hits = 2000, 0
    for seed in range(repetitions):
        found = multilevel(ou(seed=seed), lambda y: y[0] ** 2, error=2e-2, steps=4)
        exact, h = 1.0, 1.0 / found.levels[-1].steps
        for _ in range(found.levels[-1].steps):  # of Euler's scheme on the finest level
            exact = exact * (1.0 - h) ** 2 + 0.25 * h
        hits += found.interval[0] <= exact <= found.interval[1]
    with capsys.disabled():
        print(f"\nmultilevel: 95 % intervals cover in {hits / repetitions:.2%} of {repetitions} repetitions")
    assert abs(hits / repetitions - 0.95) <= 0.02


@pytest.mark.slow
@HEAVY_TAILS
@pytest.mark.parametrize(("scheme", "slope", "gain"), [("euler_maruyama", -2.5, 8.0), ("milstein", -2.1, 40.0)])
def test_the_cost_of_a_call_grows_with_the_square_of_the_accuracy(scheme, slope, gain, capsys):
    """Milstein eps^-2, Euler eps^-2 log^2 eps; the gain over plain Monte Carlo of the same scheme and bias."""
    targets = np.array([1e-3, 4e-4, 2e-4, 1e-4, 5e-5])
    found = [multilevel(gbm(), call, error=eps, potential=discount, scheme=scheme, steps=1) for eps in targets]
    costs = np.array([each.cost for each in found])
    exact = black_scholes(1.0)
    with capsys.disabled():
        print()
        for eps, each in zip(targets, found, strict=True):
            print(
                f"{scheme} eps {eps:.0e}: error {abs(each.value - exact):.1e}, estimated {each.error:.1e}, cost "
                f"{each.cost:.2e}, plain {each.plain_cost / each.cost:.1f} times"
            )
    fitted = np.polyfit(np.log(targets), np.log(costs), 1)[0]
    assert slope < fitted < -1.6
    assert found[3].plain_cost / found[3].cost > gain
    assert all(abs(each.value - exact) < 3.0 * eps for eps, each in zip(targets, found, strict=True))


@pytest.mark.slow
@HEAVY_TAILS
@pytest.mark.parametrize(("scheme", "gain"), [("euler_maruyama", 8.0), ("milstein", 40.0)])
def test_plain_monte_carlo_costs_more_at_equal_measured_error(scheme, gain, capsys):
    """Root mean square errors against the exact price, of repeated runs.

    Plain paths have as many steps as the finest level (the median of all runs), and are so many that their measured
    variance alone gives the same error.
    """
    eps, exact = 1e-4, black_scholes(1.0)
    how = {"potential": discount, "scheme": scheme}
    runs = [multilevel(gbm(seed), call, error=eps, steps=1, **how) for seed in range(16)]
    rms = sqrt(np.mean([(each.value - exact) ** 2 for each in runs]))
    cost, steps = np.mean([each.cost for each in runs]), int(np.median([each.levels[-1].steps for each in runs]))
    plain = feynman_kac(gbm(99), call, steps=steps, paths=2**15, **how)
    found = steps * plain.paths * (plain.standard_error / rms) ** 2 / cost
    with capsys.disabled():
        print(f"\n{scheme}: plain Monte Carlo costs {found:.0f} times as much at the measured error {rms:.1e}")
    assert rms < 1.3 * eps  # of 16 runs
    assert found > gain


@pytest.mark.slow
@HEAVY_TAILS
def test_the_error_of_repeated_estimates_is_the_target(capsys):
    """The root mean square error over 200 seeds, against the exact price, and plain Monte Carlo at the same error."""
    eps = 1e-3
    runs = [multilevel(gbm(seed), call, error=eps, potential=discount, scheme="milstein") for seed in range(200)]
    rms = sqrt(np.mean([(each.value - black_scholes(1.0)) ** 2 for each in runs]))
    plain = feynman_kac(replace(gbm(), seed=7), call, potential=discount, steps=runs[0].levels[-1].steps, paths=4096)
    with capsys.disabled():
        print(
            f"\nroot mean square error {rms:.2e} for the target {eps:g}; plain {plain.standard_error:.1e}, 4096 paths"
        )
    assert rms < 1.1 * eps
