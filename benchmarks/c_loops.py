"""loops.c, compiled on the spot for this processor and called by ctypes."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.orbits import Orbit
from benchmarks.problems import Adaptive

SOURCE, LANES, PATHS = (Path(__file__).with_name(name) for name in ("loops.c", "lanes.c", "paths.c"))
COMMAND = ("gcc", "-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC")

POINTER, DOUBLE, INTEGER = ctypes.c_void_p, ctypes.c_double, ctypes.c_int64
ADAPTIVE = (POINTER, DOUBLE, DOUBLE, DOUBLE, POINTER, POINTER)
FIXED = (POINTER, DOUBLE, INTEGER, POINTER)


@cache
def library(is_called: bool) -> ctypes.CDLL:
    """The compiled loops, right-hand sides inlined or called; they stay in memory after the file is gone."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "loops.so"
        choice = ["-DCALLED"] if is_called else []
        subprocess.run([*COMMAND, *choice, "-o", target, SOURCE, "-lm"], check=True, capture_output=True)
        return ctypes.CDLL(str(target))


def lanes(rhos: np.ndarray, t_end: float, first_step: float, tolerance: float):
    """A call of the loop over members side by side; it returns their end states and all attempted steps."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "lanes.so"
        command = [*COMMAND, "-ffp-contract=fast", "-mprefer-vector-width=512", "-fno-math-errno", "-o", target, LANES]
        subprocess.run([*command, "-lm"], check=True, capture_output=True)
        library = ctypes.CDLL(str(target))
    library.lanes.restype = INTEGER
    library.lanes.argtypes = (POINTER, INTEGER, DOUBLE, DOUBLE, DOUBLE, POINTER)
    ends = np.empty((len(rhos), 3))

    def call():
        steps = library.lanes(rhos.ctypes.data, len(rhos), t_end, first_step, tolerance, ends.ctypes.data)
        return ends, steps

    return call


def paths(loop: str, start: np.ndarray, args: tuple[float, ...], seed: int, grid, is_fused: bool):
    """A call of the loop over paths of an SDE, a step for each cell of the grid; it returns their end states."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "paths.so"
        command = [*COMMAND, "-mprefer-vector-width=512", "-fno-math-errno", *["-ffp-contract=fast"] * is_fused]
        subprocess.run([*command, "-o", target, PATHS, "-lm"], check=True, capture_output=True)
        function = getattr(ctypes.CDLL(str(target)), loop)
    function.restype = None
    function.argtypes = (POINTER, POINTER, INTEGER, INTEGER, INTEGER, DOUBLE, DOUBLE, POINTER)
    numbers, ends = np.array(args), np.empty_like(start)
    sizes = (len(start), grid.cells, grid.cell_length, grid.rounder)

    def call():
        function(start.ctypes.data, numbers.ctypes.data, seed, *sizes, ends.ctypes.data)
        return ends

    return call


def adaptive(problem: Adaptive, tolerance: float, is_called: bool = False):
    """A call of an adaptive loop with its arguments made ready; it returns (y, accepted, rejected, evaluations)."""
    function = _function(problem.loop, ADAPTIVE, is_called)
    y0 = problem.y0
    y, counts = np.empty_like(y0), np.zeros(3, np.int64)
    arguments = (
        *(y0.ctypes.data, problem.t_end, problem.first_step, tolerance),
        *(y.ctypes.data, counts.ctypes.data),
    )

    def call(keep=y0):  # the addresses stay valid as long as the function
        function(*arguments)
        return y, *counts.tolist()

    return call


def fixed(scheme: str, orbit: Orbit, is_called: bool = False):
    """A call of a fixed-step loop with its arguments made ready; it returns the end state (q, v)."""
    function = _function(f"{scheme}_{orbit.loop}", FIXED, is_called)
    start = np.concatenate((orbit.q0, orbit.v0))
    end = np.empty_like(start)
    arguments = (start.ctypes.data, orbit.h, orbit.steps, end.ctypes.data)

    def call(keep=start):
        function(*arguments)
        return end

    return call


def _function(name: str, types, is_called: bool):
    function = getattr(library(is_called), name)
    function.argtypes, function.restype = types, None
    return function
