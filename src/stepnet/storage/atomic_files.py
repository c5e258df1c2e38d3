"""Atomic file replacement: a killed process or a full disk leaves the old file or the new one, never a partial one.

The new content is written to a temporary file in the same folder, which is then renamed.  Temporary files left by a
killed process are removed by the next write to the same target.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

Content = bytes | Callable[[IO[bytes]], object]  # what to write, or a function that writes it

PRIVATE = 0o600  # permissions for the owner only

_numbers = itertools.count()


def validate_path(name: str, value: Any, what: str = "a file") -> Path:
    """Return an argument as the path of a file or folder."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise TypeError(f"`{name}` must be the path of {what}, found {value!r:.80} ({type(value).__name__})")
    if "\0" in os.fspath(value):
        raise ValueError(f"`{name}` must be the path of {what}, found one with a null character: {value!r:.80}")
    return Path(value).expanduser()


def validate_folder(name: str, value: Any) -> Path:
    """Return an argument as the path of a folder, which need not exist."""
    folder = validate_path(name, value, "a folder")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`{name}` must be the path of a folder, but {str(folder)!r} is a file")
    return folder


def write_file(path: Path, content: Content) -> None:
    """Replace a file atomically and flush it to disk: it also survives a loss of power."""
    _replace(path, content, _write_durably)


def write_scratch_file(path: Path, content: Content) -> None:
    """Replace a file atomically without flushing: it survives a killed process, but not a loss of power."""
    _replace(path, content, _write)


def write_private_file(path: Path, content: Content) -> None:
    """Replace a file or link atomically by a file readable only by its owner, without flushing."""
    _write_and_rename(path, path, content, _write, PRIVATE)


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of this target whose process has ended."""
    pattern = re.compile(re.escape(_make_prefix(path)) + r"(\d+)-\d+\.tmp")
    with suppress(OSError):
        for each in os.listdir(path.parent):
            match = pattern.fullmatch(each)
            if match and not is_alive(int(match[1])):
                (path.parent / each).unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether a process of this machine is running; True on systems where the check would terminate it."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _replace(path: Path, content: Content, write: Callable[[IO[bytes], Content], None]) -> None:
    target = Path(os.path.realpath(path))  # links are preserved
    mode = _find_mode(target)
    if mode is not None and not stat.S_ISREG(mode):
        _write_in_place(target, content)
        return
    _write_and_rename(path, target, content, write, mode)


def _write_and_rename(
    path: Path, target: Path, content: Content, write: Callable[[IO[bytes], Content], None], mode: int | None
) -> None:
    """Write to a temporary file and rename it; `mode` gives the permissions, None those of new files."""
    remove_leftovers(target)
    temporary = target.with_name(f"{_make_prefix(target)}{os.getpid()}-{next(_numbers)}.tmp")
    try:
        with open(temporary, "xb", opener=None if mode is None else _open_private) as file:
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            write(file, content)
        os.replace(temporary, target)
        if write is _write_durably:
            _sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        with name_path_in_errors(path):
            raise


@contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Add the file or folder to errors of writing, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, f"{error.strerror} while writing", str(path)) from error
        raise


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE)


def _write(file: IO[bytes], content: Content) -> None:
    if isinstance(content, bytes):
        file.write(content)
    else:
        content(file)


def _write_durably(file: IO[bytes], content: Content) -> None:
    _write(file, content)
    file.flush()
    os.fsync(file.fileno())


def _write_in_place(target: Path, content: Content) -> None:
    """Write to devices and pipes, which are never replaced."""
    with open(target, "wb") as file:
        _write(file, content)


def _find_mode(target: Path) -> int | None:
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return None


def _make_prefix(target: Path) -> str:
    """The prefix of temporary files; it has the host name, as process ids differ between hosts of a shared folder."""
    host = re.sub(r"\W", "_", socket.gethostname())[:40]
    return f".{target.name[:120]}.{host}-"


def _sync_folder(folder: Path) -> None:
    """Flush a rename to disk, where the file system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
