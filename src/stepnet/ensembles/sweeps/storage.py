"""Storage of the parts of a sweep: memory, or a folder from which an interrupted sweep continues.

A folder holds `manifest.json`, which describes the sweep, and one NPZ file per finished chunk.  Per-member results are
in these files if they are small, otherwise in Zarr arrays of the shape of the grid.  A file gets its name only when it
is complete, and the file of a chunk is written after its other data.  It carries a seal, a hash of the manifest, the
chunk number and all its numbers, so that changed chunks and chunks of another sweep are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.ensembles.reductions import STATUSES, Mergeable
from stepnet.ensembles.reductions.reduction import Arrays
from stepnet.ensembles.sweeps.grid import GridBox, SweepGrid
from stepnet.errors import DamagedFile
from stepnet.storage.atomic_files import name_path_in_errors, write_file
from stepnet.storage.folder_locks import LOCK, hold_lock
from stepnet.storage.stored_arrays import read_json, read_npz, report_damage

LARGE = 2**28  # bytes above which results are stored in Zarr arrays
MANIFEST, CHUNKS, ARRAYS = "manifest.json", "chunks", "arrays"
COUNTS = "counts"
SEAL, LAYOUT = "seal", "layout"  # in the file of a chunk: its hash, and the arrays stored in Zarr
CHECKSUM = 4  # bytes
ANEW = "; delete this file and repeat the call to compute the chunk again"
ANEW_ALL = "; delete the folder of the sweep and repeat the call"

Part = dict[str, Arrays]  # the results of each reduction for a chunk, and the counts of statuses


class MemoryStorage:
    """Results in memory: rows are written to their positions, everything else is merged in order.

    `wholes` are per-member arrays that are already stored elsewhere, by the names of the reductions.
    """

    def __init__(
        self, grid: SweepGrid, boxes: list[GridBox], reductions: dict[str, Any], wholes: dict[str, Arrays] | None = None
    ):
        self._grid, self._boxes, self._reductions = grid, boxes, reductions
        self._wholes: dict[str, Arrays] = {name: {} for name in reductions} | (wholes or {})
        self._counts = np.zeros(len(STATUSES), np.int64)
        self._ahead: dict[int, Part] = {}  # chunks that arrived out of order
        self._next = 0
        self.finished: set[int] = set()

    def lock(self) -> nullcontext[None]:
        """Nothing to lock."""
        return nullcontext()

    def put(self, number: int, part: Part) -> None:
        """Store the part of a chunk."""
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
                self._wholes[name] = self._reductions[name].merge(whole, arrays) if whole else arrays
            self._next += 1

    def results(self) -> tuple[dict[str, Any], np.ndarray]:
        """The results of all reductions, and the number of members with each status."""
        return {name: r.result(self._wholes[name]) for name, r in self._reductions.items()}, self._counts


class FolderStorage:
    """Parts of chunks on disk, with a manifest of `facts` that identify the sweep."""

    def __init__(
        self, path: Path, facts: dict[str, Any], grid: SweepGrid, boxes: list[GridBox], reductions: dict[str, Any]
    ):
        self.path, self._facts, self._grid, self._boxes, self._reductions = path, facts, grid, boxes, reductions
        self._identity = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        self._large = LargeArrays(path / ARRAYS, grid, boxes)
        if path.exists() and not path.is_dir():
            raise ValueError(f"`path` must be a new or empty folder, or that of an earlier sweep, found {path}")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder, and refuse one with other contents or damaged chunks."""
        with hold_lock(self.path):
            self._check()
            for number in sorted(self.finished):
                self._large.check(self._part(number)[1], self._boxes[number])
            yield

    @property
    def finished(self) -> set[int]:
        """The numbers of the finished chunks."""
        names = {self._file(number).name: number for number in range(len(self._boxes))}
        found = [file.name for file in (self.path / CHUNKS).glob("*.npz")]
        strange = [name for name in found if name not in names]
        if strange:
            raise DamagedFile(f"{str(self.path / CHUNKS / strange[0])!r} is not a chunk of this sweep; remove it")
        return {names[name] for name in found}

    def put(self, number: int, part: Part) -> None:
        """Store the part of a chunk."""
        self._begin()
        box = self._boxes[number]
        per_member = [name for name, reduction in self._reductions.items() if not isinstance(reduction, Mergeable)]
        size, large = sum(array.nbytes for name in per_member for array in part[name].values()), []
        if size / (box.last - box.first) * self._grid.count >= LARGE:
            large = [self._large.put(name, key, value, box) for name in per_member for key, value in part[name].items()]
            part = {name: arrays for name, arrays in part.items() if name not in per_member}
        flat = {f"{name}.{key}": value for name, arrays in part.items() for key, value in arrays.items()}
        flat[LAYOUT] = np.array(json.dumps(large))
        flat[SEAL] = np.array(self._seal(number, flat))
        write_file(self._file(number), lambda file: np.savez(file, **flat))  # type: ignore[arg-type]

    def results(self) -> tuple[dict[str, Any], np.ndarray]:
        """The results of all reductions, and the number of members with each status."""
        parts = (self._part(number) for number in range(len(self._boxes)))
        first, layout = next(parts)
        wholes: dict[str, Arrays] = {}
        for name, key, *kind in layout:
            wholes.setdefault(name, {})[key] = self._large.open_zarr_array(name, key, kind)
        whole = MemoryStorage(self._grid, self._boxes, self._reductions, wholes)
        for number, (part, other) in enumerate(chain([(first, layout)], parts)):
            with report_damage(self._file(number), "a chunk of this sweep", ANEW):
                if other != layout:
                    raise ValueError("its large arrays are not those of the first chunk")
                whole.put(number, part)
        return whole.results()

    def _part(self, number: int) -> tuple[Part, list[Any]]:
        """Read the file of a chunk, after checking its seal; also return which arrays are stored in Zarr."""
        file, part = self._file(number), dict[str, Arrays]()
        with report_damage(file, "a chunk of this sweep", ANEW):
            flat = read_npz(file, lambda label: True)
            if str(flat.pop(SEAL, "")) != self._seal(number, flat):
                raise ValueError("it was changed, or is of another sweep")
            layout = json.loads(str(flat.pop(LAYOUT)))
            for label, value in flat.items():
                name, _, key = label.rpartition(".")
                part.setdefault(name, {})[key] = value
            return part, layout

    def _seal(self, number: int, flat: Arrays) -> str:
        """The hash that ties the numbers of a chunk to this sweep."""
        found = hashlib.sha256(f"{self._identity} {number}".encode())
        for label in sorted(flat):
            array = np.ascontiguousarray(flat[label])
            found.update(f"{label} {array.dtype.str} {flat[label].shape}".encode())
            found.update(array.tobytes())
        return found.hexdigest()

    def _check(self) -> None:
        """Refuse a folder with other contents."""
        manifest = self.path / MANIFEST
        if not manifest.exists():
            if any(_is_foreign(file) for file in self.path.iterdir()):
                raise ValueError(
                    f"`path` must be a new or empty folder, or that of an earlier sweep, found {self.path}"
                )
            return
        with report_damage(manifest, "the manifest of a sweep", "; give another folder, or delete this one"):
            old = dict(read_json(manifest))
        other = [name for name in self._facts if old.get(name) != self._facts[name]]
        if other:
            raise ValueError(
                f"`path` = {self.path} holds another sweep, with a different {', '.join(other)}; give another folder, "
                f"or delete this one to start over"
            )

    def _begin(self) -> None:
        """Write the manifest, once a first chunk has been computed."""
        if not (self.path / MANIFEST).exists():
            write_file(self.path / MANIFEST, json.dumps(self._facts, indent=1).encode())
        (self.path / CHUNKS).mkdir(exist_ok=True)

    def _file(self, number: int) -> Path:
        return self.path / CHUNKS / f"{number:06d}.npz"


