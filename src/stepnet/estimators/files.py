"""Estimators in folders: `estimator.json`, numbers and the net as safetensors.  Nothing is pickled.

`estimator.json` names the other files, and is replaced last and atomically.  So a folder holds either the old estimator
or the new one, even if the writing process is killed.
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
from stepnet.records import list_field_names
from stepnet.storage.atomic_files import remove_leftovers, validate_folder, write_file
from stepnet.storage.folder_locks import hold_lock
from stepnet.storage.stored_arrays import Tensors, open_tensors, read_json, report_damage, require_array
from stepnet.training import Ending, Minimum, Run

FORMAT = 3
HEAD = "estimator.json"
PARTS = {"numbers": "numbers-*.safetensors", "net": "net-*.safetensors"}  # files named in `estimator.json`
FORMERLY = ("numbers.safetensors", "net.safetensors")
PATIENCE = 30.0  # seconds to wait for another process that writes to the same folder
ATTEMPTS = 5  # to read a folder that is being written
RUNS: dict[str, Any] = {"Run": Run, "Minimum": Minimum}


def write(estimator: Any, path: Any, columns: dict[str, Any] | None = None) -> None:
    """Write a fitted estimator to a folder; nothing is written until everything has been described.

    `columns` are column names to store with it.
    """
    from safetensors.numpy import save

    run, arrays = _describe_run(estimator.run_)
    mark = uuid.uuid4().hex[:12]
    files = {part: pattern.replace("*", mark) for part, pattern in PARTS.items()}
    header = {
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
    text = json.dumps(header, indent=1)
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
    """Remove the files of replaced estimators; the folder is locked."""
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


def read(kind: Any, path: Any) -> Any:
    """Read the estimator of this class from a folder."""
    folder = validate_folder("path", path)
    for attempt in range(ATTEMPTS):
        header = read_head(folder)
        if header.get("estimator") != kind.__name__:
            raise ValueError(f"`path` holds a {header.get('estimator')!s:.60}, not a {kind.__name__}: {str(folder)!r}")
        try:
            with report_damage(folder, f"the folder of a {kind.__name__}"):
                return _build_estimator(kind, header, folder)
        except FileNotFoundError as missing:
            if attempt + 1 == ATTEMPTS or read_head(folder) == header:
                raise DamagedFile(f"`path` = {str(folder)!r} is incomplete: {missing}") from None
    raise AssertionError


def read_head(path: Any) -> dict[str, Any]:
    """Read `estimator.json` in a folder."""
    folder = validate_folder("path", path)
    if not (folder / HEAD).is_file():
        raise ValueError(f"`path` holds no estimator: there is no {str(folder / HEAD)!r}")
    with report_damage(folder / HEAD, "an estimator"):
        header = dict(read_json(folder / HEAD))
    if header.get("format") != FORMAT:
        found = f"{header.get('format')!s:.60}, this version reads {FORMAT}"
        raise ValueError(f"`path` holds the format {found}: {str(folder)!r}")
    return header


def _build_estimator(kind: Any, header: dict[str, Any], folder: Path) -> Any:
    net, n = Net.load(_find_part(header, folder, "net")), header["n_features_in"]
    if n != net.design.n_in:
        raise ValueError(f"`n_features_in` must be {net.design.n_in}, as the net has it, found {n!r:.60}")
    found = kind(**{name: _build(each, net) for name, each in header["settings"].items()})
    net.workers = validate_workers(found.workers)
    found.net_, found.meaning_, found.n_features_in_ = net, Meaning(**header["meaning"]), n
    with open_tensors(_find_part(header, folder, "numbers")) as numbers:
        for name in kind.NUMBERS:
            length = net.design.n_out // found.meaning_.each if name.startswith("y_") else n
            setattr(found, name, _find_column(name, numbers, length))
        found.run_ = _build_run(header["run"], numbers, net)
    if header["feature_names"]:
        if len(header["feature_names"]) != n or not all(isinstance(name, str) for name in header["feature_names"]):
            raise ValueError(f"`feature_names` must be {n} names, found {header['feature_names']!r:.60}")
        found.feature_names_in_ = np.array(header["feature_names"], dtype=object)
    found._restore(header)
    return found


def _find_part(header: dict[str, Any], folder: Path, part: str) -> Path:
    """The path of a file named in `estimator.json`, in the same folder."""
    name = header["files"][part]
    if not Path(name).match(PARTS[part]) or Path(name).name != name:
        raise ValueError(f"the file of the {part} must be called {PARTS[part]!r}, found {name!r:.80}")
    return folder / name


def _find_column(name: str, numbers: Tensors, length: int) -> np.ndarray:
    """One number per column."""
    found = numbers[name]
    return require_array(f"`{name}`", found, (length,), found.dtype if found.dtype.kind == "f" else np.float64)


def _describe(value: Any) -> Any:
    """Describe a setting; a field is stored in the file of its net, as that of its only block."""
    return {"field": "net"} if isinstance(value, Field) else settings.describe(value)


def _build(description: Any, net: Net) -> Any:
    return net.design.blocks[0].field if description == {"field": "net"} else settings.build(description)


def _describe_run(run: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The training run as JSON and arrays; its parameters are those of the net."""
    description: dict[str, Any] = {"kind": type(run).__name__}
    arrays: dict[str, np.ndarray] = {}
    for name in (each for each in list_field_names(run) if each != "theta"):
        value = getattr(run, name)
        if isinstance(value, dict):
            arrays |= {f"run.{name}.{key}": np.asarray(column) for key, column in value.items()}
        elif isinstance(value, np.ndarray):
            arrays[f"run.{name}"] = value
        else:
            description[name] = value.name if isinstance(value, Enum) else settings.describe(value)
    return description, arrays


def _build_run(header: dict[str, Any], numbers: Tensors, net: Net) -> Run | Minimum:
    found: dict[str, Any] = {name: value for name, value in header.items() if name != "kind"}
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
    return RUNS[header["kind"]](theta=net.theta.copy(), **found)
