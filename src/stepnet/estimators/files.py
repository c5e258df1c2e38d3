"""Estimators in folders: `estimator.json`, numbers and the net as safetensors.  Nothing is pickled."""

from __future__ import annotations

import dataclasses
import json
import os
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from stepnet.estimators import settings
from stepnet.fields import Field
from stepnet.nets import Net
from stepnet.nets.losses import Meaning
from stepnet.training import Ending, Minimum, Run

FORMAT = 2
RUNS: dict[str, Any] = {"Run": Run, "Minimum": Minimum}


def write(estimator, path) -> None:
    """A fitted estimator into a folder; nothing is written before all is described."""
    run, arrays = _run_described(estimator.run_)
    told = {
        "format": FORMAT,
        "estimator": type(estimator).__name__,
        "settings": {name: _described(value) for name, value in estimator.get_params(deep=False).items()},
        "meaning": dataclasses.asdict(estimator.meaning_),
        "run": run,
        "n_features_in": int(estimator.n_features_in_),
        "feature_names": list(map(str, getattr(estimator, "feature_names_in_", ()))),
        **estimator._facts(),
    }
    text = json.dumps(told, indent=1)
    numbers = arrays | {name: getattr(estimator, name) for name in estimator.NUMBERS}
    folder = _folder(path)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(each) for name, each in numbers.items()}, folder / "numbers.safetensors")
    estimator.net_.save(folder / "net.safetensors")
    (folder / "estimator.json").write_text(text + "\n")


def read(kind, path):
    """The estimator of this kind in a folder."""
    folder = _folder(path)
    if not (folder / "estimator.json").is_file():
        raise ValueError(f"`path` holds no estimator: there is no {str(folder / 'estimator.json')!r}")
    told = json.loads((folder / "estimator.json").read_text())
    if told.get("format") != FORMAT:
        raise ValueError(f"`path` holds the format {told.get('format')}, this version reads {FORMAT}")
    if told["estimator"] != kind.__name__:
        raise ValueError(f"`path` holds a {told['estimator']}, not a {kind.__name__}")
    net, numbers = Net.load(folder / "net.safetensors"), load_file(folder / "numbers.safetensors")
    found = kind(**{name: _built(each, net) for name, each in told["settings"].items()})
    net.workers = found.workers
    for name in kind.NUMBERS:
        setattr(found, name, numbers[name])
    found.net_, found.meaning_, found.run_ = net, Meaning(**told["meaning"]), _run_built(told["run"], numbers, net)
    found.n_features_in_ = told["n_features_in"]
    if told["feature_names"]:
        found.feature_names_in_ = np.array(told["feature_names"], dtype=object)
    found._tell(told)
    return found


def _folder(path) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"`path` must be the path of a folder, found {path!r:.80} ({type(path).__name__})")
    folder = Path(path).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`path` must be the path of a folder, but {str(folder)!r} is a file")
    return folder


def _described(value) -> Any:
    """A field is in the file of its net, whose only block has it."""
    return {"field": "net"} if isinstance(value, Field) else settings.described(value)


def _built(told, net: Net) -> Any:
    return net.design.blocks[0].field if told == {"field": "net"} else settings.built(told)


def _run_described(run) -> tuple[dict, dict[str, np.ndarray]]:
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
            told[name] = value.name if isinstance(value, Enum) else settings.described(value)
    return told, arrays


def _run_built(told: dict, numbers: dict[str, np.ndarray], net: Net):
    found: dict[str, Any] = {name: value for name, value in told.items() if name != "kind"}
    for key, array in numbers.items():
        part, _, rest = key.partition(".")
        if part == "run":
            name, _, column = rest.partition(".")
            if column:
                found.setdefault(name, {})[column] = array
            else:
                found[name] = array
    if "ending" in found:
        found["ending"] = Ending[found["ending"]]
    return RUNS[told["kind"]](theta=net.theta.copy(), **found)