class LargeArrays:
    """Zarr arrays of the shape of the grid, with one uncompressed, checksummed chunk per box."""

    def __init__(self, path: Path, grid: SweepGrid, boxes: list[GridBox]):
        self._path, self._grid, self._boxes = path, grid, boxes
        self._box_shape = tuple(s.stop - s.start for s in boxes[0].slices)

    def put(self, name: str, key: str, rows: np.ndarray, box: GridBox) -> list[Any]:
        """Write rows of members; return the name of the array, its dtype and its trailing shape."""
        trailing, kind = rows.shape[1:], [rows.dtype.str, *rows.shape[1:]]
        folder = self._path / name / key
        self._description(*kind)
        with name_path_in_errors(folder):
            if not folder.exists():
                self._create(folder, rows.dtype, trailing)
            array = self._open_checked(folder, kind, mode="r+")
            array[box.slices] = rows.reshape(*(s.stop - s.start for s in box.slices), *trailing)
            self._sync(folder, box)
        return [name, key, *kind]

    def open_zarr_array(self, name: str, key: str, kind: list[Any]) -> Any:
        """The whole array, if it is complete."""
        if not all(isinstance(part, str) and Path(part).name == part for part in (name, key)):
            raise DamagedFile(f"{str(self._path)!r} has no array called {name!r:.60}, {key!r:.60}")
        folder = self._path / name / key
        array = self._open_checked(folder, kind, mode="r")
        size = CHECKSUM + prod(array.chunks) * array.dtype.itemsize
        for box in self._boxes:
            file = self._file(folder, box, len(kind) - 1)
            if not file.is_file() or file.stat().st_size != size:
                raise DamagedFile(f"{str(file)!r} is missing or damaged{ANEW_ALL}")
        return array

    def check(self, layout: list[Any], box: GridBox) -> None:
        """Refuse stored data of a box whose checksums are wrong."""
        for name, key, *kind in layout:
            folder = self._path / name / key
            with report_damage(self._file(folder, box, len(kind) - 1), "a chunk of an array of this sweep", ANEW_ALL):
                self._open_checked(folder, kind, mode="r")[box.slices]

    def _create(self, folder: Path, dtype: np.dtype, trailing: tuple[int, ...]) -> None:
        """Create an array; it gets its name when it is complete."""
        zarr, new = _import_zarr(), folder.with_name(f".{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        zarr.create_array(
            new,
            shape=(*self._grid.shape, *trailing),
            chunks=(*self._box_shape, *(max(1, n) for n in trailing)),
            dtype=dtype,
            compressors=[zarr.codecs.Crc32cCodec()],
        )
        new.rename(folder)

    def _open_checked(self, folder: Path, kind: list[Any], mode: str) -> Any:
        """Open an array whose description is as expected, because other codecs may execute code."""
        with report_damage(folder, "an array of this sweep", ANEW_ALL):
            description, wanted = read_json(folder / "zarr.json"), self._description(*kind)
            codecs = [codec["name"] for codec in description["codecs"]]
            other = [name for name, value in wanted.items() if description.get(name) != value]
            if other or codecs != ["bytes", "crc32c"] or description.get("storage_transformers"):
                raise ValueError(f"its description differs in {', '.join(other) or 'codecs'}")
            zarr = _import_zarr()
            with zarr.config.set({"array.write_empty_chunks": True}):  # so that a missing chunk is detected
                return zarr.open_array(folder, mode=mode, zarr_format=3)

    def _description(self, dtype: str, *trailing: int) -> dict[str, Any]:
        """The contents of `zarr.json` of an array."""
        if np.dtype(dtype).kind not in "biufc":
            raise TypeError(f"arrays must hold numbers, found {dtype}")
        chunks = [*self._box_shape, *(max(1, n) for n in trailing)]
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [*self._grid.shape, *trailing],
            "data_type": np.dtype(dtype).name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        }

    def _file(self, folder: Path, box: GridBox, n_trailing: int) -> Path:
        numbers = [s.start // n for s, n in zip(box.slices, self._box_shape, strict=True)]
        return folder.joinpath("c", *map(str, numbers), *("0",) * n_trailing)

    def _sync(self, folder: Path, box: GridBox) -> None:
        """Flush the chunk to disk before the file that refers to it is written."""
        place = self._file(folder, box, 0)
        for file in (place, *place.rglob("*")):
            if file.is_file():
                with open(file, "rb+") as stream:
                    os.fsync(stream.fileno())


def _put_rows(whole: Arrays, rows: Arrays, grid: SweepGrid, box: GridBox) -> None:
    for key, value in rows.items():
        if value.ndim == 0 or len(value) != box.last - box.first:
            raise ValueError(f"there must be a row for each of {box.last - box.first} members, found {value.shape}")
        if key not in whole:
            whole[key] = np.empty((*grid.shape, *value.shape[1:]), value.dtype)
        if whole[key].shape[len(grid.shape) :] != value.shape[1:]:
            raise ValueError(f"rows of members must have equal shapes, found {whole[key].shape} and {value.shape}")
        if not np.can_cast(value.dtype, whole[key].dtype, "same_kind"):
            raise ValueError(f"rows of members must have equal types, found {whole[key].dtype} and {value.dtype}")
        whole[key].reshape(grid.count, *value.shape[1:])[box.first : box.last] = value


def _is_foreign(file: Path) -> bool:
    """Whether a file cannot come from a sweep that was killed at its start."""
    if file.name == CHUNKS:
        return not file.is_dir() or any(file.iterdir())
    return file.name != LOCK and not file.name.startswith(f".{MANIFEST}")


def _import_zarr() -> Any:
    try:
        import zarr
    except ImportError:
        raise ImportError(
            f"results of more than {LARGE / 2**20:g} MB are stored as Zarr arrays: install `stepnet[distributed]`, or "
            f"give `reduce`"
        ) from None
    return zarr
