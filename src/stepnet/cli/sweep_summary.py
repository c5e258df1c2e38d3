"""`stepnet sweep`: a sweep of a problem in a file, and a summary of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stepnet.cli.problem_files import load_problem
from stepnet.ensembles.reductions import Ends, Lyapunov, Mean, Moments, Quantiles, QuantilesFound, States
from stepnet.ensembles.sweeps import sweep
from stepnet.errors import UnknownName

KNOWN = {"states": States, "mean": Mean, "quantiles": Quantiles, "lyapunov": Lyapunov}
MOST_SHOWN = 8  # entries of a state


def run(
    place: str,
    grid: dict[str, np.ndarray],
    reductions: tuple[str, ...],
    folder: Path | None,
    options: dict[str, Any],
    say: Callable[[str], object],
) -> None:
    """Sweep the problem at `place` (file.py:name) and print a summary; the results are stored in `folder`."""
    module, problem = load_problem(place)
    reduce = {name: _find_reduction(module, name) for name in reductions or ("states",)}
    begin = time.perf_counter()
    found = sweep(problem, options.pop("scheme"), grid, reduce=reduce, path=folder, progress=True, **options)
    seconds = time.perf_counter() - begin
    say(repr(found))
    for name, result in found.results.items():
        for line in _describe_result(result):
            say(f"  {name:<12} {line}")
    count = sum(found.counts.values())
    say(f"  {seconds:.3g} s, {count / seconds:.3g} members/s" + (f", in {folder}" if folder else ""))


def _find_reduction(module: ModuleType, name: str) -> Any:
    """A reduction defined in the file, or one of this package without arguments."""
    if hasattr(module, name):
        return getattr(module, name)
    if name not in KNOWN:
        raise UnknownName("reduction", name, KNOWN)
    return KNOWN[name]()


def _describe_result(result: object) -> list[str]:
    """A description of a result as text."""
    match result:
        case Moments():
            return [f"mean {_format_row(result.mean)}", f"deviation {_format_row(np.sqrt(result.variance))}"]
        case QuantilesFound():
            rows = zip(result.levels, result.values, strict=True)
            return [
                *(f"{level:<5g} {_format_row(value)}" for level, value in rows),
                f"rank error {result.rank_error:.2g}",
            ]
        case Ends():
            return [f"states {result.y.shape}, {np.mean(result.steps[...]):.1f} steps a member"]
    values = np.asarray(result)
    if values.dtype.kind in "iu":
        labels, counts = np.unique(values, return_counts=True)
        return [f"{label}: {count} members" for label, count in zip(labels, counts, strict=True)]
    known = values[np.isfinite(values)]
    return [
        f"{known.size} of {values.size} finite" + (f", {known.min():.6g} to {known.max():.6g}" if known.size else "")
    ]


def _format_row(values: np.ndarray) -> str:
    """The entries of a state at the last time."""
    entries = np.ravel(values[-1])
    return " ".join(f"{x:.6g}" for x in entries[:MOST_SHOWN]) + (" ..." if entries.size > MOST_SHOWN else "")
