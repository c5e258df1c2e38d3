"""`fork()` while another thread compiles: locks that are held in the parent are free in the child.

A child has the one thread that forked.  A lock that another thread held at that time would be held for ever, so the
forking thread takes all of them first, and waits for a compilation that is under way.
"""

from __future__ import annotations

import os
from threading import Lock

from llvmlite.binding.ffi import lib
from numba.core.compiler_lock import global_compiler_lock

_locks: list = [global_compiler_lock._lock, lib._lock._lock]  # in the order in which they are taken


def free_in_children(lock: Lock) -> Lock:
    """Register a lock that is taken for a moment, and never while one of another module is wanted."""
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
