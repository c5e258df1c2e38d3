"""Compiled kernels are cached on disk, in a folder whose name is a hash of everything they depend on."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import shutil
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import platformdirs
import pytest
from numba.core.dispatcher import Dispatcher
from numba_engine.runs import child

from stepnet.engines import numba_engine
from stepnet.engines.numba_engine.codegen import disk_cache as cache
from stepnet.engines.numba_engine.codegen.kernels import FieldKernel, Kernel

SOLVE = """
    import numba, stepnet as sn

    @numba.cfunc("int32(float64, CPointer(float64), CPointer(float64), CPointer(float64), int64)")
    def rhs(t, y, dy, p, n):
        dy[0] = -y[0]
        return 0

    print(sn.solve(sn.ODE(rhs, [1.0], (0.0, 1.0)), "{scheme}", steps=10).y[-1, 0])
"""
LIGHTEST = "carpenter_kennedy54"  # its kernel compiles fastest
EXPECTED = 0.36788


def solve_in(directory: Path, scheme: str = LIGHTEST) -> float:
    return float(child.succeed(SOLVE.format(scheme=scheme), STEPNET_CACHE_DIR=str(directory)))


def files_in(directory: Path) -> dict[str, int]:
    return {str(p.relative_to(directory)): p.stat().st_mtime_ns for p in directory.rglob("*") if p.is_file()}


def test_a_second_process_finds_the_kernels_of_the_first(tmp_path):
    assert solve_in(tmp_path) == pytest.approx(EXPECTED, abs=1e-4)
    first = files_in(tmp_path)
    assert any(name.endswith(".kernel") for name in first)
    assert {Path(name).parts[0] for name in first} == {cache.source_stamp()}
    assert solve_in(tmp_path) == pytest.approx(EXPECTED, abs=1e-4)
    assert files_in(tmp_path) == first


UNUSABLE = "every process compiles"


def solve_and_warn(directory: Path, **environment) -> str:
    """Standard error of a solve that must succeed."""
    done = child.run(SOLVE.format(scheme=LIGHTEST), STEPNET_CACHE_DIR=str(directory), **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) == pytest.approx(EXPECTED, abs=1e-4)
    return done.stderr


@pytest.mark.parametrize("place", ["a file, not a folder/cache", "/proc/stepnet"])  # nobody may write in /proc
def test_a_place_that_cannot_be_written_is_reported_once_and_does_not_stop_a_solve(tmp_path, place):
    (tmp_path / "a file, not a folder").write_text("")
    assert solve_and_warn(tmp_path / place).count(UNUSABLE) == 1


def test_a_user_without_a_home_can_name_a_place(tmp_path):
    script = f"""
        import os, pwd
        os.environ.pop("HOME", None)
        os.environ.pop("XDG_CACHE_HOME", None)
        pwd.getpwuid = lambda uid: (_ for _ in ()).throw(KeyError(uid))
        {{place}}
        import stepnet as sn
        print(sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "{LIGHTEST}", steps=10).y[-1, 0])
    """
    for place, reports in ((f"os.environ['STEPNET_CACHE_DIR'] = {str(tmp_path)!r}", 0),
                           ("os.environ.pop('STEPNET_CACHE_DIR', None)", 1)):  # fmt: skip
        done = child.run(script.format(place=place))
        assert done.returncode == 0, done.stderr[-3000:]
        assert float(done.stdout) == pytest.approx(EXPECTED, abs=1e-4)
        assert done.stderr.count(UNUSABLE) == reports
    assert files_in(tmp_path)


def test_the_cache_is_in_the_folder_of_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("STEPNET_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_directory() == platformdirs.user_cache_path("stepnet", False) / cache.source_stamp()
    if sys.platform == "linux":
        assert cache.cache_directory() == tmp_path / "xdg" / "stepnet" / cache.source_stamp()
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache.cache_directory() == tmp_path / ".cache" / "stepnet" / cache.source_stamp()


# ---- trust and damage ------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A cache of our own with one file, `name`, in this process."""
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_warned", set())
    return tmp_path / cache.source_stamp()


