"""Compiled code on disk, in files that only their owner can write and whose damage is detected.

A cached kernel is machine code that runs with the rights of the user who loads it.  So a file is used only if it and
its folder belong to the user and are writable by nobody else, and if its checksum matches the one stored with it
(docs/decisions/cache.md).
"""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np

from stepnet.storage.atomic_files import write_private_file

ENGINE_SOURCES = Path(__file__).parents[1]
PACKAGE_SOURCES = Path(__file__).parents[3]
FROZEN_SOURCES = {
    ".".join(("stepnet", *path.relative_to(PACKAGE_SOURCES).with_suffix("").parts)): path
    for path in (
        PACKAGE_SOURCES / "errors.py",
        PACKAGE_SOURCES / "fields" / "activations.py",
        PACKAGE_SOURCES / "schemes" / "controllers.py",
        *sorted((PACKAGE_SOURCES / "noise").glob("*.py")),
    )
}
"""Modules outside the engine whose functions or constants are compiled into kernels."""

CHECKSUM_BYTES = 32
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

_warned: set[str] = set()


def cache_directory() -> Path:
    """The folder of compiled kernels, named by `source_stamp`, in `STEPNET_CACHE_DIR` or the user's cache."""
    return Path(os.environ.get("STEPNET_CACHE_DIR") or _find_default_directory()) / source_stamp()


def _find_default_directory() -> Path:
    """The platform's cache folder, `~/.cache/stepnet` on Linux; raises RuntimeError if the user has no home folder."""
    from platformdirs import user_cache_path

    folder = user_cache_path("stepnet", appauthor=False)
    if folder.parts[:1] == ("~",):
        raise RuntimeError("the user has no home folder")
    return folder


@cache
def source_stamp() -> str:
    """A hash of every engine source file by its dotted name, of external constants, compiler versions and the CPU."""
    digest = hashlib.sha256()
    files = {".".join(p.relative_to(ENGINE_SOURCES).with_suffix("").parts): p for p in ENGINE_SOURCES.rglob("*.py")}
    for name, path in sorted((files | FROZEN_SOURCES).items()):
        data = path.read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    features = llvm.get_host_cpu_features().flatten()
    for fact in (numba.__version__, llvmlite.__version__, np.__version__, llvm.get_host_cpu_name(), features):
        digest.update(fact.encode())
    return digest.hexdigest()[:16]


def read(name: str) -> bytes | None:
    """The contents of a cached file, or None if there is no trusted one."""
    try:
        folder = cache_directory()
        if not _is_trusted(os.stat(folder), str(folder)):
            return None
        descriptor = os.open(folder / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as file:  # the file checked is the file read, even if one is renamed
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not _is_trusted(status, str(folder / name)):
                return None
            contents = file.read()
    except (OSError, RuntimeError):
        return None
    checksum, data = contents[:CHECKSUM_BYTES], contents[CHECKSUM_BYTES:]
    return data if checksum == _compute_checksum(name, data) else None


def write(name: str, data: bytes) -> None:
    """Store a file for later processes; an unusable cache is reported and costs only time."""
    try:
        folder = cache_directory()
        _make_folder(folder)
        if _is_trusted(os.stat(folder), str(folder)):
            write_private_file(folder / name, _compute_checksum(name, data) + data)
    except (OSError, RuntimeError) as error:
        _warn_once(
            f"compiled kernels cannot be stored ({error}), so every process compiles them again; "
            f"set STEPNET_CACHE_DIR to a folder that you can write"
        )


def _make_folder(folder: Path) -> None:
    """Create the folder for its owner alone, regardless of the umask."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:  # another process was faster
            return
        folder.chmod(0o700)


def _compute_checksum(name: str, data: bytes) -> bytes:
    """SHA-256 of a file's name and contents, so that a renamed file is rejected like a damaged one."""
    digest = hashlib.sha256(name.encode() + b"\0")
    digest.update(data)
    return digest.digest()


def _is_trusted(status: os.stat_result, path: str) -> bool:
    """Whether a file or folder belongs to the user and is writable by nobody else; warns if not."""
    if not hasattr(os, "geteuid"):  # Windows protects a user's folders itself
        return True
    owner, others = status.st_uid == os.geteuid(), status.st_mode & WRITABLE_BY_OTHERS
    if owner and not others:
        return True
    reason = "is writable by other users" if owner else "belongs to another user"
    _warn_once(
        f"{path} {reason}, so the machine code in it is not used and every process compiles its kernels again; "
        f"set STEPNET_CACHE_DIR to a folder of your own, or remove write permission for others"
    )
    return False


def _warn_once(message: str) -> None:
    """Warn once per process: there are many kernels, and the reason is the same."""
    if not _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)
