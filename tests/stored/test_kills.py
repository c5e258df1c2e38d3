"""Whatever ends a process or fills a disk: what was stored before is there, or what was to be stored, as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stored.formats import FORMATS

TESTS = Path(__file__).parents[1]
PATIENCE = 1800.0
FEW, MANY = 4, 40


def lines_of(child: str, *arguments) -> list[str]:
    command = [sys.executable, TESTS / "stored" / child, TESTS, *map(str, arguments)]
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


def test_full_disks_leave_the_old_or_the_new(tmp_path, counted):
    lines = lines_of("full_disk_child.py", tmp_path, *FORMATS)
    assert len(lines) > 3 * len(FORMATS)
    check(lines, "full disks left all", counted)
