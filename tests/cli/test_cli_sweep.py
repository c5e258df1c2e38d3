"""`stepnet sweep`: problems of a file over a grid, with a summary."""

from __future__ import annotations

import re

import numpy as np
import pytest
from click.testing import CliRunner

import stepnet as sn
from stepnet.cli import commands
from stepnet.ensembles.reductions import Mean

FILE = """
import stepnet as sn
from stepnet.ensembles.reductions import Basins, EscapeTimes

def lorenz(t, y, sigma, rho, beta):
    return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]

problem = sn.ODE(lorenz, [1.0, 1.0, 1.0], (0.0, 2.0), args=(10.0, 28.0, 8 / 3))
origin = Basins([[0.0, 0.0, 0.0]], 1.0)
outside = EscapeTimes(20.0)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "lorenz.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def call(file):
    def invoke(*arguments: str, problem: str = f"{file}:problem"):
        return CliRunner().invoke(commands.main, ["sweep", problem, *arguments])

    return invoke


def mean_in(output: str) -> np.ndarray:
    return np.array(re.search(r"mean +mean (.*)", output)[1].split(), float)


def test_a_mean_over_a_grid(call, file, tmp_path):
    out = tmp_path / "out"
    arguments = (
        "--grid",
        "rho=0:28:40",
        "--grid",
        "y0[0]=1,2",
        "--reduce",
        "mean",
        "--rtol",
        "1e-8",
        "--out",
        str(out),
    )
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    assert "80 members, grid (40, 2)" in result.output
    assert "members/s" in result.output
    namespace: dict = {}
    exec(FILE, namespace)
    grid = {"rho": np.linspace(0, 28, 40), "y0[0]": [1.0, 2.0]}
    wanted = sn.sweep(namespace["problem"], "dopri5", grid, reduce=Mean(), rtol=1e-8).result.mean[-1]
    np.testing.assert_allclose(mean_in(result.output), wanted, rtol=1e-5)
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*.npz")}
    again = call(*arguments)
    assert np.array_equal(mean_in(again.output), mean_in(result.output))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.npz")} == files != {}
    other = call(*arguments, "--scheme", "tsit5")
    assert other.exit_code == 1
    assert "holds another sweep" in other.output


def test_every_reduction(call):
    names = ("states", "quantiles", "lyapunov", "origin")
    result = call("--grid", "rho=0.5,28", *(word for name in names for word in ("--reduce", name)))
    assert result.exit_code == 0, result.output
    assert re.search(r"states +states \(2, 1, 3\)", result.output)
    assert "rank error 0" in result.output
    assert re.search(r"lyapunov +2 of 2 finite", result.output)
    assert re.search(r"origin +-1: 1 members\n +origin +0: 1 members", result.output)
    escapes = call("--grid", "rho=0.5,28", "--reduce", "outside", "--save-at", "0:2:21")
    assert re.search(r"outside +1 of 2 finite", escapes.output), escapes.output


def test_even_steps(call):
    result = call("--grid", "rho=0:28:3", "--scheme", "rk4", "--steps", "200")
    assert result.exit_code == 0, result.output
    assert "200.0 steps a member" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--grid", "rho=1:2"), "first:last:count"),
        (("--grid", "rho"), "first:last:count"),
        (("--grid", "rho=a,b"), "first:last:count"),
        (("--grid", "row=1,2"), "no number of the problem named 'row'"),
        (("--grid", "rho=1,2", "--reduce", "meen"), "did you mean 'mean'"),
        (("--grid", "rho=1,2", "--scheme", "dopri6"), "dopri5"),
        (("--grid", "rho=1,2", "--scheme", "rk4"), "give `steps`"),
        (("--grid", "rho=1,2", "--rtol", "-1"), "`rtol`"),
        (("--grid", "rho=1,2", "--reduce", "outside"), "`save_at`"),
    ],
)
def test_wrong_arguments(call, arguments, message):
    result = call(*arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_wrong_places(call, file):
    for place in ("nowhere.py:problem", str(file), f"{file}:lorenz", f"{file}:nothing"):
        result = call("--grid", "rho=1,2", problem=place)
        assert result.exit_code == 1
        assert "`problem` must be" in result.output
