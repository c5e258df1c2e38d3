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


def test_python_blocks_of_the_readme_run_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) >= 5
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert "Solution by dopri5" in printed
    assert "singular" in printed


def test_table_of_schemes_is_current():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.TARGET.read_text() == generate.page(), "run `python docs/generate.py`"


def test_readme_counts_the_schemes_right():
    from stepnet import schemes

    assert f"{len(schemes.names())} schemes" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        if target != "benchmarks/RESULTS.md":  # written by `make bench`
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run_and_draw(script, tmp_path):
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=300)
    assert (tmp_path / f"{script.stem}.png").stat().st_size > 10_000
