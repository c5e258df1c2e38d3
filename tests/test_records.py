"""Records that are built without their constructor equal those that the constructor builds."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import stepnet as sn
from stepnet.records import build_record
from stepnet.solution import Statistics


def rebuild(record):
    return type(record)(**{each.name: getattr(record, each.name) for each in fields(record)})


def test_results_of_a_solve_have_all_fields():
    solution = sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "dopri5")
    assert repr(rebuild(solution)) == repr(solution)
    assert replace(solution.statistics, accepted=7) == replace(rebuild(solution.statistics), accepted=7)
    assert repr(pickle.loads(pickle.dumps(solution.statistics))) == repr(solution.statistics)


def test_fields_that_are_left_out_have_their_defaults():
    given = {"accepted": 3, "rejected": 1, "evaluations": 20, "rung": "traced"}
    built, constructed = build_record(Statistics, **given), Statistics(**given)
    shown = [each.name for each in fields(Statistics) if each.name != "stiffness"]  # NaN differs from itself
    assert all(getattr(built, name) == getattr(constructed, name) for name in shown)
    assert repr(built) == repr(constructed)
