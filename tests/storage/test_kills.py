"""After a killed process or a full disk, a folder holds either the old content or the new one, complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from numba_engine.runs.child import succeed
from storage.formats import FORMATS
from storage.full_disk_child import can_mount, mounted, take_all_but

TESTS = Path(__file__).parents[1]
PATIENCE = 1800.0
FEW, MANY = 4, 40


def lines_of(child: str, *arguments) -> list[str]:
    command = [sys.executable, TESTS / "storage" / child, TESTS, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout.splitlines()


def check(lines: list[str], what: str, counted) -> None:
    """All was whole, and no temporary files were left."""
    wholes = lines.count("whole")
    assert [line for line in lines if line not in ("whole", "clean")] == []
    for i in range(wholes):
        counted(what, str(i), wholes)


def test_killed_savers_leave_the_old_or_the_new(tmp_path, counted):
    check(lines_of("kill_child.py", tmp_path, FEW, *FORMATS), "killed savers left all", counted)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_killed_savers_leave_the_old_or_the_new(name, tmp_path, counted):
    check(lines_of("kill_child.py", tmp_path, MANY, name), f"killed savers left all, {name}", counted)


def test_files_that_cannot_grow_leave_the_old_or_the_new(tmp_path, counted):
    lines = lines_of("full_disk_child.py", tmp_path, "limit", *FORMATS)
    assert len(lines) > 3 * len(FORMATS)
    check(lines, "limits on the size of files left all", counted)


def test_full_file_systems_leave_the_old_or_the_new(tmp_path, counted):
    """On a real file system without space where that can be mounted; elsewhere the test above has to do."""
    if not can_mount(tmp_path):
        print("this process may not mount file systems: only the limit on the size of files is tried")
        lines = lines_of("full_disk_child.py", tmp_path, "limit", "net")
        return check(lines, "limits on the size of files left all, again", counted)
    lines = lines_of("full_disk_child.py", tmp_path, "file system", *FORMATS)
    assert len(lines) > 3 * len(FORMATS)
    return check(lines, "full file systems left all", counted)


SOLVE = """
    import sys, warnings
    import numpy as np, stepnet as sn

    def decay(t, y):
        return [-y[0] + 0.1 * y[1], -2 * y[1]]

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = sn.solve(sn.ODE(decay, [1.0, 2.0], (0.0, 1.0)), "euler", steps=4)
    print(found.y.tobytes().hex(), any("No space left" in str(each.message) for each in seen))
"""


@pytest.mark.slow
def test_a_full_cache_of_kernels_is_done_without(tmp_path):
    """Kernels are compiled each time, with a warning, and the next process with space stores whole ones."""
    if not can_mount(tmp_path):
        print(
            "this process may not mount file systems: see numba_engine/runs/test_cache.py for a disk that is said full"
        )
        return
    with mounted(tmp_path / "disk") as disk:
        place, filler = {"STEPNET_CACHE_DIR": str(disk / "cache")}, disk / "filler"
        (disk / "cache").mkdir(mode=0o700)
        take_all_but(1, filler)
        full, told = succeed(SOLVE, **place).split()
        assert told == "True"
        assert [file.name for file in disk.rglob("*.tmp")] == []
        filler.unlink()
        assert succeed(SOLVE, **place).split() == [full, "False"]
        assert succeed(SOLVE, **place).split() == [full, "False"]
