"""Regions of IMEX and exponential schemes: the explicit part for a given stiff part."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet.schemes import SemiImplicitBDF, find, get
from stepnet.stability import region

SAME = 1e-12  # relative to 1 + |R|
ON_CURVE = 1e-9

SCHEMES = [s for kind in ("AdditiveRK", "ExponentialRK", "SemiImplicitBDF") for s in find(family=kind)]
ONE_STEP = [scheme for scheme in SCHEMES if not isinstance(scheme, SemiImplicitBDF)]
over_schemes = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)


@pytest.mark.parametrize("scheme", ONE_STEP, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize(("z", "w"), [(-0.7, -30.0), (0.4, 0.0), (1.5, -2.0)])
def test_it_is_one_step(scheme, z, w):
    problem = sn.Split((lambda t, y, z: z * y, sn.Linear([[w]])), [1.0], (0.0, 1.0), (z,))
    step = sn.solve(problem, scheme, steps=1).y[-1, 0]
    found = region(scheme, stiff=w, real=[z], imaginary=[0.0]).amplification[0, 0]
    assert abs(abs(step) - found) <= SAME * (1 + found)


@pytest.mark.parametrize("scheme", [get("sbdf2"), get("sbdf4")], ids=lambda scheme: scheme.name)
def test_multistep_schemes_grow_as_their_largest_root(scheme):
    z, w = 0.3 + 0.2j, -4.0 + 1.0j
    polynomial = np.array([1.0 - scheme.gamma * w, *(-np.array(scheme.alpha) - z * np.array(scheme.beta))])
    found = region(scheme, stiff=w, real=[z.real], imaginary=[z.imag]).amplification[0, 0]
    assert abs(np.max(np.abs(np.roots(polynomial))) - found) <= SAME


@over_schemes
def test_the_size_is_one_on_the_boundary(scheme):
    found = region(scheme, stiff=-3.0, resolution=2, angles=40)
    for z in found.boundary[np.isfinite(found.boundary)][::7]:
        size = region(scheme, stiff=-3.0, real=[z.real], imaginary=[z.imag]).amplification[0, 0]
        if isinstance(scheme, SemiImplicitBDF):  # whose locus belongs to any root
            assert size >= 1.0 - ON_CURVE
        else:  # roots of polynomials of high degree are inaccurate
            assert abs(size - 1.0) < ON_CURVE * (1 + abs(z)) ** len(scheme.b)


def test_without_a_stiff_part_exponential_schemes_are_explicit_ones():
    x, y = np.linspace(-4, 1, 11), np.linspace(-3, 3, 7)
    found = region("etdrk4", stiff=0.0, real=x, imaginary=y).amplification
    np.testing.assert_allclose(found, region("rk4", real=x, imaginary=y).amplification, rtol=SAME)


def test_damping_by_the_stiff_part_enlarges_the_region():
    """Ascher, Ruuth & Spiteri: L-stable implicit parts damp whatever the explicit part adds."""
    for name in ("ars222", "ars343", "ars443", "kencarp4", "etdrk4", "sbdf3"):
        for w in (-10.0, -1e6):
            assert region(name, stiff=w, real=[0.0], imaginary=np.linspace(-1, 1, 9)).amplification.max() < 1.0, name


@pytest.mark.parametrize(
    ("scheme", "stiff", "error", "words"),
    [("rk4", -1.0, TypeError, "`stiff` is for IMEX"), ("ars222", "big", TypeError, "`stiff` must be a number"),
     ("ars222", np.inf, ValueError, "`stiff` must be finite"),
     ("ars222", 10**400, ValueError, "`stiff` must be finite"),
     ("etdrk4", 1e3, ValueError, "`stiff` must have a real part")],
)  # fmt: skip
def test_bad_input_is_refused(scheme, stiff, error, words):
    with pytest.raises(error, match=words):
        region(scheme, stiff=stiff)
