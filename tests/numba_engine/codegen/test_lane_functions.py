"""Functions of lanes against 60 digits: at most 2 units in the last place, and NumPy's answers at the edges."""

from __future__ import annotations

import ctypes

import mpmath
import numpy as np
import pytest
from scipy import special

from stepnet.engines.numba_engine.codegen.machine_code import LANES, LIBM, MachineCode
from stepnet.engines.numba_engine.codegen.steps.lane_functions import OWN, add_definitions
from stepnet.engines.numba_engine.tracing.graph import BINARY

MOST_ULPS = 2.0
EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 5e-324, -5e-324, 800.0, -800.0, 0.5, -2.0])
C_NAMES = {symbol: name for name, symbol in LIBM.items() if not symbol.startswith("llvm.")}


def in_lanes(symbol: str, *arguments: np.ndarray) -> np.ndarray:
    """The function of lanes, on arrays of any length."""
    wide = f"<{LANES} x double>"
    names = ("x", "y")[: len(arguments)]
    loads = "\n  ".join(f"%v{name} = load {wide}, ptr %{name}, align 8" for name in names)
    call = ", ".join(f"{wide} %v{name}" for name in names)
    text = f"""define i32 @g(ptr %x, ptr %y, ptr %z) {{
  {loads}
  %r = call {wide} @lanes.{symbol}({call})
  store {wide} %r, ptr %z, align 8
  ret i32 0
}}
"""
    code = MachineCode(add_definitions(text), "g")
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)(code.address)
    size = arguments[0].size
    padded = [np.append(argument, np.ones(-size % LANES)) for argument in arguments]
    out = np.empty_like(padded[0])
    for first in range(0, out.size, LANES):
        x, y = (array[first:].ctypes.data for array in (padded[0], padded[-1]))
        function(x, y, out[first:].ctypes.data)
    return out[:size]


def places(symbol: str) -> tuple[np.ndarray, ...]:
    """Arguments of all sizes, those near the zeros of the function among them."""
    generator, n = np.random.default_rng(0), 1500
    near_one, all_sizes = 1 + 1e-8 * generator.standard_normal(n), 10.0 ** generator.uniform(-300, 300, n)
    usual = 3 * generator.standard_normal(n)
    if symbol == "exp":
        return (np.concatenate([generator.uniform(-745, 709.7, n), usual, 10.0 ** generator.uniform(-20, 0, n)]),)
    if symbol == "log":
        return (np.concatenate([all_sizes, generator.uniform(0.5, 2, n), near_one, 2.0**-1074 * np.arange(1, 50)]),)
    if symbol == "tanh":
        return (np.concatenate([usual, 10.0 ** generator.uniform(-300, 1.5, n)]),)
    if symbol == "pow":
        x = np.concatenate([all_sizes, generator.uniform(0.5, 2, n), near_one])
        y = np.concatenate([generator.uniform(-1.02, 1.02, n), generator.uniform(-500, 500, n), 1e6 * usual])
        return x, y
    quarters = np.arange(-n, n) * np.pi / 2
    return (np.concatenate([generator.uniform(-8e5, 8e5, n), usual, quarters, 1e15 * usual]),)


@pytest.mark.parametrize("symbol", sorted(OWN))
def test_within_two_units_in_the_last_place(symbol):
    exact = (lambda x, y: x**y) if symbol == "pow" else getattr(mpmath, symbol)
    arguments = places(symbol)
    found = in_lanes(symbol, *arguments)
    worst = 0.0
    with mpmath.workdps(60):
        for value, *x in zip(found.tolist(), *(a.tolist() for a in arguments), strict=True):
            wanted = exact(*map(mpmath.mpf, x))
            nearest = float(wanted)
            if value != nearest:
                unit = mpmath.mpf(float(np.spacing(abs(nearest))))
                worst = max(worst, float(abs(mpmath.mpf(value) - wanted) / unit))
    print(f"{symbol}: at most {worst:.2f} units in the last place in {found.size} places")
    assert worst <= MOST_ULPS


@pytest.mark.parametrize("symbol", sorted(C_NAMES))
def test_edges_are_those_of_numpy(symbol):
    name = C_NAMES[symbol]
    arguments = [a.ravel() for a in np.meshgrid(EDGES, EDGES)] if name in BINARY else [EDGES]
    function = getattr(np, name, None) or getattr(special, name)
    with np.errstate(all="ignore"):
        wanted = function(*arguments)
    found = in_lanes(symbol, *arguments)
    np.testing.assert_allclose(found, wanted, rtol=1e-15, atol=0)
    exact = (wanted == 0) | np.isinf(wanted)
    assert np.array_equal(np.signbit(found[exact]), np.signbit(wanted[exact]))


@pytest.mark.parametrize("symbol", sorted(OWN))
def test_a_lane_does_not_depend_on_its_neighbours(symbol):
    arguments = [a[:200] for a in places(symbol)]
    alone = np.concatenate([in_lanes(symbol, *(a[i : i + 1] for a in arguments)) for i in range(0, 200, 7)])
    repeated = [np.tile(EDGES, LANES)[:200].copy() for _ in arguments]
    for i in range(0, 200, 7):
        for filled, a in zip(repeated, arguments, strict=True):
            filled[i] = a[i]
    assert np.array_equal(in_lanes(symbol, *repeated)[::7], alone)
