"""Runs calls with hostile arguments one after another and records how each one ended.

    python child.py PLAN RESULTS
    python child.py NAME '{"argument": "hostile value"}'    # one call again

PLAN has one call a line, a JSON list [name, {argument: hostile value}, ...]; before a call its number is written to
RESULTS, and after it the class and the message, so that the parent knows at which call a process died.  An argument
that begins with "?" does not exist: the call must end with an error that names it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

PATIENCE = float(os.environ.get("FUZZ_PATIENCE", "10"))  # seconds for one call
MEMORY = 12 * 2**30  # address space; a call that asks for more gets a MemoryError
HERE = Path(__file__).resolve().parent
UNKNOWN = "?"  # before the name of an argument that does not exist
ARGUMENT = re.compile(r"`[\w.\[\]*()= ,\"'/-]+`")
UNCLEAR = (
    AttributeError, IndexError, KeyError, OverflowError, ZeroDivisionError, UnboundLocalError, AssertionError,
    RecursionError, MemoryError, EOFError, json.JSONDecodeError, RuntimeWarning,
)  # fmt: skip


class TooLong(BaseException):
    """A call that does not end."""


def class_of(error: BaseException, name: str) -> str:
    """How an exception reads to whoever made the call `name`."""
    if isinstance(error, TooLong):
        return "hang"
    module = type(error).__module__
    if module == "stepnet.errors":
        return "clean"
    if ends_in_hostile_code(error):
        return "clean"
    if isinstance(error, MemoryError) and is_raised_by_us(error) and ARGUMENT.search(str(error)):
        return "clean"
    if isinstance(error, UNCLEAR) or module.startswith(("numba", "llvmlite", "ctypes", "_csv", "_ctypes", "pickle")):
        return "unclear"
    text = str(error)
    if isinstance(error, OSError):
        return "clean" if error.filename is not None or ARGUMENT.search(text) else "unclear"
    if is_arity(text):
        return "clean" if names_the_call(text, name) else "unclear"
    if isinstance(error, (ValueError, TypeError, LookupError, NotImplementedError)):
        return "clean" if ARGUMENT.search(text) or is_enumeration(text, name) else "unclear"
    if isinstance(error, Warning):
        return "clean" if ARGUMENT.search(text) else "unclear"
    return "clean" if is_raised_by_us(error) else "unclear"


def ends_in_hostile_code(error: BaseException) -> bool:
    """Whether the innermost frame of the error, or of what it came from, is one of values.py or calls.py."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).parent == HERE and Path(frames[-1].filename).name != "child.py"


def is_raised_by_us(error: BaseException) -> bool:
    """Whether the innermost frame is a `raise` of the package."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "/stepnet/" in frames[-1].filename and (frames[-1].line or "").startswith("raise")


def is_arity(text: str) -> bool:
    return bool(re.search(r"\) (got|missing|takes) ", text)) and not ARGUMENT.search(text)


def names_the_call(text: str, name: str) -> bool:
    """Whether a message of Python names the public function or class, and no other one or lambda inside."""
    called, parts = text.split("(")[0].split("."), name.split(".")
    if called[-1] in users_functions() or called[-1] == parts[-1]:
        return True
    is_method = called[-1] == "__call__" and called[:-1] == parts[-2:-1]  # `forward` is another name of it
    return is_method or (called[:-1] == parts[-1:] and called[-1] in ("__init__", "__new__"))


def users_functions() -> set[str]:
    """Names of the functions that hostile and valid calls hand over: an error of their arguments names them."""
    import calls
    import values

    named = {name for module in (calls, values) for name, each in vars(module).items() if callable(each)}
    return named | {memoryview.__name__}


def is_enumeration(text: str, name: str) -> bool:
    return f"is not a valid {name.split('.')[-1]}" in text


def run(name: str, hostile: dict[str, str]) -> tuple[str, str]:
    """The class of one call, and its message."""
    from calls import CALLS
    from values import VALUES

    try:
        function, named = CALLS[name]()
        named = dict(named)
        named.update({argument.removeprefix(UNKNOWN): VALUES[value]() for argument, value in hostile.items()})
    except TooLong:
        return "hang", "while the valid call was built"
    except BaseException:
        return "broken", traceback.format_exc()
    unknown = [each.removeprefix(UNKNOWN) for each in hostile if each.startswith(UNKNOWN)]
    unnamed = [named.pop(key) for key in sorted(key for key in named if key.startswith("/"))]
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Warning if unknown else RuntimeWarning)  # `solve_ivp` warns as SciPy does
            function(*unnamed, **named)
        return ("unclear", "it ignored an argument that does not exist") if unknown else ("ok", "")
    except BaseException as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        try:
            found = class_of(error, name)
            text = str(error)
            if found == "clean" and not all(each in text for each in unknown):
                found = "unclear"
        except Exception as other:
            found, text = "unclear", f"its message is an error: {other!r}"
        return found, f"{type(error).__name__}: {text:.300} [{place}]"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main(plan: str, results: str) -> None:
    def too_long(*_):
        raise TooLong

    signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path.insert(0, str(HERE))
    lines = Path(plan).read_text().splitlines()
    with open(results, "a", buffering=1) as file, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for line in lines:
            number, name, hostile = json.loads(line)
            file.write(json.dumps([number]) + "\n")
            file.write(json.dumps([number, *run(name, hostile)]) + "\n")
            for each in os.listdir(folder):
                if os.path.isfile(each) or os.path.islink(each):
                    os.unlink(each)


if __name__ == "__main__":
    if sys.argv[2].startswith("{"):
        sys.path.insert(0, str(HERE))
        print(*run(sys.argv[1], json.loads(sys.argv[2])))
    else:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        main(*sys.argv[1:])
