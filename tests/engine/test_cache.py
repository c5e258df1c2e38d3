"""Compiled kernels are kept on disk, in a place named by everything they depend on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from engine import child

from stepnet.engines.numba_engine.compile import cache

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
    assert any(name.endswith(".nbc") for name in first)
    assert {Path(name).parts[0] for name in first} == {cache.source_stamp()}
    assert solve_in(tmp_path) == pytest.approx(EXPECTED, abs=1e-4)
    assert files_in(tmp_path) == first


def test_a_place_that_cannot_be_written_does_not_stop_a_solve(tmp_path):
    blocked = tmp_path / "a file, not a folder"
    blocked.write_text("")
    assert solve_in(blocked / "cache") == pytest.approx(EXPECTED, abs=1e-4)


def test_a_read_only_place_does_not_stop_a_solve():
    """Nobody may make a folder here, not even root."""
    assert solve_in(Path("/proc/stepnet")) == pytest.approx(EXPECTED, abs=1e-4)


@pytest.mark.slow
def test_broken_files_are_compiled_again(tmp_path):
    solve_in(tmp_path)
    for path in tmp_path.rglob("*.nb*"):
        path.write_bytes(b"not a kernel")
    assert solve_in(tmp_path) == pytest.approx(EXPECTED, abs=1e-4)


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


@pytest.mark.parametrize("name", ["explicit_rk.py", "stepping.py", "compile/problems.py", "compile/cache.py"])
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
