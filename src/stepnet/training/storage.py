"""Runs in a directory: `run.json` tells what is trained, `state.safetensors` holds all numbers.  Nothing is pickled.

Files are replaced as a whole, so a process may be killed at any time; the state in the directory is that of one step.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np

from stepnet.training.objective import Data, Objective
from stepnet.training.run import Ending, Recipe, Run, State, result

FORMAT = 2
FREE = ("epochs", "patience", "tolerance", "save_every")  # what may change when a run goes on


class Store:
    """The directory of a run."""

    def __init__(self, path):
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"`path` must be the path of a directory, found {path!r:.80} ({type(path).__name__})")
        self.path = Path(path).expanduser()
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"`path` must be the path of a directory, but {str(self.path)!r} is a file")

    @property
    def holds_a_run(self) -> bool:
        return (self.path / "state.safetensors").exists()

    def describe(self, what: dict) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._replace("run.json", json.dumps(what, indent=2).encode())

    def description(self) -> dict:
        try:
            return json.loads((self.path / "run.json").read_text())
        except (OSError, ValueError) as trouble:
            raise ValueError(f"`path`: {str(self.path / 'run.json')!r} cannot be read: {trouble}") from None

    def write(self, state: State, ending: Ending | None = None, message: str = "", by_best: bool = False) -> None:
        """The state, and how the run ended if it has."""
        from safetensors.numpy import save

        marks = {"ending": ending.name if ending else "", "message": message, "by_best": str(int(by_best))}
        numbers = {name: np.ascontiguousarray(value) for name, value in state.numbers().items()}
        self._replace("state.safetensors", save(numbers, metadata=marks))

    def read(self) -> tuple[State, dict[str, str]]:
        """The state, and the marks beside it."""
        from safetensors import SafetensorError, safe_open

        where = self.path / "state.safetensors"
        try:
            with safe_open(where, "numpy") as file:
                numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return State.of(numbers), file.metadata()
        except (SafetensorError, KeyError) as trouble:
            raise ValueError(f"`path`: {str(where)!r} is not the state of a run: {trouble}") from None

    def _replace(self, name: str, content: bytes) -> None:
        temporary = self.path / f"{name}.new"
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path / name)


def load(path) -> Run:
    """The run in a directory as far as it was stored, finished or not."""
    store = Store(path)
    if not store.holds_a_run:
        raise ValueError(f"`path` holds no run: there is no {str(store.path / 'state.safetensors')!r}")
    state, marks = store.read()
    ending = Ending[marks["ending"] or "INTERRUPTED"]
    return result(state, ending, marks["message"] or ending.value, marks["by_best"] == "1")


def identity(objective: Objective, data: Data, validation: Data | None, recipe: Recipe) -> dict:
    """What a run is a run of; one that goes on must have the same, but for what is free."""
    from stepnet import __version__

    chosen = {name: repr(value) for name, value in vars(recipe).items()}
    return {
        "format": FORMAT,
        "stepnet": __version__,
        "numpy": np.__version__,
        "model": _model(objective.model),
        "loss": repr(objective.loss),
        "penalty": repr(objective.penalty),
        "smoothness": objective.smoothness,
        "data": _fingerprint(data),
        "validation": None if validation is None else _fingerprint(validation),
        "recipe": {name: text for name, text in chosen.items() if name not in FREE},
    }


def _model(model) -> dict:
    """What can be told of a model: its parameters, and its `identity` if it has one, as nets do."""
    theta = np.asarray(model.theta)
    return {"parameters": theta.size, "dtype": str(theta.dtype), "identity": getattr(model, "identity", None)}


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


def _fingerprint(data: Data) -> dict:
    arrays = data.arrays()
    return {"shapes": {name: list(array.shape) for name, array in arrays.items()}, "sha256": digest(*arrays.values())}
