"""`stepnet stability`: tables, JSON and figures of schemes."""

from __future__ import annotations

import json
import re

from click.testing import CliRunner

from stepnet.cli import commands


def call(*arguments: str):
    return CliRunner().invoke(commands.main, ["stability", *arguments])


def test_several_schemes_are_a_table():
    result = call("rk4", "dopri5", "verlet")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert [line[0] for line in lines] == ["scheme", "rk4", "dopri5", "verlet"]
    assert lines[1][3:5] == ["2.78529", "2.82843"]
    assert lines[3][3:5] == ["-", "2"]


def test_one_scheme_is_shown_with_all_properties():
    output = call("bosh3").output
    assert "Bogacki" in output
    assert re.search(r"embedded orders +2\n", output)


def test_json_holds_every_property():
    found = json.loads(call("rk4", "verlet", "--json").output)
    assert [each["name"] for each in found] == ["rk4", "verlet"]
    assert found[1]["real_limit"] is None
    assert found[1]["dissipation_order"] == "inf"


def test_figures_are_written(tmp_path):
    path = tmp_path / "out.png"
    result = call("rk4", "dopri5", "--figure", str(path))
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_scheme_is_one_line():
    result = call("rk5")
    assert result.exit_code == 1
    assert "rk5" in result.output
    assert "Traceback" not in result.output
