"""`randomised_multilevel`: exact expectations without discretisation error, bits, intervals, refusals."""

from __future__ import annotations

from math import cosh, exp

import numpy as np
import pytest
from montecarlo.problems import black_scholes, call, discount, gbm, interrupt_call, ou
from montecarlo.test_multilevel import HEAVY_TAILS, clark_cameron, first, wave

import stepnet as sn
from stepnet.montecarlo import randomised_multilevel

SIGMAS = 4.5  # a right estimate is farther off with probability 7e-6


def test_a_single_step_on_the_coarsest_level_leaves_no_bias():
    """Milstein's scheme with one step is off by 4e-3, twenty times the standard error."""
    found = randomised_multilevel(gbm(), call, error=2e-4, potential=discount, steps=1)
    assert found.bias == 0.0
    assert found.error == found.standard_error <= 2e-4
    assert abs(found.value - black_scholes(1.0)) < SIGMAS * found.standard_error
    assert found.beta == pytest.approx(2.0, abs=0.35)


def test_potential_source_and_exchanged_increments():
    relaxed = randomised_multilevel(
        ou(), lambda y: y[0] ** 2, error=5e-3, potential=lambda t, y: 1.0, source=lambda t, y: np.exp(t), steps=4
    )
    square = exp(-2.0) + 0.125 * (1.0 - exp(-2.0))
    assert abs(relaxed.value - (exp(-1.0) * square + 1.0)) < SIGMAS * relaxed.standard_error
    exchanged = randomised_multilevel(clark_cameron(), wave, error=5e-3, coupling="antithetic")
    assert abs(exchanged.value - cosh(1.0) ** -0.5) < SIGMAS * exchanged.standard_error


def test_bits_depend_on_neither_threads_nor_blocks(monkeypatch):
    from stepnet.montecarlo import coupled_paths

    how = {"error": 2e-3, "potential": discount}
    wanted = randomised_multilevel(gbm(), call, **how, workers=1)
    monkeypatch.setattr(coupled_paths, "MOST_NUMBERS", 256)
    again = randomised_multilevel(gbm(), call, **how, workers=3)
    assert (wanted.value, wanted.standard_error, wanted.cost) == (again.value, again.standard_error, again.cost)


def test_ctrl_c_returns_the_estimate_of_whole_rounds(monkeypatch):
    from stepnet.montecarlo import coupled_paths

    interrupt_call(monkeypatch, coupled_paths, 40)
    with pytest.raises(sn.Interrupted, match="samples of random levels") as interrupted:
        randomised_multilevel(gbm(), call, error=1e-5, potential=discount, steps=1)
    found = interrupted.value.solution
    assert found.standard_error > 1e-4
    assert abs(found.value - black_scholes(1.0)) < SIGMAS * found.standard_error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"error": 0.0}, "`error` must be a number in"),
        ({"error": 1e-9}, r"`error` = 1e-09 would take about .* steps, and `max_cost`"),
        ({"scheme": "euler_maruyama"}, "has the strong order 0.5 for diagonal noise"),
        ({"x": [[1.0], [2.0]]}, "`x` must be one start point"),
        ({"coupling": "none"}, "there is no coupling"),
        ({"terminal": lambda y: y}, "`terminal` must return a number"),
        ({"steps": 0}, "`steps` must be at least 1"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        randomised_multilevel(**{"sde": gbm(), "terminal": call, "error": 1e-2, **changes})


def test_exploding_paths_are_reported():
    sde = sn.SDE(lambda t, y: y**3, lambda t, y: y**2, [1.0], (0.0, 1.0))
    with pytest.raises(sn.SolveFailed, match="paths became NaN or infinite"):
        randomised_multilevel(sde, first, error=1e-2, steps=64)
    with pytest.raises(sn.SolveFailed, match="paths became NaN or infinite"):
        randomised_multilevel(gbm(), lambda y: np.nan, error=1e-2)


@pytest.mark.slow
@HEAVY_TAILS
def test_intervals_contain_the_exact_value_in_95_percent_of_repetitions(capsys):
    repetitions, exact = 2000, black_scholes(1.0)
    how = {"error": 2.5e-3, "potential": discount, "steps": 1, "workers": 1}
    found = [randomised_multilevel(gbm(seed), call, **how) for seed in range(repetitions)]
    hits = np.mean([each.interval[0] <= exact <= each.interval[1] for each in found])
    off = np.mean([each.value for each in found]) - exact
    spread = np.std([each.value for each in found])
    with capsys.disabled():
        print(
            f"\nrandomised levels: 95 % intervals cover in {hits:.2%}, the mean is off by {off / spread:.3f} deviations"
        )
    assert abs(hits - 0.95) <= 0.02
    assert abs(off) < 0.15 * spread
