"""What this engine finds on the machine: the lines of `stepnet info`."""

from __future__ import annotations

import ctypes.util
import os
import platform
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from stepnet.engines.numba_engine.codegen.blas import describe_blas
from stepnet.engines.numba_engine.codegen.compiler_facts import find_cpu_features, find_cpu_name
from stepnet.engines.numba_engine.codegen.disk_cache import cache_directory
from stepnet.engines.numba_engine.rhs.ladder import RUNGS, make_field

PACKAGES = ("stepnet", "numpy", "scipy", "numba", "llvmlite", "torch", "matplotlib")
FEATURES = ("sse4.2", "avx", "avx2", "fma", "avx512f", "neon", "sve")


def report() -> dict[str, str]:
    """Label and value of every line of `stepnet info`."""
    features = find_cpu_features()
    folder = cache_directory()
    kernels = len(list(folder.glob("*.kernel"))) if folder.is_dir() else 0
    return {
        "versions": ", ".join(f"{name} {_find_version(name)}" for name in PACKAGES),
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cpu": f"{find_cpu_name()} ({', '.join(name for name in FEATURES if features.get(name))})",
        "blas": describe_blas(),
        "threads": f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}",
        "cache": f"{folder} ({kernels} kernels)",
        "rungs": ", ".join(f"{rung}: {_try_rung(rung)}" for rung in RUNGS),
    }


def _find_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _try_rung(rung: str) -> str:
    """Whether a right-hand side reaches this rung on this machine."""
    y = np.ones(1)
    functions = {
        "address": _find_library_address(),
        "traced": lambda t, y: -y,
        "compiled": lambda t, y: -y if y[0] > 0 else y,
        "python": lambda t, y: np.array([float(str(-y[0]))]),
    }
    try:
        found = make_field(functions[rung], (), ((1,),), (1,), (0.0, 1.0), y, "fun").rung
    except (OSError, TypeError) as error:
        return f"no ({error})"
    return "yes" if found == rung else f"no (got {found})"


def _find_library_address():
    """The address of an arbitrary C function, to test that addresses are accepted."""
    return ctypes.CDLL(ctypes.util.find_library("m") or None).cos
