"""A sweep equals an ensemble over a grid, for any division into chunks, with clear errors for invalid grids."""

from __future__ import annotations

import os
import signal
import sys
import threading
import tracemalloc

import numpy as np
import pytest

import stepnet as sn
from stepnet.ensembles.reductions import Basins, Lyapunov, Mean, Quantiles, Rows, States
from stepnet.ensembles.sweeps import storage


def lorenz(t, y, sigma, rho, beta):
    return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]


LORENZ = sn.ODE(lorenz, [1.0, 1.0, 1.0], (0.0, 2.0), args=(10.0, 28.0, 8 / 3))
RHO, X = np.linspace(0.0, 28.0, 13), np.array([0.5, 1.0, 2.0, -3.0])
FIFTY_STEPS = 1e-6  # the error of so many steps of rk4 over one unit of time
GRID = {"rho": RHO, "y0[0]": X}


@pytest.fixture(scope="module")
def members() -> np.ndarray:
    """The end states (13, 4, 3) by one ensemble without a sweep."""
    rho, x = (values.ravel() for values in np.meshgrid(RHO, X, indexing="ij"))
    ones = np.ones_like(rho)
    y0, args = np.stack([x, ones, ones], axis=1), np.stack([10 * ones, rho, 8 / 3 * ones], axis=1)
    return sn.solve_ensemble(LORENZ, "dopri5", y0=y0, args=args).y_end.reshape(13, 4, 3)


@pytest.mark.parametrize("chunk", [None, 1, 3, 4, 5, 17, 52, 1000])
def test_members_are_those_of_an_ensemble(members, chunk):
    found = sn.sweep(LORENZ, "dopri5", GRID, chunk=chunk)
    assert found.shape == (13, 4)
    assert found.counts == {sn.Status.COMPLETED: 52}
    assert np.array_equal(found.result.y[:, :, 0], members)
    assert np.array_equal(found.result.t_end, np.full((13, 4), 2.0))
    assert (found.result.status == 0).all()
    assert (found.result.steps > 5).all()
    assert "13 values" in repr(found)


@pytest.mark.parametrize("shape", [(1,), (7,), (5, 9), (3, 5000), (1000, 7, 3), (2, 3, 4, 5)])
@pytest.mark.parametrize("chunk", [1, 2, 16, 100, 4096])
def test_boxes_cover_the_grid_in_order(shape, chunk):
    from stepnet.ensembles.sweeps.grid import SweepGrid

    if np.prod(shape) / chunk > 2000:
        chunk *= 100
    grid = SweepGrid({str(i): np.zeros(n) for i, n in enumerate(shape)}, (), {})
    numbers = np.arange(np.prod(shape)).reshape(shape)
    place = 0
    for box in grid.boxes(chunk):
        inside = numbers[box.slices].ravel()
        assert (box.first, box.last) == (place, place + inside.size)
        assert np.array_equal(inside, np.arange(box.first, box.last))
        assert 1 <= inside.size <= chunk
        place = box.last
    assert place == numbers.size


def test_the_order_of_names_is_that_of_the_axes(members):
    found = sn.sweep(LORENZ, "dopri5", {"y0[0]": X, "rho": RHO})
    assert np.array_equal(found.result.y[:, :, 0], members.transpose(1, 0, 2))


def test_wanted_times_and_fates():
    problem = sn.ODE(lambda t, y, a: [a * y[0] ** 2], [1.0], (0.0, 1.0), args=(0.1,))
    found = sn.sweep(problem, "dopri5", {"a": [0.1, 2.0, 0.5]}, save_at=[0.25, 0.5, 1.0], chunk=2)
    assert found.result.y.shape == (3, 3, 1)
    status = sn.Status(list(sn.Status)[found.result.status[1]])
    assert status in (sn.Status.NOT_FINITE, sn.Status.STEP_TOO_SMALL)
    assert found.counts == {sn.Status.COMPLETED: 2, status: 1}
    np.testing.assert_allclose(found.result.y[2, :, 0], 1 / (1 - 0.5 * np.array([0.25, 0.5, 1.0])), rtol=1e-6)


