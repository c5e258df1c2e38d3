"""Records of schemes of variable order: their coefficients, stability, and what they refuse."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scheme_names import ADAPTIVE_ONLY, FIXED_STEPS

import stepnet as sn
from stepnet import schemes
from stepnet.errors import SchemeError
from stepnet.schemes.capabilities import find_step_choice_refusal, is_adaptive, takes_fixed_steps
from stepnet.schemes.variable_order import ADAMS, BDF, LSODA, NDF, find_stability_angle

NAMES = ("adams", "auto", "bdf", "lsoda", "ndf")
TABLE = 0.6  # of a degree: angles are printed as whole degrees for NDF, two decimals belong to BDF
ROUNDING = 1e-15


def test_the_catalogue_lists_them_apart_from_schemes_that_take_fixed_steps():
    assert tuple(ADAPTIVE_ONLY) == NAMES
    assert not set(NAMES) & set(FIXED_STEPS)
    for name in NAMES:
        scheme = schemes.get(name)
        assert schemes.get(scheme) is scheme
        assert is_adaptive(scheme)
        assert not takes_fixed_steps(scheme)
        assert scheme.reference
        assert name in find_step_choice_refusal(scheme, "a reason;")
    assert takes_fixed_steps(schemes.get("rk4"))
    with pytest.raises(LookupError, match="did you mean 'lsoda'"):
        schemes.get("lsod")


@pytest.mark.parametrize(
    ("scheme", "angles"),
    [(BDF, (90.0, 90.0, 86.03, 73.35, 51.84)), (NDF, (90.0, 90.0, 80.0, 66.0, 51.84))],
    ids=["bdf", "ndf"],
)
def test_the_angles_of_stability_are_those_of_the_literature(scheme, angles):
    """Hairer & Wanner, table V.2.1; Shampine & Reichelt, table 1."""
    found = [find_stability_angle(scheme, order) for order in range(1, 6)]
    np.testing.assert_allclose(found, angles, rtol=0, atol=TABLE)


@pytest.mark.parametrize("scheme", [BDF, NDF], ids=["bdf", "ndf"])
@pytest.mark.parametrize("order", range(1, 6))
def test_the_formulas_are_exact_for_polynomials_of_their_order_and_have_the_declared_error(scheme, order):
    """sum nabla^m y / m - kappa gamma nabla^(k+1) y = h y' + error gamma^0 nabla^(k+1) y + ..., with h = 1."""
    kappa, gamma = scheme.kappa[order - 1], sum(1 / j for j in range(1, order + 1))
    for degree in range(order + 2):
        values = np.array([float(-i) ** degree for i in range(order + 2)])
        differences = [values]
        for _ in range(order + 1):
            differences.append(differences[-1][:-1] - differences[-1][1:])
        left = sum(differences[m][0] / m for m in range(1, order + 1)) - kappa * gamma * differences[order + 1][0]
        right = 1.0 if degree == 1 else 0.0
        if degree == order + 1:
            right -= scheme.numbers.error[order] * differences[order + 1][0]
        assert left == pytest.approx(right, abs=1e-10)


def test_the_coefficients_of_adams_are_the_exact_integrals():
    exact = [Fraction(1)]
    for j in range(1, 14):
        exact.append(1 - sum(g / (j + 1 - i) for i, g in enumerate(exact)))
    np.testing.assert_allclose(ADAMS.gamma, [float(g) for g in exact], rtol=ROUNDING * 10)
    assert ADAMS.error[1:4].tolist() == pytest.approx([1 / 2, 1 / 12, 1 / 24])


def test_the_limits_of_stability_of_pece_are_those_of_the_literature():
    """Order 1 is Heun's scheme; the intervals shrink from order 3 on."""
    limits = ADAMS.stability_limits
    assert limits[1] == pytest.approx(2.0, abs=0.01)
    assert limits[2] == pytest.approx(2.4, abs=0.01)
    assert np.all(np.diff(limits[2:]) < 0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: schemes.VariableBDF("x", (), "y"), "`kappa` must have one number"),
        (lambda: schemes.VariableBDF("x", (0.0,) * 6, "y"), "`kappa` must have one number"),
        (lambda: schemes.VariableBDF("x", (-0.5,), "y"), "error constant is zero"),
        (lambda: schemes.VariableBDF("x", (float("nan"),), "y"), "kappa"),
        (lambda: schemes.VariableBDF("x", (0.0, 9.0), "y"), "root condition"),
        (lambda: schemes.Switching("x", ADAMS, schemes.get("rodas4"), "y"), "both"),
        (lambda: schemes.Switching("x", schemes.get("tsit5"), NDF, "y"), "both"),
        (lambda: schemes.Switching("x", schemes.get("rk4"), schemes.get("rodas4"), "y"), "rk4 has no error estimate"),
        (lambda: schemes.Switching("x", schemes.get("tsit5"), schemes.get("gauss4"), "y"), "gauss4 has no error"),
        (lambda: schemes.Switching("x", schemes.get("bosh3"), schemes.get("rodas4"), "y"), "last two stages"),
    ],
)
def test_wrong_numbers_are_refused(build, message):
    with pytest.raises(SchemeError, match=message):
        build()


@pytest.mark.parametrize("order", [0, 13])
def test_adams_has_the_orders_one_to_twelve(order):
    with pytest.raises(ValueError, match="order"):
        schemes.VariableAdams("x", order, "y")


PROBLEM = sn.ODE(lambda t, y, k: -k * y, [1.0, 2.0], (0.0, 1.0), (2.0,))
REFUSALS = {
    "steps": (ValueError, "takes no `steps`", lambda s: sn.solve(PROBLEM, s, steps=10)),
    "controller": (ValueError, "takes no `controller`", lambda s: sn.solve(PROBLEM, s, controller="PI")),
    "gradient": (TypeError, "no exact gradient", lambda s: sn.gradient(PROBLEM, s, lambda y: y[0])),
    "tangent": (TypeError, "no exact gradient", lambda s: sn.tangent(PROBLEM, s, y0=[1.0, 0.0])),
    "jacobian": (TypeError, "no exact gradient", lambda s: sn.jacobian(PROBLEM, s)),
    "hvp": (TypeError, "no exact gradient", lambda s: sn.hvp(PROBLEM, s, lambda y: y[0], y0=[1.0, 0.0])),
    "ensemble gradient": (
        TypeError, "no exact gradient", lambda s: sn.gradient_ensemble(PROBLEM, s, lambda y: y[0], y0=np.ones((2, 2))),
    ),
    "stability": (TypeError, "one stability function", lambda s: sn.stability.report(s)),
    "net": (ValueError, "takes fixed steps", lambda s: sn.nets.resnet(3, 2, width=4, steps=3, scheme=s)),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("use", REFUSALS)
def test_what_needs_given_steps_refuses_them_and_names_what_to_take(use, name):
    error, message, call = REFUSALS[use]
    with pytest.raises(error, match=message) as refusal:
        call(name)
    assert name in str(refusal.value)
    assert use == "controller" or ("use" if use == "stability" else "take") in str(refusal.value)


def test_the_records_of_a_switching_scheme_are_its_parts():
    assert (LSODA.explicit, LSODA.implicit) == (ADAMS, NDF)
    assert schemes.get("auto").explicit.name == "tsit5"
    assert schemes.get("auto").implicit.name == "rodas5p"
