"""Both engines execute the same records: equal states for every scheme and kind of problem, equal adaptive steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradients.cases import CASES, STEPS, over_the_catalogue, relative
from scheme_names import FIXED_STEPS
from torch_engine.cases import posed

import stepnet as sn
import stepnet.torch as snt
from stepnet.engines.torch_engine.integrators.explicit_rk import error_power, iterate_accepted_steps
from stepnet.engines.torch_engine.integrators.step_control import ControlSettings, rms
from stepnet.schemes.capabilities import has_continuous_extension

torch.set_num_threads(1)

EQUAL = 1e-12  # relative; a few hundred roundings
SAME_STEPS = 1e-9  # relative; errors of steps are differences, so rounding in them is amplified
CUBIC = 30  # tolerances: the cubic is of lower order than the schemes
LONG_STEPS = {"kencarp5": 100}  # tolerances: it takes seven steps, with the same cubic in each
LOOSE = 1e-4  # tolerance where many small steps of a scheme of low order would take long
SOLVED_STEPS = 1e-3  # the engines solve implicit stages by other iterations, to a fraction of the tolerances


def flat(trajectory) -> np.ndarray:
    """(times, entries), whatever the kind."""
    parts = trajectory if isinstance(trajectory, tuple) else (trajectory,)
    return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1).detach().numpy()


@over_the_catalogue
def test_states_of_every_step_are_those_of_the_compiled_engine(scheme, kind):
    problem, (field, y0) = kind.build(), posed(kind)
    wanted = sn.solve(problem, scheme, steps=STEPS)
    t = torch.linspace(*problem.t_span, STEPS + 1, dtype=torch.float64)
    found = snt.odeint(field, y0, t, method=scheme, options={"grid_constructor": lambda f, y, t: t})
    assert relative(flat(found), wanted.y.reshape(STEPS + 1, -1)) <= EQUAL


def test_no_case_is_left_out():
    print(f"{len(CASES)} cases of {len(FIXED_STEPS)} schemes")
    assert {scheme.name for scheme, _ in CASES} == {sn.schemes.get(name).name for name in FIXED_STEPS}


def same_steps(name: str) -> float:
    """How far steps may differ: stages of implicit Runge-Kutta pairs are solved up to a tolerance."""
    solved = sn.schemes.ImplicitRK, sn.schemes.AdditiveRK
    return SOLVED_STEPS if isinstance(sn.schemes.get(name), solved) else SAME_STEPS


def lorenz(xp):
    def f(t, y):
        return [10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1] + xp.sin(t), y[0] * y[1] - 8.0 / 3.0 * y[2]]

    return f


PAIRS = [scheme.name for scheme in sn.schemes.find(pair=True)]


@pytest.mark.parametrize("controller", ["I", "PI", "PID"])
@pytest.mark.parametrize("name", PAIRS)
def test_adaptive_steps_are_those_of_the_compiled_engine(name, controller):
    scheme, span, y0 = sn.schemes.get(name), (0.0, 0.5), [1.0, 2.0, 20.0]
    wanted = sn.solve(sn.ODE(lorenz(np), y0, span), scheme, rtol=1e-6, atol=1e-8, controller=controller)
    how = ControlSettings(1e-6, 1e-8, rms, sn.schemes.controllers.controller(controller), error_power(scheme))
    y = torch.tensor(y0, dtype=torch.float64)
    slope = lorenz(torch)
    steps = list(iterate_accepted_steps(lambda t, y: torch.stack(slope(t, y)), scheme, y, *span, how))
    assert len(steps) == len(wanted.t) - 1
    assert relative([step.t + step.h for step in steps], wanted.t[1:]) <= same_steps(name)
    assert relative(steps[-1].y_new, wanted.y[-1]) <= same_steps(name)


TIMES = np.linspace(0.0, 0.5, 23)


def save_on_tensors(method, tolerance):
    slope, y0 = lorenz(torch), torch.tensor([1.0, 2.0, 20.0], dtype=torch.float64)
    t, atol = torch.tensor(TIMES), 1e-2 * tolerance
    return snt.odeint(lambda t, y: torch.stack(slope(t, y)), y0, t, rtol=tolerance, atol=atol, method=method)


@pytest.mark.parametrize("name", [name for name in PAIRS if has_continuous_extension(sn.schemes.get(name))])
def test_wanted_times_are_read_from_the_same_polynomials(name):
    problem = sn.ODE(lorenz(np), [1.0, 2.0, 20.0], (0.0, 0.5))
    wanted = sn.solve(problem, name, rtol=1e-6, atol=1e-8, save_at=TIMES).y
    assert relative(save_on_tensors(name, 1e-6), wanted) <= SAME_STEPS


@pytest.mark.parametrize("name", [name for name in PAIRS if not has_continuous_extension(sn.schemes.get(name))])
def test_wanted_times_of_schemes_without_polynomials_are_accurate(name):
    """Cubic Hermite polynomials of each engine's own steps."""
    problem = sn.ODE(lorenz(np), [1.0, 2.0, 20.0], (0.0, 0.5))
    wanted = sn.solve(problem, "dop853", rtol=1e-12, atol=1e-12, save_at=TIMES).y
    scheme = sn.schemes.get(name)
    bound = LONG_STEPS.get(name, CUBIC) * LOOSE
    assert relative(save_on_tensors(scheme, LOOSE), wanted) <= bound
    assert relative(sn.solve(problem, scheme, rtol=LOOSE, atol=1e-2 * LOOSE, save_at=TIMES).y, wanted) <= bound


@pytest.mark.parametrize("name", ["rk4", "dopri5", "ab4", "rkl2"])
def test_complex_states(name):
    t = torch.linspace(0.0, 1.0, 41, dtype=torch.float64)
    y0 = torch.tensor([1.0 + 0.5j, -0.3j], dtype=torch.complex128)
    scheme = sn.schemes.get(name)
    found = snt.odeint(lambda t, y: 1j * y * torch.cos(t), y0, t, method=scheme, options={"step_size": 1 / 40})
    wanted = sn.solve(sn.ODE(lambda t, y: 1j * y * np.cos(t), y0.numpy(), (0.0, 1.0)), scheme, steps=40).y
    assert np.abs(found.numpy() - wanted).max() <= EQUAL
