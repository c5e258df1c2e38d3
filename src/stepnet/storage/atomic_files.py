"""Writing files so that a killed process or a full disk leaves the old file or the new one, never a part of it.

The new content goes to a temporary file beside the target, which is then renamed.  Temporary files that a killed
process has left are removed by the next write to the same target.
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
from typing import IO

Content = bytes | Callable[[IO[bytes]], object]  # what to write, or a function that writes it

_numbers = itertools.count()


def validate_path(name: str, value, what: str = "a file") -> Path:
    """An argument that is the path of a file or of a folder."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise TypeError(f"`{name}` must be the path of {what}, found {value!r:.80} ({type(value).__name__})")
    if "\0" in os.fspath(value):
        raise ValueError(f"`{name}` must be the path of {what}, found one with a null character: {value!r:.80}")
    return Path(value).expanduser()


def validate_folder(name: str, value) -> Path:
    """An argument that is the path of a folder, which need not exist."""
    folder = validate_path(name, value, "a folder")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`{name}` must be the path of a folder, but {str(folder)!r} is a file")
    return folder


def write_file(path: Path, content: Content) -> None:
    """Replace a file at once, and return when it is on the disk: the file survives a loss of power, too."""
    _replace(path, content, _write_durably)


def write_scratch_file(path: Path, content: Content) -> None:
    """Replace a file at once, without waiting for the disk: the file survives a killed process, not a loss of power."""
    _replace(path, content, _write)


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of this target whose process is gone."""
    pattern = re.compile(re.escape(_make_prefix(path)) + r"(\d+)-\d+\.tmp")
    with suppress(OSError):
        for each in os.listdir(path.parent):
            match = pattern.fullmatch(each)
            if match and not is_alive(int(match[1])):
                (path.parent / each).unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether a process of this machine is running; where asking would end it, it is taken for running."""
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
    target = Path(os.path.realpath(path))  # a link stays a link
    mode = _find_mode(target)
    if mode is not None and not stat.S_ISREG(mode):
        _write_in_place(target, content)
        return
    remove_leftovers(target)
    temporary = target.with_name(f"{_make_prefix(target)}{os.getpid()}-{next(_numbers)}.tmp")
    try:
        with open(temporary, "xb") as file:
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            write(file, content)
        os.replace(temporary, target)
        if write is _write_durably:
            _sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        with naming(path):
            raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of writing, such as that of a full disk, with the file or folder that was written to."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, f"{error.strerror} while writing", str(path)) from error
        raise


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
    """Devices and pipes are written to, never replaced."""
    with open(target, "wb") as file:
        _write(file, content)


def _find_mode(target: Path) -> int | None:
    try:
        return target.stat().st_mode
    except FileNotFoundError:
        return None


def _make_prefix(target: Path) -> str:
    """Of temporary files; the name of the machine keeps shared folders from taking another one's process for dead."""
    host = re.sub(r"\W", "_", socket.gethostname())[:40]
    return f".{target.name[:120]}.{host}-"


def _sync_folder(folder: Path) -> None:
    """Put a rename on the disk; file systems that cannot do that are left to themselves."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
