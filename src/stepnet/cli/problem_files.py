"""Problems in files of Python, given as file.py:name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from stepnet.problem import ODE, SDE, Langevin, Partitioned, Problem, SecondOrder, Split

KINDS = (ODE, Partitioned, SecondOrder, Split, SDE, Langevin)


def load_problem(place: str) -> tuple[ModuleType, Problem]:
    """The module and the problem at a place such as lorenz.py:problem."""
    file, colon, name = place.rpartition(":")
    if not colon or not Path(file).is_file():
        raise ValueError(f"`problem` must be a file and a name in it, such as lorenz.py:problem, found {place!r}")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"`problem` must be in a file of Python, found {file}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    problem = getattr(module, name, None)
    if not isinstance(problem, KINDS):
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise ValueError(f"`problem` must be one of {known}, found {problem!r:.60} at {place}")
    return module, problem
