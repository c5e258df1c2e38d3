"""Reads changed files in a separate process: `python fuzz_child.py tests folder seed count format...`.

Prints one line for every change, before and after it is read, so that a signal can be told from an exception.
"""

from __future__ import annotations

import random
import resource
import shutil
import signal
import sys
import warnings
from pathlib import Path

PATIENCE = 100  # seconds for reading and using one file; the machine may be busy
MOST_MEMORY = 2**20  # kilobytes that reading may add


def main(tests: str, folder: str, seed: str, count: str, *names: str) -> None:
    sys.path.insert(0, tests)
    warnings.simplefilter("ignore")
    for name in names:
        (Path(folder) / name).mkdir()
        fuzz(Path(folder) / name, name, seed, int(count))


def fuzz(place: Path, name: str, seed: str, count: int) -> None:
    from storage.formats import FORMATS
    from storage.mutations import mutate

    kind = FORMATS[name]
    original, changed = place / "original", place / "changed"
    original.mkdir()
    kind.save(original, kind.versions()[0])
    shutil.copytree(original, changed)
    wanted = kind.read(changed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chance = random.Random(f"{name} {seed}")
    for _ in range(count):
        shutil.rmtree(changed, ignore_errors=True)
        shutil.copytree(original, changed)
        what = mutate(changed, chance)
        print("reading", what[:300].encode("ascii", "replace").decode(), flush=True)
        signal.alarm(PATIENCE)
        print(outcome(kind, changed, wanted), flush=True)
        signal.alarm(0)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"memory of {name}", flush=True)
    print("bounded" if used <= MOST_MEMORY else f"unclear: {used} kB", flush=True)


def outcome(kind, folder: Path, wanted: bytes) -> str:
    """Whether what was read is right, or is something else that can be used, or was refused clearly."""
    try:
        found = kind.read(folder)
    except (ValueError, TypeError, OSError) as error:
        is_named = str(folder) in str(error)
        return "clear" if is_named else f"unclear: {type(error).__name__}: {error!s:.300}".replace("\n", " ")
    except Exception as error:
        return f"unclear: {type(error).__name__}: {error!s:.300}".replace("\n", " ")
    return "right" if found == wanted else "other"


if __name__ == "__main__":
    main(*sys.argv[1:])
