"""Reports and regions of schemes have the values of the literature."""

from __future__ import annotations

import json
from math import inf, isnan, sqrt

import mpmath
import numpy as np
import pytest
from scheme_names import FIXED_STEPS

from stepnet import schemes, stability
from stepnet.schemes import Butcher, conditions
from stepnet.schemes.conditions.families import linear_tableau
from stepnet.schemes.phase_errors import find_phase_errors
from stepnet.schemes.stability_grids import evaluate_grid, find_boundary, is_for_oscillators
from stepnet.schemes.stochastic import theta_maruyama, theta_milstein

LIMIT = 1e-6  # of stability limits: Newton's method, or for multistep schemes bisection with a slack of 1e-7
SERIES = 1e-10  # relative, of coefficients of power series
CURVE = 1e-6  # | |R| - 1 | on the boundary
NEXT_TERM = 1e-3  # of the series at nu = 1e-3, whose coefficients are of similar size
GRID = 1e-12  # relative to 1 + |R|: Taylor's formula and Horner's rule differ by rounding

NAMES = FIXED_STEPS
PLANAR = [name for name in NAMES if not is_for_oscillators(schemes.get(name))]

IMPLICIT_EULER = Butcher(np.array([[1.0]]), np.array([1.0]), np.array([1.0]))
IMPLICIT_MIDPOINT = Butcher(np.array([[0.5]]), np.array([1.0]), np.array([0.5]))
RADAU2 = Butcher(np.array([[5 / 12, -1 / 12], [3 / 4, 1 / 4]]), np.array([3 / 4, 1 / 4]), np.array([1 / 3, 1.0]))


def find_limits(coefficients) -> tuple[float, float]:
    """The first positive zeros of R(-x)^2 - 1 and |R(iy)|^2 - 1, as roots of polynomials."""
    R = np.polynomial.Polynomial(coefficients)
    even = np.polynomial.Polynomial(R.coef * np.resize([1, 0, -1, 0], R.coef.size))
    odd = np.polynomial.Polynomial(R.coef * np.resize([0, 1, 0, -1], R.coef.size))
    found = []
    for P in (R(np.polynomial.Polynomial([0.0, -1.0])) ** 2 - 1, even**2 + odd**2 - 1):
        roots = P.roots()
        found.append(min(x.real for x in roots if abs(x.imag) < 1e-9 and x.real > 0.05))
    return found[0], found[1]


@pytest.mark.parametrize("name", ["rk4", "dopri5"])
def test_limits_are_roots_of_polynomials(name):
    found = stability.report(name)
    real, imaginary = find_limits(found.numerator)
    assert found.real_limit == pytest.approx(real, abs=LIMIT)
    assert found.imaginary_limit == pytest.approx(imaginary, abs=LIMIT)


IMEX = {  # explicit part alone: limits of the first 2, 3 and 5 terms of the exponential series
    "imex_euler": (2.0, 0.0),
    "ars222": (2.0, 0.0),
    "ars343": (2.785293563, sqrt(8.0)),
    "sbdf2": (4 / 3, 0.0),  # xi = -1 solves sum |alpha_j| = |z| sum |beta_j|
    "sbdf3": (20 / 21, None),
    "sbdf4": (32 / 45, None),
}


@pytest.mark.parametrize("name", IMEX)
def test_limits_of_explicit_parts_are_known(name):
    found, (real, imaginary) = stability.report(name), IMEX[name]
    assert found.explicit_real_limit == pytest.approx(real, abs=5 * LIMIT)
    if imaginary is not None:
        assert found.explicit_imaginary_limit == pytest.approx(imaginary, abs=5 * LIMIT)


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(schemes.get(name), schemes.AdditiveRK)])
def test_explicit_parts_have_the_stability_polynomial_of_their_tableau(name):
    """R(z) = 1 + z b' (I - z A)^-1 1, and the first zeros of |R|^2 - 1 on the axes."""
    found, table = stability.report(name), schemes.get(name).explicit_table
    for z in (-0.7 + 0.2j, 1.3j, -2.0 + 0j):
        R = 1 + z * table.b @ np.linalg.solve(np.eye(len(table.b)) - z * table.A, np.ones(len(table.b)))
        assert np.polynomial.Polynomial(found.explicit_numerator)(z) == pytest.approx(R, rel=1e-12)
    if found.explicit_imaginary_limit > 0:
        real, imaginary = find_limits(found.explicit_numerator)
        assert found.explicit_real_limit == pytest.approx(real, abs=LIMIT)
        assert found.explicit_imaginary_limit == pytest.approx(imaginary, abs=LIMIT)


