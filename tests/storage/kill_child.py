"""Kills savers: `python kill_child.py tests folder count format...` forks `count` of them for each format."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

SHORTEST, LONGEST = 0.001, 0.08  # seconds that a saver lives


def main(tests: str, folder: str, count: str, *names: str) -> None:
    sys.path.insert(0, tests)
    warnings.simplefilter("ignore")
    for name in names:
        (Path(folder) / name).mkdir()
        kill_savers(Path(folder) / name, name, int(count))


def kill_savers(place: Path, name: str, count: int) -> None:
    from storage.formats import CONTINUED, FORMATS

    kind, chance = FORMATS[name], random.Random(name)
    versions, wanted = kind.versions(), set()
    for i, version in enumerate(versions):
        (place / "kept").mkdir(exist_ok=True)
        kind.save(place / "kept", version)
        wanted.add(read(kind, place / "kept", place / f"copy{i}"))
    for i in range(count):
        if name in CONTINUED:
            shutil.rmtree(place / "kept")
        kill_saver(kind, place / "kept", versions, chance, is_repeated=name not in CONTINUED)
        (place / "kept").mkdir(exist_ok=True)
        found = read(kind, place / "kept", place / f"killed{i}")
        print("whole" if found in wanted else f"lost: {found!r:.300}", flush=True)
    left = [file.name for file in (place / "kept").glob("*.tmp")]
    print("clean" if len(left) <= 4 else f"{len(left)} temporary files", flush=True)


def kill_saver(kind, folder: Path, versions, chance: random.Random, is_repeated: bool) -> None:
    pid = os.fork()
    if pid == 0:
        folder.mkdir(exist_ok=True)
        while True:
            for version in versions:
                kind.save(folder, version)
            if not is_repeated:
                os._exit(0)
    time.sleep(chance.uniform(SHORTEST, LONGEST))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def read(kind, folder: Path, copy: Path):
    """What is there, read from a copy, for reading may go on with a run."""
    shutil.copytree(folder, copy)
    try:
        return kind.read(copy)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(*sys.argv[1:])
