"""Where the parts of a sweep go: memory, or a folder that an interrupted sweep goes on from.

A folder holds `manifest.json`, which says what it is a sweep of, and one NPZ file for every finished chunk.  What
belongs to single members is in these files too if it is small, else in Zarr arrays of the shape of the grid.  A file
appears under its name only when it is complete, and that of a chunk after everything else that the chunk has left.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from stepnet.reductions import FATES, Mergeable
from stepnet.reductions.chunk import Arrays
from stepnet.sweeps.grid import Box, Grid

LARGE = 2**28  # bytes, from which results go into Zarr arrays
MANIFEST, CHUNKS, ARRAYS = "manifest.json", "chunks", "arrays"
COUNTS = "counts"

Part = dict[str, Arrays]  # what each reduction has of a chunk, and how many members ended in which way


class Memory:
    """Results for as long as the process lives: rows are put in their places, all else is merged in order.

    `wholes` are arrays of members that are elsewhere already, by the names of the reductions.
    """

    def __init__(self, grid: Grid, boxes: list[Box], reductions: dict, wholes: dict[str, Arrays] | None = None):
        self._grid, self._boxes, self._reductions = grid, boxes, reductions
        self._wholes: dict[str, Arrays] = {name: {} for name in reductions} | (wholes or {})
        self._counts = np.zeros(len(FATES), np.int64)
        self._ahead: dict[int, Part] = {}  # chunks that came before one in front of them
        self._next = 0
        self.finished: set[int] = set()

    def put(self, number: int, part: Part) -> None:
        """Take the part of a chunk."""
        self.finished.add(number)
        self._counts += part[COUNTS]["fates"]
        known = {name: arrays for name, arrays in part.items() if name != COUNTS}
        is_merged = {name: isinstance(self._reductions[name], Mergeable) for name in known}
        for name, arrays in known.items():
            if not is_merged[name]:
                _put_rows(self._wholes[name], arrays, self._grid, self._boxes[number])
        self._ahead[number] = {name: arrays for name, arrays in known.items() if is_merged[name]}
        while self._next in self._ahead:
            for name, arrays in self._ahead.pop(self._next).items():
                whole = self._wholes[name]
                self._wholes[name] = self._reductions[name].merged(whole, arrays) if whole else arrays
            self._next += 1

    def results(self) -> tuple[dict, np.ndarray]:
        """The results of all reductions, and how many members ended with each of the `FATES`."""
        return {name: r.result(self._wholes[name]) for name, r in self._reductions.items()}, self._counts


class Folder:
    """Parts of chunks on disk, under a manifest of `facts` that say of which sweep they are."""

    def __init__(self, path: Path, facts: dict, grid: Grid, boxes: list[Box], reductions: dict):
        self._path, self._facts, self._grid, self._boxes, self._reductions = path, facts, grid, boxes, reductions
        _check(path, facts)

    @property
    def finished(self) -> set[int]:
        """The numbers of the chunks that are done."""
        return {int(file.stem) for file in (self._path / CHUNKS).glob("*.npz")}

    def put(self, number: int, part: Part) -> None:
        """Take the part of a chunk."""
        self._begin()
        box = self._boxes[number]
        per_member = [name for name, reduction in self._reductions.items() if not isinstance(reduction, Mergeable)]
        size = sum(array.nbytes for name in per_member for array in part[name].values())
        if size / (box.last - box.first) * self._grid.count >= LARGE:
            for name in per_member:
                self._put_large(name, part[name], box)
            part = {name: arrays for name, arrays in part.items() if name not in per_member}
        flat = {f"{name}.{key}": value for name, arrays in part.items() for key, value in arrays.items()}
        _write(self._file(number), lambda file: np.savez(file, **flat))  # type: ignore[arg-type]

    def results(self) -> tuple[dict, np.ndarray]:
        """The results of all reductions, and how many members ended with each of the `FATES`."""
        folders = {name: self._path / ARRAYS / name for name in self._reductions}
        large = {
            name: {path.name: _zarr().open_array(path, mode="r") for path in folder.iterdir()}
            for name, folder in folders.items()
            if folder.exists()
        }
        whole = Memory(self._grid, self._boxes, self._reductions, large)
        for number in range(len(self._boxes)):
            whole.put(number, self._part(number))
        return whole.results()

    def _part(self, number: int) -> Part:
        part: Part = {}
        with np.load(self._file(number), allow_pickle=False) as stored:
            for label in stored.files:
                name, _, key = label.rpartition(".")
                part.setdefault(name, {})[key] = stored[label]
        return part

    def _put_large(self, name: str, rows: Arrays, box: Box) -> None:
        """Write rows into Zarr arrays, which have one chunk for every box of the grid."""
        shape = tuple(s.stop - s.start for s in box.slices)
        first = tuple(s.stop - s.start for s in self._boxes[0].slices)
        for key, value in rows.items():
            trailing = value.shape[1:]
            array = _zarr().open_array(
                self._path / ARRAYS / name / key,
                mode="a",
                shape=(*self._grid.shape, *trailing),
                chunks=(*first, *(max(1, n) for n in trailing)),
                dtype=value.dtype,
            )
            array[box.slices] = value.reshape(*shape, *trailing)

    def _begin(self) -> None:
        """Say what the folder is for, now that a chunk has shown that the sweep can be done."""
        if not (self._path / MANIFEST).exists():
            (self._path / CHUNKS).mkdir(parents=True, exist_ok=True)
            _write(self._path / MANIFEST, lambda file: file.write(json.dumps(self._facts, indent=1).encode()))

    def _file(self, number: int) -> Path:
        return self._path / CHUNKS / f"{number:06d}.npz"


def _put_rows(whole: Arrays, rows: Arrays, grid: Grid, box: Box) -> None:
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
