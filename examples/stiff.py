"""Stiff equations beside SciPy: Robertson's reaction and van der Pol's oscillator, errors against time and work.

Then the Brusselator on 250 points with a banded Jacobian, and layers: a parabolic net with implicit and with explicit
Euler over the step size.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
from scipy.integrate import solve_ivp

import stepnet as sn
from stepnet import fields, plots
from stepnet.nets import Block, Design, Net

matplotlib.use("Agg")
from matplotlib.figure import Figure

SCHEMES, OF_SCIPY = ("rodas5p", "radau5", "ndf"), ("Radau", "BDF")
POINTS = 250
REPEATS = 5  # of runs of milliseconds, the quickest of which counts
SMALL = 1e-14  # errors below are drawn there


def robertson(t, y):
    slow, back, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return [-slow + back, slow - back - fast, fast]


def van_der_pol(t, y):
    return [y[1], 1e3 * (1.0 - y[0] * y[0]) * y[1] - y[0]]


def brusselator(t, z):
    """Two reactants, interleaved, with diffusion; Hairer & Wanner (1996), IV.10."""
    k = 0.02 * (POINTS + 1) ** 2
    u, v = z[::2], z[1::2]
    left, right = np.concatenate(([1.0], u[:-1])), np.concatenate((u[1:], [1.0]))
    below, above = np.concatenate(([3.0], v[:-1])), np.concatenate((v[1:], [3.0]))
    slope = np.zeros(2 * POINTS)
    slope[::2] = 1 + u * u * v - 4 * u + k * (left - 2 * u + right)
    slope[1::2] = 3 * u - u * u * v + k * (below - 2 * v + above)
    return slope


def find_errors(found, wanted) -> np.ndarray:
    """The largest relative error of the entries at each time."""
    return np.max(np.abs(found - wanted) / np.abs(wanted), axis=1)


def solve_both(fun, y0, times, scheme, rtol: float) -> tuple[np.ndarray, float]:
    """States at the times, and seconds, by a scheme of stepnet or a method of SciPy."""
    span, atol, seconds = (0.0, times[-1]), 1e-4 * rtol, np.inf
    for _ in range(1 if scheme in OF_SCIPY else REPEATS):
        begin = time.perf_counter()
        if scheme in OF_SCIPY:
            states = solve_ivp(fun, span, y0, scheme, t_eval=times, rtol=rtol, atol=atol).y.T
        else:
            states = sn.solve(sn.ODE(fun, y0, span), scheme, rtol=rtol, atol=atol, save_at=times).y
        seconds = min(seconds, time.perf_counter() - begin)
    return states, seconds


def compare(fun, y0, times, axes, tolerances) -> float:
    """Draw errors over time at the middle tolerance, and at the end over work; return that of the first scheme."""
    wanted, _ = solve_both(fun, y0, times, "radau9", 1e-12)
    over_time, over_work = axes
    middle, reported = tolerances[len(tolerances) // 2], np.nan
    for scheme in (*SCHEMES, *OF_SCIPY):
        label, line = (f"SciPy {scheme}", "--") if scheme in OF_SCIPY else (scheme, "-")
        solve_both(fun, y0, times[:2], scheme, tolerances[0])  # compiles
        work, errors = [], []
        for rtol in tolerances:
            states, seconds = solve_both(fun, y0, times, scheme, rtol)
            found = np.maximum(find_errors(states, wanted), SMALL)
            work.append(seconds)
            errors.append(found[-1])  # a step ends there; other times are interpolated
            if rtol == middle:
                over_time.loglog(times, found, line, label=label)
                reported = found[-1] if scheme == SCHEMES[0] else reported
        over_work.loglog(work, errors, line, marker="o", ms=3, label=label)
    over_time.set(
        xlabel="t", ylabel="relative error at save times", title=f"{fun.__name__}, rtol {middle:.0e}".replace("_", " ")
    )
    over_work.set(xlabel="seconds", ylabel="relative error at the end", title="work and precision")
    return float(reported)


def draw_brusselator(axes, rtol: float) -> float:
    """Draw u over place and time; return the relative difference from SciPy at the end."""
    places = np.linspace(0, 1, POINTS + 2)[1:-1]
    start = np.ravel(np.column_stack((1 + np.sin(2 * np.pi * places), np.full(POINTS, 3.0))))
    times, begin = np.linspace(0.0, 10.0, 101), time.perf_counter()
    found = sn.solve(sn.ODE(brusselator, start, (0.0, 10.0)), "rodas5p", rtol=rtol, atol=rtol, save_at=times)
    seconds, begin = time.perf_counter() - begin, time.perf_counter()
    solver = found.statistics.linear_solver
    theirs = solve_ivp(brusselator, (0.0, 10.0), start, "LSODA", t_eval=times, rtol=rtol, atol=rtol, lband=2, uband=2)
    print(f"Brusselator, {start.size} unknowns: {seconds:.2f} s with {solver} factors (compilation included), SciPy's "
          f"LSODA with a given band {time.perf_counter() - begin:.2f} s")  # fmt: skip
    axes.pcolormesh(times, places, found.y[:, ::2].T, shading="gouraud", rasterized=True)
    axes.set(xlabel="t", ylabel="x", title=f"Brusselator, u ({solver} Jacobian)")
    return float(np.abs(found.y[-1] - theirs.y[:, -1]).max() / np.abs(found.y[-1]).max())


def draw_layers(axes, steps_per_size: int) -> dict[str, float]:
    """The growth of differences of states over 20 parabolic layers, over h |K|^2; return it at the largest one."""
    x, z = np.random.default_rng(0).normal(size=(2, 50, 8))
    sizes, last = np.geomspace(0.1, 1000.0, steps_per_size), {}
    for scheme, label in (("euler", "explicit Euler"), ("implicit_euler", "implicit Euler")):
        growth = []
        for size in sizes:
            field = fields.parabolic(fields.dense(8), "leaky_relu")
            net = Net(Design((Block(field, scheme, 20, 20.0 * size, fields.HeldWeights(1)),)), seed=1)
            K = net.weights["blocks.0.K"]
            K /= np.linalg.norm(K[0], 2)  # so that h |K|^2 = h
            growth.append(np.linalg.norm(net(x) - net(z)) / np.linalg.norm(x - z))
        axes.loglog(sizes, growth, label=label)
        last[f"{label}, growth at h |K|^2 = 1000"] = float(growth[-1])
    axes.axvline(2.0, color="gray", lw=0.8, ls=":")
    axes.set(xlabel="h |K|$^2$", ylabel="|y - z| after 20 layers / before", title="parabolic layers")
    axes.legend()
    return last


def main(folder: Path, tolerances=(1e-4, 1e-5, 1e-6, 1e-7, 1e-8), steps_per_size: int = 60) -> dict[str, float]:
    """Draw; return errors and growth."""
    numbers = {}
    with plots.style():
        figure = Figure(figsize=(12, 7), layout="constrained", dpi=150)
        above, below = figure.subplots(2, 3)
        times = np.geomspace(1e-3, 1e5, 60)
        numbers["Robertson, rodas5p"] = compare(
            robertson, np.array([1.0, 0.0, 0.0]), times, (above[0], below[0]), tolerances
        )
        times = np.geomspace(1.0, 2000.0, 200)
        numbers["van der Pol, rodas5p"] = compare(
            van_der_pol, np.array([2.0, 0.0]), times, (above[1], below[1]), tolerances
        )
        above[0].legend(fontsize="small")
        numbers["Brusselator, from SciPy"] = draw_brusselator(above[2], 1e-7)
        numbers |= draw_layers(below[2], steps_per_size)
    figure.savefig(folder / "stiff.png")
    for name, number in numbers.items():
        print(f"{name}: {number:.2e}")
    return numbers


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
