"""Numba's internals are used in one package, under a version that was tested."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "stepnet"
CODEGEN = SOURCES / "engines" / "numba_engine" / "codegen"
INTERNAL = ("numba.core", "numba.np", "numba.extending", "numba.typed", "numba.misc", "numba.cpython", "llvmlite")
"""import-linter does not tell the subpackages of `numba` apart, so they are found here."""
MOST_FILES = 15


def imports_of(text: str) -> Iterator[str]:
    """All modules and names that a source imports, at its top or within functions, by their dotted paths."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def is_internal(name: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in INTERNAL)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from numba.core.dispatcher import Dispatcher", True),
        ("def f():\n    from numba import extending", True),
        ("import llvmlite.binding as llvm", True),
        ("from numba import carray, njit, types", False),
        ("import numba", False),
    ],
)
def test_imports_are_told_apart(line, found):
    assert any(map(is_internal, imports_of(line))) == found


def test_internals_of_numba_are_imported_in_codegen_only():
    files = [path for path in SOURCES.rglob("*.py") if not path.is_relative_to(CODEGEN)]
    found = {str(path): [each for each in imports_of(path.read_text()) if is_internal(each)] for path in files}
    assert {path: names for path, names in found.items() if names} == {}
    assert any(is_internal(each) for path in CODEGEN.rglob("*.py") for each in imports_of(path.read_text()))


def test_numba_has_a_tested_upper_bound():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (numba,) = (each for each in map(Requirement, project["dependencies"]) if each.name == "numba")
    assert "<" in {each.operator for each in numba.specifier}
    assert numba.specifier.contains(version("numba"))


def test_folders_of_codegen_are_small():
    for folder in (CODEGEN, *(path for path in CODEGEN.iterdir() if (path / "__init__.py").exists())):
        assert len(list(folder.glob("*.py"))) <= MOST_FILES, folder