@pytest.mark.parametrize("name", ["ars343", "kencarp4", "sbdf3"])
def test_limits_of_explicit_parts_are_on_the_boundary_of_regions_without_a_stiff_part(name):
    found = stability.report(name)
    for direction, limit in ((-1.0, found.explicit_real_limit), (1j, found.explicit_imaginary_limit)):
        inside, outside = (direction * limit * (1 + side * 1e-3) for side in (-1, 1))
        sizes = [
            stability.region(name, stiff=0.0, real=[z.real, z.real + 1], imaginary=[z.imag, z.imag + 1])
            for z in map(complex, (inside, outside))
        ]
        assert sizes[0].amplification[0, 0] <= 1 + 1e-9 < sizes[1].amplification[0, 0]


def test_reports_of_imex_schemes_name_their_parts():
    text = str(stability.report("ars343"))
    for label in ("implicit numerator", "implicit denominator", "implicit real limit", "explicit real limit"):
        assert label in text
    assert "implicit" not in str(stability.report("rk4"))
    stored = json.loads(stability.report("ars222").as_json())
    assert stored["explicit_numerator"] == pytest.approx([1.0, 1.0, 0.5])
    assert json.loads(stability.report("rk4").as_json())["explicit_real_limit"] is None


BOOK = {  # Hairer & Wanner (1996), IV.2 and V.1; Hairer, Lubich & Wanner (2006), I.5
    "euler": (2.0, 0.0),
    "rk4": (2.785293563, sqrt(8.0)),
    "dopri5": (3.306567893, 0.997189009),
    "ssprk3": (2.512745327, sqrt(3.0)),
    "ab2": (1.0, 0.0),
    "ab3": (6 / 11, 0.723628),
    "midpoint_two_step": (0.0, 1.0),
    "verlet": (None, 2.0),
    "leapfrog_two_step": (None, 2.0),
}


@pytest.mark.parametrize("name", BOOK)
def test_limits_are_those_of_the_books(name):
    found, (real, imaginary) = stability.report(name), BOOK[name]
    assert found.imaginary_limit == pytest.approx(imaginary, abs=5 * LIMIT)
    assert isnan(found.real_limit) if real is None else found.real_limit == pytest.approx(real, abs=LIMIT)


@pytest.mark.parametrize("name", ["rk4", "dopri5", "verner65", "carpenter_kennedy54"])
def test_the_numerator_is_the_exponential_up_to_the_order(name):
    found = stability.report(name)
    exact = 1 / np.cumprod([1, *range(1, found.order + 1)])
    np.testing.assert_allclose(found.numerator[: found.order + 1], exact, rtol=1e-13)
    assert found.denominator == (1.0,)
    assert abs(found.numerator[-1]) > 1e-10


def test_implicit_tableaux_have_the_flags_of_the_books():
    """Hairer & Wanner (1996), IV.3: Pade approximations (0,1), (1,1) and (1,2) of exp."""
    for table, numerator, denominator, is_l_stable, is_symmetric in (
        (IMPLICIT_EULER, (1.0,), (1.0, -1.0), True, False),
        (IMPLICIT_MIDPOINT, (1.0, 0.5), (1.0, -0.5), False, True),
        (RADAU2, (1.0, 1 / 3), (1.0, -2 / 3, 1 / 6), True, False),
    ):
        found = stability.report(table)
        np.testing.assert_allclose(found.numerator, numerator, atol=1e-14)
        np.testing.assert_allclose(found.denominator, denominator, atol=1e-14)
        assert found.is_a_stable
        assert (found.is_l_stable, found.is_symmetric) == (is_l_stable, is_symmetric)
        assert found.real_limit == inf


PHASE = {  # van der Houwen & Sommeijer (1987); Hairer, Lubich & Wanner (2006), for Verlet 2 arcsin(nu / 2)
    "euler": (2, 1 / 3, 1, -1 / 2),
    "heun2": (2, -1 / 6, 3, -1 / 8),
    "kutta3": (4, -1 / 30, 3, 1 / 24),
    "rk4": (4, 1 / 120, 5, 1 / 144),
    "ab2": (2, -5 / 12, 3, -1 / 4),
    "midpoint_two_step": (2, -1 / 6, inf, 0),
    "verlet": (2, -1 / 24, inf, 0),
    "leapfrog_two_step": (2, -1 / 24, inf, 0),
}


