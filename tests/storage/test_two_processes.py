"""Two processes on one folder: the second one is told which process holds the lock, and continues when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PATIENCE = 900.0
SHARED = ("sweep in Zarr", "gradient", "run", "sweep", "classifier")


def mark_slow_but(quick: str) -> list:
    """All kinds of folders; all but one are for the slow part."""
    return [name if name == quick else pytest.param(name, marks=pytest.mark.slow) for name in SHARED]


def begin(name: str, folder: Path, *wait: str) -> subprocess.Popen:
    command = [sys.executable, TESTS / "storage" / "two_child.py", TESTS, name, folder, *wait]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end_of(process: subprocess.Popen) -> str:
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors[-3000:]
    return out.splitlines()[-1]


def wait_for(process: subprocess.Popen, word: str) -> None:
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(process.stderr.read()[-3000:])


@pytest.mark.parametrize("name", mark_slow_but("sweep in Zarr"))
def test_the_second_process_is_told_who_is_there(name, tmp_path, counted):
    folder = tmp_path / "kept"
    first = begin(name, folder, "wait")
    wait_for(first, "stopped")
    refused = end_of(begin(name, folder))
    assert refused.startswith("in use:")
    assert f"process {first.pid} on" in refused
    (tmp_path / "go").touch()
    result = end_of(first)
    alone = end_of(begin(name, tmp_path / "alone"))
    assert result.startswith("right")
    assert result == alone
    counted("kinds of folders with two processes", name, len(SHARED))


@pytest.mark.parametrize("name", mark_slow_but("gradient"))
def test_the_lock_of_a_killed_process_is_taken_over(name, tmp_path, counted):
    folder = tmp_path / "kept"
    first = begin(name, folder, "wait")
    wait_for(first, "stopped")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=PATIENCE)
    assert end_of(begin(name, folder)).startswith("right")
    assert not list(folder.rglob(".lock"))
    counted("kinds of folders after a kill", name, len(SHARED))
