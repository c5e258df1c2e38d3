"""Saves while files cannot grow: `python full_disk_child.py tests folder format...`.

The limit is that of the kernel on the size of files, so that a write fails in the middle of a file as on a full disk.
"""

from __future__ import annotations

import resource
import shutil
import sys
import warnings
from pathlib import Path


def main(tests: str, folder: str, *names: str) -> None:
    sys.path.insert(0, tests)
    warnings.simplefilter("ignore")
    for name in names:
        (Path(folder) / name).mkdir()
        fill_disk(Path(folder) / name / "kept", name)


def fill_disk(place: Path, name: str) -> None:
    from stored.formats import CONTINUED, FORMATS

    kind, wanted = FORMATS[name], []
    versions = kind.versions()
    for i, version in enumerate(versions):
        place.mkdir(exist_ok=True)
        kind.save(place, version)
        wanted.append(read(kind, place, place.with_name(f"copy{i}")))
    sizes = sorted({file.stat().st_size for file in place.rglob("*") if file.is_file()})
    limits = sorted({0, 1, 64, *(limit for size in sizes for limit in (size // 2, size - 1))})
    for i, limit in enumerate(limits):
        if name in CONTINUED:
            shutil.rmtree(place)
            place.mkdir()
        saved = save_within(limit, kind, place, versions[i % 2])
        found = read(kind, place, place.with_name(f"full{i}"))
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


def read(kind, folder: Path, copy: Path):
    shutil.copytree(folder, copy)
    return kind.read(copy)


if __name__ == "__main__":
    main(*sys.argv[1:])
