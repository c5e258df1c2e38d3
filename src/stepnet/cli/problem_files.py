"""Problems in files of Python, given as file.py:name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from stepnet.problem import ODE, Partitioned, Problem, SecondOrder, Split


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
    if not isinstance(problem, (ODE, Partitioned, SecondOrder, Split)):
        raise ValueError(
            f"`problem` must be an ODE, Partitioned, SecondOrder or Split, found {problem!r:.60} at {place}"
        )
    return module, problem
