"""Every public callable, with hostile arguments: a result or a clear error, never a crash, a hang or a vague message.

A call is *clear* if it ends with an exception of the package, with one that names an argument in backticks, or in the
user's own function.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fuzz import child
from fuzz.calls import CALLS, methods_of, public_callables
from fuzz.values import VALUES

SEED = 20
FAST, SLOW, BATCH = 1_000, 20_000, 2_500
STALL, PATIENT = 4, 120.0  # times the patience for one call, without a result: the process is ended; seconds
SHOWN = 60
MISSPELT = 0.06  # of the calls have an argument that does not exist


@pytest.fixture(autouse=True)
def files_elsewhere(tmp_path, monkeypatch):
    """Some calls write files where they are."""
    monkeypatch.chdir(tmp_path)


def test_every_public_callable_has_a_call(counted):
    wanted = set()
    for name, member in public_callables().items():
        wanted.add(name)
        if isinstance(member, type):
            wanted |= {f"{name}.{method}" for method in methods_of(member)}
    wanted |= _returned_methods()
    assert not wanted - set(CALLS)
    for name in sorted(wanted):
        counted("public callables with a valid call", name, len(wanted))


def test_every_valid_call_is_valid(tmp_path):
    plan = [(name, {}) for name in CALLS]
    results = run(plan, tmp_path, PATIENT)
    wrong = [describe(*each) for each in zip(plan, results, strict=True) if each[1][0] != "ok"]
    assert not wrong, "\n".join(wrong)


def test_hostile_arguments(tmp_path, capsys):
    hold(chosen(FAST, SEED), tmp_path, capsys)


def test_every_callable_names_a_misspelt_argument(tmp_path, counted):
    generator = random.Random(SEED)
    names = [name for name in CALLS if arguments_of(name) and is_named(name)]
    plan = [(name, {child.UNKNOWN + misspell(arguments_of(name)[0], generator): "None"}) for name in names]
    results = run(plan, tmp_path, PATIENT)
    wrong = [describe(*each) for each in zip(plan, results, strict=True) if each[1][0] != "clean"]
    assert not wrong, "\n".join(wrong)
    for name in names:
        counted("callables that name a misspelt argument", name, len(names))


@pytest.mark.slow
def test_many_hostile_arguments(tmp_path, capsys):
    hold(chosen(SLOW, SEED + 1), tmp_path, capsys)


def hold(plan: list, folder: Path, capsys) -> None:
    """Run all calls; none may be unclear, crash or hang, and none may ignore a misspelt argument.

    What takes too long is tried again with more patience: it may have been the first to compile a kernel.  What lacks
    memory is tried again in a process of its own, where earlier calls have not used any.
    """
    results = run(plan, folder)
    slow = [i for i, (found, _) in enumerate(results) if found == "hang"]
    for i, result in zip(slow, run([plan[i] for i in slow], folder, PATIENT), strict=True):
        results[i] = result
    for i, (found, message) in enumerate(results):
        if found == "unclear" and message.startswith("MemoryError"):
            (results[i],) = run([plan[i]], folder, PATIENT)
    counts = Counter(found for found, _ in results)
    with capsys.disabled():
        print(f"\n{len(plan)} hostile calls: " + ", ".join(f"{counts[key]} {key}" for key in sorted(counts)))
    wrong = [describe(*each) for each in zip(plan, results, strict=True) if each[1][0] not in ("ok", "clean")]
    assert not wrong, f"{len(wrong)} calls, the first of them:\n" + "\n".join(wrong[:SHOWN])


def describe(call: tuple, result: tuple) -> str:
    """A call that can be repeated: python tests/fuzz/child.py NAME '{"argument": "value"}'."""
    name, hostile = call
    return f"{result[0]}: child.py {name!r} '{json.dumps(hostile)}'\n    {result[1]}"


def chosen(count: int, seed: int) -> list[tuple[str, dict[str, str]]]:
    """As many calls, each with one or two hostile arguments, every callable and every value about equally often.

    Some have an argument that does not exist, a misspelt one of theirs, marked as in child.py.
    """
    generator = random.Random(seed)
    names = [name for name in CALLS if arguments_of(name)]
    values = list(VALUES)
    plan: list[tuple[str, dict[str, str]]] = []
    while len(plan) < count:
        generator.shuffle(names)
        for name in names:
            arguments = arguments_of(name)
            some = generator.sample(arguments, min(len(arguments), 1 + (generator.random() < 0.25)))
            if generator.random() < MISSPELT and is_named(name):
                some = [child.UNKNOWN + misspell(generator.choice(arguments), generator)]
            plan.append((name, {each: generator.choice(values) for each in some}))
    return plan[:count]


def is_named(name: str) -> bool:
    """Whether it is a name of the package, and not a combination of calls, whose arguments have names."""
    return name.startswith("stepnet.") and not any(each.startswith("/") for each in arguments_of(name))


def misspell(argument: str, generator: random.Random) -> str:
    """A name that differs by a letter and is no name of an argument."""
    place = generator.randrange(len(argument) + 1)
    return f"{argument[:place]}qx{argument[place:]}" if place else f"x{argument}q"


def arguments_of(name: str) -> list[str]:
    """The arguments of the valid call, and those that have defaults."""
    if name not in _arguments:
        function, named = CALLS[name]()
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:
            parameters = ()
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        is_unnamed = any(key.startswith("/") for key in named)
        more = [] if is_unnamed else [each.name for each in parameters if each.kind in kinds]
        _arguments[name] = [key for key in dict.fromkeys((*named, *more)) if key not in ("integrator", "progress")]
    return _arguments[name]


_arguments: dict[str, list[str]] = {}


def run(plan: list, folder: Path, patience: float = child.PATIENCE) -> list[tuple[str, str]]:
    """The class and the message of every call."""
    found: dict[int, tuple[str, str]] = {}
    todo = list(range(len(plan)))
    while todo:
        batch, results = todo[:BATCH], folder / "results.jsonl"
        results.unlink(missing_ok=True)
        (folder / "plan.jsonl").write_text("".join(json.dumps([i, *plan[i]]) + "\n" for i in batch))
        ending = _run_child(folder / "plan.jsonl", results, patience)
        lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        found.update({number: (kind, message) for number, *rest in lines if rest for kind, message in [rest]})
        begun = {number for number, *_ in lines} - set(found)
        found.update(dict.fromkeys(begun, (ending, "the process ended here")))
        assert lines, f"the process ended before its first call: {ending}"
        todo = [i for i in todo if i not in found]
    return [found[i] for i in range(len(plan))]


def _run_child(plan: Path, results: Path, patience: float) -> str:
    """Run a process until it ends or stalls; how it ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2", "MPLBACKEND": "Agg"}
    environment["FUZZ_PATIENCE"] = str(patience)
    call = [sys.executable, child.__file__, str(plan), str(results)]
    with open(plan.with_name("errors.txt"), "w") as errors:
        process = subprocess.Popen(call, env=environment, stdin=subprocess.DEVNULL, stderr=errors)
        size = -1
        while True:
            try:
                code = process.wait(STALL * patience)
                break
            except subprocess.TimeoutExpired:
                now = results.stat().st_size if results.exists() else 0
                if now == size:
                    process.kill()
                    process.wait()
                    return "hang"
                size = now
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"


def _returned_methods() -> set[str]:
    """Public methods of the objects that valid calls return, where these are of classes without a public name."""
    known = {id(member) for member in public_callables().values()}
    found: set[str] = set()
    for name in CALLS:
        if name in RETURNING:
            function, named = CALLS[name]()
            named = dict(named)
            unnamed = [named.pop(key) for key in sorted(key for key in named if key.startswith("/"))]
            result = function(*unnamed, **named)
            for each in result if isinstance(result, tuple) else (result, getattr(result, "sol", None)):
                kind = type(each)
                if kind.__module__.startswith("stepnet.") and id(kind) not in known:
                    found |= {f"{kind.__module__}.{kind.__qualname__}.{method}" for method in methods_of(kind)}
    return found


RETURNING = [name for name in CALLS if name.split(".")[-1].islower() and not name.startswith("stepnet.plots")]
