"""Right-hand sides that are not pure functions run as in SciPy, whatever they read, change or draw.

Every right-hand side is y' = k t, which is 0 at the beginning whatever k is, so that one look at the first slope cannot
tell old code from new.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import sys
import time
import types
import warnings
from collections import namedtuple
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import stepnet as sn
from stepnet.engines.contract import FixedSteps, Plan, Saving
from stepnet.engines.numba_engine.rhs.ladder import make_field
from stepnet.engines.numba_engine.rhs.problem_parts import build_fields
from stepnet.schemes import catalogue
from stepnet.solving.planning import validate_events

EXACT = 1e-12  # y' = k t is integrated exactly by rk4


def solve(function, args=(), **how) -> sn.Solution:
    return sn.solve(sn.ODE(function, [0.0], (0.0, 1.0), args), "rk4", steps=4, save_every=0, **how)


def slope_found(function, args=()) -> float:
    """k of y' = k t."""
    return 2 * float(solve(function, args).y[-1, 0])


# ---- what a function reaches in roundabout ways ----------------------------------------------------------------------

number = 1.0
holder = SimpleNamespace(k=1.0)
table = {"k": 1.0}
bound_get = table.get


def by_getattr():
    return lambda t, y: [getattr(holder, "k") * t], lambda: setattr(holder, "k", 2.0)  # noqa: B009


def by_hasattr():
    place = SimpleNamespace()
    return lambda t, y: [(2.0 if hasattr(place, "k") else 1.0) * t], lambda: setattr(place, "k", 1.0)


def by_globals():
    return lambda t, y: [globals()["number"] * t], lambda: globals().__setitem__("number", 2.0)


def by_vars():
    return lambda t, y: [vars(holder)["k"] * t], lambda: setattr(holder, "k", 2.0)


def by_eval():
    return lambda t, y: [eval("number") * t], lambda: globals().__setitem__("number", 2.0)


def by_import():
    module = types.ModuleType("imported_inside")
    module.k = 1.0
    sys.modules["imported_inside"] = module

    def rhs(t, y):
        import imported_inside

        return [imported_inside.k * t]

    return rhs, lambda: setattr(module, "k", 2.0)


def by_bound_get():
    return lambda t, y: [bound_get("k") * t], lambda: table.__setitem__("k", 2.0)


def by_bound_dot():
    matrix = np.array([[1.0]])
    dot = matrix.dot
    return lambda t, y: dot(np.array([1.0])) * t, lambda: matrix.__setitem__((0, 0), 2.0)


class Scaled:
    """Numbers of the user's own, whose operators read a global."""

    def __mul__(self, other):
        return number * other

    def __getitem__(self, place):
        return number

    def __getattr__(self, name):
        return number


scaled = Scaled()


def by_multiplication():
    return lambda t, y: [scaled * t], lambda: globals().__setitem__("number", 2.0)


def by_getitem():
    return lambda t, y: [scaled[0] * t], lambda: globals().__setitem__("number", 2.0)


def by_missing_attribute():
    return lambda t, y: [scaled.anything * t], lambda: globals().__setitem__("number", 2.0)


class Reading:
    """A descriptor."""

    def __get__(self, owner, kind):
        return number


class Described:
    k = Reading()

    @property
    def twice(self):
        return 2.0 * number


described = Described()


def by_descriptor():
    return lambda t, y: [described.k * t], lambda: globals().__setitem__("number", 2.0)


def by_property():
    return lambda t, y: [described.twice / 2.0 * t], lambda: globals().__setitem__("number", 2.0)


class Labelled(np.ndarray):
    """An array with an attribute."""

    k = 1.0


def by_array_subclass():
    array = np.ones(1).view(Labelled)
    return lambda t, y: array * array.k * t, lambda: setattr(array, "k", 2.0)


def by_submodule():
    package, inner = types.ModuleType("package"), types.ModuleType("package.inner")
    package.inner, inner.k = inner, 1.0
    return lambda t, y: [package.inner.k * t], lambda: setattr(inner, "k", 2.0)


def by_class_attribute():
    class Model:
        k = 1.0

        def rhs(self, t, y):
            return [self.k * t]

    return Model().rhs, lambda: setattr(Model, "k", 2.0)


def by_replaced_method():
    class Model:
        def k(self):
            return 1.0

        def rhs(self, t, y):
            return [self.k() * t]

    return Model().rhs, lambda: setattr(Model, "k", lambda self: 2.0)


def by_function_attribute():
    def rhs(t, y):
        return [rhs.k * t]

    rhs.k = 1.0
    return rhs, lambda: setattr(rhs, "k", 2.0)


def by_object_array():
    array = np.array([1.0, "text"], dtype=object)
    return lambda t, y: [array[0] * t], lambda: array.__setitem__(0, 2.0)