@pytest.mark.parametrize("name", PHASE)
def test_dispersion_and_dissipation_are_known_fractions(name):
    assert find_phase_errors(schemes.get(name)) == pytest.approx(PHASE[name], rel=SERIES)


def test_the_implicit_midpoint_rule_turns_by_two_arctan():
    """arg R(i nu) = 2 arctan(nu / 2) = nu - nu^3 / 12 + ..., without loss."""
    assert find_phase_errors(IMPLICIT_MIDPOINT) == pytest.approx((2, 1 / 12, inf, 0), rel=SERIES)


ONE_STEP = [name for name in NAMES if linear_tableau(schemes.get(name)) is not None]
IMPLICIT = [name for name in ONE_STEP if not conditions.is_explicit(schemes.get(name))]


@pytest.mark.parametrize("name", IMPLICIT)
def test_implicit_schemes_have_phase_errors_of_their_order_and_regions_of_finite_windows(name):
    """R(z) = exp(z) + O(z^(p + 1)); those that are A-stable have no unstable point on the left."""
    scheme = schemes.get(name)
    errors, found = find_phase_errors(scheme), stability.region(name, resolution=21)
    assert min(errors.dispersion_order, errors.dissipation_order) >= scheme.order
    assert np.abs(np.append(found.real, found.imaginary)).max() < 100
    if conditions.is_a_stable(scheme):
        assert (found.is_stable | (found.real > 0)).all()


@pytest.mark.parametrize("name", [name for name in ONE_STEP if name not in IMPLICIT])
def test_phase_errors_are_those_of_one_step(name):
    """The leading terms against R itself in extended precision."""
    scheme, errors = schemes.get(name), find_phase_errors(schemes.get(name))
    P, _ = conditions.stability_function(scheme)
    with mpmath.workdps(60):
        nu = mpmath.mpf("1e-3")
        R = sum(mpmath.mpf(c) * (1j * nu) ** k for k, c in enumerate(exact_up_to_order(P.coef, scheme.order)))
        phase, loss = nu - mpmath.arg(R), 1 - abs(R)
        for error, leading, order in (
            (phase, errors.dispersion, errors.dispersion_order), (loss, errors.dissipation, errors.dissipation_order),
        ):  # fmt: skip
            assert float(error / (leading * nu ** (order + 1))) == pytest.approx(1, abs=NEXT_TERM)


def exact_up_to_order(coefficients, order):
    """1/k! in extended precision for the powers up to the order, whose rounding would dominate otherwise."""
    return [1 / mpmath.factorial(k) if k <= order else c for k, c in enumerate(coefficients)]


@pytest.mark.parametrize("name", NAMES)
def test_orders_of_phase_and_amplitude_are_at_least_that_of_the_scheme(name):
    scheme = schemes.get(name)
    errors = find_phase_errors(scheme)
    assert errors.dispersion_order >= scheme.order
    assert errors.dissipation_order >= scheme.order
    assert errors.dispersion_order % 2 == 0
    if conditions.is_symplectic(scheme):
        assert errors.dissipation_order == inf


@pytest.mark.parametrize("name", NAMES)
def test_reports_are_complete_and_survive_json(name):
    found = stability.report(name)
    assert found.name == schemes.get(name).name
    assert found.order == schemes.get(name).order
    stored = json.loads(found.as_json())
    assert list(stored) == list(found.as_dict())
    assert float(stored["imaginary_limit"]) == pytest.approx(found.imaginary_limit)  # infinity is the text "inf"
    assert len(str(found).splitlines()) == len(stored) - 1  # name and family are one line
    assert found.ssp_coefficient == conditions.ssp_coefficient(schemes.get(name))


def test_stages_are_evaluations_in_a_step():
    wanted = {"euler": 1, "rk4": 4, "dopri5": 6, "bosh3": 3, "dop853": 12, "verlet": 1, "yoshida4": 3, "ab4": 1,
              "imex_euler": 1, "ars222": 2, "ars343": 4, "ars443": 4, "kencarp4": 6, "etdrk4": 4}  # fmt: skip
    assert {name: stability.report(name).stages for name in wanted} == wanted


# ---- regions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANAR)
def test_grids_agree_with_the_amplification_of_single_points(name):
    scheme = schemes.get(name)
    x, y = np.linspace(-5, 1.9, 23), np.linspace(-4, 4, 17)  # 2 is a pole of some implicit schemes
    wanted = conditions.amplification(scheme, x + 1j * y[:, None])
    np.testing.assert_allclose(evaluate_grid(scheme, x, y) / (1 + wanted), wanted / (1 + wanted), atol=GRID)


