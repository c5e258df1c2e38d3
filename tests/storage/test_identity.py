"""Stored results are tied to their inputs: objects are compared by value, or refused."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from scipy.interpolate import CubicSpline, PchipInterpolator, RegularGridInterpolator, interp1d
from training.models import TwoLayer, blobs

import stepnet as sn
from stepnet import training
from stepnet.engines.numba_engine.runs.identity import problem_identity, value_identity
from stepnet.errors import NoIdentity

KNOTS = np.linspace(0, 1, 9)
TESTS = Path(__file__).parents[1]


class Forcing:
    def __init__(self, values):
        self.values = values

    def __call__(self, t):
        return float(np.interp(t, KNOTS, self.values))


@dataclass(frozen=True)
class Scaled:
    factor: float

    def __call__(self, t):
        return self.factor * t


@dataclass
class Prepared:
    """A record with more than its fields."""

    factor: float = 1.0

    def __call__(self, t):
        return self.factor * self.power * t


class Operator:
    """What it computes is in an operator."""

    def __init__(self, power):
        self.power = power

    def __matmul__(self, other):
        return self.power * other


def prepared(power):
    found = Prepared()
    found.power = power
    return found


def with_operator(power):
    if power == 2:
        return Operator(1.0)

    class Operator2(Operator):
        def __matmul__(self, other):
            return 3 * other

    Operator2.__name__ = Operator.__name__
    return Operator2(1.0)


def of_operator(A, t):
    return A @ t


def of_row(spline, t):
    return spline([t])[0]


def of_matrix(A, t):
    return (A @ np.array([t, t]))[0]


def of_set(known, t):
    return t * max(known - {7})


def of_dictionary(known, t):
    return known["f"](t)


OPAQUE = {
    "cubic spline": lambda power: CubicSpline(KNOTS, KNOTS**power),
    "monotone spline": lambda power: PchipInterpolator(KNOTS, KNOTS**power),
    "linear interpolation": lambda power: interp1d(KNOTS, KNOTS**power),
    "interpolation on a grid": lambda power: partial(of_row, RegularGridInterpolator((KNOTS,), KNOTS**power)),
    "an object": lambda power: Forcing(KNOTS**power),
    "a record": lambda power: Scaled(power),
    "a record with more than its fields": prepared,
    "an object with an operator": lambda power: partial(of_operator, with_operator(power)),
    "a bound method": lambda power: Forcing(KNOTS**power).__call__,
    "a sparse matrix": lambda power: partial(of_matrix, sparse.csr_array(power * np.eye(2))),
    "part of a function": lambda power: partial(np.multiply, float(power)),
    "a set of numbers": lambda power: partial(of_set, frozenset({power, 7})),
    "a dictionary of functions": lambda power: partial(of_dictionary, {"f": Scaled(power)}),
}


def problem(force) -> sn.ODE:
    def slope(t, y):
        return [force(t) - y[0]]

    return sn.ODE(slope, [1.0], (0.0, 1.0))


@pytest.mark.parametrize("name", OPAQUE)
def test_values_inside_objects_make_another_problem(name):
    one, same, other = (problem(OPAQUE[name](power)).fun for power in (2, 2, 3))
    assert value_identity(one) == value_identity(same) != value_identity(other)


@pytest.mark.parametrize("name", ["cubic spline", "an object"])
def test_an_integrator_of_another_object_is_refused(name, tmp_path):
    mine, same, other = (problem(OPAQUE[name](power)) for power in (2, 2, 3))
    run = sn.start(mine, "rk4", steps=4).step()
    run.save(tmp_path / "run.npz")
    assert np.array_equal(sn.start(same, "rk4", steps=4, restore=tmp_path / "run.npz").y, run.y)
    with pytest.raises(ValueError, match="of another problem"):
        sn.start(other, "rk4", steps=4, restore=tmp_path / "run.npz")


def test_a_sweep_of_another_object_is_refused(tmp_path):
    grid = {"y0[0]": [0.5, 1.0]}
    sn.sweep(problem(OPAQUE["cubic spline"](2)), "rk4", grid, steps=4, path=tmp_path)
    sn.sweep(problem(OPAQUE["cubic spline"](2)), "rk4", grid, steps=4, path=tmp_path)
    with pytest.raises(ValueError, match="holds another sweep, with a different problem"):
        sn.sweep(problem(OPAQUE["cubic spline"](3)), "rk4", grid, steps=4, path=tmp_path)


class Shifted(TwoLayer):
    """A model without a name of its own that computes something else."""

    def __call__(self, x):
        return super().__call__(x) + 0.1


class Huber:
    """A loss with numbers that its text does not tell."""

    hits = None

    def __init__(self, delta):
        self.delta = delta

    def __repr__(self):
        return "Huber()"

    def at(self, outputs, targets, weights=None):
        return sn.nets.losses.get("huber", delta=self.delta).at(outputs, targets[:, None] * np.ones(3), weights)


RUNS = {
    "model": lambda change: (training.Objective((TwoLayer, Shifted)[change](2, 4, 3), "cross_entropy"), "adam"),
    "loss": lambda change: (training.Objective(TwoLayer(2, 4, 3), Huber(1.0 + change)), "adam"),
    "recipe": lambda change: (
        training.Objective(TwoLayer(2, 4, 3), "cross_entropy"),
        training.Adam(lambda epoch, rate=0.1 + change: rate),
    ),
}


@pytest.mark.parametrize("part", RUNS)
def test_a_run_of_another_object_is_refused(part, tmp_path):
    def train(change, epochs):
        goal, optimiser = RUNS[part](change)
        return training.train(goal, blobs(), training.Recipe(optimiser, epochs=epochs), path=tmp_path, resume=True)

    train(0, 1)
    assert train(0, 2).epochs == 2
    with pytest.raises(ValueError, match=f"holds another run: its {part} is"):
        train(1, 3)


def test_long_chains_of_functions_and_cycles_have_an_identity():
    def chain(last):
        namespace = {"last": last}
        for i in range(400):
            exec(f"def f{i}(t): return {f'f{i - 1}(t)' if i else f'last * f{399}(t)'}", namespace)
        return namespace["f399"]

    assert value_identity(chain(1.0)) == value_identity(chain(1.0)) != value_identity(chain(2.0))
    ring: list = [1.0]
    ring.append(ring)
    assert value_identity(ring) == value_identity(ring) != value_identity([2.0, ring])


NOISY = sn.SDE(lambda t, y, a: -a * y, lambda t, y, a: 0.2 * y, [1.0], (0.0, 1.0), (0.5,), seed=1)
WELL = sn.Langevin(lambda t, q: -q, [1.0], [0.0], (0.0, 1.0))
CHANGES = [
    (NOISY, {"seed": 2}), (NOISY, {"path": 1}), (NOISY, {"cells": 4}), (NOISY, {"noise": "scalar"}),
    (NOISY, {"calculus": "stratonovich"}), (NOISY, {"correction": 0.5}), (NOISY, {"diffusion": lambda t, y, a: y}),
    (WELL, {"seed": 2}), (WELL, {"friction": 2.0}), (WELL, {"temperature": 2.0}), (WELL, {"mass": 2.0}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "change"), CHANGES, ids=lambda value: "-".join(value) if type(value) is dict else ""
)
def test_noise_is_part_of_a_problem(problem, change):
    own = problem_identity(problem)
    assert problem_identity(replace(problem)) == own != problem_identity(replace(problem, **change))


def test_a_stored_sweep_over_paths_is_continued_and_that_of_another_seed_refused(tmp_path):
    how = {"paths": 20, "steps": 4, "reduce": sn.reductions.Mean(), "path": tmp_path}
    first = sn.sweep(NOISY, "milstein", {"a": [0.1, 0.2]}, **how).result
    assert np.array_equal(sn.sweep(NOISY, "milstein", {"a": [0.1, 0.2]}, **how).result.mean, first.mean)
    with pytest.raises(ValueError, match="holds another sweep, with a different problem"):
        sn.sweep(replace(NOISY, seed=2), "milstein", {"a": [0.1, 0.2]}, **how)


def test_an_address_has_none():
    problem = sn.ODE(sn.address(0x5000), [1.0], (0.0, 1.0))
    for value in (problem.fun, {"fun": [problem.fun]}):
        with pytest.raises(NoIdentity, match="an address says nothing about the function that is there"):
            value_identity(value)
    with pytest.raises(NoIdentity, match="an address says nothing"):
        problem_identity(problem)


def test_data_that_is_nested_too_deeply_has_none():
    nested: list = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(NoIdentity, match="nested too deeply"):
        value_identity(nested)


# ---- what has no value -----------------------------------------------------------------------------------------------

UNKNOWN = {
    "a lock": threading.Lock,
    "a file": lambda: open(os.devnull),  # noqa: SIM115
    "a generator": lambda: (i for i in range(3)),
    "a pointer": lambda: ctypes.pointer(ctypes.c_double(1.0)),
    "a function of one's own by universal call": lambda: np.frompyfunc(abs, 1, 1),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_has_no_value_is_solved_but_not_stored(name, tmp_path):
    held = UNKNOWN[name]()

    def slope(t, y):
        return [-y[0] if held is not None else 0.0]

    run = sn.start(sn.ODE(slope, [1.0], (0.0, 1.0)), "rk4", steps=4).step()
    with pytest.raises(NoIdentity, match="cannot be compared by its value"):
        run.save(tmp_path / "run.npz")
    for way_in in (
        lambda: sn.sweep(run.problem, "rk4", {"y0[0]": [1.0]}, steps=4, path=tmp_path / "sweep"),
        lambda: sn.gradient(
            run.problem, "rk4", lambda y: y[0], steps=4, memory=sn.Checkpoints(1, disk=tmp_path / "disk"),
        ),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"cannot be compared by its value|derivative"):
            way_in()
    assert list(tmp_path.iterdir()) == []
    if hasattr(held, "close"):
        held.close()


# ---- the same in every process ---------------------------------------------------------------------------------------

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from stepnet.engines.numba_engine.runs.identity import value_identity
from storage.test_identity import OPAQUE, problem
words = {{"one", "two", "three", "four"}}
def slope(t, y, known=words):
    return [y[0] if "one" in {{"one", "two", "three"}} else len(known)]
values = [problem(make(2)).fun for make in OPAQUE.values()] + [slope, words, {{word: 1 for word in words}}]
print([value_identity(value) for value in values])
"""


def test_the_identity_does_not_depend_on_the_seed_of_hashes():
    found = set()
    for seed in ("0", "1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PROGRAM.format(tests=str(TESTS))]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        found.add(done.stdout)
    assert len(found) == 1
