"""Runs in a directory: `run.json` tells what is trained, `state.safetensors` holds all numbers.  Nothing is pickled.

Files are replaced as a whole, so a process may be killed at any time; the state in the directory is that of one step.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from stepnet.errors import DamagedFile
from stepnet.storage.atomic_files import validate_path, write_file
from stepnet.storage.folder_locks import hold_lock
from stepnet.storage.stored_arrays import open_tensors, read_json, report_damage
from stepnet.training.objective import Data, Objective
from stepnet.training.run import Ending, Recipe, Run, State, build_result

FORMAT = 3
RUN, STATE = "run.json", "state.safetensors"
PROBES, PROBED = 4, 32  # samples, and outputs for them, by which a model without `identity` is known
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
FREE = ("epochs", "patience", "tolerance", "save_every")  # what may change when a run goes on


class Store:
    """The directory of a run."""

    def __init__(self, path):
        self.path = validate_path("path", path, "a directory")
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"`path` must be the path of a directory, but {str(self.path)!r} is a file")

    @property
    def holds_a_run(self) -> bool:
        return (self.path / STATE).exists()

    def locked(self) -> AbstractContextManager:
        """Keep other processes out."""
        return hold_lock(self.path)

    def describe(self, what: dict) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_file(self.path / RUN, json.dumps(what, indent=2).encode())

    def description(self) -> dict:
        with _report_file(self.path / RUN):
            return dict(read_json(self.path / RUN))

    def write(self, state: State, ending: Ending | None = None, message: str = "", by_best: bool = False) -> None:
        """The state, and how the run ended if it has."""
        from safetensors.numpy import save

        marks = {"ending": ending.name if ending else "", "message": message, "by_best": str(int(by_best))}
        numbers = {name: np.ascontiguousarray(value) for name, value in state.numbers().items()}
        write_file(self.path / STATE, save(numbers, metadata=marks | {"run": self._mark()}))

    def read(self) -> tuple[State, dict[str, str]]:
        """The state, and the marks beside it."""
        where = self.path / STATE
        with _report_file(where), open_tensors(where) as tensors:
            marks = {name: tensors.metadata[name] for name in ("ending", "message", "by_best", "run")}
            if marks["run"] != self._mark():
                raise ValueError(f"it belongs to another {RUN}")
            if marks["ending"] and marks["ending"] not in Ending.__members__:
                raise ValueError(f"it ended by {marks['ending']!r:.60}, which is no ending")
            return State.of(tensors), marks

    def _mark(self) -> str:
        """What ties a state to the description beside it."""
        try:
            return hashlib.sha256((self.path / RUN).read_bytes()).hexdigest()
        except FileNotFoundError:
            raise ValueError(f"`path`: {str(self.path / RUN)!r} is missing") from None


@contextmanager
def _report_file(where: Path):
    """Say which file cannot be read."""
    try:
        with report_damage(where, "a file of a run"):
            yield
    except (OSError, DamagedFile) as trouble:
        raise DamagedFile(f"`path`: {str(where)!r} cannot be read: {trouble}") from None


def load(path) -> Run:
    """The run in a directory as far as it was stored, finished or not."""
    store = Store(path)
    if not store.holds_a_run:
        raise ValueError(f"`path` holds no run: there is no {str(store.path / STATE)!r}")
    state, marks = store.read()
    ending = Ending[marks["ending"] or "INTERRUPTED"]
    return build_result(state, ending, marks["message"] or ending.value, marks["by_best"] == "1")


def identity(objective: Objective, data: Data, validation: Data | None, recipe: Recipe) -> dict:
    """What a run is a run of; one that goes on must have the same, but for what is free."""
    from stepnet import __version__

    return {
        "format": FORMAT,
        "stepnet": __version__,
        "numpy": np.__version__,
        "loss": _describe_value(objective.loss),
        "penalty": _describe_value(objective.penalty),
        "smoothness": objective.smoothness,
        "data": _compute_fingerprint(data),
        "validation": None if validation is None else _compute_fingerprint(validation),
        "model": _describe_model(objective.model, data),
        "recipe": {name: _describe_value(value) for name, value in vars(recipe).items() if name not in FREE},
    }


def _describe_value(value) -> str:
    """How a record looks, without addresses, and what it is by its value."""
    from stepnet.engines.numba_engine.runs.identity import (
        value_identity,  # the compiler is not loaded before it is needed
    )

    return f"{ADDRESS.sub('', repr(value)):.200} {value_identity(value)[:16]}"


def _describe_model(model, data: Data) -> dict:
    """What can be told of a model: its parameters, and its `identity`, as nets have one, or else what it computes."""
    theta = np.asarray(model.theta)
    known = getattr(model, "identity", None)
    name = {"outputs": _describe_outputs(model, theta, data)} if known is None else {"identity": known}
    return {"parameters": theta.size, "dtype": str(theta.dtype), **name}


def _describe_outputs(model, theta: np.ndarray, data: Data) -> list[str]:
    """Some outputs of a model for parameters that do not depend on the run, to as many digits as rounding leaves."""
    digits = 6 if theta.dtype == np.float64 else 2
    model.put(np.cos(np.arange(theta.size)).astype(theta.dtype) / 4)
    try:
        outputs = np.asarray(model(data.x[:PROBES]))
    finally:
        model.put(theta)
    return [f"{number:.{digits}e}" for number in outputs.ravel()[:PROBED].tolist()]


def require_same(stored: dict, wanted: dict, path: Path) -> None:
    """The run in a directory is the one that is to go on."""
    other = [key for key, value in wanted.items() if stored.get(key) != value]
    if other:
        key = other[0]
        raise ValueError(
            f"`path` = {str(path)!r} holds another run: its {key} is {stored.get(key)!r:.200}, that of this one "
            f"{wanted[key]!r:.200}; choose another `path`"
        )


def digest(*arrays: np.ndarray) -> str:
    """A name for the numbers of some arrays."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _compute_fingerprint(data: Data) -> dict:
    arrays = data.arrays()
    layout = {name: [str(array.dtype), *array.shape] for name, array in arrays.items()}
    return {"arrays": layout, "sha256": digest(*arrays.values())}
