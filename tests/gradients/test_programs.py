"""Step programs equal the schemes: in plain NumPy they give the results of `solve`, and inverse steps invert steps."""

from __future__ import annotations

import numpy as np
from executor import end_state
from gradients.cases import CASES, FUNCTIONS, KINDS, SCHEMES, SPAN, STEPS, A, B, Kind, over_the_catalogue, relative
from gradients.independent import is_in_parts, is_sum, run
from scheme_names import FIXED_STEPS

import stepnet as sn
from stepnet.schemes import AdditiveRK, FixedBDF, Multistep, PartitionedRK, SemiImplicitBDF, Splitting
from stepnet.schemes.conditions import is_reversible, tableau_of
from stepnet.schemes.step_program import SchemeProgram, Slope, build_scheme_program

CLOSE = 1e-12
RETURNS = 1e-13  # of a step and its inverse


def scheme_program(scheme, kind: Kind) -> SchemeProgram:
    is_parted, is_second = is_in_parts(scheme, kind), kind.name == "second order"
    n_parts = len(slopes(scheme, kind))
    return build_scheme_program(scheme, n_parts, is_sum(kind) and is_parted, is_second and is_parted)


def slopes(scheme, kind: Kind) -> list:
    """The parts as functions of arrays."""
    fs = [lambda t, *y, f=f: np.array(f(t, *y, A, B)) for f in FUNCTIONS[kind.name]]
    if is_in_parts(scheme, kind):
        return [None, *fs] if kind.name == "second order" else fs
    match kind.name:
        case "ode":
            return fs
        case "not separable":
            return [lambda t, y: np.concatenate([f(t, y[:2], y[2:]) for f in fs])]
        case "partitioned":
            return [lambda t, y: np.concatenate((fs[0](t, y[2:]), fs[1](t, y[:2])))]
        case "second order":
            return [lambda t, y: np.concatenate((y[2:], fs[0](t, y[:2])))]
    return [lambda t, y: sum(f(t, y) for f in fs)]


def opened(scheme_program: SchemeProgram, fs, initial, h) -> list:
    own = np.split(initial, len(scheme_program.state))
    rows = [np.zeros_like(own[0]) for _ in range(scheme_program.step.n_rows)]
    for place, row in zip(scheme_program.state, own, strict=True):
        rows[place] = row
    return run(scheme_program.opening, fs, rows, SPAN[0], h)


@over_the_catalogue
def test_executed_plainly_they_are_what_is_solved(scheme, kind):
    fs, moves, h = slopes(scheme, kind), scheme_program(scheme, kind), (SPAN[1] - SPAN[0]) / STEPS
    rows = opened(moves, fs, kind.initial, h)
    for i in range(moves.opening.steps, STEPS):
        rows = run(moves.step, fs, rows, SPAN[0] + i * h, h)
    end = np.concatenate([rows[place] for place in moves.state])
    assert relative(end, sn.solve(kind.build(), scheme, steps=STEPS, save_every=0).y[-1]) <= CLOSE
    if kind.name != "not separable":
        arrays = [
            f if isinstance(f, sn.Linear) else lambda t, y, a, b, f=f: np.array(f(t, y, a, b))
            for f in FUNCTIONS[kind.name]
        ]
        assert relative(end, end_state(kind.record(arrays, kind.initial, SPAN, (A, B)), scheme, STEPS)) <= CLOSE


@over_the_catalogue
def test_what_undoes_a_step_undoes_it(scheme, kind):
    fs, moves, h = slopes(scheme, kind), scheme_program(scheme, kind), (SPAN[1] - SPAN[0]) / STEPS
    if moves.back is None:
        assert not (isinstance(scheme, Splitting) and kind.name in ("partitioned", "second order"))
        return
    before = opened(moves, fs, kind.initial, h)
    t = SPAN[0] + moves.opening.steps * h
    back = run(moves.back, fs, run(moves.step, fs, before, t, h), t, h)
    for row, wanted in zip(back, before, strict=True):
        assert np.max(np.abs(row - wanted)) <= RETURNS


def test_reversible_schemes_can_be_undone():
    kind = KINDS[3]
    undone = [s for s in SCHEMES if (s, kind) in CASES and scheme_program(s, kind).back is not None]
    assert {s.name for s in undone} >= {s.name for s in SCHEMES if is_reversible(s) and (s, kind) in CASES}


@over_the_catalogue
def test_no_slope_is_evaluated_twice(scheme, kind):
    step = scheme_program(scheme, kind).step
    evaluated = [operation for operation in step.operations if isinstance(operation, Slope)]
    assert len(set(evaluated)) == len(evaluated) == step.n_slopes
    if isinstance(scheme, (Multistep, SemiImplicitBDF)):
        assert step.n_slopes == 1
    elif isinstance(scheme, AdditiveRK):
        assert step.n_slopes <= len(scheme.b) + 1  # the first stage of the implicit part is explicit
    elif isinstance(scheme, (PartitionedRK, FixedBDF)):
        assert step.n_slopes == 0
    elif not isinstance(scheme, Splitting):
        assert step.n_slopes <= len(tableau_of(scheme).b if tableau_of(scheme) else scheme.b)
    elif not kind.name.startswith("split"):
        flows = scheme.sequence()
        n_kicks, n_drifts = (sum(part == which for part, _ in flows) for which in (1, 0))
        shared = flows[0][0] == flows[-1][0] and not (kind.name == "second order" and flows[0][0] == 0)
        n_all = n_kicks + (0 if kind.name == "second order" else n_drifts)
        assert step.n_slopes == n_all - (shared and len(flows) > 1)


def test_the_whole_catalogue_is_here():
    print(f"{len(CASES)} cases: {len(SCHEMES)} schemes")
    assert len(SCHEMES) == len(FIXED_STEPS)
    assert {scheme.name for scheme, _ in CASES} == {scheme.name for scheme in SCHEMES}
