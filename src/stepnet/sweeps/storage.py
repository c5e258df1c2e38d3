"""Where the parts of a sweep go: memory, or a folder that an interrupted sweep goes on from.

A folder holds `manifest.json`, which says what it is a sweep of, and one NPZ file for every finished chunk.  What
belongs to single members is in these files too if it is small, else in Zarr arrays of the shape of the grid.  A file
appears under its name only when it is complete, and that of a chunk after everything else that the chunk has left.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np

from stepnet.reductions import Mergeable
from stepnet.reductions.chunk import Arrays
from stepnet.sweeps.grid import Grid

LARGE = 2**28  # bytes, from which results go into Zarr arrays
MANIFEST, CHUNKS, ARRAYS = "manifest.json", "chunks", "arrays"
COUNTS = "counts"

Part = dict[str, Arrays]  # what each reduction has of a chunk, and how many members ended in which way


class Memory:
    """Parts of chunks for as long as the process lives."""

    def __init__(self) -> None:
        self._parts: dict[int, Part] = {}

    @property
    def finished(self) -> set[int]:
        """The numbers of the chunks that are done."""
        return set(self._parts)

    def put(self, number: int, part: Part, slices) -> None:
        self._parts[number] = part

    def take(self, number: int) -> Part:
        """The part of a chunk, which is handed over."""
        return self._parts.pop(number)

    def large(self, name: str) -> Arrays:
        """Arrays that are not in the parts."""
        return {}


class Folder:
    """Parts of chunks on disk; `rows` are the names of what is kept for each member."""

    def __init__(self, path: Path, facts: dict, grid: Grid, chunk: int, rows: set[str]):
        self._path, self._facts, self._grid, self._chunk, self._rows = path, facts, grid, chunk, rows
        _check(path, facts)

    @property
    def finished(self) -> set[int]:
        """The numbers of the chunks that are done."""
        return {int(file.stem) for file in (self._path / CHUNKS).glob("*.npz")}

    def put(self, number: int, part: Part, slices) -> None:
        self._begin()
        members = prod(s.stop - s.start for s in slices)
        rows = {(name, key): value for name in self._rows for key, value in part[name].items()}
        if sum(value.nbytes for value in rows.values()) / members * self._grid.count >= LARGE:
            for (name, key), value in rows.items():
                box = tuple(s.stop - s.start for s in slices)
                self._array(name, key, value)[slices] = value.reshape(*box, *value.shape[1:])
            part = {name: arrays for name, arrays in part.items() if name not in self._rows}
        flat = {f"{name}.{key}": value for name, arrays in part.items() for key, value in arrays.items()}
        _write(self._file(number), lambda file: np.savez(file, **flat))  # type: ignore[arg-type]

    def take(self, number: int) -> Part:
        """The part of a chunk."""
        part: Part = {}
        with np.load(self._file(number), allow_pickle=False) as stored:
            for label in stored.files:
                name, _, key = label.rpartition(".")
                part.setdefault(name, {})[key] = stored[label]
        return part

    def large(self, name: str) -> Arrays:
        """Arrays that are not in the parts."""
        folder = self._path / ARRAYS / name
        if not folder.exists():
            return {}
        return {path.name: _zarr().open_array(path, mode="r") for path in sorted(folder.iterdir())}

    def _begin(self) -> None:
        """Say what the folder is for, now that a chunk has shown that the sweep can be done."""
        if not (self._path / MANIFEST).exists():
            (self._path / CHUNKS).mkdir(parents=True, exist_ok=True)
            _write(self._path / MANIFEST, lambda file: file.write(json.dumps(self._facts, indent=1).encode()))

    def _file(self, number: int) -> Path:
        return self._path / CHUNKS / f"{number:06d}.npz"

    def _array(self, name: str, key: str, rows: np.ndarray):
        """The Zarr array for these rows, one of its chunks for every box of the grid."""
        trailing = rows.shape[1:]
        return _zarr().open_array(
            self._path / ARRAYS / name / key,
            mode="a",
            shape=(*self._grid.shape, *trailing),
            chunks=(*self._grid.box_shape(self._chunk), *(max(1, n) for n in trailing)),
            dtype=rows.dtype,
        )


def collected(storage: Memory | Folder, grid: Grid, boxes, reductions: dict) -> tuple[dict, np.ndarray]:
    """The results of all reductions, merged in the order of the members, and how many members ended in which way."""
    wholes: dict[str, Arrays] = {name: storage.large(name) for name in reductions}
    counts = np.zeros(0, np.int64)
    for number, box in enumerate(boxes):
        part = storage.take(number)
        found = part.pop(COUNTS)["fates"]
        counts = found if number == 0 else counts + found
        for name, arrays in part.items():
            if isinstance(reductions[name], Mergeable):
                wholes[name] = reductions[name].merged(wholes[name], arrays) if wholes[name] else arrays
            else:
                _put_rows(wholes[name], arrays, grid, box)
    return {name: reduction.result(wholes[name]) for name, reduction in reductions.items()}, counts


def _put_rows(whole: Arrays, rows: Arrays, grid: Grid, box) -> None:
    for key, value in rows.items():
        if key not in whole:
            whole[key] = np.empty((*grid.shape, *value.shape[1:]), value.dtype)
        if whole[key].shape[len(grid.shape) :] != value.shape[1:]:
            raise ValueError(f"rows of members must have equal shapes, found {whole[key].shape} and {value.shape}")
        whole[key].reshape(grid.count, *value.shape[1:])[box.first : box.last] = value


def _check(path: Path, facts: dict) -> None:
    """Refuse a folder of something else."""
    manifest = path / MANIFEST
    if not manifest.exists():
        if path.exists() and (not path.is_dir() or any(_is_foreign(file) for file in path.iterdir())):
            raise ValueError(f"`path` must be a new or empty folder, or that of an earlier sweep, found {path}")
        return
    old = json.loads(manifest.read_text())
    other = [name for name in facts if old.get(name) != facts[name]]
    if other:
        raise ValueError(
            f"`path` = {path} holds another sweep, with a different {', '.join(other)}; give another folder, or delete "
            f"this one to begin anew"
        )


def _is_foreign(file: Path) -> bool:
    """Whether a file is none that a sweep leaves when it is killed at its very beginning."""
    return file.name != CHUNKS and not file.name.startswith(f".{MANIFEST}")


def _write(path: Path, fill) -> None:
    """A file that is there as a whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(FileNotFoundError):
            partial.unlink()
        raise


def _zarr():
    try:
        import zarr
    except ImportError:
        raise ImportError(
            f"results of more than {LARGE / 2**20:g} MB are stored as Zarr arrays: install `stepnet[distributed]`, or "
            f"give `reduce`"
        ) from None
    return zarr
