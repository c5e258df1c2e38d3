"""The package as it is imported, listed and called from the command line."""

from __future__ import annotations

import ast
import importlib
import itertools
import pkgutil
import re
import subprocess
import sys
import textwrap
import tomllib
from collections import defaultdict
from importlib import resources
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from numba_engine.runs import child

import stepnet as sn

HEAVY = ["numba", "llvmlite", "scipy", "torch", "matplotlib", "sklearn", "tqdm", "click", "pandas", "dask", "zarr"]
NAMES = list(sn.__all__)
SOURCES = Path(sn.__file__).parent


def test_import_loads_numpy_and_nothing_heavier():
    program = f"import sys, stepnet; print([m for m in {HEAVY} if m in sys.modules], 'numpy' in sys.modules)"
    assert child.succeed(program).strip() == "[] True"


def test_records_and_schemes_do_without_the_compiler():
    program = f"""
        import sys, stepnet as sn
        sn.ODE(lambda t, y: y, [1.0], (0.0, 1.0))
        sn.schemes.find(order=4, symplectic=True)
        sn.Status.COMPLETED
        print([m for m in {HEAVY} if m in sys.modules])
    """
    assert child.succeed(program).strip() == "[]"


def test_solving_loads_neither_torch_nor_matplotlib():
    program = """
        import sys, stepnet as sn
        sn.solve(sn.ODE(lambda t, y: [-y[0]], [1.0], (0.0, 1.0)), "rk4", steps=3)
        print([m for m in ["torch", "matplotlib", "sklearn"] if m in sys.modules])
    """
    assert child.succeed(program, STEPNET_RUNG="python").strip() == "[]"


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_can_be_fetched_twice(name):
    assert getattr(sn, name) is getattr(sn, name)


def test_public_names_are_the_same_in_any_order():
    """In fresh processes: the first name fetched must not turn another one into a module."""
    program = """
        import sys, stepnet as sn
        names = sys.argv[1].split(",")
        for _ in range(2):
            print(*(f"{name}:{type(getattr(sn, name)).__name__}" for name in sorted(names, key=names.index)))
    """
    found = set()
    for names in (NAMES, NAMES[::-1], sorted(NAMES)):
        out = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), ",".join(names)],
            capture_output=True, text=True, check=True, timeout=child.PATIENCE,
        ).stdout  # fmt: skip
        for line in out.splitlines():
            found.add(tuple(sorted(line.split())))
    assert len(found) == 1


def test_no_public_function_is_shadowed_by_a_module():
    for module in pkgutil.walk_packages(sn.__path__, "stepnet."):
        importlib.import_module(module.name)
    for name in sn.__all__:
        is_module = isinstance(getattr(sn, name), ModuleType)
        assert is_module == (name in sn._MODULES), name
    assert callable(sn.solve)


def test_no_submodule_has_the_name_of_a_public_function():
    modules = {m.name for m in pkgutil.iter_modules(sn.__path__)}
    assert not modules & (set(sn.__all__) - set(sn._MODULES))


def test_dir_lists_every_public_name():
    assert set(sn.__all__) <= set(dir(sn))
    assert dir(sn) == sorted(dir(sn))
    assert "__version__" in dir(sn)


def test_star_import_brings_every_public_name():
    namespace: dict = {}
    exec("from stepnet import *", namespace)
    assert set(sn.__all__) <= set(namespace)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="'stepnet' has no attribute 'sovle'"):
        _ = sn.sovle
    assert not hasattr(sn, "numba_engine")


def test_public_functions_are_documented():
    for name in sn.__all__:
        assert (getattr(sn, name).__doc__ or "").strip(), name


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert sn.__version__ == version("stepnet")
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", sn.__version__)


def test_every_argument_of_solve_is_documented():
    """In the order of the signature."""
    import inspect

    parameters = list(inspect.signature(sn.solve).parameters)
    text = sn.solve.__doc__
    places = [re.search(rf"^    (?:\w+, )*{name}(?:, \w+)* :", text, re.M) for name in parameters]
    assert all(places)
    starts = [place.start() for place in places]
    assert starts == sorted(starts)


def test_the_package_is_marked_as_needing_its_dependencies():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    needed = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    assert {"numpy", "scipy", "numba", "tqdm", "click", "platformdirs", "threadpoolctl"} <= needed


def test_the_package_ships_its_types():
    """Hatch puts all files of the package into the wheel; type checkers look for this one."""
    assert (resources.files("stepnet") / "py.typed").is_file()
    build = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"] == {"packages": ["src/stepnet"]}


# ---- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture
def call():
    from stepnet.cli.commands import main

    def invoke(*arguments: str):
        return CliRunner().invoke(main, list(arguments))

    return invoke


def test_the_command_line_tells_its_version(call):
    result = call("--version")
    assert result.exit_code == 0
    assert sn.__version__ in result.output


