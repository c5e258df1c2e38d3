"""The declared capabilities of every scheme agree with what is accepted, refused and computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scheme_names import FIXED_STEPS

import stepnet as sn
import stepnet.torch as snt
from stepnet.engines import numba_engine
from stepnet.engines.contract import FixedSteps
from stepnet.problem import ProblemForm
from stepnet.schemes import capabilities, get, names

SCHEMES = [get(name) for name in FIXED_STEPS]
SPAN, N_STEPS = (0.0, 0.5), 32
H = (SPAN[1] - SPAN[0]) / N_STEPS
EXACT = np.array([np.cos(SPAN[1]), -np.sin(SPAN[1])])
CONSTANT = 1.0  # error constants of the catalogue are smaller on the oscillator over half a unit of time
ROUNDING = 1e-12
TOLERANCES = {"rtol": 1e-8, "atol": 1e-10}
ADAPTIVE_ERROR = 1e-6  # a hundred times the tolerances

POSITIONS, VELOCITIES = np.array([1.0]), np.array([0.0])
STATE = np.concatenate((POSITIONS, VELOCITIES))
KICK = sn.Linear([[0.0, 0.0], [-1.0, 0.0]])
PROBLEMS = {
    ProblemForm.FIRST: sn.ODE(lambda t, y: [y[1], -y[0]], STATE, SPAN),
    ProblemForm.SUM: sn.Split((lambda t, y: [y[1], 0.0 * y[0]], KICK), STATE, SPAN),
    ProblemForm.PARTITIONED: sn.Partitioned(lambda t, p: p, lambda t, q: -q, POSITIONS, VELOCITIES, SPAN),
    ProblemForm.COUPLED: sn.Partitioned(lambda t, q, p: p, lambda t, q, p: -q, POSITIONS, VELOCITIES, SPAN, (), False),
    ProblemForm.SECOND: sn.SecondOrder(lambda t, q: -q, POSITIONS, VELOCITIES, SPAN),
    ProblemForm.STOCHASTIC: sn.SDE(lambda t, y: [y[1], -y[0]], lambda t, y: [0.0, 0.1], STATE, SPAN),
    ProblemForm.LANGEVIN: sn.Langevin(lambda t, q: -q, POSITIONS, VELOCITIES, SPAN),
}
TENSORS = {
    ProblemForm.FIRST: lambda t, y: torch.stack((y[1], -y[0])),
    ProblemForm.SUM: snt.Split((lambda t, y: torch.stack((y[1], 0 * y[0])), KICK)),
    ProblemForm.PARTITIONED: snt.Partitioned(lambda t, p: p, lambda t, q: -q),
    ProblemForm.COUPLED: snt.Partitioned(lambda t, q, p: p, lambda t, q, p: -q, False),
    ProblemForm.SECOND: snt.SecondOrder(lambda t, q: -q),
}
over_forms = pytest.mark.parametrize(
    "first", [pytest.param(-1, id="one_form"), pytest.param(0, id="all_forms", marks=pytest.mark.slow)]
)  # machine code is generated for every form
over_schemes = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)


def list_accepted(scheme) -> list[sn.problem.Problem]:
    return [problem for form, problem in PROBLEMS.items() if capabilities.accepts(scheme, form)]


def bound(scheme) -> float:
    return CONSTANT * H**scheme.order + ROUNDING


def test_every_problem_has_its_form():
    assert all(problem.form is form for form, problem in PROBLEMS.items())
    assert set(PROBLEMS) == set(ProblemForm) == {*TENSORS, ProblemForm.STOCHASTIC, ProblemForm.LANGEVIN}


def test_every_scheme_accepts_some_form():
    assert all(list_accepted(scheme) for scheme in SCHEMES)


@pytest.mark.parametrize("name", [*names("SDE"), *names("Langevin")])
def test_stochastic_schemes_accept_their_problems_only(name):
    scheme = get(name)
    own = ProblemForm.LANGEVIN if capabilities.is_langevin(scheme) else ProblemForm.STOCHASTIC
    assert list_accepted(scheme) == [PROBLEMS[own]]
    for form, problem in PROBLEMS.items():
        if form is not own:
            with pytest.raises(TypeError, match=f"{scheme.name} (integrates|does not integrate)"):
                sn.solve(problem, scheme, steps=N_STEPS)


@over_schemes
def test_forms_are_accepted_as_solve_does(scheme):
    for form, problem in PROBLEMS.items():
        refusal = capabilities.find_refusal(scheme, form)
        assert capabilities.accepts(scheme, form) == (refusal is None)
        if refusal is None:
            end = sn.solve(problem, scheme, steps=N_STEPS, save_every=0).y[-1]
            assert np.abs(end - EXACT).max() <= bound(scheme), form
        else:
            with pytest.raises(TypeError) as error:
                sn.solve(problem, scheme, steps=N_STEPS)
            assert str(error.value) == refusal


@over_schemes
def test_forms_are_accepted_as_odeint_does(scheme):
    y0, t = torch.tensor(STATE), torch.tensor(SPAN, dtype=torch.float64)
    for form, func in TENSORS.items():
        state = tuple(y0.split(1)) if isinstance(func, (snt.Partitioned, snt.SecondOrder)) else y0
        solve = lambda func=func, state=state: snt.odeint(func, state, t, method=scheme, options={"step_size": H})
        if capabilities.accepts(scheme, form):
            found = solve()
            end = torch.cat([part[-1] for part in found]) if isinstance(found, tuple) else found[-1]
            assert np.abs(end.numpy() - EXACT).max() <= bound(scheme), form
        else:
            with pytest.raises(TypeError, match=scheme.name.split("(")[0]):
                solve()


@over_schemes
def test_steps_are_chosen_by_adaptive_schemes_only(scheme):
    problem = list_accepted(scheme)[0]
    if capabilities.is_adaptive(scheme):
        assert np.abs(sn.solve(problem, scheme, **TOLERANCES).y[-1] - EXACT).max() <= ADAPTIVE_ERROR
    else:
        with pytest.raises(ValueError, match="`steps`"):
            sn.solve(problem, scheme, **TOLERANCES)


@over_schemes
def test_uneven_steps_and_changed_states_are_for_schemes_without_history(scheme):
    problem, grid = list_accepted(scheme)[0], SPAN[1] * np.linspace(0.0, 1.0, N_STEPS + 1) ** 1.5
    reset = sn.Event(lambda t, *y: y[0][0] - 0.95, reset=lambda t, y: y)
    started = sn.start(problem, scheme, steps=N_STEPS)

    def change():
        started.y = started.y

    tries = {
        "steps": (lambda: sn.solve(problem, scheme, steps=grid), capabilities.takes_uneven_steps),
        "project": (
            lambda: sn.solve(problem, scheme, steps=N_STEPS, project=lambda t, y: y),
            capabilities.takes_changed_states,
        ),
        "reset": (lambda: sn.solve(problem, scheme, steps=N_STEPS, events=reset), capabilities.takes_changed_states),
        "put": (change, capabilities.takes_changed_states),
    }
    for name, (attempt, is_admitted) in tries.items():
        if is_admitted(scheme):
            attempt()
        else:
            with pytest.raises((TypeError, ValueError), match=f"{scheme.name} "):
                attempt()
        is_even = name == "steps" and capabilities.needs_linear_part(scheme)
        assert is_admitted(scheme) != (capabilities.has_history(scheme) or is_even), name


@over_schemes
@over_forms
def test_programs_of_engines_have_the_parts_rows_and_starting_steps_that_are_said(scheme, first):
    for problem in list_accepted(scheme)[first:]:
        run = numba_engine.linearise(problem, scheme, FixedSteps(N_STEPS))
        has_parts = capabilities.moves_parts(scheme, problem.form) and not capabilities.needs_linear_part(scheme)
        assert (len(run.parts) > 1) == has_parts
        assert run.scheme_program.step.n_rows == capabilities.count_state_rows(scheme, problem.form)
        assert run.begin == capabilities.count_starting_steps(scheme)
        assert (capabilities.find_starter(scheme) is None) == (run.begin == 0)
        assert run.is_reversible == capabilities.has_inverse(scheme, problem.form)


@over_schemes
@over_forms
def test_gradients_undo_the_steps_that_have_an_inverse(scheme, first):
    for problem in list_accepted(scheme)[first:]:
        reversible = lambda problem=problem: sn.gradient(
            problem, scheme, end_gradient=np.ones(2), steps=N_STEPS, memory="reversible"
        )
        if capabilities.has_inverse(scheme, problem.form):
            kept = sn.gradient(problem, scheme, end_gradient=np.ones(2), steps=N_STEPS, memory="all")
            np.testing.assert_allclose(reversible().y0, kept.y0, rtol=ROUNDING)
        else:
            with pytest.raises(ValueError, match="reversible"):
                reversible()


@over_schemes
@over_forms
@pytest.mark.parametrize("is_fixed", [True, False], ids=["fixed", "adaptive"])
def test_members_run_in_lanes_where_they_are_admitted(scheme, is_fixed, first):
    if not is_fixed and not capabilities.is_adaptive(scheme):
        assert not any(capabilities.admits_lanes(scheme, form, is_fixed) for form in ProblemForm)
        return
    how = {"steps": N_STEPS} if is_fixed else TOLERANCES
    for problem in list_accepted(scheme)[first:]:
        found = sn.solve_ensemble(problem, scheme, y0=np.stack([problem.initial] * 3), workers=1, **how)
        assert (found.rung == "lanes") == capabilities.admits_lanes(scheme, problem.form, is_fixed), found.reason


@over_schemes
def test_dense_output_is_there_for_every_scheme(scheme):
    """By the scheme's own stages where it has an extension: those have it as a record."""
    middle = 0.3 * SPAN[1]
    for problem in list_accepted(scheme):
        at = sn.solve(problem, scheme, steps=N_STEPS, dense=True)(middle)
        assert abs(np.ravel(at)[0] - np.cos(middle)) <= bound(scheme) + H**3
    assert capabilities.has_continuous_extension(scheme) == hasattr(scheme, "continuous")
