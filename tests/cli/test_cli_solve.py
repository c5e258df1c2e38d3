"""`stepnet solve`: a problem of a file, its summary, tables and figures."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import stepnet as sn
from stepnet.cli import commands

FILE = """
import numpy as np
import stepnet as sn

decay = sn.ODE(lambda t, y, k: [-k * y[0], y[0]], [1.0, 0.0], (0.0, 2.0), args=(1.5,))
blow_up = sn.ODE(lambda t, y: y * y, [1.0], (0.0, 2.0))
heat = sn.equations.heat(sn.operators.Grid(400, boundary="neumann"), np.arange(400.0), (0.0, 1e-5))
turn = sn.ODE(lambda t, y: 1j * y, np.array([1.0 + 0.0j]), (0.0, 2.0))
"""


@pytest.fixture
def call(tmp_path):
    path = tmp_path / "problems.py"
    path.write_text(FILE)

    def invoke(name: str, *arguments: str):
        return CliRunner().invoke(commands.main, ["solve", f"{path}:{name}", *arguments])

    return invoke


def test_a_table_and_an_array_file_hold_the_solution(call, tmp_path):
    options = ("--scheme", "dop853", "--rtol", "1e-10", "--atol", "1e-12", "--save-at", "0:2:5")
    for name in ("run.csv", "run.npz"):
        result = call("decay", *options, "--out", str(tmp_path / name))
        assert result.exit_code == 0, result.output
        assert "Solution by dop853" in result.output
    table = np.loadtxt(tmp_path / "run.csv", delimiter=",", skiprows=1)
    with np.load(tmp_path / "run.npz") as file:
        stored = dict(file)
    assert np.array_equal(table, np.column_stack((stored["t"], stored["y"])))
    np.testing.assert_allclose(stored["y"][:, 0], np.exp(-1.5 * stored["t"]), rtol=1e-9)
    assert (tmp_path / "run.csv").read_text().splitlines()[0] == "t,y0,y1"


def test_json_has_the_end_state_and_the_cost(call):
    result = call("decay", "--scheme", "rk4", "--steps", "50", "--json")
    found = json.loads(result.stdout)
    problem = sn.ODE(lambda t, y, k: [-k * y[0], y[0]], [1.0, 0.0], (0.0, 2.0), args=(1.5,))
    assert found["y"] == sn.solve(problem, "rk4", steps=50).y[-1].tolist()
    assert (found["scheme"], found["status"], found["accepted"]) == ("rk4", "completed", 50)


def test_a_figure_is_drawn(call, tmp_path):
    result = call("decay", "--figure", str(tmp_path / "run.png"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("name", "arguments", "wanted"),
    [
        ("blow_up", (), "resolution of t at t = 1"),
        ("nothing", (), "`problem` must be one of ODE"),
        ("decay", ("--scheme", "rk5"), "rk5"),
        ("decay", ("--save-at", "0:1"), "first:last:count"),
        ("decay", ("--path", "3"), "`path` is for an `SDE`"),
    ],
)
def test_what_cannot_be_solved_is_one_line(call, name, arguments, wanted):
    result = call(name, *arguments)
    assert result.exit_code == 1
    assert wanted in result.output
    assert "Traceback" not in result.output


def test_large_and_complex_states_are_drawn_and_summarised(call, tmp_path):
    """A hundred lines at most, and pairs of numbers for JSON."""
    result = call("heat", "--scheme", "rk4", "--steps", "10", "--figure", str(tmp_path / "heat.png"))
    assert result.exit_code == 0, result.output
    result = call("turn", "--scheme", "rk4", "--steps", "50", "--json", "--figure", str(tmp_path / "turn.png"))
    np.testing.assert_allclose(json.loads(result.stdout)["y"], [[np.cos(2.0), np.sin(2.0)]], atol=1e-6)
