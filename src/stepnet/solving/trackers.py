"""What `track` can do with the states of a run: progress, storage, checks, and an early end."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from stepnet.storage.atomic_files import validate_path
from stepnet.validation import check, function, numbers, real

CHUNK = 1024  # times in a chunk of a zarr array

__all__ = ["Conservation", "Progress", "SteadyState", "StoreStates"]


@check(t_end=real())
class Progress:
    """A progress bar of time.

    Parameters
    ----------
    t_end : float
        Where the run ends.

    Examples
    --------
    >>> import stepnet as sn
    >>> bar = sn.trackers.Progress(1.0)
    >>> bar.close()
    """

    def __init__(self, t_end: float) -> None:
        self.t_end = t_end
        self._bar: Any = None
        self._begin = 0.0

    @check(t=real(), y=numbers)
    def take(self, t: float, y: np.ndarray) -> None:
        """Move the bar to t."""
        if self._bar is None:
            self._bar, self._begin = tqdm(total=100.0, unit="%"), t
        share = (t - self._begin) / (self.t_end - self._begin) if self.t_end != self._begin else 1.0
        self._bar.update(100.0 * share - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


@check(tolerance=real("(0, inf)"))
class SteadyState:
    """Stops a run when the state changes by at most `tolerance` per unit of time in every entry.

    Parameters
    ----------
    tolerance : float
        The largest difference quotient of consecutive states that counts as steady.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.trackers.SteadyState(1e-6).tolerance
    1e-06
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self._last: tuple[float, np.ndarray] | None = None

    @check(t=real(), y=numbers)
    def take(self, t: float, y: np.ndarray) -> bool:
        """Compare with the previous state."""
        before, self._last = self._last, (t, y.copy())
        if before is None or t == before[0]:
            return False
        return bool(np.max(np.abs(y - before[1]), initial=0.0) <= self.tolerance * abs(t - before[0]))

    def close(self) -> None:
        """Forget the last state."""
        self._last = None


@check(functional=function, tolerance=real("[0, inf)"))
class Conservation:
    """Ends a run with an error when a conserved quantity differs from its first value by more than `tolerance`.

    Parameters
    ----------
    functional : callable
        `functional(y)` returns a number, such as the sum of the state.
    tolerance : float
        The largest admissible difference, relative to the first value unless that is zero.

    Examples
    --------
    >>> import numpy as np
    >>> import stepnet as sn
    >>> grid = sn.operators.Grid(32, boundary="neumann")
    >>> heat = sn.equations.heat(grid, np.arange(32.0), (0.0, 0.01))
    >>> mass = sn.trackers.Conservation(np.sum, 1e-12)
    >>> sn.track(heat, "rk4", [mass], steps=40).is_finished
    True
    """

    def __init__(self, functional: Callable[[np.ndarray], float], tolerance: float) -> None:
        self.functional, self.tolerance = functional, tolerance
        self.first: float | None = None

    @check(t=real(), y=numbers)
    def take(self, t: float, y: np.ndarray) -> None:
        """Compare with the first state."""
        value = float(self.functional(y))
        if self.first is None:
            self.first = value
        if not abs(value - self.first) <= self.tolerance * (abs(self.first) or 1.0):
            raise RuntimeError(
                f"the quantity that `functional` returns is not conserved: {self.first:.12g} at the beginning, "
                f"{value:.12g} at t = {t:g}"
            )

    def close(self) -> None:
        """Nothing to release."""


class StoreStates:
    """Writes each state to a file as soon as it is computed, so that the states of a run need not fit into memory.

    A group of zarr gets the arrays `t` (times,) and `y` (times, *state), with a chunk for each state.  A file `*.npz`
    gets the arrays `y_000000`, `y_000001`, ... and, when it is closed, `t`; `numpy.load` reads one of them at a time.

    Parameters
    ----------
    target : path or zarr.Group
        The name of an .npz file, which each run replaces; or an open group of zarr without these arrays.

    Examples
    --------
    >>> import tempfile, numpy as np, stepnet as sn
    >>> path = tempfile.mkdtemp() + "/decay.npz"
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    >>> run = sn.track(problem, "rk4", [sn.trackers.StoreStates(path)], steps=10, every=5)
    >>> np.load(path)["t"]
    array([0. , 0.5, 1. ])
    """

    def __init__(self, target: Any) -> None:
        self.times: list[float] = []
        self._file: zipfile.ZipFile | None = None
        self._arrays: tuple[Any, Any] | None = None
        self.target = target
        if hasattr(target, "create_array"):
            return
        self.target = Path(validate_path("target", target))
        if self.target.suffix != ".npz":
            raise ValueError(f"`target` must end in .npz or be an open group of zarr, found {str(self.target)!r}")

    @check(t=real(), y=numbers)
    def take(self, t: float, y: np.ndarray) -> None:
        """Append a state."""
        if isinstance(self.target, Path):
            if self._file is None:
                self._file, self.times = zipfile.ZipFile(self.target, "w"), []
            self._write(self._file, f"y_{len(self.times):06d}", y)
        else:
            self._append(t, y)
        self.times.append(t)

    def close(self) -> None:
        """Write the times and close the file."""
        if self._file is not None:
            self._write(self._file, "t", np.array(self.times))
            self._file.close()
        self._file = None

    def _append(self, t: float, y: np.ndarray) -> None:
        if self._arrays is None:
            times = self.target.create_array("t", shape=(0,), chunks=(CHUNK,), dtype=np.float64)
            states = self.target.create_array("y", shape=(0, *y.shape), chunks=(1, *y.shape), dtype=y.dtype)
            self._arrays = times, states
        n = len(self.times)
        for array, value in zip(self._arrays, (t, y), strict=True):
            array.resize((n + 1, *array.shape[1:]))
            array[n] = value

    @staticmethod
    def _write(file: zipfile.ZipFile, name: str, value: np.ndarray) -> None:
        with file.open(f"{name}.npy", "w", force_zip64=True) as stream:
            np.lib.format.write_array(stream, np.ascontiguousarray(value))


def __dir__() -> list[str]:
    return __all__