def test_what_is_written_is_read(place):
    cache.write("name", b"machine code")
    assert cache.read("name") == b"machine code"
    assert cache.read("another name") is None


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077, 0o777])
def test_only_the_owner_can_write_the_cache_whatever_the_umask(place, umask):
    before = os.umask(umask)
    try:
        cache.write("name", b"machine code")
    finally:
        os.umask(before)
    assert place.stat().st_mode & 0o777 == 0o700
    assert (place / "name").stat().st_mode & 0o777 == 0o600
    assert cache.read("name") == b"machine code"


DAMAGES = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "one bit": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "bit of the checksum": lambda data: bytes([data[0] ^ 128]) + data[1:],
    "longer": lambda data: data + b"x",
    "other contents": lambda data: b"not a kernel",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_not_used(place, damage):
    cache.write("name", b"machine code")
    (place / "name").write_bytes(DAMAGES[damage]((place / "name").read_bytes()))
    assert cache.read("name") is None


def test_a_file_under_another_name_is_not_used(place):
    cache.write("name", b"machine code")
    (place / "name").rename(place / "other")
    assert cache.read("other") is None


@pytest.mark.parametrize("planted", ["folder", "file"])
def test_files_of_other_users_are_not_used(place, monkeypatch, planted):
    """Another user now is who wrote the file, or who wrote it into a folder of ours."""
    cache.write("name", b"machine code")
    me, folder = os.geteuid() + 1, list(place.stat())
    monkeypatch.setattr(cache.os, "geteuid", lambda: me)
    if planted == "file":
        folder[4] = me
        monkeypatch.setattr(cache.os, "stat", lambda path: os.stat_result(folder))
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        assert cache.read("name") is None


@pytest.mark.parametrize("planted", ["folder", "file"])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_files_that_others_can_write_are_not_used(place, planted, mode):
    cache.write("name", b"machine code")
    (place if planted == "folder" else place / "name").chmod(mode)
    with pytest.warns(RuntimeWarning, match="writable by other users"):
        assert cache.read("name") is None


def test_a_link_is_not_followed(place, tmp_path):
    cache.write("name", b"machine code")
    (place / "name").rename(tmp_path / "elsewhere")
    (place / "name").symlink_to(tmp_path / "elsewhere")
    assert cache.read("name") is None


