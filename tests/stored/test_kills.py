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


def check(lines: list[str], what: str, name: str, total: int, counted) -> None:
    assert lines == ["whole"] * (len(lines) - 1) + ["clean"]
    for i in range(len(lines) - 1):
        counted(what, f"{name} {i}", total)


@pytest.mark.parametrize("name", FORMATS)
def test_a_killed_saver_leaves_the_old_or_the_new(name, tmp_path, counted):
    check(lines_of("kill_child.py", name, FEW, tmp_path), "killed savers", name, FEW * len(FORMATS), counted)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_killed_savers_leave_the_old_or_the_new(name, tmp_path, counted):
    check(lines_of("kill_child.py", name, MANY, tmp_path), "killed savers", name, MANY * len(FORMATS), counted)


@pytest.mark.parametrize("name", FORMATS)
def test_a_full_disk_leaves_the_old_or_the_new(name, tmp_path, counted):
    lines = lines_of("full_disk_child.py", name, tmp_path)
    assert len(lines) > 3
    check(lines, f"full disks, {name}", name, len(lines) - 1, counted)