def test_never_are_all_members_held():
    """Their states are 24 MB, those of a chunk 0.3 MB."""
    call = {"reduce": {"mean": Mean(), "quantiles": Quantiles(size=64)}, "save_at": np.linspace(0.0, 0.1, 50)}
    grid = {"rho": np.linspace(0.0, 28.0, 20_000)}
    sn.sweep(LORENZ, "dopri5", {"rho": [1.0, 2.0]}, t_span=(0.0, 0.1), **call)  # compiles
    tracemalloc.start()
    found = sn.sweep(LORENZ, "dopri5", grid, t_span=(0.0, 0.1), chunk=250, workers=1, **call)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{peak / 1e6:.1f} MB at most")
    assert found.results["mean"].members == 20_000
    assert peak < 5e6


# ---- names ----------------------------------------------------------------------------------------------------------


def ends(problem, grid, **options):
    return sn.sweep(problem, "rk4", grid, steps=50, **options).result.y[..., 0, :]


def test_names_of_states_in_halves():
    def pull(t, q, k):
        return [-k * q[0], -q[1]]

    problem = sn.SecondOrder(pull, [1.0, 2.0], [0.0, 0.0], (0.0, 1.0), args=(1.0,))
    found = ends(problem, {"q0[1]": [0.0, 3.0], "v0[0]": [0.5], "k": [1.0, 4.0]})
    w, q = np.array([1.0, 2.0]), np.array([0.0, 3.0])
    np.testing.assert_allclose(found[0, 0, :, 0], np.cos(w) + 0.5 * np.sin(w) / w, rtol=FIFTY_STEPS)
    np.testing.assert_allclose(found[:, 0, 0, 1], q * np.cos(1.0), rtol=FIFTY_STEPS)
    halves = sn.Partitioned(lambda t, p: p, lambda t, q, k: -k * q, [1.0], [0.0], (0.0, 1.0), args=(1.0,))
    with pytest.raises(sn.UnknownName, match="v0"):
        ends(halves, {"v0[0]": [1.0]})


def test_entries_of_arrays_and_numbers_of_all_arguments():
    def linear(t, y, A, c):
        return c * (A @ y)

    problem = sn.ODE(linear, [1.0, 1.0], (0.0, 1.0), args=(np.diag([1.0, 2.0]), 1.0))
    by_name = ends(problem, {"A[1,1]": [-1.0, 0.5], "c": [1.0, 2.0]})
    by_number = ends(problem, {"args[3]": [-1.0, 0.5], "args[4]": [1.0, 2.0]})
    assert np.array_equal(by_name, by_number)
    np.testing.assert_allclose(by_name[:, 1, 1], np.exp([-2.0, 1.0]), rtol=FIFTY_STEPS)

    def in_place(t, y, dy, p):
        dy[0] = p[1] * y[0]

    found = ends(sn.ODE(in_place, [1.0], (0.0, 1.0), args=(0.0, 1.0)), {"args[1]": [0.5, 1.0]})
    np.testing.assert_allclose(found[:, 0], np.exp([0.5, 1.0]), rtol=FIFTY_STEPS)


def test_arguments_may_come_from_the_grid_alone():
    problem = sn.ODE(lambda t, y, a, b: [a * y[0] + b], [0.0], (0.0, 1.0))
    np.testing.assert_allclose(
        ends(problem, {"b": [1.0, 2.0], "a": [1.0]})[:, 0, 0], np.expm1(1) * np.array([1, 2]), rtol=FIFTY_STEPS
    )
    with pytest.raises(ValueError, match="0 of the 2 arguments"):
        ends(problem, {"b": [1.0, 2.0]})


def test_a_scalar_state():
    found = sn.sweep(sn.ODE(lambda t, y: -y, 1.0, (0.0, 1.0)), "rk4", {"y0": [1.0, 2.0]}, steps=50)
    np.testing.assert_allclose(found.result.y[:, 0], np.exp(-1) * np.array([1, 2]), rtol=FIFTY_STEPS)


