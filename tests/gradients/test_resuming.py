"""A gradient with a directory outlives its process: the next process resumes it, with bitwise equal results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import stepnet as sn
from stepnet.gradients import reversal, state_store

PATIENCE = 120.0
PROGRAM = """
    import sys, time
    import numpy as np
    import stepnet as sn
    from stepnet.gradients import state_store, reversal

    reversal.BLOCK_NUMBERS, state_store.PROGRESS_SECONDS, reversal.MOST_ON_DISK = 3 * 50, 0.0, 4
    directory, slots, slow = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

    def lorenz(t, y, s, r, b):
        return [s * (y[1] - y[0]), y[0] * (r - y[2]) - y[1], y[0] * y[1] - b * y[2]]

    if slow:
        back = reversal.Reversal.pull_back
        def slowly(self, first, last):
            time.sleep(slow)
            print("block", flush=True)
            back(self, first, last)
        reversal.Reversal.pull_back = slowly
        keep = state_store.StateStore.keep
        def kept(self, start, slot, state):
            time.sleep(slow)
            keep(self, start, slot, state)
            print("kept", flush=True)
        state_store.StateStore.keep = kept

    problem = sn.ODE(lorenz, [1.0, 2.0, 20.0], (0.0, 1.0), (10.0, 28.0, 8 / 3))
    memory = sn.Checkpoints(slots, disk=directory) if directory != "none" else "all"
    found = sn.gradient(problem, "rk4", lambda y: np.sum(y * y), steps=2000, memory=memory)
    print("advances", found.cost.advances)
    print("numbers", *(x.hex() for x in (found.value, *found.y0.tolist(), *found.args)))
"""


def begin(directory, slots: int = 2, slow: float = 0.0) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(directory), str(slots), str(slow)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def finished(process: subprocess.Popen) -> dict[str, list[str]]:
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors[-2000:]
    return {line.split()[0]: line.split()[1:] for line in out.splitlines()}


def killed(directory, event: str, times: int) -> None:
    """Begin a run and kill it after something has happened so many times."""
    process = begin(directory, slow=0.02)
    seen = 0
    for line in process.stdout:
        seen += line.startswith(event)
        if seen == times:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    assert seen == times


@pytest.mark.parametrize(
    ("event", "times"),
    [
        ("block", 25),
        pytest.param("kept", 4, marks=pytest.mark.slow),
        pytest.param("block", 1, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on(event, times, tmp_path):
    killed(tmp_path, event, times)
    (run,) = tmp_path.iterdir()
    assert (run / "progress.npz").is_file()
    (run / "progress.1.tmp").write_bytes(b"half a file")
    again, whole, stored = finished(begin(tmp_path)), finished(begin(tmp_path / "other")), finished(begin("none"))
    assert again["numbers"] == whole["numbers"] == stored["numbers"]
    assert 0 < int(again["advances"][0]) < int(whole["advances"][0])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# ---- runs that are not the same -------------------------------------------------------------------------------------


class Stopped(Exception):
    pass


def growth(t, y, a):
    return [a * y[0] * y[1], -a * y[0]]


BASE = {"y0": [1.0, 0.5], "a": 0.7, "steps": 40, "slots": 2, "save_at": None, "times": False, "running": None}
OTHERS = {
    "state": {"y0": [1.0, 0.6]},
    "argument": {"a": 0.8},
    "steps": {"steps": 41},
    "slots": {"slots": 3},
    "save_at": {"save_at": [0.5, 1.0]},
    "times": {"times": True},
    "running": {"running": lambda t, y, a: y[0]},
    "loss": {"loss": lambda y: np.sum(y * y * y)},
    "scheme": {"scheme": "kutta3"},
}


def square(y):
    return np.sum(y * y)


def gradient(disk, y0, a, steps, slots, save_at, times, running, loss=square, scheme="rk4"):
    problem = sn.ODE(growth, y0, (0.0, 1.0), (a,))
    memory = "all" if disk is None else sn.Checkpoints(slots, disk=disk)
    how = {"steps": steps, "save_at": save_at, "times": times, "running": running}
    return sn.gradient(problem, scheme, loss, memory=memory, **how)


@pytest.mark.parametrize("name", OTHERS)
def test_another_run_is_not_mixed_up(name, tmp_path, monkeypatch):
    monkeypatch.setattr(state_store, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(reversal, "BLOCK_NUMBERS", 1)
    with monkeypatch.context() as patch:
        left = iter(range(20))

        def stop(self, first, last, pull_back=reversal.Reversal.pull_back):
            if next(left, None) is None:
                raise Stopped
            pull_back(self, first, last)

        patch.setattr(reversal.Reversal, "pull_back", stop)
        with pytest.raises(Stopped):
            gradient(tmp_path, **BASE)
    assert any(path.name == "progress.npz" for path in tmp_path.rglob("*"))
    other = BASE | OTHERS[name]
    found, wanted = gradient(tmp_path, **other), gradient(None, **other)
    assert np.array_equal(found.y0, wanted.y0)
    assert found.value == wanted.value
    assert found.args == wanted.args
    again, same = gradient(tmp_path, **BASE), gradient(None, **BASE)
    assert np.array_equal(again.y0, same.y0)
    assert again.args == same.args
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_adaptive_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    """Its steps are chosen again, and are the same."""
    monkeypatch.setattr(state_store, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(reversal, "BLOCK_NUMBERS", 4)
    problem, how = sn.ODE(growth, [1.0, 0.5], (0.0, 2.0), (0.7,)), {"rtol": 1e-9, "atol": 1e-12}
    memory = sn.Checkpoints(2, disk=tmp_path)
    for stop_after in (6, None):
        with monkeypatch.context() as patch:
            left = iter(range(stop_after or 1000))

            def stop(self, first, last, left=left, pull_back=reversal.Reversal.pull_back):
                if next(left, None) is None:
                    raise Stopped
                pull_back(self, first, last)

            patch.setattr(reversal.Reversal, "pull_back", stop)
            if stop_after:
                with pytest.raises(Stopped):
                    sn.gradient(problem, "dopri5", square, memory=memory, **how)
                assert any(path.name == "progress.npz" for path in tmp_path.rglob("*"))
            else:
                found = sn.gradient(problem, "dopri5", square, memory=memory, **how)
    whole, wanted = (sn.gradient(problem, "dopri5", square, memory=each, **how) for each in (memory, "all"))
    assert np.array_equal(found.flat, wanted.flat)
    assert found.cost.advances < whole.cost.advances
    assert list(tmp_path.iterdir()) == []
