"""`fork()` while another thread compiles: locks that are held in the parent are free in the child.

A child process has only the thread that forked.  A lock that another thread held at that moment would be held forever,
so the forking thread acquires all of them first, and waits for a compilation in progress.
"""

from __future__ import annotations

import os
from threading import Lock

from llvmlite.binding.ffi import lib
from numba.core.compiler_lock import global_compiler_lock

_locks: list = [global_compiler_lock._lock, lib._lock._lock]  # in the order in which they are acquired


def register_lock(lock: Lock) -> Lock:
    """Register a lock that is held only briefly, and never while a lock of another module is acquired."""
    _locks.append(lock)
    return lock


def _acquire() -> None:
    for lock in _locks:
        lock.acquire()


def _release() -> None:
    for lock in reversed(_locks):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release)