@pytest.mark.parametrize("table", [IMPLICIT_EULER, IMPLICIT_MIDPOINT, RADAU2], ids=["euler", "midpoint", "radau"])
def test_grids_of_implicit_tableaux_are_quotients_of_determinants(table):
    x, y = np.linspace(-5, 0.1, 11), np.linspace(-4, 4, 8)
    z = (x + 1j * y[:, None])[..., None, None]
    one = np.eye(len(table.b))
    wanted = np.linalg.det(one - z * table.A + z * table.b) / np.linalg.det(one - z * table.A)
    np.testing.assert_allclose(evaluate_grid(table, x, y), np.abs(wanted), rtol=GRID)


@pytest.mark.parametrize("name", PLANAR)
def test_the_size_is_one_on_the_boundary(name):
    """A root of unit size; other roots of a multistep scheme may be larger, where the locus is no boundary."""
    scheme, boundary = schemes.get(name), find_boundary(schemes.get(name), 90)
    points = boundary[np.isfinite(boundary)]
    assert points.size >= 90
    size = conditions.amplification(scheme, points)
    if conditions.tableau_of(scheme) is None:
        assert (size >= 1 - CURVE).all()
        assert name != "ab2" or np.allclose(size, 1, atol=CURVE)
    else:
        np.testing.assert_allclose(size, 1, atol=CURVE)


@pytest.mark.parametrize(("name", "curves"), [("euler", 1), ("rk4", 4), ("dopri5", 6), ("ssprk104", 10)])
def test_curves_are_continuous_and_as_many_as_the_degree(name, curves):
    boundary = stability.region(name, resolution=2).boundary
    assert boundary.shape == (curves, 720)
    jumps = np.abs(np.diff(boundary, axis=1))
    assert jumps.max() < 0.1


def test_the_region_of_euler_is_a_disc():
    found = stability.region("euler", resolution=101)
    z = found.real + 1j * found.imaginary[:, None]
    np.testing.assert_allclose(found.amplification, np.abs(1 + z), atol=1e-14)
    assert np.array_equal(found.is_stable, np.abs(1 + z) <= 1 + 1e-9)
    np.testing.assert_allclose(np.abs(found.boundary + 1), 1, atol=1e-12)


def test_the_region_of_a_splitting_is_an_interval():
    found = stability.region("verlet", imaginary=np.linspace(-3, 3, 13))
    assert found.real.tolist() == [0.0]
    assert found.equation == "q'' = -omega^2 q"
    np.testing.assert_allclose(found.boundary.ravel(), [-2j, 2j], atol=LIMIT)
    assert np.array_equal(found.amplification[:, 0] <= 1 + LIMIT, np.abs(found.imaginary) <= 2)


@pytest.mark.parametrize(("scheme", "order"), [("euler", 1), ("rk4", 4), ("dopri5", 5), (RADAU2, 3)])
def test_order_stars_have_a_sector_more_than_the_order(scheme, order):
    """Wanner, Hairer & Norsett (1978): p + 1 sectors of the star, as many of its complement, at the origin."""
    radius = 0.1
    angles = 2 * np.pi * (np.arange(2000) + 0.5) / 2000
    z = radius * np.exp(1j * angles)
    size = conditions.amplification(scheme if isinstance(scheme, Butcher) else schemes.get(scheme), z)
    inside = size > np.abs(np.exp(z))
    assert np.count_nonzero(inside != np.roll(inside, 1)) == 2 * (order + 1)
    found = stability.region(scheme, real=[-0.1, 0.05], imaginary=[0.0, 0.1])
    np.testing.assert_allclose(found.order_star, found.amplification / np.exp(found.real))


def test_default_windows_hold_the_limits():
    for name in PLANAR:
        found, limits = stability.region(name, resolution=2), stability.report(name)
        assert found.real[0] < -limits.real_limit or limits.real_limit in (0, inf)
        assert found.imaginary[-1] > limits.imaginary_limit or limits.imaginary_limit == inf


# ---- stochastic schemes ---------------------------------------------------------------------------------------------

ONE_ROW = sorted(set(schemes.names("SDE")) - {"sra1", "sra2", "sra3", "reversible_heun", "tamed_euler"})
P, Q = np.linspace(-2.5, 0.3, 29), np.linspace(0, 2, 21)


