"""`stepnet train` and `stepnet predict`: a net from a named data set or a CSV file, stored in a folder."""

from __future__ import annotations

import csv
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepnet.cli.csv_tables import Table, is_number, parse_columns, read_table
from stepnet.errors import TrainingFailed, TrainingInterrupted
from stepnet.estimators import FeynmanKacClassifier, FeynmanKacRegressor, NetClassifier, NetRegressor, files
from stepnet.estimators.datasets import NAMED, as_columns, load_named, split_samples
from stepnet.storage.atomic_files import write_file
from stepnet.storage.folder_locks import hold_lock
from stepnet.training.full_batch import METHODS

TASKS: dict[str, type[NetClassifier | NetRegressor]] = {"classification": NetClassifier, "regression": NetRegressor}
NOISY: dict[Any, type[NetClassifier | NetRegressor]] = {
    NetClassifier: FeynmanKacClassifier, NetRegressor: FeynmanKacRegressor,
}  # fmt: skip
CLASSES = 20  # more distinct integers than this are treated as quantities


class Samples(NamedTuple):
    """Names of the columns, features (n, columns) and targets (n,), which are classes or numbers as `task` says."""

    names: dict[str, Any]
    X: np.ndarray
    y: np.ndarray
    task: str


class TrainingOptions(NamedTuple):
    """The options of training; `task` is None if it is to be inferred from the targets."""

    label: str | None
    task: str | None
    test: float
    seed: int
    resume: bool
    overwrite: bool


def train(
    source: str, folder: Path, choices: TrainingOptions, settings: dict[str, Any], say: Callable[[str], object]
) -> None:
    """Train a net on part of the samples, report its quality on the rest, and store it in `folder`."""
    if choices.resume and choices.overwrite:
        raise ValueError("--resume continues the run in the folder and --overwrite replaces it; give only one of them")
    if not (choices.resume or choices.overwrite) and any((folder / name).exists() for name in (files.HEAD, "run")):
        raise ValueError(f"{folder} holds a net or its run; choose another folder, or give --resume or --overwrite")
    samples = _load_samples(source, choices)
    parts = _split_samples(samples, choices)
    say(f"{source}: {len(parts[0])} training samples, {len(parts[2])} test samples, {_describe(samples)}")
    model = _build_estimator(samples.task, choices.seed, settings)
    begin = time.perf_counter()
    with _replace_run(folder, choices.overwrite):
        trouble = _fit(model, parts, folder, choices.resume)
    seconds = time.perf_counter() - begin
    say(repr(model.net_))
    say(f"train {_measure_quality(model, *parts[:2])}, test {_measure_quality(model, *parts[2:])}")
    files.write(model.set_params(progress=False), folder, samples.names)
    if trouble:
        raise ValueError(f"{trouble}; the weights found so far are in {folder}")
    say(f"{seconds:.3g} s, in {folder}")


def _build_estimator(task: str, seed: int, settings: dict[str, Any]) -> NetClassifier | NetRegressor:
    """The estimator of a task, not fitted; with a noise level, one that averages over paths."""
    kind, settings = TASKS[task], dict(settings)
    if settings["diffusion"] is None:
        del settings["diffusion"]
    else:
        kind = NOISY[kind]
    return kind(random_state=seed, progress=True, **settings)


def _fit(model: NetClassifier | NetRegressor, parts: list[np.ndarray], folder: Path, resume: bool) -> str:
    """Train; return a message if training stopped early, with the model at the weights reached."""
    is_full = str(model.optimiser).lower() in METHODS
    try:
        model.fit(*parts[:2], path=None if is_full else folder / "run", resume=resume)
    except TrainingFailed as failed:
        _give(model, parts, failed.run.theta)
        reason, _, _ = str(failed).partition("; ")  # the rest is advice for Python users
        return f"{reason}; run the command again with a lower --rate and --overwrite"
    except TrainingInterrupted as interrupted:
        _give(model, parts, interrupted.run.theta)
        return str(interrupted) if is_full else f"{interrupted}; run the command again with --resume to continue"
    except KeyboardInterrupt:
        reason = f"--optimiser {model.optimiser} is a full-batch optimiser and stores nothing before it ends"
        raise ValueError(f"interrupted by the user; {reason}" if is_full else "interrupted by the user") from None
    return ""


def _give(model: NetClassifier | NetRegressor, parts: list[np.ndarray], theta: np.ndarray) -> None:
    """Give the model the weights of a run that stopped early: fit it for zero epochs, then set the weights."""
    settings = model.get_params()
    model.set_params(optimiser="adam", rate=None, epochs=0, progress=False).fit(*parts[:2])
    model.net_.put(theta)
    model.set_params(**settings)


@contextmanager
def _replace_run(folder: Path, overwrite: bool) -> Iterator[None]:
    """Replace the run in a folder; restore it if the new one is refused."""
    run, before = folder / "run", folder / "run.before"
    if before.exists() and not (run / "run.json").exists():  # an earlier call was killed in between
        shutil.rmtree(run, ignore_errors=True)
        before.rename(run)
    if not overwrite or not (run / "run.json").exists():
        yield
        return
    with hold_lock(run):  # refuses a run that another process is working on
        pass
    shutil.rmtree(before, ignore_errors=True)
    run.rename(before)
    try:
        yield
    except BaseException:
        shutil.rmtree(run, ignore_errors=True)
        before.rename(run)
        raise
    shutil.rmtree(before)


def _describe(samples: Samples) -> str:
    """The number of features, and the target."""
    if samples.task == "classification":
        return f"{samples.X.shape[1]} features, {len(np.unique(samples.y))} classes"
    return f"{samples.X.shape[1]} features, regression of {samples.names['label']}"


