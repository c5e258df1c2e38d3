"""Files from others: whatever is changed in one, it is refused by name or can be used, and nothing crashes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from stored.formats import FORMATS

PATIENCE = 1800.0
FEW, MANY = 20, 210  # changes of each format


def fuzzed(name: str, seed: int, count: int, folder: Path) -> Counter:
    """How many changes of a format ended in which way."""
    tests = Path(__file__).parents[1]
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        tests / "stored" / "fuzz_child.py",
        tests,
        name,
        str(seed),
        str(count),
    ]
    done = subprocess.run([*command, folder], capture_output=True, text=True, timeout=PATIENCE, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1:]} {done.stderr[-3000:]}"
    pairs = list(zip(lines[0:-1:2], lines[1:-1:2], strict=True))
    assert [pair for pair in pairs if pair[1].startswith("unclear")] == []
    assert lines[-1] == "memory", lines[-1]
    return Counter(line for line in lines[1::2])


def check(name: str, seed: int, count: int, folder: Path, counted) -> None:
    found = fuzzed(name, seed, count, folder)
    assert found.total() == count
    total = count * len(FORMATS)
    for kind, times in found.items():
        for i in range(times):
            counted(f"changed files read: {kind}", f"{name} {i}", total)


@pytest.mark.parametrize("name", FORMATS)
def test_changed_files_are_refused_or_right(name, tmp_path, counted):
    check(name, 0, FEW, tmp_path, counted)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_changed_files_are_refused_or_right(name, tmp_path, counted):
    check(name, 1, MANY, tmp_path, counted)
