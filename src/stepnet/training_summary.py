"""`stepnet train` and `stepnet predict`: a classifier from a named data set or a CSV file, kept in a folder."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepnet.errors import TrainingInterrupted
from stepnet.estimators import NetClassifier
from stepnet.estimators.samples import divided, named
from stepnet.training.full_batch import METHODS

COLUMNS = "columns.json"


class Table(NamedTuple):
    """The columns of a CSV file: names, and one list of texts for each line."""

    names: list[str]
    lines: list[list[str]]


def train(source: str, folder: Path, label: str | None, test: float, seed: int, settings: dict, resume: bool,
          say: Callable) -> None:  # fmt: skip
    """Train a classifier on part of the samples, say how well it does on the rest, keep it in `folder`."""
    if not resume and ((folder / "estimator.json").exists() or (folder / "run").exists()):
        raise ValueError(f"{folder} holds a classifier or its run; choose another folder, or go on by --resume")
    names, X, y = _samples(source, label, seed)
    X_train, y_train, X_test, y_test = divided(X, y, test, seed)
    counts = f"{len(X_train)} samples to learn, {len(X_test)} to test"
    say(f"{source}: {counts}, {X.shape[1]} features, {len(np.unique(y))} classes")
    model = NetClassifier(random_state=seed, progress=True, **settings)
    begin = time.perf_counter()
    try:
        model.fit(X_train, y_train, path=None if model.optimiser in METHODS else folder / "run", resume=resume)
    except TrainingInterrupted as interrupted:
        raise ValueError(f"{interrupted}; the same call with --resume goes on") from None
    seconds = time.perf_counter() - begin
    say(repr(model.net_))
    say(f"train accuracy {model.score(X_train, y_train):.2%}, test accuracy {model.score(X_test, y_test):.2%}")
    model.set_params(progress=False).save(folder)
    (folder / COLUMNS).write_text(json.dumps(names) + "\n")
    say(f"{seconds:.3g} s, in {folder}")


def predict(folder: Path, file: Path, out: Path | None, say: Callable) -> None:
    """Classes of the samples in a file, by the classifier in `folder`; the accuracy if the file has its label, too."""
    if not (folder / COLUMNS).exists():
        raise ValueError(f"{folder} holds no classifier; `stepnet train` makes one")
    model, names = NetClassifier.load(folder), json.loads((folder / COLUMNS).read_text())
    table = _table(file)
    found = model.predict(_numbers(table, names["features"], file))
    if out is None:
        say("\n".join(map(str, found)))
    else:
        rows = zip(table.lines, found, strict=True)
        with open(out, "w", newline="") as stream:
            csv.writer(stream).writerows([[*table.names, "prediction"], *([*line, each] for line, each in rows)])
        say(f"{len(found)} predictions in {out}")
    if names["label"] in table.names:
        place = table.names.index(names["label"])
        right = np.mean([line[place] == str(each) for line, each in zip(table.lines, found, strict=True)])
        say(f"accuracy {right:.2%}")


def _samples(source: str, label: str | None, seed: int) -> tuple[dict, np.ndarray, np.ndarray]:
    """Names of the columns, samples and classes."""
    if not source.endswith(".csv"):
        if label is not None:
            raise ValueError(f"--label is for CSV files, found the data set {source!r}")
        X, y = named(source, seed)
        return {"features": [f"x{k}" for k in range(X.shape[1])], "label": "y"}, X, y
    table = _table(Path(source))
    label = table.names[-1] if label is None else label
    if label not in table.names:
        raise ValueError(f"--label must be a column of {source}, one of {', '.join(table.names)}; found {label!r}")
    features, place = [name for name in table.names if name != label], table.names.index(label)
    X, y = _numbers(table, features, Path(source)), np.array([line[place] for line in table.lines])
    return {"features": features, "label": label}, X, y


def _table(path: Path) -> Table:
    """A CSV file whose first line names the columns."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    with open(path, newline="") as stream:
        names, *lines = [[text.strip() for text in line] for line in csv.reader(stream) if line] or [[]]
    if not names or all(_is_number(name) for name in names):
        raise ValueError(f"the first line of {path} must name the columns, found {', '.join(names) or 'nothing'}")
    if len(set(names)) != len(names):
        raise ValueError(f"the columns of {path} must have different names, found {', '.join(names)}")
    if not lines:
        raise ValueError(f"{path} must have lines below the names of its columns, found none")
    for number, line in enumerate(lines, 2):
        if len(line) != len(names):
            raise ValueError(f"line {number} of {path} must have {len(names)} columns, found {len(line)}")
    return Table(names, lines)


def _numbers(table: Table, columns: Sequence[str], path: Path) -> np.ndarray:
    """The numbers (lines, columns) of some columns."""
    missing = [name for name in columns if name not in table.names]
    if missing:
        raise ValueError(f"{path} must have the columns {', '.join(columns)}; {', '.join(missing)} is missing")
    places = [table.names.index(name) for name in columns]
    for number, line in enumerate(table.lines, 2):
        for name, place in zip(columns, places, strict=True):
            if not _is_number(line[place]):
                raise ValueError(
                    f"line {number} of {path} must have a number in the column {name}, found {line[place]!r}"
                )
    return np.array([[float(line[place]) for place in places] for line in table.lines])


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
