"""Saves on a full disk: `python full_disk_child.py tests folder way format...`.

With the way "file system" each format has a small file system in memory, of which all but some pages are taken, so
that writes end with ENOSPC; that needs the right to mount.  With the way "limit" the kernel limits the size of files,
so that a write fails in the middle of a file.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = 4096
SIZE = 4 * 2**20  # of a file system


def main(tests: str, folder: str, way: str, *names: str) -> None:
    sys.path.insert(0, tests)
    warnings.simplefilter("ignore")
    for name in names:
        own = Path(folder) / name
        own.mkdir()
        if way == "limit":
            fill_disk(own / "kept", name, save_within)
            continue
        with mounted(own / "disk") as disk:
            fill_disk(disk / "kept", name, save_on_full_disk, own)


@contextmanager
def mounted(disk: Path) -> Iterator[Path]:
    """A file system in memory."""
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def can_mount(folder: Path) -> bool:
    """Whether this process has the right to."""
    try:
        with mounted(folder / "tried"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def fill_disk(place: Path, name: str, save_full, copies: Path | None = None) -> None:
    from storage.formats import CONTINUED, FORMATS

    kind, wanted = FORMATS[name], []
    copies = copies or place.parent
    versions = kind.versions()
    for i, version in enumerate(versions):
        place.mkdir(exist_ok=True)
        kind.save(place, version)
        wanted.append(read(kind, place, copies / f"copy{i}"))
    sizes = sorted({file.stat().st_size for file in place.rglob("*") if file.is_file()})
    limits = sorted({0, 1, 64, *(limit for size in sizes for limit in (size // 2, size - 1))})
    if save_full is save_on_full_disk:
        limits = sorted({-(-limit // PAGE) for limit in (*limits, 2 * max(sizes))})
    for i, limit in enumerate(limits):
        if name in CONTINUED:
            shutil.rmtree(place)
            place.mkdir()
        saved = save_full(limit, kind, place, versions[i % 2])
        found = read(kind, place, copies / f"full{i}")
        if saved:
            wanted[:] = [found, *wanted]
        print("whole" if found in wanted else f"lost at {limit}: {found}", flush=True)
    left = [str(file) for file in place.rglob("*.tmp")]
    print("clean" if not left else f"left {left}", flush=True)


def save_within(limit: int, kind, place: Path, version) -> bool:
    """Whether it could be saved; the error must be that of a file."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        kind.save(place, version)
    except OSError:
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return True


def save_on_full_disk(pages: int, kind, place: Path, version) -> bool:
    """Whether it could be saved with so many pages free; the error must say that the disk is full, and which file."""
    filler = place.parent / "filler"
    take_all_but(pages, filler)
    try:
        kind.save(place, version)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is None:
            print(f"unclear with {pages} pages: {error!r} {error.filename}", flush=True)
        return False
    finally:
        filler.unlink()
    return True


def take_all_but(pages: int, filler: Path) -> None:
    """Write a file until so many pages are free."""
    with open(filler, "wb", buffering=0) as file:
        free = os.statvfs(filler).f_bavail * os.statvfs(filler).f_frsize
        if free > pages * PAGE:
            file.write(b"\0" * (free - pages * PAGE))


def read(kind, folder: Path, copy: Path):
    shutil.copytree(folder, copy)
    return kind.read(copy)


if __name__ == "__main__":
    main(*sys.argv[1:])
