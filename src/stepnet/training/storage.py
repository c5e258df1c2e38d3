"""Runs in a directory: `run.json` describes the run, `state.safetensors` holds all numbers.  Nothing is pickled.

Files are replaced atomically, so a process may be killed at any time; the stored state is that of one step.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.errors import DamagedFile
from stepnet.storage.atomic_files import validate_path, write_file
from stepnet.storage.folder_locks import hold_lock
from stepnet.storage.stored_arrays import open_tensors, read_json, report_damage
from stepnet.training.objective import Data, Model, Objective
from stepnet.training.run import Ending, Recipe, Run, State, build_result

if TYPE_CHECKING:
    from os import PathLike

FORMAT = 3
RUN, STATE = "run.json", "state.safetensors"
PROBES, PROBED = 4, 32  # samples and outputs by which a model without `identity` is recognised
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
FREE = ("epochs", "patience", "tolerance", "save_every")  # settings that may change when a run is resumed


class Store:
    """The directory of a run."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = validate_path("path", path, "a directory")
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"`path` must be the path of a directory, but {str(self.path)!r} is a file")

    @property
    def holds_a_run(self) -> bool:
        return (self.path / STATE).exists()

    def lock(self) -> AbstractContextManager[None]:
        """Lock the directory against other processes."""
        return hold_lock(self.path)

    def describe(self, what: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_file(self.path / RUN, json.dumps(what, indent=2).encode())

    def description(self) -> dict[str, Any]:
        with _report_file(self.path / RUN):
            return dict(read_json(self.path / RUN))

    def write(self, state: State, ending: Ending | None = None, message: str = "", by_best: bool = False) -> None:
        """Write the state and, if the run has ended, how it ended."""
        from safetensors.numpy import save

        marks = {"ending": ending.name if ending else "", "message": message, "by_best": str(int(by_best))}
        numbers = {name: np.ascontiguousarray(value) for name, value in state.numbers().items()}
        write_file(self.path / STATE, save(numbers, metadata=marks | {"run": self._mark()}))

    def read(self) -> tuple[State, dict[str, str]]:
        """Read the state and its metadata."""
        where = self.path / STATE
        with _report_file(where), open_tensors(where) as tensors:
            marks = {name: tensors.metadata[name] for name in ("ending", "message", "by_best", "run")}
            if marks["run"] != self._mark():
                raise ValueError(f"it belongs to another {RUN}")
            if marks["ending"] and marks["ending"] not in Ending.__members__:
                raise ValueError(f"it ended by {marks['ending']!r:.60}, which is not an ending")
            return State.of(tensors), marks

    def _mark(self) -> str:
        """A hash that ties a state to the description of its run."""
        try:
            return hashlib.sha256((self.path / RUN).read_bytes()).hexdigest()
        except FileNotFoundError:
            raise ValueError(f"`path`: {str(self.path / RUN)!r} is missing") from None


@contextmanager
def _report_file(where: Path) -> Iterator[None]:
    """Name the file in errors of reading."""
    try:
        with report_damage(where, "a file of a run"):
            yield
    except (OSError, DamagedFile) as trouble:
        raise DamagedFile(f"`path`: {str(where)!r} cannot be read: {trouble}") from None


def load(path: str | PathLike[str]) -> Run:
    """Load the run stored in a directory, finished or not.

    Parameters
    ----------
    path : str or path
        The directory of a stored run.

    Returns
    -------
    Run

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from stepnet import nets, training
    >>> objective, folder = training.Objective(nets.resnet(2, 1, width=3, steps=2), "mse"), tempfile.mkdtemp()
    >>> data, recipe = training.Data(np.ones((4, 2)), np.ones((4, 1))), training.Recipe(epochs=3)
    >>> run = training.train(objective, data, recipe, path=folder)
    >>> training.load(folder).epochs
    3
    """
    store = Store(path)
    if not store.holds_a_run:
        raise ValueError(f"`path` holds no run: there is no {str(store.path / STATE)!r}")
    state, marks = store.read()
    ending = Ending[marks["ending"] or "INTERRUPTED"]
    return build_result(state, ending, marks["message"] or ending.value, marks["by_best"] == "1")


def identity(objective: Objective, data: Data, validation: Data | None, recipe: Recipe) -> dict[str, Any]:
    """The description of a run; a resumed run must have the same, except for the settings `FREE`."""
    from stepnet import __version__

    return {
        "format": FORMAT,
        "stepnet": __version__,
        "numpy": np.__version__,
        "loss": _describe_value(objective.loss),
        "penalty": _describe_value(objective.penalty),
        "smoothness": objective.smoothness,
        **(
            {"regularisers": [_describe_value(each) for each in objective.regularisers]}
            if objective.regularisers
            else {}
        ),
        **({"paths": objective.paths} if objective.has_noise else {}),
        "data": _compute_fingerprint(data),
        "validation": None if validation is None else _compute_fingerprint(validation),
        "model": _describe_model(objective.model, data),
        "recipe": {name: _describe_value(value) for name, value in vars(recipe).items() if name not in FREE},
    }


def _describe_value(value: object) -> str:
    """A description of a record by its value, without memory addresses."""
    from stepnet.engines.numba_engine import value_identity  # the compiler is not loaded before it is needed

    return f"{ADDRESS.sub('', repr(value)):.200} {value_identity(value)[:16]}"


def _describe_model(model: Model, data: Data) -> dict[str, Any]:
    """The description of a model: its parameters, and its `identity` or, without one, some of its outputs."""
    theta = np.asarray(model.theta)
    known = getattr(model, "identity", None)
    name = {"outputs": _describe_outputs(model, theta, data)} if known is None else {"identity": known}
    return {"parameters": theta.size, "dtype": str(theta.dtype), **name}


def _describe_outputs(model: Model, theta: np.ndarray, data: Data) -> list[str]:
    """Some outputs of a model for fixed parameters, rounded to reproducible digits."""
    digits = 6 if theta.dtype == np.float64 else 2
    model.put(np.cos(np.arange(theta.size)).astype(theta.dtype) / 4)
    try:
        outputs = np.asarray(model(data.x[:PROBES]))
    finally:
        model.put(theta)
    return [f"{number:.{digits}e}" for number in outputs.ravel()[:PROBED].tolist()]


def require_same(stored: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    """Refuse a directory with another run."""
    other = [key for key, value in wanted.items() if stored.get(key) != value]
    if other:
        key = other[0]
        raise ValueError(
            f"`path` = {str(path)!r} holds another run: its {key} is {stored.get(key)!r:.200}, that of this one "
            f"{wanted[key]!r:.200}; choose another `path`"
        )


def digest(*arrays: np.ndarray) -> str:
    """A hash of the contents of some arrays."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _compute_fingerprint(data: Data) -> dict[str, Any]:
    arrays = data.arrays()
    layout = {name: [str(array.dtype), *array.shape] for name, array in arrays.items()}
    return {"arrays": layout, "sha256": digest(*arrays.values())}