def test_a_full_disk_leaves_nothing_behind(place, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", fail)
    with pytest.warns(RuntimeWarning, match="No space left"):
        cache.write("name", b"machine code")
    assert list(place.iterdir()) == []


@pytest.mark.slow
def test_damaged_kernels_and_traces_are_built_again(tmp_path, counted):
    """Machine code that is damaged kills the process, so each damage is tried in a process of its own."""
    long_code = """
    import ctypes
    from stepnet.engines.numba_engine.codegen.machine_code import LONG, MachineCode
    code = MachineCode("define i32 @f() {\\n  ret i32 7\\n}\\n" + ";\\n" * (LONG + 1), "f")
    assert ctypes.CFUNCTYPE(ctypes.c_int)(code.address)() == 7
    """
    code = SOLVE.format(scheme=LIGHTEST) + long_code
    expected = child.succeed(code, STEPNET_CACHE_DIR=str(tmp_path))
    files = [path for path in tmp_path.rglob("*.*") if path.is_file()]
    assert {path.suffix for path in files} == {".kernel", ".o"}
    for name, damage in DAMAGES.items():
        for path in files:
            path.write_bytes(damage(path.read_bytes()))
        assert child.succeed(code, STEPNET_CACHE_DIR=str(tmp_path)) == expected
        counted("kinds of damage to cached machine code", name, len(DAMAGES))


# ---- the stamp ------------------------------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path, monkeypatch) -> Path:
    """A copy of the engine, looked at instead of the engine."""
    copy = tmp_path / "numba_engine"
    shutil.copytree(cache.ENGINE_SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(cache, "ENGINE_SOURCES", copy)
    return copy


def stamp() -> str:
    return cache.source_stamp.__wrapped__()


def test_the_stamp_of_a_copy_is_that_of_the_original(sources):
    """So that a fresh clone finds what another one compiled."""
    assert stamp() == cache.source_stamp()


@pytest.mark.parametrize(
    "name", ["integrators/explicit_rk.py", "integrators/stepping.py", "rhs/problem_parts.py", "codegen/kernels.py"]
)
def test_the_stamp_changes_with_every_source_file(sources, name):
    before = stamp()
    path = sources / name
    path.write_text(path.read_text() + "\n# another line\n")
    assert stamp() != before


def test_the_stamp_changes_when_a_file_is_added_removed_or_renamed(sources):
    seen = {stamp()}
    (sources / "new.py").write_text("")
    seen.add(stamp())
    (sources / "new.py").rename(sources / "newer.py")
    seen.add(stamp())
    assert len(seen) == 3
    (sources / "newer.py").unlink()
    assert stamp() in seen


@pytest.mark.parametrize("name", cache.FROZEN_SOURCES)
def test_the_stamp_changes_with_constants_from_outside(monkeypatch, tmp_path, name):
    before, copy = stamp(), tmp_path / "copy.py"
    copy.write_text(cache.FROZEN_SOURCES[name].read_text() + "\n# another line\n")
    monkeypatch.setitem(cache.FROZEN_SOURCES, name, copy)
    assert stamp() != before


def list_kernel_functions() -> list[FunctionType]:
    """The Python functions of all kernels, and of what modules of the engine compile for kernels."""
    found = []
    for module in pkgutil.walk_packages(numba_engine.__path__, f"{numba_engine.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Kernel):
                found.append(value._dispatcher.py_func)
            elif isinstance(value, FieldKernel):
                found.append(value._function)
            elif isinstance(value, Dispatcher):
                found.append(value.py_func)
    return found


def find_imports(module: str) -> dict[str, str]:
    """The module that each imported name of a module comes from."""
    nodes = ast.walk(ast.parse(inspect.getsource(sys.modules[module])))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.asname or alias.name: node.module for node in imports for alias in node.names}


def find_homes(functions: list[FunctionType]) -> set[str]:
    """Modules of the package, outside of the engine, whose functions or constants some functions reach."""
    homes, seen = set(), set()
    while functions:
        function = functions.pop()
        if function in seen:
            continue
        seen.add(function)
        homes.add(function.__module__)
        imports = find_imports(function.__module__) if function.__module__.startswith("stepnet.") else {}
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            value = value.py_func if isinstance(value, Dispatcher) else value
            if isinstance(value, FunctionType):
                functions.append(value)
            elif isinstance(value, ModuleType):
                homes.add(value.__name__)
            elif name in imports:
                homes.add(imports[name])
    assert len(seen) > 150
    return {home for home in homes if home.startswith("stepnet.") and not home.startswith("stepnet.engines.")}


def test_the_stamp_covers_everything_that_kernels_take_from_outside():
    """Functions and constants that kernels reach, and constants that the writers of intrinsics import."""
    found = find_homes(list_kernel_functions())
    for path in (cache.ENGINE_SOURCES / "codegen" / "intrinsics").glob("*.py"):
        for module, names in re.findall(
            r"^from (stepnet\.[\w.]+) import \(?([^)]*?)\)?$", path.read_text(), flags=re.M
        ):
            if not module.startswith("stepnet.engines.") and re.search(r"\b[A-Z][A-Z_]+\b", names):
                found.add(module)
    assert {"stepnet.fields.activations", "stepnet.noise.bridge", "stepnet.noise.counters"} <= found
    assert found <= set(cache.FROZEN_SOURCES)


def test_the_stamp_does_not_look_at_the_time_of_files(sources):
    before = stamp()
    for path in sources.rglob("*.py"):
        os.utime(path, (0, 0))
    assert stamp() == before


@pytest.mark.parametrize("module", ["numba", "llvmlite", "np"])
def test_the_stamp_changes_with_the_versions(monkeypatch, module):
    before = stamp()
    monkeypatch.setattr(getattr(cache, module), "__version__", "0.0.0")
    assert stamp() != before


def test_the_stamp_changes_with_the_processor(monkeypatch):
    before = stamp()
    monkeypatch.setattr(cache.llvm, "get_host_cpu_name", lambda: "abacus")
    assert stamp() != before


def test_the_place_is_that_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path))
    assert cache.cache_directory() == tmp_path / cache.source_stamp()
    monkeypatch.delenv("STEPNET_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_directory() == tmp_path / "xdg" / "stepnet" / cache.source_stamp()
