"""Folder locks, which are released when their process ends."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepnet.errors import FolderInUse

try:
    import fcntl
except ImportError:  # Windows, where folders are not locked
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
PAUSE = 0.02  # seconds between two attempts

_held: set[int] = set()  # descriptors of the locks of this process


@contextmanager
def hold_lock(folder: Path, name: str = "path", patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of a folder, which is created if missing; `patience` is the time in seconds to wait for the lock.

    The lock belongs to the open file (flock), so it is released however the process ends.  The file itself only names
    the holder.  A folder that was created here and is still empty is removed afterwards.
    """
    if _is_read_only(folder):  # so no process can write to it
        yield
        return
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    while (descriptor := _acquire(folder / LOCK)) is None:
        if time.monotonic() >= deadline:
            raise FolderInUse(_describe_lock(folder, name))
        time.sleep(PAUSE)
    _held.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _held:  # and not in a forked child
            _held.remove(descriptor)
            with suppress(OSError):
                (folder / LOCK).unlink()
            os.close(descriptor)
            if is_new:
                with suppress(OSError):
                    folder.rmdir()


def _is_read_only(folder: Path) -> bool:
    return folder.is_dir() and not os.access(folder, os.W_OK)


def _acquire(path: Path) -> int | None:
    """The descriptor of the locked file, or None if another process holds the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        is_ours = _lock(descriptor)
        if is_ours and _is_same(descriptor, path):
            _sign(descriptor)
            return descriptor
        os.close(descriptor)
        if not is_ours:
            return None  # otherwise its owner has just removed the file


def _lock(descriptor: int) -> bool:
    """Try to lock; return whether it succeeded, True on file systems without locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _sign(descriptor: int) -> None:
    """Write the holder of the lock to the file, unless the disk is full."""
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%F %T")}
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(holder).encode())


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _describe_lock(folder: Path, name: str) -> str:
    try:
        holder = json.loads((folder / LOCK).read_text())
        who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        who = "another process"
    return (
        f"`{name}` = {str(folder)!r} is in use by {who}; wait for it to end, or choose another "
        f"folder (the lock is released with its process; no file needs to be deleted)"
    )


def _forget_locks() -> None:
    """Release inherited locks in a forked child, which would otherwise hold them after its parent ends."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
