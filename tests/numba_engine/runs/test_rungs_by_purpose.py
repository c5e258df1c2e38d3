"""A solution reports the rungs of its right-hand side, of each event and of `project` separately, with the reasons."""

from __future__ import annotations

import pytest

import stepnet as sn

STATE = {"calls": 0}


def note():
    """What calls this cannot be traced, nor compiled by Numba."""
    STATE["calls"] += 1


def opaque(t, y, *rest):
    note()
    return 0.5 - y[0]


def plain(t, y, *rest):
    return y[0] - 0.25


def moved(t, y):
    note()
    return 1.0 * y


def kept(t, y):
    return 1.0 * y


def oscillator(t, y):
    return [y[1], -y[0]]


ODE = sn.ODE(oscillator, [1.0, 0.0], (0.0, 3.0))
SECOND = sn.SecondOrder(lambda t, q: -q, [1.0], [0.0], (0.0, 3.0))
CASES = [
    (ODE, "dopri5", {}),
    (ODE, "rk4", {"steps": 30}),
    (ODE, "ab4", {"steps": 30}),
    (SECOND, "verlet", {"steps": 30}),
]


@pytest.fixture(autouse=True)
def default_ladder(monkeypatch):
    monkeypatch.delenv("STEPNET_RUNG", raising=False)


@pytest.mark.parametrize(("problem", "scheme", "how"), CASES, ids=[scheme for _, scheme, _ in CASES])
def test_an_event_in_python_does_not_change_the_rung_of_the_right_hand_side(problem, scheme, how):
    statistics = sn.solve(problem, scheme, events=(plain, opaque), **how).statistics
    assert (statistics.rung, statistics.rung_reason) == ("traced", "")
    assert statistics.event_rungs == ("traced", "python")
    assert statistics.event_reasons[0] == ""
    assert statistics.event_reasons[1].startswith("`events[1]` not traced")
    assert (statistics.project_rung, statistics.project_reason) == ("", "")


@pytest.mark.parametrize(("project", "rung"), [(moved, "python"), (kept, "traced")])
def test_the_projection_is_told_apart(project, rung):
    statistics = sn.solve(ODE, "dopri5", events=plain, project=project).statistics
    assert (statistics.rung, statistics.event_rungs, statistics.project_rung) == ("traced", ("traced",), rung)
    assert statistics.project_reason.startswith("`project` not traced") == (rung == "python")


def test_a_right_hand_side_in_python_is_told_as_such():
    def noted(t, y):
        note()
        return [y[1], -y[0]]

    statistics = sn.solve(sn.ODE(noted, [1.0, 0.0], (0.0, 3.0)), "dopri5", events=plain).statistics
    assert (statistics.rung, statistics.event_rungs) == ("python", ("traced",))


def test_a_solution_prints_them():
    text = repr(sn.solve(ODE, "dopri5", events=(plain, opaque), project=moved))
    assert "\n  rung   traced\n" in text
    assert "\n  events traced, python (`events[1]` not traced" in text
    assert "\n  moved  python (`project` not traced" in text
    assert "events" not in repr(sn.solve(ODE, "dopri5"))
