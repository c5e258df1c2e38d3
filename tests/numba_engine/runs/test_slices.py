"""A run may be cut into slices anywhere without changing a bit."""

from __future__ import annotations

import numpy as np
import pytest
from numba_engine.runs.families import T_END, every_family

import stepnet as sn
from stepnet.engines.numba_engine.runs import driver

SAVING = {
    "every step": {},
    "every third step": {"save_every": 3},
    "the end": {"save_every": 0},
    "wanted times": {"save_at": np.linspace(0.0, T_END, 97)},
}


@pytest.fixture
def cut(monkeypatch):
    """Call it to cut every run from then on into slices of one attempt; returns the list of steps after each."""

    def begin():
        seen, take = [], driver._run_slice

        def one(job, trajectory, attempts):
            code, _ = take(job, trajectory, 1)
            seen.append(int(job.run[0]["step"]))
            return code, 1

        monkeypatch.setattr(driver, "_run_slice", one)
        return seen

    return begin


@every_family
@pytest.mark.parametrize("saving", SAVING.values(), ids=SAVING)
def test_slices_of_one_attempt_give_the_same_bits(family, saving, cut):
    whole = family.solve(**saving)
    seen = cut()
    sliced = family.solve(**saving)
    assert (
        len(seen) >= sliced.statistics.steps - 5
    )  # it was cut; a multistep scheme starts with up to 4 steps of another
    assert np.array_equal(whole.t, sliced.t)
    assert np.array_equal(whole.y, sliced.y)
    assert whole.statistics.evaluations == sliced.statistics.evaluations
    assert whole.statistics.steps == sliced.statistics.steps


def blow_up(t, y):
    return y * y


def test_failures_do_not_depend_on_slices(cut):
    def end():
        s = sn.solve(sn.ODE(blow_up, [1.0], (0.0, 2.0)), "bosh3", max_steps=300, check=False)
        return s.status, s.t[-1], s.y[-1].tobytes(), s.statistics.steps

    whole = end()
    seen = cut()
    assert end() == whole
    assert len(seen) >= 300