@pytest.mark.parametrize(
    ("grid", "error", "message"),
    [
        ({"rho0": [1.0]}, sn.UnknownName, "rho"),
        ({"y0[3]": [1.0]}, ValueError, r"y0\[0\]"),
        ({"y0": [1.0]}, ValueError, r"shape \(3,\)"),
        ({"rho[0]": [1.0]}, ValueError, "one number"),
        ({"rho": []}, ValueError, "'rho'"),
        ({"rho": 3.0}, ValueError, "row of real numbers"),
        ({"rho": [[1.0]]}, ValueError, "row of real numbers"),
        ({"rho": ["1"]}, ValueError, "row of real numbers"),
        ({"rho": [[1.0], [1.0, 2.0]]}, ValueError, "row of real numbers"),
        ({"rho": [1j]}, ValueError, "row of real numbers"),
        ({"rho": [0.0, np.nan]}, ValueError, "finite"),
        ({"rho": [1.0], "args[1]": [1.0]}, ValueError, "twice"),
        ({}, TypeError, "map names to values"),
        ([1.0, 2.0], TypeError, "map names to values"),
    ],
)
def test_no_grid(grid, error, message):
    with pytest.raises(error, match=message):
        sn.sweep(LORENZ, "dopri5", grid)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"y0": np.ones((2, 3))}, TypeError, "`y0` is not an option"),
        ({"args": np.ones((2, 3))}, TypeError, "`args` is not an option"),
        ({"t_span": np.ones((2, 2))}, ValueError, "`t_span` must be the same"),
        ({"save_at": np.ones((2, 2))}, ValueError, "`save_at` must be the same"),
        ({"save_at": [3.0]}, ValueError, "`save_at` must lie in"),
        ({"rtol": -1.0}, ValueError, "`rtol`"),
        ({"tolerance": 1.0}, TypeError, "tolerance"),
        ({"chunk": 0}, ValueError, "`chunk`"),
        ({"chunk": 1.5}, TypeError, "`chunk`"),
        ({"reduce": "mean"}, TypeError, "`reduce`"),
        ({"reduce": Mean}, TypeError, "`reduce`"),
        ({"reduce": {}}, ValueError, "`reduce`"),
        ({"reduce": {"a.b": Mean()}}, ValueError, "`reduce`"),
        ({"client": 3}, TypeError, "`client`"),
    ],
)
def test_wrong_options_leave_no_folder(options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        sn.sweep(LORENZ, "dopri5", GRID, path=tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


# ---- folders --------------------------------------------------------------------------------------------------------


EVERYTHING = {
    "states": States(),
    "mean": Mean(),
    "quantiles": Quantiles(size=8),
    "x": Rows(lambda found: found.y[:, -1, 0]),
}


def same(one: sn.SweepResult, other: sn.SweepResult) -> bool:
    """Whether two sweeps by `EVERYTHING` agree to the last bit."""
    pairs = zip(flat(one.results), flat(other.results), strict=True)
    return one.counts == other.counts and all(np.array_equal(a[...], b[...]) for a, b in pairs)


def flat(results: dict) -> list:
    return [np.asarray(x) for result in results.values() for x in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("large", [None, 1], ids=["small", "large"])
def test_a_folder_holds_the_same(members, large, tmp_path, monkeypatch):
    """Chunks in NPZ files, or with everything taken for large in Zarr arrays."""
    if large:
        monkeypatch.setattr(storage, "LARGE", large)
    wanted = sn.sweep(LORENZ, "dopri5", GRID, reduce=EVERYTHING, chunk=6)
    found = sn.sweep(LORENZ, "dopri5", GRID, reduce=EVERYTHING, chunk=6, path=tmp_path)
    assert found.path == tmp_path
    assert same(wanted, found)
    assert np.array_equal(np.asarray(found.results["states"].y)[:, :, 0], members)
    assert (tmp_path / "arrays").exists() == bool(large)
    assert isinstance(found.results["states"].y, np.ndarray) != bool(large)
    assert same(wanted, sn.sweep(LORENZ, "dopri5", GRID, reduce=EVERYTHING, chunk=6, path=str(tmp_path)))


@pytest.mark.parametrize("large", [None, 1], ids=["small", "large"])
def test_only_missing_chunks_are_done_again(large, tmp_path, monkeypatch):
    if large:
        monkeypatch.setattr(storage, "LARGE", large)
    wanted = sn.sweep(LORENZ, "dopri5", GRID, reduce=EVERYTHING, chunk=6, path=tmp_path)
    wanted_values = [value.copy() for value in flat(wanted.results)]
    files = sorted((tmp_path / "chunks").iterdir())
    assert len(files) == 13
    for file in (files[0], files[7]):
        file.unlink()
    times = {file: file.stat().st_mtime_ns for file in files if file.exists()}
    again = sn.sweep(LORENZ, "dopri5", GRID, reduce=EVERYTHING, chunk=6, path=tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(wanted_values, flat(again.results), strict=True))
    assert all(file.exists() for file in files)
    assert {file: file.stat().st_mtime_ns for file in times} == times


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"problem": sn.ODE(lorenz, [1.0, 1.0, 1.0], (0.0, 2.0), args=(10.0, 28.0, 2.6))}, "problem"),
        ({"problem": sn.ODE(lorenz, [1.0, 1.0, 1.1], (0.0, 2.0), args=LORENZ.args)}, "problem"),
        (
            {"problem": sn.ODE(lambda t, y, sigma, rho, beta: rho * y, LORENZ.y0, (0.0, 2.0), args=LORENZ.args)},
            "problem",
        ),
        ({"scheme": "tsit5"}, "scheme"),
        ({"grid": {"rho": RHO + 1e-9, "y0[0]": X}}, "grid"),
        ({"grid": {"y0[0]": X, "rho": RHO}}, "grid"),
        ({"reduce": Mean()}, "reduce"),
        ({"rtol": 1e-7}, "options"),
        ({"chunk": 7}, "chunk"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_the_folder_of_another_sweep_is_refused(change, word, tmp_path):
    call = {"problem": LORENZ, "scheme": "dopri5", "grid": GRID, "chunk": 20, "path": tmp_path}
    sn.sweep(**call)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=f"holds another sweep, with a different .*{word}"):
        sn.sweep(**{**call, **change})
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Quantiles((0.5,)), Quantiles((0.6,))),
        (Basins([[0.0, 0.0, 0.0]], 1.0), Basins([[0.0, 0.0, 0.1]], 1.0)),
        (Rows(lambda found: found.t_end), Rows(lambda found: -found.t_end)),
        (Lyapunov(1.0), Lyapunov(0.5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_numbers_of_a_reduction_make_another_sweep(one, other, tmp_path):
    sn.sweep(LORENZ, "dopri5", {"rho": [1.0]}, reduce=one, path=tmp_path)
    with pytest.raises(ValueError, match="different reduce"):
        sn.sweep(LORENZ, "dopri5", {"rho": [1.0]}, reduce=other, path=tmp_path)


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear reader")
    for path in (tmp_path, tmp_path / "letter.txt"):
        with pytest.raises(ValueError, match="`path` must be a new or empty folder"):
            sn.sweep(LORENZ, "dopri5", GRID, path=path)


def test_a_sweep_that_was_killed_before_its_first_chunk_begins_anew(members, tmp_path):
    (tmp_path / "chunks").mkdir()
    (tmp_path / ".manifest.json.123").write_text("{")
    found = sn.sweep(LORENZ, "dopri5", GRID, path=tmp_path)
    assert np.array_equal(found.result.y[:, :, 0], members)


def test_large_results_want_zarr(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "LARGE", 1)
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r"install `stepnet\[distributed\]`, or give `reduce`"):
        sn.sweep(LORENZ, "dopri5", GRID, path=tmp_path)


def test_ctrl_c_keeps_finished_chunks(tmp_path):
    """The last members would take years."""
    problem = sn.ODE(lambda t, y, w: [y[1], -w * y[0]], [1.0, 0.0], (0.0, 10.0), args=(1.0,))
    call = {"scheme": "dopri5", "chunk": 8, "path": tmp_path, "max_steps": 10**15}
    sn.solve_ensemble(problem, "dopri5", args=np.ones((3, 1)))  # compiles
    timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt, match="with 5 of 6 chunks done; the same call resumes from"):
        sn.sweep(problem, grid={"w": np.append(np.linspace(1.0, 2.0, 40), 1e30)}, **call)
    assert len(list((tmp_path / "chunks").glob("*.npz"))) == 5


def test_a_bar_shows_what_is_left(tmp_path, capsys):
    sn.sweep(LORENZ, "dopri5", GRID, chunk=6, path=tmp_path, progress=True)
    assert "52/52" in capsys.readouterr().err
    (tmp_path / "chunks" / "000003.npz").unlink()
    sn.sweep(LORENZ, "dopri5", GRID, chunk=6, path=tmp_path, progress=True)
    bar = capsys.readouterr().err
    assert "48/52" in bar
    assert "<" in bar  # the time left
