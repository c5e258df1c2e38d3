"""A progress bar over simulated time, if requested."""

from __future__ import annotations

import pytest
from numba_engine.runs.families import every_family


@every_family
def test_a_bar_shows_time_and_step_size(family, capsys):
    family.solve(progress=True)
    shown = capsys.readouterr()
    assert "100%" in shown.err
    assert "t 2/2" in shown.err
    assert "h=" in shown.err
    assert shown.out == ""


@every_family
def test_there_is_no_bar_unless_asked_for(family, capsys):
    family.solve()
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out == ""


@pytest.mark.parametrize("check", [True, False])
def test_a_bar_changes_nothing(check):
    from numba_engine.runs.families import ADAPTIVE

    family = ADAPTIVE[0]
    assert (family.solve(progress=True, check=check).y == family.solve(check=check).y).all()
