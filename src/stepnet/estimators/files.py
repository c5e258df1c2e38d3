"""Estimators in folders: `estimator.json`, numbers and the net as safetensors.  Nothing is pickled.

`estimator.json` names the files that belong to it, and is replaced last and at once.  So a folder holds the old
estimator or the new one, whenever the process that writes it is killed.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.errors import DamagedFile
from stepnet.estimators import settings
from stepnet.fields import Field
from stepnet.nets import Net
from stepnet.nets.losses import Meaning
from stepnet.nets.validation import validate_workers
from stepnet.storage.atomic_files import remove_leftovers, validate_folder, write_file
from stepnet.storage.folder_locks import hold_lock
from stepnet.storage.stored_arrays import Tensors, open_tensors, read_json, report_damage, require_array
from stepnet.training import Ending, Minimum, Run

FORMAT = 3
HEAD = "estimator.json"
PARTS = {"numbers": "numbers-*.safetensors", "net": "net-*.safetensors"}  # files that the head names
FORMERLY = ("numbers.safetensors", "net.safetensors")
PATIENCE = 30.0  # seconds to wait for another process that writes into the same folder
ATTEMPTS = 5  # at reading a folder that is being written into
RUNS: dict[str, Any] = {"Run": Run, "Minimum": Minimum}


def write(estimator, path, columns: dict | None = None) -> None:
    """A fitted estimator into a folder; nothing is written before all is described.

    `columns` are names to be stored beside it.
    """
    from safetensors.numpy import save

    run, arrays = _describe_run(estimator.run_)
    mark = uuid.uuid4().hex[:12]
    files = {part: pattern.replace("*", mark) for part, pattern in PARTS.items()}
    told = {
        "format": FORMAT,
        "files": files,
        "estimator": type(estimator).__name__,
        "settings": {name: _describe(value) for name, value in estimator.get_params(deep=False).items()},
        "meaning": dataclasses.asdict(estimator.meaning_),
        "run": run,
        "n_features_in": int(estimator.n_features_in_),
        "feature_names": list(map(str, getattr(estimator, "feature_names_in_", ()))),
        "columns": columns,
        **estimator._facts(),
    }
    text = json.dumps(told, indent=1)
    numbers = arrays | {name: getattr(estimator, name) for name in estimator.NUMBERS}
    folder = validate_folder("path", path)
    with hold_lock(folder, patience=PATIENCE):
        try:
            content = save({name: np.ascontiguousarray(each) for name, each in numbers.items()})
            write_file(folder / files["numbers"], content)
            estimator.net_.save(folder / files["net"])
            write_file(folder / HEAD, (text + "\n").encode())
        finally:
            _remove_others(folder)


def _remove_others(folder: Path) -> None:
    """Remove the files of estimators that are not in the folder any more; nobody else writes into it now."""
    try:
        kept = set(read_json(folder / HEAD)["files"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        kept = set(FORMERLY)
    for pattern in (*PARTS.values(), *FORMERLY):
        for file in folder.glob(pattern):
            if file.name not in kept:
                with suppress(OSError):
                    file.unlink()
    for file in folder.glob(".*.tmp"):
        remove_leftovers(folder / file.name[1:].rsplit(".", 2)[0])


def read(kind, path):
    """The estimator of this kind in a folder."""
    folder = validate_folder("path", path)
    for attempt in range(ATTEMPTS):
        told = read_head(folder)
        if told.get("estimator") != kind.__name__:
            raise ValueError(f"`path` holds a {told.get('estimator')!s:.60}, not a {kind.__name__}: {str(folder)!r}")
        try:
            with report_damage(folder, f"the folder of a {kind.__name__}"):
                return _build_estimator(kind, told, folder)
        except FileNotFoundError as missing:
            if attempt + 1 == ATTEMPTS or read_head(folder) == told:
                raise DamagedFile(f"`path` = {str(folder)!r} is incomplete: {missing}") from None
    raise AssertionError


def read_head(path) -> dict:
    """What `estimator.json` in a folder says."""
    folder = validate_folder("path", path)
    if not (folder / HEAD).is_file():
        raise ValueError(f"`path` holds no estimator: there is no {str(folder / HEAD)!r}")
    with report_damage(folder / HEAD, "an estimator"):
        told = dict(read_json(folder / HEAD))
    if told.get("format") != FORMAT:
        found = f"{told.get('format')!s:.60}, this version reads {FORMAT}"
        raise ValueError(f"`path` holds the format {found}: {str(folder)!r}")
    return told


def _build_estimator(kind, told: dict, folder: Path):
    net, n = Net.load(_find_part(told, folder, "net")), told["n_features_in"]
    if n != net.design.n_in:
        raise ValueError(f"`n_features_in` must be {net.design.n_in}, as the net has it, found {n!r:.60}")
    found = kind(**{name: _build(each, net) for name, each in told["settings"].items()})
    net.workers = validate_workers(found.workers)
    found.net_, found.meaning_, found.n_features_in_ = net, Meaning(**told["meaning"]), n
    with open_tensors(_find_part(told, folder, "numbers")) as numbers:
        for name in kind.NUMBERS:
            length = net.design.n_out // found.meaning_.each if name.startswith("y_") else n
            setattr(found, name, _find_column(name, numbers, length))
        found.run_ = _build_run(told["run"], numbers, net)
    if told["feature_names"]:
        if len(told["feature_names"]) != n or not all(isinstance(name, str) for name in told["feature_names"]):
            raise ValueError(f"`feature_names` must be {n} names, found {told['feature_names']!r:.60}")
        found.feature_names_in_ = np.array(told["feature_names"], dtype=object)
    found._tell(told)
    return found


def _find_part(told: dict, folder: Path, part: str) -> Path:
    """A file that the head names, in its own folder."""
    name = told["files"][part]
    if not Path(name).match(PARTS[part]) or Path(name).name != name:
        raise ValueError(f"the file of the {part} must be called {PARTS[part]!r}, found {name!r:.80}")
    return folder / name


def _find_column(name: str, numbers: Tensors, length: int) -> np.ndarray:
    """A number for every column."""
    found = numbers[name]
    return require_array(f"`{name}`", found, (length,), found.dtype if found.dtype.kind == "f" else np.float64)


def _describe(value) -> Any:
    """A field is in the file of its net, whose only block has it."""
    return {"field": "net"} if isinstance(value, Field) else settings.describe(value)


def _build(told, net: Net) -> Any:
    return net.design.blocks[0].field if told == {"field": "net"} else settings.build(told)


def _describe_run(run) -> tuple[dict, dict[str, np.ndarray]]:
    """How training went, as JSON and arrays; the parameters it found are those of the net."""
    told: dict[str, Any] = {"kind": type(run).__name__}
    arrays: dict[str, np.ndarray] = {}
    for name in (each.name for each in dataclasses.fields(run) if each.name != "theta"):
        value = getattr(run, name)
        if isinstance(value, dict):
            arrays |= {f"run.{name}.{key}": np.asarray(column) for key, column in value.items()}
        elif isinstance(value, np.ndarray):
            arrays[f"run.{name}"] = value
        else:
            told[name] = value.name if isinstance(value, Enum) else settings.describe(value)
    return told, arrays


def _build_run(told: dict, numbers: Tensors, net: Net):
    found: dict[str, Any] = {name: value for name, value in told.items() if name != "kind"}
    for key in numbers:
        part, _, rest = key.partition(".")
        if part == "run":
            name, _, column = rest.partition(".")
            if column:
                found.setdefault(name, {})[column] = numbers[key]
            else:
                found[name] = numbers[key]
    if "ending" in found:
        found["ending"] = Ending[found["ending"]]
    return RUNS[told["kind"]](theta=net.theta.copy(), **found)
