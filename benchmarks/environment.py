"""The machine and the versions with which the numbers were measured."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import stepnet
from benchmarks.c_loops import COMMAND

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "stepnet", "numpy", "numba", "llvmlite", "scipy", "jax", "jaxlib", "diffrax", "pydiffsol", "torch", "torchdiffeq",
    "rebound",
)  # fmt: skip


def environment() -> dict:
    """Commit, sources, date, machine and versions."""
    return {
        "commit": _first_line("git", "rev-parse", "HEAD") or "not known",
        "sources": source_hash(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "compiler": _first_line("gcc", "--version"),
        "compiled with": " ".join(COMMAND),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def source_hash() -> str:
    """What was measured, whether or not it was committed: a hash of the package that is imported."""
    digest, package = hashlib.sha256(), Path(stepnet.__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} cores)" if names else platform.processor()


def _first_line(*command: str) -> str:
    """The first line of a program's output; empty if it is not installed."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.splitlines()[0]
