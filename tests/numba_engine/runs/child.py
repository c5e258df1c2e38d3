"""Python in a separate process: for code that may crash, be interrupted, or needs a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

PATIENCE = 300.0  # seconds; a first call may compile kernels


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a program; its output is text."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def succeed(code: str, **environment: str) -> str:
    """The standard output of a program that must succeed."""
    done = run(code, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
