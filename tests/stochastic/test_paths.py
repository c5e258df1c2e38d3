"""Ensembles of paths: members times paths, statuses, independence of threads and grouping, reductions over paths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from stochastic import problems

import stepnet as sn
from stepnet.engines.contract import FixedSteps
from stepnet.engines.numba_engine.ensembles.path_runs import find_step_times
from stepnet.ensembles.sweeps import path_statistics

PATHS = 45  # no multiple of the 16 paths of a group


def drift(t, y, a, s):
    return a * y


def diffusion(t, y, a, s):
    return s * y


GBM = sn.SDE(drift, diffusion, [1.0], (0.0, 1.0), (0.05, 0.2), seed=7)


def explode(t, y, a):
    return a * y**5


EXPLODING = sn.SDE(explode, lambda t, y, a: 3.0 + 0 * y, [0.0], (0.0, 1.0), (1.0,), seed=1)


@pytest.mark.parametrize(("name", "noise"), problems.list_cases())
def test_a_path_is_the_same_bits_alone_and_in_any_ensemble(name, noise):
    scheme = sn.schemes.get(name)
    problem = problems.build(noise, scheme.calculus, seed=3)
    whole = sn.solve_ensemble(problem, scheme, paths=PATHS, steps=24).y
    some = [44, 3, 17, 3]
    assert np.array_equal(sn.solve_ensemble(problem, scheme, paths=some, steps=24).y, whole[some])
    assert np.array_equal(sn.solve(problem, scheme, steps=24, path=17).y[-1], whole[17, -1])


def test_results_do_not_depend_on_threads():
    one, two = (sn.solve_ensemble(GBM, "milstein", paths=1000, steps=70, workers=n).y for n in (1, 2))
    assert np.array_equal(one, two)


def test_rows_are_combined_with_all_paths_from_that_of_the_problem_on():
    args = np.array([[0.1, 0.2], [0.0, 0.4]])
    y0 = np.array([[1.0], [2.0]])
    found = sn.solve_ensemble(replace(GBM, path=5), "milstein", y0=y0, args=args, paths=PATHS, steps=16)
    y = found.y.reshape(2, PATHS)
    for i, k in ((0, 0), (1, 44), (1, 20)):
        own = replace(GBM, y0=y0[i], args=tuple(args[i]), path=5 + k)
        assert y[i, k] == sn.solve(own, "milstein", steps=16, save_every=0).y[-1, 0]
    each = sn.solve_ensemble(GBM, "milstein", y0=y0, args=args, steps=16).y
    assert each[1, 0, 0] == sn.solve_ensemble(GBM, "milstein", y0=y0, args=args, paths=[0, 1], steps=16).y[1, 0, 0]


def test_saved_states_are_those_of_one_path():
    times = [0.0, 0.25, 0.75, 1.0]
    found = sn.solve_ensemble(GBM, "milstein", paths=PATHS, steps=200, save_at=times)
    assert np.array_equal(found.y[33], sn.solve(GBM, "milstein", steps=200, path=33, save_at=times).y)


def test_an_exploding_path_is_retired_and_the_others_go_on():
    found = sn.solve_ensemble(EXPLODING, "euler_maruyama", paths=200, steps=100, save_at=[0.0, 0.5, 1.0])
    bad = [i for i, status in enumerate(found.status) if status is sn.Status.NOT_FINITE]
    assert 5 < len(bad) < 195
    for i in (bad[0], found.status.index(sn.Status.COMPLETED)):
        alone = sn.solve(EXPLODING, "euler_maruyama", steps=100, path=i, check=False, save_at=[0.0, 0.5, 1.0])
        assert alone.status is found.status[i]
        assert alone.t_end == found.t_end[i]
        assert np.array_equal(alone.y, found.y[i, : found.saved[i]])
    assert np.isfinite(found.y[found.success]).all()
    with pytest.raises(ValueError, match="have no end to differentiate"):
        sn.gradient_ensemble(EXPLODING, "euler_maruyama", lambda y: y[0], paths=200, steps=100)


# ---- reductions -----------------------------------------------------------------------------------------------------


def test_reductions_are_over_the_paths_of_each_point_of_the_grid(monkeypatch):
    monkeypatch.setattr(path_statistics, "BLOCK", 16)
    R, grid = sn.reductions, {"a": [0.0, 0.1, 0.2], "s": [0.1, 0.3]}
    reduce = {"mean": R.Mean(), "quantiles": R.Quantiles(), "ends": R.States(), "times": R.EscapeTimes(radius=1.1)}
    found = sn.sweep(GBM, "milstein", grid, paths=PATHS, steps=16, save_at=[0.5, 1.0], reduce=reduce)
    args = np.stack(np.meshgrid(*grid.values(), indexing="ij"), axis=-1).reshape(-1, 2)
    y = sn.solve_ensemble(GBM, "milstein", args=args, paths=PATHS, steps=16, save_at=[0.5, 1.0]).y
    y = y.reshape(3, 2, PATHS, 2, 1)
    assert np.array_equal(found.results["ends"].y, y)
    np.testing.assert_allclose(found.results["mean"].mean, y.mean(axis=2), rtol=1e-13)
    np.testing.assert_allclose(found.results["mean"].variance, y.var(axis=2, ddof=1), rtol=1e-11)
    assert np.array_equal(found.results["quantiles"].values[:, :, 2], np.median(y, axis=2))
    assert found.results["times"].shape == (3, 2, PATHS)
    assert found.counts == {sn.Status.COMPLETED: 6 * PATHS}


def test_a_sweep_without_grid_reduces_the_paths_of_one_problem():
    found = sn.sweep(GBM, "milstein", paths=20000, steps=32, reduce=sn.reductions.Mean()).result
    error = np.sqrt(found.variance[0, 0] / 20000)
    assert found.mean[0, 0] == pytest.approx(np.exp(0.05), abs=4 * error + 1e-4)  # and a bias of O(h)


def test_members_of_a_sweep_without_paths_share_the_path_of_the_problem():
    results = [sn.sweep(GBM, "milstein", {"a": np.linspace(0, 1, 9)}, steps=8, chunk=n).result.y for n in (2, 9)]
    assert np.array_equal(*results)
    assert results[0][-1, 0, 0] == sn.solve(replace(GBM, args=(1.0, 0.2)), "milstein", steps=8).y[-1, 0]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: sn.solve_ensemble(GBM, "milstein", paths=0, steps=4), "`paths` must be"),
        (lambda: sn.solve_ensemble(GBM, "milstein", paths=[-1], steps=4), "path numbers from 0 on"),
        (lambda: sn.solve_ensemble(GBM, "milstein", y0=[[1.0]], paths=[0, 1], steps=4), "must be equally many"),
        (lambda: sn.solve_ensemble(GBM, "milstein", paths=4), "give `steps`"),
        (
            lambda: sn.solve_ensemble(GBM, "milstein", paths=4, steps=4, reduce=sn.reductions.Mean()),
            "give .* to `sweep`",
        ),
        (lambda: sn.sweep(GBM, "milstein", paths=[1, 2], steps=4), "must be a number"),
        (lambda: sn.sweep(GBM, "milstein", steps=4), "`grid` must map names"),
        (lambda: sn.gradient(GBM, "milstein", lambda y: y[0], steps=4, times=True), "`times` is not available"),
        (lambda: sn.gradient(GBM, "milstein", steps=4, event=lambda t, y, a, s: y[0]), "`event` is not available"),
        (lambda: sn.stability.adjoint_safety(GBM), "is for an `ODE`"),
        (lambda: sn.sweep(GBM, "milstein", {"a": [1.0]}, steps=4, reduce=sn.reductions.Lyapunov()), "without noise"),
    ],
)
def test_what_does_not_apply_to_an_sde_is_refused_with_a_remedy(call, match):
    with pytest.raises((TypeError, ValueError), match=match):
        call()


def test_times_of_steps_do_not_need_the_times_of_all_steps():
    problem, n = replace(GBM, t_span=(0.1, 1.7)), 77
    times = np.linspace(0.1, 1.7, n + 1)
    some = np.array([0, 1, 30, 76, 77])
    np.testing.assert_array_equal(find_step_times(problem, FixedSteps(n, None), some), times[some])
    np.testing.assert_array_equal(find_step_times(problem, FixedSteps(n, times), some), times[some])


CHANGES = {"seed": {"seed": 8}, "path": {"path": 1}, "diffusion": {"diffusion": lambda t, y, a, s: 2 * s * y}}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stored_sweep_belongs_to_its_equation_and_paths(change, tmp_path):
    def sweep(problem):
        return sn.sweep(problem, "euler_maruyama", {"a": [0.1, 0.2]}, steps=4, path=tmp_path)

    assert sweep(GBM).shape == sweep(GBM).shape == (2,)
    with pytest.raises(ValueError, match="holds another sweep, with a different problem"):
        sweep(replace(GBM, **CHANGES[change]))