def test_mean_square_growth_of_euler_maruyama_and_milstein_is_the_known_polynomial():
    """Saito & Mitsui (1996): (1 + p)^2 + q and (1 + p)^2 + q + q^2 / 2 with p = h lambda, q = h mu^2."""
    euler = (1 + P) ** 2 + Q[:, None]
    for name, more in (("euler_maruyama", 0), ("milstein", Q**2 / 2), ("milstein_derivative_free", None)):
        found = stability.mean_square_region(name, drift=P, diffusion=Q)
        if more is not None:
            np.testing.assert_allclose(found.growth, euler + np.reshape(more, (-1, 1)), atol=1e-13)
        assert found.growth.shape == (21, 29)
        assert not (found.is_stable & ~found.exact).any()


@pytest.mark.parametrize("theta", [0.5, 1.0, 1.5])
def test_mean_square_growth_of_theta_schemes_is_the_known_fraction(theta):
    """Higham (2000): ((1 + (1 - theta) p)^2 + q) / (1 - theta p)^2, and q + q^2 / 2 in place of q for Milstein."""
    q = Q[:, None]
    for build, noise in ((theta_maruyama, q), (theta_milstein, q + q**2 / 2)):
        if build is theta_maruyama and theta > 1:
            continue
        found = stability.mean_square_region(build(theta), drift=P, diffusion=Q)
        wanted = ((1 + (1 - theta) * P) ** 2 + noise) / (1 - theta * P) ** 2
        np.testing.assert_allclose(found.growth, wanted, rtol=1e-13)
        if build is theta_maruyama or theta == 1.5:
            assert (found.is_stable | ~found.exact).all()


@pytest.mark.parametrize("name", ONE_ROW)
def test_mean_square_growth_is_the_exact_one_to_first_order(name):
    """exp(2 p + q) of Ito and exp(2 p + 2 q) of Stratonovich equations, for short steps."""
    h = 1e-4
    found = stability.mean_square_region(name, drift=[-0.7 * h], diffusion=[0.4 * h])
    factor = 1 if found.calculus == "ito" else 2
    assert found.growth[0, 0] == pytest.approx(np.exp(h * (-1.4 + factor * 0.4)), abs=1e-7)


def test_the_second_row_of_the_reversible_heun_scheme_grows():
    """As the parasitic root of the two-step midpoint rule: exp(-2 p + 2 q)."""
    h = 1e-4
    found = stability.mean_square_region("reversible_heun", drift=[-0.7 * h], diffusion=[0.4 * h])
    assert found.growth[0, 0] == pytest.approx(np.exp(h * (1.4 + 0.8)), abs=1e-7)


@pytest.mark.parametrize("name", ["platen_weak2", "sriw1", "stochastic_heun"])
def test_mean_square_growth_is_that_of_drawn_steps(name):
    """One step from y = 1 over many paths; the tolerance is six standard errors."""
    import stepnet as sn

    problem = sn.SDE(lambda t, y: -0.8 * y, lambda t, y: 0.9 * y, [1.0], (0.0, 1.0), noise="scalar",
                     calculus=schemes.get(name).calculus)  # fmt: skip
    ends = sn.solve_ensemble(problem, name, paths=4000, steps=1).y_end.ravel() ** 2
    wanted = stability.mean_square_region(name, drift=[-0.8], diffusion=[0.81]).growth[0, 0]
    assert abs(ends.mean() - wanted) < 6 * ends.std() / sqrt(ends.size)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: stability.report("euler_maruyama"), TypeError, "`scheme`.*euler_maruyama.*mean_square_region"),
        (lambda: stability.region("rk5"), ValueError, "rk5"),
        (lambda: stability.report(4), TypeError, "`scheme` must be a scheme"),
        (lambda: stability.region("rk4", real=[1.0, 0.0]), ValueError, "`real` must be increasing"),
        (lambda: stability.region("rk4", resolution=1), ValueError, "`resolution`"),
        (lambda: stability.mean_square_region("rk4"), TypeError, "`scheme` must be a stochastic scheme"),
        (lambda: stability.mean_square_region("sra1"), ValueError, "`scheme` must admit noise"),
        (lambda: stability.mean_square_region("tamed_euler"), ValueError, "tamed_euler tames the drift"),
        (
            lambda: stability.mean_square_region("milstein", diffusion=[-1.0, 0.0]),
            ValueError,
            "`diffusion` must not be negative",
        ),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises((error, LookupError) if error is ValueError else error, match=message):
        call()


def test_reports_of_rosenbrock_schemes_count_their_stages():
    assert [stability.report(name).stages for name in ("ros3p", "rodas3", "rodas4", "radau_iia(3)")] == [3, 4, 6, 3]
