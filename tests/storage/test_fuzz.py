"""Untrusted files: a file with any change is refused by name or can be used, and nothing crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from storage.formats import FORMATS

TESTS = Path(__file__).parents[1]
PATIENCE = 1800.0
FEW, MANY = 8, 200  # changes of each format


def check(names: list[str], seed: int, count: int, folder: Path, counted) -> None:
    """Change files of some formats, and count how that ended."""
    command = [sys.executable, "-X", "faulthandler", TESTS / "storage" / "fuzz_child.py", TESTS, folder]
    command += [str(seed), str(count), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1:]} {done.stderr[-3000:]}"
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    assert [pair for pair in pairs if pair[1].startswith("unclear")] == []
    assert len(pairs) == (count + 1) * len(names)
    for i, (_, outcome) in enumerate(pair for pair in pairs if pair[1] != "bounded"):
        counted(f"changed files are {outcome}", f"{names[0]} {i}", count * len(FORMATS))


def test_changed_files_are_refused_or_right(tmp_path, counted):
    check(list(FORMATS), 0, FEW, tmp_path, counted)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_changed_files_are_refused_or_right(name, tmp_path, counted):
    check([name], 1, MANY, tmp_path, counted)
