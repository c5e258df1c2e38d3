"""Reading arrays from untrusted files: validated before they are read, never larger than their file."""

from __future__ import annotations

import errno
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from stepnet.errors import DamagedFile

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

KINDS = "biufcUSmM"  # of numbers, strings and times; objects would have to be unpickled
SAFETENSORS = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64",
}  # fmt: skip
LONGEST_HEADER = 10_000  # bytes that describe an array
LONGEST_JSON = 2**26
TROUBLE = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, EOFError, RecursionError, MemoryError,
    NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip  # what reading and building may raise when numbers or names are not what they should be


@contextmanager
def report_damage(path: object, what: str, advice: str = "") -> Iterator[None]:
    """Name the file in any error of reading it; missing files are reported as missing."""
    try:
        yield
    except DamagedFile:
        raise
    except (*TROUBLE, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:  # missing or unreadable, as the error says
            raise
        reason = f"{type(error).__name__}: {error}"
        raise DamagedFile(f"{str(path)!r} is not {what}, or is damaged ({reason:.300}){advice}") from error


def require_array(
    name: str, array: np.ndarray, shape: tuple[Any, ...], dtype: DTypeLike, is_finite: bool = True
) -> np.ndarray:
    """Return an array; refuse one without the required shape and dtype."""
    if array.shape != tuple(shape) or array.dtype != np.dtype(dtype):
        raise ValueError(f"{name} must be {np.dtype(dtype)} {tuple(shape)}, found {array.dtype} {array.shape}")
    if is_finite and not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite")
    return array


def read_json(path: Path) -> Any:
    """Read a JSON file of limited size."""
    if path.stat().st_size > LONGEST_JSON:
        raise ValueError(f"{path.stat().st_size} bytes of JSON are too many")
    return json.loads(path.read_text(encoding="utf-8"))


# ---- NPZ ------------------------------------------------------------------------------------------------------------


def read_npz(path: Path, wanted: Callable[[str], bool] | Iterable[str]) -> dict[str, np.ndarray]:
    """Read the requested arrays of an NPZ file written by `numpy.savez`.

    Members must not be compressed, so no array can be larger than the file.
    """
    is_wanted = wanted if callable(wanted) else set(wanted).__contains__
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        size = path.stat().st_size
        members = [each for each in archive.infolist() if is_wanted(each.filename.removesuffix(".npy"))]
        for each in members:
            if each.compress_type != zipfile.ZIP_STORED or each.flag_bits & 1:
                raise ValueError(f"{each.filename!r:.80} is compressed or encrypted")
        if sum(each.file_size for each in members) > size:
            raise ValueError("its arrays claim to be larger than the file")
        return {each.filename.removesuffix(".npy"): _read_member(archive, each) for each in members}


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as stream:
        shape, is_fortran, dtype = _read_header(stream)
        count = math.prod(shape)
        if min(shape, default=0) < 0 or dtype.hasobject or dtype.kind not in KINDS + "V":
            raise ValueError(f"{member.filename!r} has the shape {shape} and the type {dtype}")
        content = stream.read()
    if len(content) != count * dtype.itemsize:
        raise ValueError(f"{member.filename!r} has {len(content)} bytes for an array {shape} of {dtype}")
    array = np.frombuffer(content, dtype, count) if dtype.itemsize else np.zeros(count, dtype)
    return array.reshape(shape, order="F" if is_fortran else "C").copy()


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream, LONGEST_HEADER)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream, LONGEST_HEADER)
    raise ValueError(f"arrays of the version {version} are not read")


# ---- safetensors ----------------------------------------------------------------------------------------------------


class Tensors(Mapping[str, Any]):
    """The tensors of an open safetensors file, each read on access; `layout` gives shapes and dtypes."""

    def __init__(self, file: Any) -> None:
        self._file, self._names = file, list(file.keys())
        self.metadata: dict[str, str] = file.metadata() or {}

    def layout(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """The shape and the type of a tensor, from the header of the file."""
        found = self._file.get_slice(self._require_known(name))
        kind = str(found.get_dtype())
        if kind not in SAFETENSORS:
            raise ValueError(f"{name!r} has the type {kind}, which is not read")
        return tuple(found.get_shape()), np.dtype(SAFETENSORS[kind])

    def require(self, name: str, shape: tuple[Any, ...], dtype: DTypeLike, is_finite: bool = True) -> np.ndarray:
        """Read a tensor after checking its shape and dtype."""
        if self.layout(name) != (tuple(shape), np.dtype(dtype)):
            found = self.layout(name)
            raise ValueError(f"{name!r} must be {np.dtype(dtype)} {tuple(shape)}, found {found[1]} {found[0]}")
        return require_array(repr(name), self[name], shape, dtype, is_finite)

    def __getitem__(self, name: str) -> np.ndarray:
        self.layout(name)
        return self._file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _require_known(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(f"there is no {name!r}")
        return name


@contextmanager
def open_tensors(path: Path) -> Iterator[Tensors]:
    """The tensors of a safetensors file, while it is open."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        with safe_open(path, "numpy") as file:
            yield Tensors(file)
    except SafetensorError as error:
        raise DamagedFile(f"{str(path)!r} is not a safetensors file: {error}") from None