def test_the_command_line_explains_itself(call):
    result = call("--help")
    assert result.exit_code == 0
    assert {"demo", "info"} <= set(result.output.split())
    for command in ("demo", "info"):
        explained = call(command, "--help")
        assert explained.exit_code == 0
        assert "Usage" in explained.output


def test_info_tells_what_a_bug_report_needs(call, monkeypatch, tmp_path):
    import llvmlite
    import numba
    import numpy

    monkeypatch.setenv("STEPNET_CACHE_DIR", str(tmp_path))
    result = call("info")
    assert result.exit_code == 0, result.output
    for fact in (sn.__version__, numpy.__version__, numba.__version__, str(tmp_path)):
        assert fact in result.output
    for word in ("cpu", "thread", "cache", "compiled", "python"):
        assert word in result.output.lower(), word
    assert llvmlite.binding.get_host_cpu_name() in result.output


def test_the_demo_prints_tables_and_draws_figures(call, tmp_path):
    result = call("demo", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert result.output.count("closing error") == result.output.count("energy drift") == 2
    orders = re.findall(r"^(?:euler_maruyama|milstein|sriw1) .* ([\d.]+) +([\d.]+)$", result.output, re.MULTILINE)
    assert [abs(float(measured) - float(declared)) < 0.1 for measured, declared in orders] == [True] * 3
    page = (tmp_path / "index.html").read_text()
    for weights, verdict in (("growing", "not certified"), ("decaying", "stable"), ("antisymmetric", "stable")):
        assert f"{weights}: {verdict}" in result.output
    assert "plain Monte Carlo costs" in result.output
    assert result.output.count("SciPy LSODA") == 2
    assert "steepest slope" in result.output
    for name in (
        "kepler.png",
        "arenstorf.png",
        "brownian.png",
        "classifier.png",
        "equations.png",
        "layers.png",
        "stiff.png",
    ):
        assert (tmp_path / name).stat().st_size > 10_000
        assert page.count(f'src="{name}"') == 1
    assert page.count("closing error") == 2


def test_the_package_is_a_command():
    call = [sys.executable, "-m", "stepnet", "--version"]
    out = subprocess.run(call, capture_output=True, text=True, check=True, timeout=child.PATIENCE)
    assert sn.__version__ in out.stdout


def test_unknown_commands_are_refused(call):
    result = call("solv")
    assert result.exit_code == 2
    assert "No such command" in result.output


def test_the_command_is_installed():
    command = Path(sys.executable).with_name("stepnet")
    out = subprocess.run([command, "--version"], capture_output=True, text=True, check=True, timeout=child.PATIENCE)
    assert sn.__version__ in out.stdout


def test_pairs_of_names_fetched_first_do_not_matter():
    """Every ordered pair, with the package's own cache of names emptied before each."""
    wanted = {name: getattr(sn, name) for name in NAMES}
    for first, second in itertools.permutations(NAMES, 2):
        for name in sn._HOME:
            vars(sn).pop(name, None)
        assert getattr(sn, first) is wanted[first]
        assert getattr(sn, second) is wanted[second]


def _public_modules() -> list[ModuleType]:
    """`stepnet`, `stepnet.torch`, and all modules among their public names."""
    found = [sn, importlib.import_module("stepnet.torch")]
    for module in found:
        members = (getattr(module, name) for name in module.__all__)
        found += [each for each in members if isinstance(each, ModuleType) and each not in found]
    return found


def test_dir_shows_public_names_only():
    modules = _public_modules()
    names = {module.__name__ for module in modules}
    assert {"stepnet.plots", "stepnet.schemes", "stepnet.nets.losses", "stepnet.torch.nets"} <= names
    for module in modules:
        assert set(dir(module)) - {"__version__"} == set(module.__all__), module.__name__
        assert not [name for name in module.__all__ if name.startswith("_")]
        for name in dir(module):
            getattr(module, name)


def test_plots_are_an_attribute():
    program = "import stepnet as sn; print(sn.plots.__name__, 'plots' in dir(sn))"
    assert child.succeed(program).strip() == "stepnet.plots True"


TENSOR_TWINS = {"BrownianPath", "Partitioned", "SecondOrder", "Split"}
"""Public names that `stepnet` and `stepnet.torch` share: the same form of problem, of arrays and of tensors."""


def test_no_two_classes_have_one_name():
    """But for twins: the same job in the two engines, and the public forms of problems."""
    places = defaultdict(list)
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(SOURCES).parts[:2])
    assert len(places) > 300
    engines = [("engines", "numba_engine"), ("engines", "torch_engine")]
    twice = {name for name, found in places.items() if len(found) > 1}
    twins = {name for name in twice if sorted(places[name]) == engines}
    print(f"{len(places)} names of classes, twins of the engines: {sorted(twins)}")
    assert twice - twins == TENSOR_TWINS
