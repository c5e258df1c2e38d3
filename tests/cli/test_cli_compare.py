"""`stepnet compare` measures schemes on a problem in a file."""

from __future__ import annotations

import csv
import json

import pytest
from click.testing import CliRunner

from stepnet.cli.commands import main

PROBLEM = """
import numpy as np
import stepnet as sn

swing = sn.ODE(lambda t, y: [y[1], -np.sin(y[0])], [1.0, 0.0], (0.0, 2.0))
"""


@pytest.fixture
def call(tmp_path):
    (tmp_path / "swing.py").write_text(PROBLEM)
    return lambda *words: CliRunner().invoke(main, ["compare", f"{tmp_path / 'swing.py'}:swing", *words])


def test_tables_have_a_line_for_each_scheme_and_tolerance(call, tmp_path):
    result = call("dopri5", "rk4", "--tolerances", "1e-4,1e-6", "--steps", "20,40", "--csv", str(tmp_path / "work.csv"),
                  "--figure", str(tmp_path / "work.png"))  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader((tmp_path / "work.csv").read_text().splitlines()))
    assert [row["scheme"] for row in rows] == ["dopri5", "dopri5", "rk4", "rk4"]
    assert (tmp_path / "work.png").stat().st_size > 5000
    assert "evaluations" in result.output


def test_steps_alone_give_observed_orders_also_as_json(call):
    assert len(call("heun2", "--steps", "20,40").output.splitlines()) == 3
    rows = json.loads(call("heun2", "--steps", "20,40", "--json").output)
    assert rows[0]["order"] is None
    assert rows[1]["order"] == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize(
    ("words", "message"),
    [(("rk5",), "rk5"), (("rk4", "--steps", "a"), "`--steps` must be numbers"), ((), "Missing argument")],
)
def test_bad_input_is_refused(call, words, message):
    result = call(*words)
    assert result.exit_code != 0
    assert message in result.output
