"""One of two processes on one folder: `python two_child.py tests format folder [wait]`.

With `wait` it stops at its first write, says so, and goes on when the file `go` is beside the folder.
"""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from pathlib import Path

WRITERS = {
    "stepnet.training.storage": "write_file",
    "stepnet.ensembles.sweeps.storage": "write_file",
    "stepnet.gradients.state_store": "write_scratch_file",
    "stepnet.estimators.files": "write_file",
}
PATIENCE = 600.0


def main(tests: str, name: str, folder: str, *wait: str) -> None:
    sys.path.insert(0, tests)
    warnings.simplefilter("ignore")
    from storage.formats import FORMATS

    kind, place = FORMATS[name], Path(folder)
    version = kind.versions()[0]
    if wait:
        for module, writer in WRITERS.items():
            stop_before(importlib.import_module(module), writer, place.with_name("go"))
    importlib.import_module("stepnet.estimators.files").PATIENCE = 0.2
    place.mkdir(exist_ok=True)
    print("ready", flush=True)
    try:
        kind.save(place, version)
        print("right", kind.read(place).hex(), flush=True)
    except BlockingIOError as error:
        print("in use:", error, flush=True)


def stop_before(module, writer: str, go: Path) -> None:
    original, is_first = getattr(module, writer), [True]

    def stopped(*arguments):
        if is_first:
            is_first.clear()
            print("stopped", flush=True)
            deadline = time.monotonic() + PATIENCE
            while not go.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        return original(*arguments)

    setattr(module, writer, stopped)


if __name__ == "__main__":
    main(*sys.argv[1:])
