"""Fixed steps and blocks never read a number from a device, forward and backward."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("fake_device.py")


GROUPS = [
    "quick",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("schemes", "memories", "modules", "stochastic")),
]


@pytest.mark.parametrize("group", GROUPS)
def test_no_number_is_read(group):
    """On a device that refuses it: every scheme, memories, blocks and nets."""
    found = subprocess.run([sys.executable, PROGRAM, group], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
