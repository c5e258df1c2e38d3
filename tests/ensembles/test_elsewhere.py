"""Sweeps that crash, and sweeps in other processes: no chunk is lost or duplicated, and results are bitwise equal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from numba_engine.runs.child import PATIENCE, succeed

import stepnet as sn
from stepnet.ensembles.reductions import Mean, Quantiles, States

REDUCE = {"states": States(), "mean": Mean(), "quantiles": Quantiles(size=64)}
RHO, CHUNK = np.linspace(0.0, 28.0, 6400), 32


def lorenz_problem() -> sn.ODE:
    def lorenz(t, y, sigma, rho, beta):
        return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]

    return sn.ODE(lorenz, [1.0, 1.0, 1.0], (0.0, 100.0), args=(10.0, 28.0, 8 / 3))


def run(count: int = len(RHO), **options) -> sn.SweepResult:
    return sn.sweep(lorenz_problem(), "dopri5", {"rho": RHO[:count]}, reduce=REDUCE, chunk=CHUNK, **options)


def require_same(one: sn.SweepResult, other: sn.SweepResult) -> None:
    assert one.counts == other.counts
    for name, result in one.results.items():
        for a, b in zip(result, other.results[name], strict=True):
            assert np.array_equal(a, b), name


def wait_for_chunks(folder, count: int, process=None) -> None:
    end = time.monotonic() + PATIENCE
    while len(list((folder / "chunks").glob("*.npz"))) < count:
        assert time.monotonic() < end
        assert process is None or process.poll() is None
        time.sleep(0.002)


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[2])
import test_elsewhere
test_elsewhere.run(path=sys.argv[1], workers=1)
"""


def test_a_killed_sweep_goes_on_where_it_was(tmp_path):
    folder = tmp_path / "sweep"
    command = [sys.executable, "-c", PROGRAM, str(folder), os.path.dirname(__file__)]
    finished: dict = {}
    for more in (5, 40):  # killed twice
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        wait_for_chunks(folder, len(finished) + more, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(PATIENCE) == -signal.SIGKILL
        files = {file: file.stat().st_mtime_ns for file in (folder / "chunks").glob("*.npz")}
        assert files.items() >= finished.items()
        finished = files
    assert 45 <= len(finished) < len(RHO) // CHUNK
    found = run(path=folder, workers=1)
    files = {file: file.stat().st_mtime_ns for file in (folder / "chunks").glob("*.npz")}
    assert len(files) == len(RHO) // CHUNK
    assert files.items() >= finished.items()  # nothing was done twice
    require_same(found, run())


def test_problems_are_known_in_every_process():
    """Functions, closures and objects that can be called, whatever their addresses and the hashes of text."""
    program = """
        import stepnet as sn
        from stepnet.engines.numba_engine.runs.identity import problem_identity, value_identity

        class Decay:
            def __init__(self, rate):
                self.rate = rate

            def __call__(self, t, y):
                return -self.rate * y

        def closure(rate):
            return lambda t, y: -rate * y

        for fun in (Decay(1.0), Decay(2.0), closure(1.0), closure(2.0), Decay(1.0).__call__):
            print(problem_identity(sn.ODE(fun, [1.0], (0.0, 1.0))))
        print(value_identity({"a": [Decay(1.0), (1, 2.0)], "b": closure(3.0)}))
    """
    one, other = (succeed(program, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert one == other
    assert len(set(one.split())) == 6


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_executors(kind, tmp_path):
    count = 640
    executor = ThreadPoolExecutor(3) if kind == "threads" else ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    with executor:
        found = run(count, client=executor, path=tmp_path / "sweep")
        in_memory = run(count, client=executor)
    wanted = run(count)
    require_same(found, wanted)
    require_same(in_memory, wanted)


def test_an_error_elsewhere_comes_through():
    with ThreadPoolExecutor(2) as executor, pytest.raises(ValueError, match="`rtol`"):
        run(64, client=executor, rtol=-1.0)


def test_what_cannot_be_sent_is_refused():
    lock = threading.Lock()
    problem = sn.ODE(lambda t, y, a: -a * y if lock else y, [1.0], (0.0, 1.0), args=(1.0,))
    with ThreadPoolExecutor(1) as executor, pytest.raises(TypeError, match="cannot be sent"):
        sn.sweep(problem, "rk4", {"a": [1.0]}, steps=2, client=executor)


def test_a_worker_of_a_cluster_is_killed(tmp_path):
    from dask.distributed import Client, LocalCluster

    folder, seen = tmp_path / "sweep", []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        pids = client.run(os.getpid)

        def kill_one() -> None:
            wait_for_chunks(folder, 5)
            os.kill(next(iter(pids.values())), signal.SIGKILL)
            seen.append(len(list((folder / "chunks").glob("*.npz"))))

        killer = threading.Thread(target=kill_one)
        killer.start()
        found = run(client=client, path=folder)
        killer.join()
    assert len(pids) == 2
    assert 5 <= seen[0] < len(RHO) // CHUNK  # in the middle
    assert len(list((folder / "chunks").glob("*.npz"))) == len(RHO) // CHUNK
    assert found.counts == {sn.Status.COMPLETED: len(RHO)}
    require_same(found, run())


def kill_one_of(pids, folder) -> threading.Thread:
    """A thread that kills a process once some chunks are there."""

    def kill() -> None:
        wait_for_chunks(folder, 3)
        os.kill(next(iter(pids())), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    return killer


def require_goes_on(message: str, folder) -> None:
    """What was lost is said, and the same call goes on from what was stored."""
    found = re.search(r"with (\d+) of (\d+) chunks done; the same call resumes from (.*)", message)
    assert found is not None, message
    files = {file: file.stat().st_mtime_ns for file in (folder / "chunks").glob("*.npz")}
    assert 3 <= int(found[1]) == len(files) < int(found[2]) == len(RHO) // CHUNK
    assert found[3] == str(folder)
    require_same(run(path=folder), run())
    later = {file: file.stat().st_mtime_ns for file in (folder / "chunks").glob("*.npz")}
    assert later.items() >= files.items()  # nothing was done twice


def test_a_killed_process_of_an_executor_is_told(tmp_path):
    folder = tmp_path / "sweep"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        killer = kill_one_of(lambda: executor._processes, folder)
        with pytest.raises(
            RuntimeError, match=r"the processes of `client` ended before the sweep finished .BrokenProcessPool"
        ) as caught:
            run(client=executor, path=folder)
        killer.join()
    require_goes_on(str(caught.value), folder)


@pytest.mark.slow
def test_workers_that_are_not_replaced_are_told(tmp_path):
    """Where dask gives a chunk up when its worker dies."""
    import dask
    from dask.distributed import Client, LocalCluster

    folder = tmp_path / "sweep"
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        pids = client.run(os.getpid)
        killer = kill_one_of(pids.values, folder)
        with pytest.raises(
            RuntimeError, match=r"the processes of `client` ended before the sweep finished .KilledWorker"
        ) as caught:
            run(client=client, path=folder)
        killer.join()
    require_goes_on(str(caught.value), folder)
