"""Every scheme attains its declared order on nonlinear, non-autonomous, coupled problems of every form.

The order is measured in extended precision by the plain executor, at steps so short that the principal error dominates;
the compiled engine is then held to that executor on the same steps.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import mpmath
import numpy as np
import pytest
from executor import applies, end_state, trajectory, without_rounding
from problems import (
    coupled_ode,
    coupled_partitioned,
    coupled_second_order,
    coupled_semilinear,
    coupled_split2,
    coupled_split3,
)
from scheme_names import FIXED_STEPS

import stepnet
from stepnet.schemes import Butcher, ExplicitRK
from stepnet.schemes.capabilities import is_implicit, moves_parts, needs_linear_part, takes_uneven_steps

FORMS = {
    "ode": coupled_ode,
    "partitioned": coupled_partitioned,
    "second_order": coupled_second_order,
    "split2": coupled_split2,
    "split3": coupled_split3,
}
SEMILINEAR = {"semilinear": coupled_semilinear}  # for schemes that integrate the linear part exactly
PAIRS = [
    (name, form)
    for name in FIXED_STEPS
    for form in (FORMS | SEMILINEAR if needs_linear_part(stepnet.schemes.get(name)) else FORMS)
]
FORMS |= SEMILINEAR
CASES = [(name, form) for name, form in PAIRS if applies(FORMS[form](), stepnet.schemes.get(name))]
LIKE_ANY = ("second_order", "split2", "split3")  # all forms but these run in fast tests of implicit schemes


def over(cases: list) -> list:
    """The cases as parameters: some forms are slow tests of implicit schemes, which join the parts of any form."""
    is_slow = [
        is_implicit(scheme) and form in LIKE_ANY and not moves_parts(scheme, FORMS[form]().form)
        for scheme, form in ((stepnet.schemes.get(name), form) for name, form in cases)
    ]
    return [pytest.param(*c, marks=pytest.mark.slow) if slow else c for c, slow in zip(cases, is_slow, strict=True)]


REFUSED = [case for case in PAIRS if case not in CASES]
UNEVEN = [case for case in CASES if takes_uneven_steps(stepnet.schemes.get(case[0]))]

ORDER_TOLERANCE = 0.15  # a missed condition costs a whole order
FIRST_STEPS = 12
MOST_STEPS = 200  # the next order then adds at most 0.14 to the slope
LONGER = {"bdf5": 400}  # whose next term is larger
RATIO, SIZES = 1.25, 4  # the slope is taken over a factor 2 in h
EXACT_FLOOR = 1e-16  # longdouble rounding of 1e-19, accumulated, stays below 3 % of this
ROUNDED_FLOOR = 1e-13  # coefficients rounded to 1e-16 change the result by less than 1 % of this

ENGINE_TOLERANCE = 1e-12  # 40 steps of float64 rounding, amplified by flows that grow tenfold at most
ENGINE_STEPS = 40
TABLE_ROUNDING = 1e-13  # of entries above 1e-3; the worst-conditioned conditions of order 9 turn 1e-16 into 4e-14


@cache
def table(name: str):
    """The scheme to measure: explicit tableaux without their rounding to float64, all others as they are."""
    scheme = stepnet.schemes.get(name)
    if name == "radau9":  # of an order that rounded coefficients hide
        return collocation_without_rounding(scheme)
    return without_rounding(scheme) if isinstance(scheme, ExplicitRK) else scheme


def collocation_without_rounding(scheme) -> Butcher:
    """The collocation scheme at the zeros of d^(s-1)/dx^(s-1) x^(s-1) (x - 1)^s, to the digits of long double."""
    s = len(scheme.b)
    zeros = np.polynomial.Polynomial([0, 1]) ** (s - 1) * np.polynomial.Polynomial([-1, 1]) ** s
    with mpmath.workdps(40):
        powers = [mpmath.mpf(round(a)) for a in zeros.deriv(s - 1).coef]
        c = [mpmath.findroot(lambda x: mpmath.polyval(powers[::-1], x), float(node)) for node in scheme.butcher.c]
        basis = mpmath.matrix(s, s)
        for i, j in product(range(s), repeat=2):
            basis[i, j] = c[j] ** i
        weights = [mpmath.lu_solve(basis, mpmath.matrix([x ** (i + 1) / (i + 1) for i in range(s)])) for x in (*c, 1)]
        *A, b = [[np.longdouble(mpmath.nstr(weight, 30)) for weight in row] for row in weights]
    return Butcher(np.array(A), np.array(b), np.array(A).sum(axis=1))


@cache
def reference(form: str) -> np.ndarray:
    """The end state to 18 digits."""
    return end_state(FORMS[form](), table("verner98"), 300)


def error(name: str, form: str, steps: int) -> float:
    return float(np.linalg.norm(end_state(FORMS[form](), table(name), steps) - reference(form)))


def step_counts(name: str, form: str) -> list[int]:
    """Counts a factor `RATIO` apart, the last one as large as the floor and `MOST_STEPS` allow."""
    scheme = stepnet.schemes.get(name)
    floor = EXACT_FLOOR if isinstance(scheme, ExplicitRK) or name == "radau9" else ROUNDED_FLOOR
    most = FIRST_STEPS * (error(name, form, FIRST_STEPS) / floor) ** (1 / scheme.order)
    return [round(min(most, LONGER.get(name, MOST_STEPS)) / RATIO**k) for k in range(SIZES)]


@pytest.mark.parametrize(("name", "form"), over(CASES))
def test_measured_order_is_the_declared_one(name, form):
    counts = step_counts(name, form)
    errors = [error(name, form, steps) for steps in counts]
    measured = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    print(f"{name} on {form}: order {measured:.3f} with {counts[-1]} to {counts[0]} steps, error {errors[0]:.1e}")
    assert abs(measured - stepnet.schemes.get(name).order) < ORDER_TOLERANCE


@pytest.mark.parametrize(("name", "form"), over(CASES))
def test_engine_matches_executor_on_even_steps(name, form):
    problem, scheme = FORMS[form](), stepnet.schemes.get(name)
    solution = stepnet.solve(problem, scheme, steps=ENGINE_STEPS)
    assert np.max(np.abs(solution.y - trajectory(problem, scheme, ENGINE_STEPS))) < ENGINE_TOLERANCE


@pytest.mark.parametrize(("name", "form"), over(UNEVEN))
def test_engine_matches_executor_on_given_steps(name, form):
    problem, scheme = FORMS[form](), stepnet.schemes.get(name)
    inner = np.random.default_rng(2024).uniform(*problem.t_span, ENGINE_STEPS - 1)
    times = np.concatenate(([problem.t_span[0]], np.sort(inner), [problem.t_span[1]]))
    solution = stepnet.solve(problem, scheme, steps=times)
    assert np.array_equal(solution.t, times)
    assert np.max(np.abs(solution.y - trajectory(problem, scheme, times))) < ENGINE_TOLERANCE


@pytest.mark.parametrize(("name", "form"), REFUSED)
def test_forms_without_promise_are_refused(name, form):
    with pytest.raises(TypeError, match=name):
        stepnet.solve(FORMS[form](), name, steps=ENGINE_STEPS)


@pytest.mark.parametrize("name", [scheme.name for scheme in stepnet.schemes.find(family="ExplicitRK")])
def test_table_is_an_exact_one_rounded_to_float64(name):
    exact, rounded = table(name), stepnet.schemes.get(name).butcher
    for new, old in ((exact.A, rounded.A), (exact.b, rounded.b)):
        assert np.max(np.abs(new - old) / np.maximum(np.abs(old), 1e-3)) < TABLE_ROUNDING


def test_every_scheme_is_measured():
    assert {name for name, _ in CASES} == set(FIXED_STEPS)
    assert len(CASES) + len(REFUSED) == len(PAIRS)
    print(f"{len(CASES)} orders measured: {len(FIXED_STEPS)} schemes on {len(FORMS)} forms of problems")
