"""A run may be cut into slices anywhere without changing a bit."""

from __future__ import annotations

import numpy as np
import pytest
from engine.families import T_END, every_family

import stepnet as sn
from stepnet.engines.numba_engine import driver

SAVING = {
    "every step": {},
    "every third step": {"save_every": 3},
    "the end": {"save_every": 0},
    "wanted times": {"save_at": np.linspace(0.0, T_END, 97)},
}


@every_family
@pytest.mark.parametrize("saving", SAVING.values(), ids=SAVING)
def test_slices_of_one_attempt_give_the_same_bits(family, saving, monkeypatch):
    whole = family.solve(**saving)
    monkeypatch.setattr(driver, "FIRST_SLICE", 1)
    monkeypatch.setattr(driver, "SLICE_SECONDS", 0.0)
    sliced = family.solve(**saving)
    assert np.array_equal(whole.t, sliced.t)
    assert np.array_equal(whole.y, sliced.y)
    assert whole.statistics.evaluations == sliced.statistics.evaluations
    assert whole.statistics.steps == sliced.statistics.steps


def test_a_run_is_cut_into_slices_at_all(monkeypatch):
    """Guards the test above: with one attempt for each slice, the driver looks at its bar after every step."""
    from engine.families import FIXED

    seen = []

    class Bar:
        def __call__(self, run):
            seen.append(int(run["step"]))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(driver, "_progress_bar", lambda *_: Bar())
    monkeypatch.setattr(driver, "FIRST_SLICE", 1)
    monkeypatch.setattr(driver, "SLICE_SECONDS", 0.0)
    FIXED[0].solve()
    assert seen == list(range(1, 41))


def test_failures_do_not_depend_on_slices(monkeypatch):
    def blow_up(t, y):
        return y * y

    def end():
        s = sn.solve(sn.ODE(blow_up, [1.0], (0.0, 2.0)), "bosh3", max_steps=300, check=False)
        return s.status, s.t[-1], s.y[-1].tobytes(), s.statistics.steps

    whole = end()
    monkeypatch.setattr(driver, "FIRST_SLICE", 1)
    monkeypatch.setattr(driver, "SLICE_SECONDS", 0.0)
    assert end() == whole
