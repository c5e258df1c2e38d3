"""`stepnet gradients`: one gradient by every method, and the verdict on inaccurate ones."""

from __future__ import annotations

import re

import numpy as np
import pytest
from click.testing import CliRunner

import stepnet as sn
from stepnet.cli import commands, gradient_table, gradients

EXACT = 1e-11  # between ways that are exact: rounding only
STEPS = {"lorenz": 60, "vanderpol": 200, "relu": 200, "kepler": 400, "pleiades": 60}


@pytest.fixture
def call():
    def invoke(*arguments: str):
        return CliRunner().invoke(commands.main, ["gradients", *arguments])

    return invoke


def errors_in(output: str) -> dict[str, float]:
    """The column `error` of every way that has numbers."""
    lines = [re.split(r"  +", line) for line in output.splitlines() if line.endswith(" ms")]
    return {cells[0]: float(cells[3]) for cells in lines}


def test_the_choices_are_the_problems():
    assert tuple(gradient_table.SUBJECTS) == gradients.PROBLEMS


@pytest.mark.parametrize("name", gradients.PROBLEMS)
def test_every_problem_has_a_table_in_which_exact_ways_agree(name, call):
    result = call("--problem", name, "--steps", str(STEPS[name]))
    assert result.exit_code == 0, result.output
    errors = errors_in(result.output)
    exact = [error for way, error in errors.items() if way.startswith(("all", "checkpoints", "reversible"))]
    assert len(exact) >= 2
    assert max(exact) <= EXACT
    assert "erdict" in result.output


@pytest.mark.parametrize("name", gradients.PROBLEMS)
def test_every_problem_has_the_gradient_of_central_differences(name):
    """By the initial state, along one direction."""
    problem, n = gradient_table.SUBJECTS[name].problem(), STEPS[name]
    ode = problem if isinstance(problem, sn.ODE) else gradient_table.first_order(problem)
    found = sn.gradient(ode, "rk4", gradient_table.loss, steps=n)
    direction = np.cos(np.arange(ode.y0.size))

    def value(step):
        moved = sn.ODE(ode.fun, ode.y0 + step * direction, ode.t_span, ode.args)
        return gradient_table.loss(sn.solve(moved, "rk4", steps=n, save_every=0).y[-1])[0]

    h = 1e-6
    slope = (value(h) - value(-h)) / (2 * h)
    assert found.y0 @ direction == pytest.approx(slope, rel=1e-5)


def test_the_adjoint_equation_is_wrong_on_a_dissipative_network_and_the_verdict_says_so(call):
    result = call("--problem", "relu")
    errors = errors_in(result.output)
    assert errors["continuous"] > 0.1
    assert errors["interpolated"] < 1e-6
    assert "unsafe" in result.output


def test_a_splitting_scheme_is_reversible_and_has_no_adjoint_equation(call):
    result = call("--problem", "kepler", "--steps", "400")
    assert "reversible" in errors_in(result.output)
    assert "No verdict" in result.output


def test_another_scheme_makes_a_second_order_problem_an_ode(call):
    result = call("--problem", "kepler", "--scheme", "rk4", "--steps", "400")
    assert {"continuous", "interpolated"} <= set(errors_in(result.output))
    assert re.search(r"^reversible .*needs invertible steps, .*, not 'rk4'", result.output, re.M)


def test_a_run_that_cannot_be_solved_back_is_a_line_of_the_table(call):
    result = call("--problem", "vanderpol")
    assert result.exit_code == 0, result.output
    assert re.search(r"^continuous +the state .* became NaN or infinite", result.output, re.M)
    assert "could not be solved back" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--scheme", "rk5"), "did you mean 'rk4'"),
        (("--scheme", "verlet"), "an `ODE` has no parts"),
        (("--steps", "0"), "x>=1"),
        (("--problem", "vanderpol", "--steps", "12"), "NaN or infinite"),
        (("--problem", "pendulum"), "is not one of"),
    ],
)
def test_wrong_options_are_explained(arguments, said, call):
    result = call(*arguments)
    assert result.exit_code != 0
    assert said in result.output
