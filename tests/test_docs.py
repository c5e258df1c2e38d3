"""What the documents say is true: their code runs, their tables are current, their links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_python_blocks_of_a_page_run_in_order(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(compile(block, page.name, "exec"), namespace)


def test_readme_shows_every_way_in():
    code = "".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL))
    ways = (
        "sn.solve(",
        "solve_ivp(",
        "sn.start(",
        "sn.Event(",
        "dense=True",
        "sn.schemes.ExplicitRK(",
        "sn.derivatives.jacobian(",
        "sn.gradient(",
        "sn.solve_ensemble(",
        "sn.sweep(",
    )
    assert [way for way in ways if way not in code] == []


def test_the_tree_of_the_architecture_names_every_module():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    modules = {path.stem for path in (ROOT / "src").rglob("*.py")} - {"__init__", "__main__"}
    assert {name for name in modules if not re.search(rf"\b{name}\b", text)} == set()


def test_table_of_schemes_is_current():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.TARGET.read_text() == generate.page(), "run `python docs/generate.py`"


def test_prices_of_checkpoints_are_current():
    from stepnet.checkpoints import binomial_advances

    text = (ROOT / "docs" / "gradients.md").read_text()
    for n in (10, 100, 1000, 10_000, 100_000):
        runs = (1 + binomial_advances(n, slots) / n for slots in (3, 5, 10, 20, 50, 100))
        assert f"| {n} | " + " | ".join(f"{run:.2f}" for run in runs) + " |" in text


def test_readme_counts_the_schemes_right():
    from stepnet import schemes

    assert f"{len(schemes.names())} schemes" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        if target != "benchmarks/RESULTS.md":  # written by `make bench`
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


SCRIPTS = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "data")
TRAINING = [path for path in SCRIPTS if "training" in path.read_text() or path.stem == "neural_ode"]
LONG = [*TRAINING, *(path for path in SCRIPTS if path.stem in ("basins", "bifurcations"))]


def run_and_draw(script, folder):
    subprocess.run([sys.executable, script, folder], check=True, timeout=900)
    assert (folder / f"{script.stem}.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "script",
    [pytest.param(path, marks=pytest.mark.slow if path in LONG else (), id=path.stem) for path in SCRIPTS],
)
def test_examples_run_and_draw(script, tmp_path):
    """Those that train run with less work in tests/examples, too."""
    run_and_draw(script, tmp_path)
