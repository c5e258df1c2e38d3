"""Trackers receive the states of a run as `solve` saves them, and can store them, check them and stop the run."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import stepnet as sn

STEPS, EVERY = 60, 7
DECAY = sn.ODE(lambda t, y: -y, [2.0, 1.0], (0.0, 6.0))


class Memory:
    """Keeps everything."""

    def __init__(self):
        self.t, self.y, self.is_closed = [], [], False

    def take(self, t, y):
        self.t.append(t)
        self.y.append(y.copy())

    def close(self):
        self.is_closed = True


def test_trackers_see_what_solve_saves():
    memory, wanted = Memory(), sn.solve(DECAY, "rk4", steps=STEPS, save_every=EVERY)
    sn.track(DECAY, "rk4", [memory], steps=STEPS, every=EVERY)
    assert np.array_equal(memory.t, wanted.t)
    assert np.array_equal(memory.y, wanted.y)
    assert memory.is_closed


def test_adaptive_runs_pass_steps_or_given_times():
    memory, wanted = Memory(), sn.solve(DECAY, "dopri5")
    sn.track(DECAY, "dopri5", [memory])
    assert np.array_equal(memory.t, wanted.t)
    memory = Memory()
    sn.track(DECAY, "dopri5", [memory], save_at=[1.0, 5.0])
    assert memory.t == [1.0, 5.0]


def test_states_are_stored_as_they_come(tmp_path):
    group, file = zarr.open_group(tmp_path / "states.zarr", mode="w"), tmp_path / "states.npz"
    stores = [sn.trackers.StoreStates(group), sn.trackers.StoreStates(file)]
    sn.track(DECAY, "rk4", stores, steps=STEPS, every=EVERY)
    wanted = sn.solve(DECAY, "rk4", steps=STEPS, save_every=EVERY)
    with np.load(file) as found:
        assert np.array_equal(found["t"], wanted.t)
        assert np.array_equal(found["y_000003"], wanted.y[3])
    assert np.array_equal(group["t"][:], wanted.t)
    assert np.array_equal(group["y"][:], wanted.y)


def test_a_steady_state_stops_the_run():
    tolerance = 1e-2
    run = sn.track(DECAY, "rk4", [sn.trackers.SteadyState(tolerance)], steps=STEPS)
    assert not run.is_finished
    assert run.t == pytest.approx(np.log(2.0 / tolerance), abs=0.2)  # |y'| = 2 exp(-t), seen after a step of 0.1


def test_a_quantity_that_is_not_conserved_is_an_error():
    memory = Memory()
    with pytest.raises(RuntimeError, match="is not conserved: 3 at the beginning"):
        sn.track(DECAY, "rk4", [memory, sn.trackers.Conservation(np.sum, 0.5)], steps=STEPS)
    assert memory.is_closed
    assert memory.y[-1].sum() < 1.5


def test_pictures_are_drawn(tmp_path):
    from PIL import Image

    grid = sn.operators.Grid((8, 8))
    heat = sn.equations.heat(grid, np.random.default_rng(0).normal(size=(8, 8)), (0.0, 0.01))
    plot = sn.plots.LivePlot(pause=0.0)
    sn.track(heat, "rk4", [plot, sn.plots.GIF(tmp_path / "heat.gif"), sn.trackers.Progress(0.01)], steps=8, every=2)
    with Image.open(tmp_path / "heat.gif") as picture:
        assert picture.n_frames == 5
    assert plot.axes.get_title() == "t = 0.01"


def test_a_file_of_states_holds_the_last_run(tmp_path):
    store = sn.trackers.StoreStates(tmp_path / "states.npz")
    for every in (20, 30):
        sn.track(DECAY, "rk4", [store], steps=STEPS, every=every)
    found = np.load(tmp_path / "states.npz")
    assert sorted(found.files) == ["t", "y_000000", "y_000001", "y_000002"]
    assert found["t"].tolist() == [0.0, 3.0, 6.0]