CHANGES = [
    by_getattr, by_hasattr, by_globals, by_vars, by_eval, by_import, by_bound_get, by_bound_dot, by_multiplication,
    by_getitem, by_missing_attribute, by_descriptor, by_property, by_array_subclass, by_submodule, by_class_attribute,
    by_replaced_method, by_function_attribute, by_object_array,
]  # fmt: skip


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Everything as it was, whatever a test changes."""
    monkeypatch.setitem(globals(), "number", 1.0)
    monkeypatch.setattr(holder, "k", 1.0)
    monkeypatch.setitem(table, "k", 1.0)
    yield
    sys.modules.pop("imported_inside", None)


@pytest.mark.parametrize("make", CHANGES, ids=lambda make: make.__name__)
def test_a_change_reached_in_a_roundabout_way_is_seen(make):
    function, change = make()
    assert slope_found(function) == pytest.approx(1.0, abs=EXACT)
    change()
    assert slope_found(function) == pytest.approx(2.0, abs=EXACT)


@pytest.mark.parametrize("make", [by_getattr, by_multiplication, by_class_attribute, by_submodule])
def test_gradients_see_changes(make):
    function, change = make()
    problem = sn.ODE(lambda t, y: [function(t, y)[0] + 0.0 * y[0]], [0.0], (0.0, 1.0))
    values = []
    for _ in range(2):
        found = sn.gradient(problem, "rk4", lambda y: y[0], steps=4, differences=True)
        values.append(2 * found.value)
        change()
    assert values == pytest.approx([1.0, 2.0], abs=EXACT)


@pytest.mark.parametrize("make", [by_getattr, by_descriptor, by_bound_get, by_class_attribute])
def test_events_see_changes(make):
    """The event is where 1 - k t = 0."""
    function, change = make()

    def event(t, y):
        return 1.0 - function(t, y)[0]

    problem = sn.ODE(lambda t, y: [0.0], [0.0], (0.0, 2.0))
    times = []
    for _ in range(2):
        times.append(sn.solve(problem, "dopri5", events=event).t_events[0][0])
        change()
    assert times == pytest.approx([1.0, 0.5], abs=1e-9)


@pytest.mark.parametrize("make", [by_getattr, by_descriptor, by_bound_get, by_class_attribute])
def test_a_stored_sweep_is_not_taken_for_another(make, tmp_path):
    """It begins anew in another folder; the old one is refused, never returned."""
    function, change = make()
    problem = sn.ODE(lambda t, y, c: [c * function(t, y)[0]], [0.0], (0.0, 1.0), (1.0,))

    def run(folder):
        found = sn.sweep(problem, "rk4", {"c": [1.0, 3.0]}, steps=4, path=tmp_path / folder, workers=1)
        return 2 * found.result.y.ravel()

    assert run("first") == pytest.approx([1.0, 3.0], abs=EXACT)
    change()
    with pytest.raises(ValueError, match="`path`"):
        run("first")
    assert run("second") == pytest.approx([2.0, 6.0], abs=EXACT)


def test_a_file_is_read_again(tmp_path):
    path = tmp_path / "k"

    def rhs(t, y):
        return [float(path.read_text()) * t]

    path.write_text("1.0")
    assert slope_found(rhs) == pytest.approx(1.0, abs=EXACT)
    path.write_text("2.0")
    assert slope_found(rhs) == pytest.approx(2.0, abs=EXACT)


def test_fresh_objects_at_the_same_address_are_told_apart():
    class Opaque(dict):
        def __missing__(self, key):
            return self.k

    found = []
    for k in (1.0, 2.0, 3.0, 4.0):
        made = Opaque()
        made.k = k
        found.append(slope_found(lambda t, y, p: [p["k"] * t], (made,)))
        del made
    assert found == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=EXACT)


def test_a_replaced_function_of_numpy_is_seen(monkeypatch):
    def rhs(t, y):
        return [np.sinh(t)]

    before = slope_found(rhs)
    monkeypatch.setattr(np, "sinh", lambda x: 3.0 * x)
    solution = solve(rhs)
    assert 2 * solution.y[-1, 0] == pytest.approx(3.0, abs=EXACT)
    assert before < 1.2
    assert "numpy.sinh was replaced" in solution.statistics.rung_reason


class Series:
    """Like a pandas.Series: entries by attribute, from an array that is hidden in a C object."""

    def __init__(self, **entries):
        self.__dict__["_entries"] = types.MappingProxyType(entries)
        self.__dict__["_store"] = entries

    def __getattr__(self, name):
        return self._entries[name]

    def __setattr__(self, name, value):
        self._store[name] = value


def test_a_series_in_args_is_read_again():
    series = Series(k=1.0)
    assert slope_found(lambda t, y, p: [p.k * t], (series,)) == pytest.approx(1.0, abs=EXACT)
    series.k = 2.0
    assert slope_found(lambda t, y, p: [p.k * t], (series,)) == pytest.approx(2.0, abs=EXACT)


def test_text_of_numbers_is_that_of_python():
    for rhs in (
        lambda t, y: [float(str(t))],
        lambda t, y: [float(f"{t:.3f}")],
        lambda t, y: [float(f"{t}") + 0.0 * y[0]],
        lambda t, y: [len(repr(t)) * 1.0],
        lambda t, y: [len("{:.17g}".format(t + y[0])) * 1.0],  # noqa: UP032
    ):
        solution = solve(rhs)
        expected = _rk4(rhs)
        assert solution.statistics.rung == "python"
        assert solution.y[-1, 0] == pytest.approx(expected, abs=EXACT)


def _rk4(rhs, steps: int = 4) -> float:
    """The same scheme in plain Python."""
    y, h = np.zeros(1), 1.0 / steps
    for i in range(steps):
        t = i * h
        k1 = np.array(rhs(t, y))
        k2 = np.array(rhs(t + h / 2, y + h / 2 * k1))
        k3 = np.array(rhs(t + h / 2, y + h / 2 * k2))
        k4 = np.array(rhs(t + h, y + h * k3))
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return float(y[0])


# ---- randomness, clocks and effects ----------------------------------------------------------------------------------

some_name, some_state = np.random.default_rng(0), np.random.RandomState(0)


def draw_in_a_helper():
    return some_name.standard_normal()


DRAWS = {
    "generator in a helper": lambda t, y: [draw_in_a_helper()],
    "random module": lambda t, y: [random.random()],
    "numpy.random": lambda t, y: [np.random.standard_normal()],
    "bound method": lambda t, y, draw=some_name.random: [draw()],
    "state": lambda t, y: [some_state.uniform()],
    "clock": lambda t, y: [time.perf_counter()],
}


@pytest.mark.parametrize("kind", DRAWS)
def test_every_evaluation_draws_anew(kind):
    seen = []

    def rhs(t, y):
        seen.append(DRAWS[kind](t, y)[0])
        return [0.0 * seen[-1]]

    solution = solve(DRAWS[kind])
    assert solution.statistics.rung == "python"
    solution = solve(rhs)
    assert len(set(seen)) == len(seen) == solution.statistics.evaluations


def test_seeds_of_numpy_are_honoured():
    def rhs(t, y):
        return [np.random.standard_normal()]

    def ends():
        np.random.seed(3)
        return solve(rhs).y[-1, 0]

    np.random.seed(3)
    expected = _rk4(rhs)
    assert ends() == ends() == pytest.approx(expected, abs=EXACT)


def prints(t, y):
    print("called")
    return [t]


def warns(t, y):
    warnings.warn("called", stacklevel=2)
    return [t]


def logs(t, y):
    logging.getLogger("rhs").warning("called")
    return [t]


def test_prints_happen_once_per_evaluation(capsys):
    solution = solve(prints)
    assert capsys.readouterr().out.count("called") == solution.statistics.evaluations == 16


def test_warnings_happen_once_per_evaluation():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        solution = solve(warns)
    assert len(found) == solution.statistics.evaluations


def test_log_records_happen_once_per_evaluation(caplog):
    solution = solve(logs)
    assert len(caplog.records) == solution.statistics.evaluations


def appends(log):
    def rhs(t, y):
        log.append(t)
        return [t]

    return rhs, lambda: list(log)


def counts(log):
    counter = {"n": 0}

    def rhs(t, y):
        counter["n"] += 1
        log.append(t)
        return [t]

    return rhs, lambda: [None] * counter["n"]


def counts_by_nonlocal(log):
    n = 0

    def rhs(t, y):
        nonlocal n
        n += 1
        return [t]

    return rhs, lambda: [None] * n


def counts_in_an_object(log):
    class Model:
        calls = 0

        def __call__(self, t, y):
            self.calls += 1
            return [t]

    model = Model()
    return model, lambda: [None] * model.calls


def remembers_the_last_time(log):
    last = [0.0]

    def rhs(t, y):
        last[0] = t
        log.append(last[0])
        return [t]

    return rhs, lambda: list(log)


EFFECTS = [appends, counts, counts_by_nonlocal, counts_in_an_object, remembers_the_last_time]


@pytest.mark.parametrize("make", EFFECTS, ids=lambda make: make.__name__)
def test_effects_happen_once_per_evaluation(make):
    rhs, effects = make([])
    solution = solve(rhs)
    assert solution.statistics.rung == "python"
    assert len(effects()) == solution.statistics.evaluations
    assert all(each is None or type(each) is float for each in effects())


IMPLICIT = ["implicit_euler", "trapezoid", "gauss4", "radau5", "kvaerno5", "sdirk4", "rodas5p", "ros3p"]


@pytest.mark.parametrize("has_jacobian", [False, True], ids=["differences", "jac"])
@pytest.mark.parametrize("scheme", IMPLICIT)
def test_effects_of_implicit_schemes_happen_once_per_evaluation(scheme, has_jacobian):
    """Evaluations for differences, those that compare a given `jac` with the function among them, are counted."""
    log = []

    def rhs(t, y):
        log.append(t)
        return [-3.0 * y[0], y[0] - y[1]]

    def jac(t, y):
        return [[-3.0, 0.0], [1.0, -1.0]]

    problem = sn.ODE(rhs, [1.0, 0.5], (0.0, 1.0), jac=jac if has_jacobian else None)
    solution = sn.solve(problem, scheme, steps=4)
    assert solution.statistics.rung == "python"
    assert len(log) == solution.statistics.evaluations


@pytest.mark.parametrize("make", EFFECTS, ids=lambda make: make.__name__)
def test_solve_ivp_calls_as_often_as_it_says(make):
    rhs, effects = make([])
    found = sn.solve_ivp(rhs, (0.0, 1.0), [0.0])
    assert len(effects()) == found.nfev


def test_no_symbol_is_left_in_what_the_user_keeps():
    state, seen, largest = {"m": 0.0}, [], np.zeros(1)

    class Model:
        top = -1.0

        def rhs(self, t, y):
            self.top = np.maximum(self.top, y[0])
            return [t]

    def keeps(t, y):
        state["m"] = np.maximum(state["m"], y[0])
        return [t]

    def collects(t, y):
        seen.append(y[0])
        return [t]

    def fills(t, y):
        largest[0] = max(largest[0], y[0])
        return [t]

    model = Model()
    for rhs in (keeps, collects, fills, model.rhs):
        assert solve(rhs).y[-1, 0] == pytest.approx(0.5, abs=EXACT)
    found = [state["m"], *seen, largest[0], model.top]
    assert all(isinstance(value, float) for value in found)
    assert max(seen) == pytest.approx(0.5, abs=0.2)


def test_an_argument_that_is_written_is_the_users_own():
    """A buffer in `args` keeps what the last evaluation put there."""
    buffer, expected = np.zeros(1), np.zeros(1)

    def rhs(t, y, buffer):
        slope = t + buffer[0]
        buffer[0] = 0.5 * t
        return [slope]

    found = sn.solve_ivp(rhs, (0.0, 1.0), [0.0], args=(buffer,), rtol=1e-6)
    reference = solve_ivp(rhs, (0.0, 1.0), [0.0], args=(expected,), rtol=1e-6)
    assert found.y[0, -1] == pytest.approx(reference.y[0, -1], rel=1e-9)
    assert buffer[0] == pytest.approx(expected[0])


# ---- what the user changes in between --------------------------------------------------------------------------------


def controlled(make):
    """End states of a sampled controller by `start` and by one SciPy solve per sample."""
    rhs, put, args = make()
    rhs_again, put_again, args_again = make()
    integrator = sn.start(sn.ODE(rhs, [1.0], (0.0, 2.0), args), "dopri5", rtol=1e-10, atol=1e-12)
    y = np.ones(1)
    for i in range(8):
        put(float(i % 3), integrator)
        put_again(float(i % 3), None)
        integrator.run_to(0.25 * (i + 1))
        now = args_again() if callable(args_again) else args_again
        y = solve_ivp(rhs_again, (0.25 * i, 0.25 * (i + 1)), y, args=now, rtol=1e-10, atol=1e-12).y[:, -1]
    return float(integrator.y[0]), float(y[0])


def sets_a_dictionary():
    u = {"v": 0.0}
    return lambda t, y: [-y[0] + u["v"]], lambda value, run: u.__setitem__("v", value), ()


def sets_an_array():
    u = np.zeros(1)
    return lambda t, y: [-y[0] + u[0]], lambda value, run: u.__setitem__(0, value), ()


def sets_an_attribute():
    class Plant:
        u = 0.0

        def rhs(self, t, y):
            return [-y[0] + self.u]

    plant = Plant()
    return plant.rhs, lambda value, run: setattr(plant, "u", value), ()


def sets_an_array_of_args():
    u = np.zeros(1)
    return lambda t, y, u: [-y[0] + u[0]], lambda value, run: u.__setitem__(0, value), (u,)


def sets_a_list_of_args():
    u = [0.0]
    return lambda t, y, u: [-y[0] + u[0]], lambda value, run: u.__setitem__(0, value), (u,)


def sets_a_branching_function():
    u = np.zeros(1)
    return lambda t, y: [(-y[0] if y[0] > 0 else 0.0) + u[0]], lambda value, run: u.__setitem__(0, value), ()


SAMPLED = [
    sets_a_dictionary, sets_an_array, sets_an_attribute, sets_an_array_of_args, sets_a_list_of_args,
    sets_a_branching_function,
]  # fmt: skip


@pytest.mark.parametrize("make", SAMPLED, ids=lambda make: make.__name__)
def test_a_sampled_controller_around_start(make):
    found, expected = controlled(make)
    assert found == pytest.approx(expected, abs=1e-8)


def test_args_of_an_integrator_can_be_set():
    problem = sn.ODE(lambda t, y, k, c: [-k * y[0] + c[0]], [1.0], (0.0, 2.0), (1.0, np.zeros(1)))
    integrator = sn.start(problem, "dopri5", rtol=1e-10, atol=1e-12).run_to(1.0)
    integrator.args = (3.0, np.zeros(1))
    assert integrator.args[0] == 3.0
    assert integrator.run_to(2.0).y[0] == pytest.approx(math.exp(-4.0), rel=1e-8)


@pytest.mark.parametrize(
    ("args", "words"), [((1.0,), "2 arguments"), ((1.0, 2.0), r"args\[1\]"), (("a", np.zeros(1)), r"args\[0\]")]
)
def test_args_of_another_kind_are_refused(args, words):
    problem = sn.ODE(lambda t, y, k, c: [-k * y[0] + c[0]], [1.0], (0.0, 2.0), (1.0, np.zeros(1)))
    with pytest.raises(ValueError, match=words):
        sn.start(problem, "dopri5").args = args


def test_args_of_a_multistep_run_are_refused():
    with pytest.raises(ValueError, match="slopes of the old `args`"):
        sn.start(sn.ODE(lambda t, y, k: [-k * y[0]], [1.0], (0.0, 1.0), (1.0,)), "ab4", steps=20).args = (2.0,)


def decays(state):
    def rhs(t, y):
        return [-state["k"] * y[0]]

    return rhs


def test_a_reset_may_change_what_the_right_hand_side_reads():
    state = {"k": 1.0}

    def reset(t, y):
        state["k"] *= 0.5
        return y + 0.5

    event = sn.Event(lambda t, y: y[0] - 0.5, reset=reset)
    solution = sn.solve(sn.ODE(decays(state), [1.0], (0.0, 4.0)), "dopri5", rtol=1e-9, events=event)
    times, rate, t, y = [], 1.0, 0.0, 1.0
    while t + math.log(y / 0.5) / rate < 4.0:
        t += math.log(y / 0.5) / rate
        times.append(t)
        rate, y = rate / 2, 1.0
    assert solution.t_events[0] == pytest.approx(times, abs=1e-7)
    assert solution.y[-1, 0] == pytest.approx(y * math.exp(-rate * (4.0 - t)), rel=1e-7)


@pytest.mark.parametrize("scheme", ["dopri5", "rk4"])
def test_an_event_may_change_what_the_right_hand_side_reads(scheme):
    state = {"k": 1.0}

    def event(t, y):
        if t > 1.0:
            state["k"] = 0.0
        return y[0] + 10.0

    how = {"max_step": 0.001} if scheme == "dopri5" else {"steps": 4000}
    solution = sn.solve(sn.ODE(decays(state), [1.0], (0.0, 4.0)), scheme, events=event, **how)
    assert solution.y[-1, 0] == pytest.approx(math.exp(-1.0), abs=2e-3)
    assert solution.statistics.rung == "python"
    assert "may change what it reads" in solution.statistics.rung_reason


def test_a_projection_may_change_what_the_right_hand_side_reads():
    state = {"k": 1.0}

    def project(t, y):
        state["k"] = 0.0 if t >= 1.0 else 1.0
        return y

    solution = sn.solve(sn.ODE(decays(state), [1.0], (0.0, 4.0)), "rk4", steps=4000, project=project)
    assert solution.y[-1, 0] == pytest.approx(math.exp(-1.0), abs=2e-3)


def test_parts_of_a_problem_share_their_memory():
    state = {"k": 1.0}

    def drift(t, p):
        state["k"] = 2.0 if t > 0.5 else 1.0
        return p

    def force(t, q):
        return -state["k"] * q

    problem = sn.Partitioned(drift, force, [1.0], [0.0], (0.0, 2.0))
    assert sn.solve(problem, "verlet", steps=20).statistics.rung == "python"


def test_what_reads_nothing_outside_stays_compiled():
    """An event in Python is no reason to leave the right-hand side there."""
    log = []

    def event(t, y, k):
        log.append(t)
        return y[0] - 0.5

    problem = sn.ODE(lambda t, y, k: [-k * y[0]], [1.0], (0.0, 2.0), (1.0,))
    plan = Plan(FixedSteps(10, None), Saving(None, 1), validate_events(catalogue.get("dopri5"), event))
    fields = build_fields(problem, plan)
    assert (fields.slopes.rung, fields.events[0].rung) == ("traced", "python")


# ---- parameters in objects -------------------------------------------------------------------------------------------


@dataclass
class Record:
    k: float


@dataclass(frozen=True)
class Frozen:
    k: float

    def twice(self):
        return 2.0 * self.k


@dataclass(slots=True)
class Slotted:
    k: float


class BySlots:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


class Model:
    """With methods that have nothing to do with the right-hand side."""

    def __init__(self, k):
        self.k, self.log = k, []

    def save(self, path):
        with open(path, "w") as file:
            print(self.k, file=file)

    def __repr__(self):
        return f"Model {id(self)}"


Pair = namedtuple("Pair", "k other")
PARAMETERS = {
    "SimpleNamespace": lambda k: SimpleNamespace(k=k),
    "argparse.Namespace": lambda k: argparse.Namespace(k=k),
    "dataclass": Record,
    "frozen dataclass": Frozen,
    "dataclass with slots": Slotted,
    "__slots__": BySlots,
    "plain object": Model,
    "named tuple": lambda k: Pair(k, 0.0),
}


def spring(t, y, p):
    return [y[1], -p.k * np.sin(y[0]) + t]


def plain_spring(t, y, k):
    return [y[1], -k * np.sin(y[0]) + t]


@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.parametrize("place", ["args", "closure"])
def test_objects_with_parameters_are_traced(kind, place):
    ends = []
    for k in (1.0, 2.5):
        made = PARAMETERS[kind](k)
        function, args = (spring, (made,)) if place == "args" else ((lambda t, y: spring(t, y, made)), ())  # noqa: B023
        solution = sn.solve(sn.ODE(function, [0.5, 0.0], (0.0, 1.0), args), "rk4", steps=50)
        assert solution.statistics.rung == "traced", solution.statistics.rung_reason
        plain = sn.solve(sn.ODE(plain_spring, [0.5, 0.0], (0.0, 1.0), (k,)), "rk4", steps=50)
        assert np.allclose(solution.y, plain.y, rtol=0, atol=1e-13)
        ends.append(solution.y[-1, 0])
    assert abs(ends[0] - ends[1]) > 1e-2


@pytest.mark.parametrize("kind", [k for k in PARAMETERS if k not in ("frozen dataclass", "named tuple")])
def test_a_changed_parameter_of_an_object_is_seen(kind):
    made = PARAMETERS[kind](1.0)
    assert slope_found(lambda t, y, p: [p.k * t], (made,)) == pytest.approx(1.0, abs=EXACT)
    made.k = 2.0
    assert slope_found(lambda t, y, p: [p.k * t], (made,)) == pytest.approx(2.0, abs=EXACT)


# ---- whole numbers ---------------------------------------------------------------------------------------------------


def factorial(t, y):
    product = 1
    for k in range(1, 30):
        product *= k
    return [product * 1e-31 if t > 0.5 else y[0]]


def fibonacci(t, y):
    a, b = 0, 1
    for _ in range(120):
        a, b = b, a + b
    return [a * 1e-25 if t > 0.5 else y[0]]


def three_factors(t, y):
    n = int(1e7 * t)
    return [n * n * n * 1e-21]


BIG = {
    "negative power": lambda t, y: [2 ** (-int(4 * t)) * 1.0],
    "large power": lambda t, y: [2 ** int(70 * t) * 1e-21],
    "shift": lambda t, y: [(1 << int(70 * t)) * 1e-21],
    "factorial": factorial,
    "fibonacci": fibonacci,
    "three factors": three_factors,
}


@pytest.mark.parametrize("kind", BIG)
def test_whole_numbers_are_those_of_python(kind):
    solution = solve(BIG[kind])
    assert solution.statistics.rung == "python"
    assert "64 bits" in solution.statistics.rung_reason
    assert solution.y[-1, 0] == pytest.approx(_rk4(BIG[kind]), rel=1e-13)


def grid_in_loops(t, y):
    dy, (nx, ny, nz) = np.zeros(8), (2, 2, 2)
    for i in range(nx):
        for j in range(ny):
            for k in range(nz):
                place = (i * ny + j) * nz + k
                dy[place] = -y[place] * (i + 1) if y[0] > -5.0 else 0.0
    return dy


def table_by_time(t, y):
    place = int(2.0 * t)
    return -y * np.array([1.0, 2.0, 3.0, 4.0])[place] if y[0] > -5.0 else y


def halvings(t, y):
    x, n = 1.0, 0
    while x > 0.1 * y[0]:
        x *= 0.5
        n += 1
    return -0.1 * n * y


@pytest.mark.parametrize("rhs", [grid_in_loops, table_by_time, halvings])
def test_counts_and_places_stay_compiled(rhs):
    solution = sn.solve(sn.ODE(rhs, np.ones(8), (0.0, 1.0)), "rk4", steps=4)
    assert solution.statistics.rung == "compiled", solution.statistics.rung_reason


def test_whole_arguments_have_derivatives():
    def rhs(t, y, k, c):
        return [-k * y[0] * c]

    found = []
    for args in ((2, 1.5), (2.0, 1.5), (np.int64(2), 1.5)):
        problem = sn.ODE(rhs, [1.0], (0.0, 1.0), args)
        tangent = sn.tangent(problem, "rk4", args=(1.0, 0.0), steps=50).dy[0]
        gradient = sn.gradient(problem, "rk4", lambda y: y[0], steps=50).args
        jacobian = [float(column[0]) for column in sn.jacobian(problem, "rk4", steps=50).args]
        ensemble = sn.gradient_ensemble(problem, "rk4", lambda y: y[0], y0=np.ones((3, 1)), steps=50).args[0]
        found.append([tangent, *gradient, *jacobian, *ensemble])
    exact = -1.5 * math.exp(-3.0)
    assert found[0] == found[1] == found[2]
    assert found[0][0] == pytest.approx(exact, rel=1e-6)


NUMBERS = {
    "integers": np.array([2, 3]),
    "small integers": np.array([2, 3], np.int8),
    "swapped integers": np.array([2, 3], ">i4"),
    "list of integers": [2, 3],
    "list of floats": [2.0, 3.0],
    "mixed list": [2, 3.0],
    "tuple": (2, 3),
    "list of NumPy numbers": [np.int32(2), np.float32(3.0)],
}


def two_rates(t, y, p, c):
    return [-p[0] * y[0] * c, -p[1] * y[1] + y[0]]


@pytest.mark.parametrize("kind", NUMBERS)
def test_arrays_of_integers_and_lists_have_the_derivatives_of_arrays_of_floats(kind):
    found = []
    for p in (NUMBERS[kind], np.array([2.0, 3.0])):
        problem = sn.ODE(two_rates, [1.0, 0.5], (0.0, 1.0), (p, np.array(1.5) if p is NUMBERS[kind] else 1.5))
        tangent = sn.tangent(problem, "rk4", args=([1.0, 0.5], 0.0), steps=20).dy
        gradient = sn.gradient(problem, "rk4", lambda y: y[0] + y[1], steps=20).args
        jacobian = sn.jacobian(problem, "rk4", steps=20).args
        product = sn.hvp(problem, "rk4", lambda y: y[0] * y[1], args=([1.0, 0.5], 0.0), steps=20).args
        found.append([np.asarray(x) for x in (tangent, *gradient, *jacobian, *product)])
    for x, wanted in zip(*found, strict=True):
        np.testing.assert_array_equal(x, wanted)
    assert found[0][1].shape == (2,)
    assert found[0][1][0] != 0.0


def picked(t, y, k, places):
    return -k * y[places]


def repeated(t, y, k, rates):
    return -k * np.array((rates * 2)[:2]) * y + len(rates) * y[::-1]


NEEDED = {
    "indices": (picked, np.array([1, 0])),
    "list of indices": (picked, [1, 0]),
    "a list as a list": (repeated, [0.5, 2.0]),
}


@pytest.mark.parametrize("kind", NEEDED)
def test_indices_and_lists_that_are_needed_have_none_and_say_so(kind):
    rhs, value = NEEDED[kind]
    problem = sn.ODE(rhs, [1.0, 0.5], (0.0, 1.0), (2, value))
    with pytest.warns(sn.errors.AdjointWarning, match=r"`args\[1\]`.*index.*list"):
        found = sn.gradient(problem, "rk4", lambda y: y[0] + 2.0 * y[1], steps=20)
    wanted = sn.gradient(
        replace(problem, fun=lambda t, y, k: rhs(t, y, k, value), args=(2.0,)),
        "rk4",
        lambda y: y[0] + 2.0 * y[1],
        steps=20,
    )
    assert found.args == (wanted.args[0], None)
    with pytest.raises(ValueError, match=r"`args\[1\]`.*no derivative"):
        sn.tangent(problem, "rk4", args=(0.0, [1.0, 0.0]), steps=20)


def test_gradients_of_ensembles_have_a_column_for_each_number_of_a_list():
    problem = sn.ODE(two_rates, [1.0, 0.5], (0.0, 1.0), ([2, 3], 1))
    rows = [[2.0, 3.0, 1.0], [1.0, 2.0, 1.5]]
    found = sn.gradient_ensemble(problem, "rk4", lambda y: y[1], args=rows, steps=20).args
    for row, each in zip(rows, found, strict=True):
        one = sn.gradient(replace(problem, args=(row[:2], row[2])), "rk4", lambda y: y[1], steps=20)
        np.testing.assert_allclose(each, [*one.args[0], one.args[1]], rtol=1e-13)  # rounding of 20 steps


def counted_terms(t, y, k, n):
    return [-k * sum(y[0] for _ in range(n))]


def test_counts_among_the_arguments_have_none_and_say_so():
    problem = sn.ODE(counted_terms, [1.0], (0.0, 1.0), (2, 3))
    with pytest.warns(sn.errors.AdjointWarning, match=r"args\[1\].*count"):
        found = sn.gradient(problem, "rk4", lambda y: y[0], steps=50)
    assert found.args == (pytest.approx(-3.0 * math.exp(-6.0), rel=1e-4), None)
    with pytest.warns(sn.errors.AdjointWarning, match=r"args\[1\].*count"):
        assert sn.jacobian(problem, "rk4", steps=50).args[1] is None
    with pytest.raises(ValueError, match=r"args\[1\].*no derivative"):
        sn.tangent(problem, "rk4", args=(0.0, 1.0), steps=50)


# ---- NaN among the constants -----------------------------------------------------------------------------------------

VALUES = np.array([np.nan, np.inf, -np.inf, 0.0, 1.0, -2.5, 0.3])


def slopes_of(rhs, y: np.ndarray) -> np.ndarray:
    """Slopes by machine code, traced by entries or, beyond 2500 operations, by arrays."""
    with np.errstate(all="ignore"):
        found = make_field(rhs, (), (y.shape,), y.shape, (0.0, 1.0), np.linspace(0.1, 0.9, y.size), "fun")
    assert found.rung == "traced", found.reason
    return found(0.0, y)


@pytest.mark.parametrize("size", [7, 4200])
@pytest.mark.parametrize("constant", [np.nan, np.inf, -np.inf, 0.0, 1.5])
@pytest.mark.parametrize("function", [np.remainder, np.fmod, np.floor_divide, np.maximum, np.fmin, np.arctan2])
def test_constants_that_are_no_numbers_give_what_numpy_gives(function, constant, size):
    y = np.tile(VALUES, size // 7)

    def rhs(t, y):
        chosen = np.where(np.roll(y, 1) > 0.0, 1.0, 0.5)
        return function(y, constant) + function(chosen, constant) * function(constant, chosen)

    with np.errstate(all="ignore"):
        expected = rhs(0.0, y)
    assert np.allclose(slopes_of(rhs, y), expected, rtol=1e-14, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [7, 4200])
def test_nan_to_num_is_that_of_numpy(size):
    y = np.tile(VALUES, size // 7)
    for options in ({}, {"nan": 1.0, "posinf": 2.0, "neginf": 3.0}):

        def rhs(t, y, options=options):
            return np.nan_to_num(np.roll(y, 1), **options)

        assert np.array_equal(slopes_of(rhs, y), rhs(0.0, y))


def test_nan_to_num_of_numbers():
    def rhs(t, y):
        return [np.nan_to_num(x) for x in y]

    assert np.array_equal(slopes_of(rhs, VALUES), rhs(0.0, VALUES))


# ---- stochastic equations, PDEs and parts of implicit steps ----------------------------------------------------------

GRID = sn.operators.Grid(12, 0.0, 1.0, boundary="neumann")
POINTS = np.linspace(0.0, 1.0, 12)


def stochastic(drift, diffusion) -> sn.SDE:
    return sn.SDE(lambda t, y: -drift() * y, lambda t, y: diffusion() + 0.0 * y, [1.0], (0.0, 0.2))


def one() -> float:
    return 1.0


def solve_to_end(problem, scheme, steps) -> np.ndarray:
    return sn.solve(problem, scheme, steps=steps).y[-1]


def expect(problem, terminal, **how) -> float:
    return sn.montecarlo.feynman_kac(problem, terminal, paths=32, steps=4, **how).value


def decay(read) -> sn.ODE:
    return sn.ODE(lambda t, y: -read() * y, [1.0], (0.0, 1.0))


READERS = {
    "implicit steps": lambda read: partial(solve_to_end, decay(read), "kvaerno5", 4),
    "Rosenbrock steps": lambda read: partial(solve_to_end, decay(read), "rodas4", 4),
    "drift": lambda read: partial(solve_to_end, stochastic(read, one), "euler_maruyama", 4),
    "diffusion": lambda read: partial(solve_to_end, stochastic(one, read), "euler_maruyama", 4),
    "payoff": lambda read: partial(expect, stochastic(one, one), lambda y: read() * y[0]),
    "potential": lambda read: partial(
        expect, stochastic(one, one), lambda y: y[0], potential=lambda t, y: read() + 0.0 * y[0]
    ),
    "force": lambda read: partial(
        solve_to_end, sn.Langevin(lambda t, q: -read() * q, [1.0], [0.0], (0.0, 1.0)), "baoab", 4
    ),
    "source": lambda read: partial(
        solve_to_end,
        sn.equations.heat(GRID, POINTS, (0.0, 0.1), 0.01, source=lambda t: read() * np.ones(12)),
        "rk4",
        4,
    ),
    "boundary": lambda read: partial(
        solve_to_end,
        sn.equations.heat(
            sn.operators.Grid(12, boundary=sn.operators.dirichlet(lambda t: read() + t)), POINTS, (0.0, 0.1), 0.01
        ),
        "rk4",
        4,
    ),
    "process of a density": lambda read: partial(
        solve_to_end, sn.equations.fokker_planck(GRID, np.ones(12), (0.0, 0.002), stochastic(read, one)), "rk4", 8
    ),
    "flow": lambda read: partial(
        solve_to_end,
        sn.Split((sn.Flow(lambda t, y, h: np.exp(-read() * h) * y), lambda t, y: -y), [1.0], (0.0, 1.0)),
        "strang",
        4,
    ),
}
PLACES = {
    "a dictionary": lambda kept: lambda: kept["k"],
    "getattr": lambda kept: lambda: getattr(SimpleNamespace(**kept), "k"),  # noqa: B009
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reader", READERS)
def test_a_change_between_two_runs_of_one_problem_is_seen(reader, place):
    kept = {"k": 1.0}
    run = READERS[reader](PLACES[place](kept))
    first = run()
    kept["k"] = 1.3
    second = run()
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(second, READERS[reader](PLACES[place](kept))())
