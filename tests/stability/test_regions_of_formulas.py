"""Regions of BDF, NDF and Adams schemes: those of the formula of each order."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet.schemes import get
from stepnet.schemes.variable_order import find_stability_angle
from stepnet.stability import region

SAME = 1e-12  # relative to 1 + |R|: closed forms and eigenvalues
ON_CURVE = 1e-8  # double roots are accurate to the square root of rounding
ANGLE = 0.1  # degrees: the locus has 20000 points here and 200001 there

x, y = np.linspace(-3.03, 2.0, 7), np.linspace(-2.0, 2.0, 5)
z = x + 1j * y[:, None]


def test_low_orders_have_their_closed_forms():
    """Implicit Euler, BDF2, and the Euler predictor corrected by the trapezoidal rule."""
    implicit = region("bdf", order=1, real=x, imaginary=y).amplification
    # xi^2 (3/2 - z) - 2 xi + 1/2 = 0
    root = np.sqrt(4 - 2 * (1.5 - z))
    second = np.maximum(np.abs(2 + root), np.abs(2 - root)) / np.abs(3 - 2 * z)
    for found, wanted in (
        (implicit, 1 / np.abs(1 - z)),
        (region("bdf", order=2, real=x, imaginary=y).amplification, second),
        (region("adams", order=1, real=x, imaginary=y).amplification, np.abs(1 + z + z**2 / 2)),
    ):
        np.testing.assert_allclose(found, wanted, rtol=SAME, atol=SAME)


FORMULAS = [(name, k) for name in ("bdf", "ndf", "adams") for k in range(1, 6)] + [("adams", 12)]


@pytest.mark.parametrize(("name", "order"), FORMULAS)
def test_some_root_is_on_the_unit_circle_along_the_boundary(name, order):
    found = region(name, order=order, resolution=2, angles=40)
    assert found.name == f"{name}, order {order}"
    for point in found.boundary[np.isfinite(found.boundary)][::7]:
        size = region(name, order=order, real=[point.real], imaginary=[point.imag]).amplification[0, 0]
        assert size >= 1 - ON_CURVE


@pytest.mark.parametrize(("name", "order"), [(name, k) for name in ("bdf", "ndf") for k in range(1, 6)])
def test_formulas_are_stable_in_their_sector_and_not_in_a_wider_one(name, order):
    scheme = get(name)
    angle = find_stability_angle(scheme, order)
    boundary = region(name, order=order, resolution=2, angles=20_000).boundary[0]
    left = boundary[boundary.real < -1e-6]
    seen = np.degrees(np.abs(np.pi - np.abs(np.angle(left)))).min() if left.size else 90.0
    assert seen == pytest.approx(angle, abs=ANGLE)
    inside = -np.geomspace(1e-2, 1e3, 50) * np.exp(1j * np.radians(0.99 * angle))
    for point in inside:
        assert region(name, order=order, real=[point.real], imaginary=[point.imag]).is_stable.all()


def test_the_real_interval_of_adams_schemes_ends_at_their_limit():
    limits = get("adams").stability_limits
    for k in (1, 3, 6):
        found = region("adams", order=k, real=[-limits[k] - 0.02, -limits[k] + 0.02], imaginary=[0.0])
        assert found.is_stable.ravel().tolist() == [False, True]


def test_a_pole_has_infinite_growth():
    assert region("bdf", order=1, real=[1.0], imaginary=[0.0]).amplification[0, 0] > 1e20
    assert region("sbdf2", real=[1.5], imaginary=[0.0]).amplification[0, 0] > 1e20


def test_regions_are_drawn_with_schemes():
    from matplotlib.figure import Figure

    grid = {"real": np.linspace(-3, 8, 40), "imaginary": np.linspace(-5, 5, 40)}
    found = [region("bdf", order=k, **grid) for k in (1, 2)] + [region("ars343", stiff=-2.0, **grid)]
    axes = sn.plots.stability_region(*found, "rk4", axes=Figure().subplots())
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["bdf, order 1", "bdf, order 2", "ars343, h mu = -2", "rk4"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: region("bdf"), ValueError, "`order` must be that of a formula of bdf, from 1 to 5, found none"),
        (lambda: region("adams", order=13), ValueError, "from 1 to 12, found 13"),
        (lambda: region("rk4", order=4), TypeError, "`order` is for schemes that choose their order"),
        (lambda: region("bdf", order=2, stiff=-1.0), TypeError, "`stiff` is for IMEX"),
        (lambda: region("auto"), TypeError, "auto switches between tsit5 and rodas5p"),
        (lambda: region("sbdf2", stiff=1.5), ValueError, "`stiff` must not be a pole"),
        (lambda: sn.stability.report("ndf"), TypeError, r"`scheme` must have one stability function.*order=k"),
        (lambda: sn.plots.stability_region("lsoda"), TypeError, "switches between adams and ndf"),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