def _measure_quality(model: NetClassifier | NetRegressor, X: np.ndarray, y: np.ndarray) -> str:
    """The accuracy of a classifier, or R^2 and the error of a regressor."""
    found = model.predict(X)
    if isinstance(model, NetClassifier):
        return f"accuracy {np.mean(found == y):.2%}"
    error, spread = np.sqrt(np.mean((found - y) ** 2)), np.std(y)
    explained = f"R2 {1 - (error / spread) ** 2:.4f}" if spread > 0 else "R2 undefined"
    return f"{explained}, RMSE {error:.4g}"


def predict(folder: Path, file: Path, out: Path | None, say: Callable[[str], object]) -> None:
    """Predict the samples in a file with the net in `folder`; report the quality if the file has the target."""
    model, names = _load(folder)
    table = read_table(file)
    X = parse_columns(table, names["features"], file)
    found = [str(each) for each in model.predict(X)]
    if out is None:
        say("\n".join(found))
    else:
        rows, text = zip(table.lines, found, strict=True), StringIO(newline="")
        csv.writer(text).writerows([[*table.names, "prediction"], *([*line, each] for line, each in rows)])
        write_file(out, text.getvalue().encode())
        say(f"{len(found)} predictions in {out}")
    if names["label"] not in table.names:
        return
    if isinstance(model, NetRegressor):
        say(_measure_quality(model, X, parse_columns(table, [names["label"]], file)[:, 0]))
    else:
        place = table.names.index(names["label"])
        right = [_is_same(line[place], each) for line, each in zip(table.lines, found, strict=True)]
        say(f"accuracy {np.mean(right):.2%}")


def _load(folder: Path) -> tuple[NetClassifier | NetRegressor, dict[str, Any]]:
    """Load the net in a folder, and the names of its feature and target columns."""
    if not (folder / files.HEAD).exists():
        raise ValueError(f"{folder} holds no net; create one with `stepnet train`")
    header = files.read_head(folder)
    kinds, names = {each.__name__: each for each in (*TASKS.values(), *NOISY.values())}, header.get("columns")
    if header.get("estimator") not in kinds or not isinstance(names, dict) or not {"features", "label"} <= set(names):
        raise ValueError(f"{folder} holds no net of `stepnet train`: {files.HEAD} does not name the columns of a table")
    model = kinds[header["estimator"]].load(folder)
    if not isinstance(names["features"], list) or len(names["features"]) != model.n_features_in_:
        raise ValueError(f"{folder} is damaged: {files.HEAD} must name {model.n_features_in_} features")
    return model, names


def _is_same(one: str, other: str) -> bool:
    """Whether two labels are the same string or, like 1 and 1.0, the same number."""
    return one == other or (is_number(one) and is_number(other) and float(one) == float(other))


# ---- samples --------------------------------------------------------------------------------------------------------


def _load_samples(source: str, choices: TrainingOptions) -> Samples:
    is_file = Path(source).suffix or os.sep in source or (source not in NAMED and Path(source).is_file())
    if is_file:
        return _build_samples(read_table(Path(source)), Path(source), choices)
    if choices.label is not None:
        raise ValueError(f"--label is for CSV files, found the data set {source!r}")
    X, y = load_named(source, choices.seed)
    task = choices.task or "classification"
    names = {"features": as_columns(source, X.shape[1]), "label": "target"}
    return Samples(names, X, y.astype(float) if task == "regression" else y, task)


def _build_samples(table: Table, path: Path, choices: TrainingOptions) -> Samples:
    label = table.names[-1] if choices.label is None else choices.label
    if label not in table.names:
        raise ValueError(f"--label must be a column of {path}, one of {', '.join(table.names)}; found {label!r}")
    if len(table.names) < 2:
        raise ValueError(f"{path} must have at least two columns, with commas between them, found {label!r} alone")
    place = table.names.index(label)
    texts = [line[place] for line in table.lines]
    task = choices.task or ("regression" if _are_quantities(texts) else "classification")
    features = [name for name in table.names if name != label]
    y = parse_columns(table, [label], path)[:, 0] if task == "regression" else np.array(texts)
    return Samples({"features": features, "label": label}, parse_columns(table, features, path), y, task)


def _are_quantities(texts: Sequence[str]) -> bool:
    """Whether the values are numbers that are not all integers, or too many to be classes."""
    if not all(is_number(text) for text in texts):
        return False
    numbers = np.array([float(text) for text in texts])
    return bool(np.any(numbers != np.round(numbers))) or len(np.unique(numbers)) > CLASSES


def _split_samples(samples: Samples, choices: TrainingOptions) -> list[np.ndarray]:
    """Training X and y, then test X and y."""
    X, y, n = samples.X, samples.y, len(samples.y)
    tested = ceil(choices.test * n)
    if samples.task == "classification":
        _require_enough(y, tested)
        return split_samples(X, y, choices.test, choices.seed)
    if tested >= n:
        raise ValueError(f"there must be training and test samples, found {n} in all, {tested} for testing")
    order = np.random.default_rng(choices.seed).permutation(n)
    return [X[order[tested:]], y[order[tested:]], X[order[:tested]], y[order[:tested]]]


def _require_enough(y: np.ndarray, tested: int) -> None:
    """Refuse data in which a class has fewer than one training and one test sample."""
    classes, counts = np.unique(y, return_counts=True)
    if counts.min() < 2:
        lonely = ", ".join(map(str, classes[counts < 2][:5]))
        raise ValueError(
            f"every class must have two samples or more, for training and for testing; found one of {lonely} "
            "(--task regression if the targets are quantities)"
        )
    if not len(classes) <= tested <= len(y) - len(classes):
        raise ValueError(
            f"--test must leave a sample of each of {len(classes)} classes for training and for testing; found "
            f"{tested} of {len(y)} samples to test"
        )
