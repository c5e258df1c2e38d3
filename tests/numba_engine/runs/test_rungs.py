"""The ladder: a C address as it is, Python compiled by Numba, Python called back; every rung gives the same answer."""

from __future__ import annotations

import copy
import ctypes
import functools
import math
import pickle
from functools import cache

import numba
import numpy as np
import pytest
import scipy.special
from numba import njit
from numba_engine.runs import child
from scipy import LowLevelCallable

import stepnet as sn
from stepnet.engines.numba_engine.codegen import numba_compilation
from stepnet.engines.numba_engine.rhs.ladder import summarise

AGREE = 1e-13  # Numba contracts a * b + c into one rounding; 20 steps of that
SINGLE_AGREE = 1e-5
SOMETHING = 20  # letters of a reason that says more than that there is one

Y0, SPAN, K, G = (0.8, -0.3), (0.0, 2.0), 1.7, 0.2


def pendulum(t, y, k, g):
    return [y[1], -k * math.sin(y[0]) - g * y[1] + math.cos(t)]


@cache
def expected() -> np.ndarray:
    """rk4 in plain Python."""
    y, h, n = np.array(Y0), SPAN[1] / 20, 20
    for i in range(n):
        t = i * h
        k1 = np.array(pendulum(t, y, K, G))
        k2 = np.array(pendulum(t + h / 2, y + h / 2 * k1, K, G))
        k3 = np.array(pendulum(t + h / 2, y + h / 2 * k2, K, G))
        k4 = np.array(pendulum(t + h, y + h * k3, K, G))
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def solve(fun, args=(K, G), y0=Y0, **how) -> sn.Solution:
    return sn.solve(sn.ODE(fun, y0, SPAN, args), "rk4", steps=20, **how)


# ---- the ways to write a right-hand side ----------------------------------------------------------------------------


def returns_list(t, y, k, g):
    return [y[1], -k * np.sin(y[0]) - g * y[1] + np.cos(t)]


def returns_tuple(t, y, k, g):
    return y[1], -k * np.sin(y[0]) - g * y[1] + np.cos(t)


def returns_array(t, y, k, g):
    return np.array([y[1], -k * np.sin(y[0]) - g * y[1] + np.cos(t)])


def returns_filled_array(t, y, k, g):
    dy = np.empty_like(y)
    dy[0] = y[1]
    dy[1] = -k * math.sin(y[0]) - g * y[1] + math.cos(t)
    return dy


def returns_in_branches(t, y, k, g):
    if y[0] > 0.0:
        return [y[1], -k * np.sin(y[0]) - g * y[1] + np.cos(t)]
    return [y[1], -k * np.sin(y[0]) - g * y[1] + np.cos(t)]


def fills(t, y, dy, p):
    dy[0] = y[1]
    dy[1] = -p[0] * np.sin(y[0]) - p[1] * y[1] + np.cos(t)


def fills_out(t, y, out, parameters):
    out[0] = y[1]
    out[1] = -parameters[0] * np.sin(y[0]) - parameters[1] * y[1] + np.cos(t)


def unpacks(t, y, k, g):
    angle, speed = y
    return [speed, -k * np.sin(angle) - g * speed + np.cos(t)]


def has_defaults(t, y, k, g, one=1.0):
    return [y[1], -k * np.sin(y[0]) - g * y[1] + one * np.cos(t)]


def takes_any_arguments(t, y, *args):
    return [y[1], -args[0] * np.sin(y[0]) - args[1] * y[1] + np.cos(t)]


def make_closure():
    one = 1.0

    def rhs(t, y, k, g):
        return [y[1], -k * np.sin(y[0]) - g * y[1] + one * np.cos(t)]

    return rhs


def has_inner_function(t, y, k, g):
    def pull(angle):
        return -k * np.sin(angle)

    return [y[1], pull(y[0]) - g * y[1] + np.cos(t)]


@njit
def jitted_force(angle, k):
    return -k * np.sin(angle)


def calls_jitted(t, y, k, g):
    return [y[1], jitted_force(y[0], k) - g * y[1] + np.cos(t)]


def make_without_source():
    namespace = {"np": np}
    exec("def rhs(t, y, k, g):\n    return [y[1], -k * np.sin(y[0]) - g * y[1] + np.cos(t)]", namespace)
    return namespace["rhs"]


FORMS = {
    "list": lambda: returns_list,
    "tuple": lambda: returns_tuple,
    "array": lambda: returns_array,
    "filled array": lambda: returns_filled_array,
    "branches": lambda: returns_in_branches,
    "in place dy": lambda: fills,
    "in place out": lambda: fills_out,
    "unpacking": lambda: unpacks,
    "defaults": lambda: has_defaults,
    "star arguments": lambda: takes_any_arguments,
    "lambda": lambda: lambda t, y, k, g: [y[1], -k * np.sin(y[0]) - g * y[1] + np.cos(t)],
    "closure": make_closure,
    "inner function": lambda: has_inner_function,
    "calls a jitted function": lambda: calls_jitted,
    "jitted, list": lambda: njit(returns_list),
    "jitted, array": lambda: njit(returns_array),
    "jitted, in place": lambda: njit(fills),
    "no source": make_without_source,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rung", ["compiled", "python"])
def test_every_way_to_write_it_gives_the_same_answer(form, rung, monkeypatch):
    if rung == "python":
        monkeypatch.setenv("STEPNET_RUNG", "python")
    solution = solve(FORMS[form]())
    assert solution.statistics.rung == rung, solution.statistics.rung_reason
    assert np.max(np.abs(solution.y[-1] - expected())) < AGREE


def test_the_environment_asks_for_python(monkeypatch):
    assert solve(returns_list).statistics.rung == "compiled"
    monkeypatch.setenv("STEPNET_RUNG", "python")
    assert solve(returns_list).statistics.rung == "python"


def test_the_compiled_rung_gives_no_reason():
    assert solve(returns_list).statistics.rung_reason == ""


# ---- C functions ----------------------------------------------------------------------------------------------------

C_SIGNATURE = "int32(float64, CPointer(float64), CPointer(float64), CPointer(float64), int64)"


@cache
def c_pendulum():
    @numba.cfunc(C_SIGNATURE)
    def rhs(t, y, dy, p, n):
        dy[0] = y[1]
        dy[1] = -p[0] * np.sin(y[0]) - p[1] * y[1] + np.cos(t)
        return 0

    return rhs


def ctypes_callback():
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int32,
        ctypes.c_double,
        *[ctypes.POINTER(ctypes.c_double)] * 3,
        ctypes.c_int64,
    )

    def rhs(t, y, dy, p, n):
        dy[0] = y[1]
        dy[1] = -p[0] * math.sin(y[0]) - p[1] * y[1] + math.cos(t)
        return 0

    return kind(rhs)


ADDRESSES = {
    "address": lambda: sn.address(c_pendulum().address),
    "address by a numpy int": lambda: sn.address(np.int64(c_pendulum().address)),
    "numba cfunc": c_pendulum,
    "ctypes function": lambda: c_pendulum().ctypes,
    "ctypes callback": ctypes_callback,
    "LowLevelCallable": lambda: LowLevelCallable(c_pendulum().ctypes),
}


@pytest.mark.parametrize("kind", ADDRESSES)
def test_c_functions_are_taken_as_they_are(kind):
    function = ADDRESSES[kind]()
    solve(function)  # loads the kernel
    solution = solve(function)
    assert solution.statistics.rung == "address"
    assert solution.statistics.compile_time == 0.0
    assert np.max(np.abs(solution.y[-1] - expected())) < AGREE


def test_c_functions_are_told_the_length_of_the_state():
    @numba.cfunc(C_SIGNATURE)
    def count(t, y, dy, p, n):
        for i in range(n):
            dy[i] = n
        return 0

    solution = sn.solve(sn.ODE(count, np.zeros(5), (0.0, 1.0)), "euler", steps=1)
    assert np.array_equal(solution.y[-1], np.full(5, 5.0))


@cache
def c_pull():
    @numba.cfunc(C_SIGNATURE)
    def pull(t, q, dy, p, n):
        for i in range(n):
            dy[i] = -p[0] * np.sin(q[i])
        return 0

    return pull


def py_pull(t, q, k):
    return -k * np.sin(q)


def py_drift(t, p, k):
    return 1.0 * p


@pytest.mark.parametrize("scheme", ["verlet", "yoshida4", "rk4", "leapfrog_two_step"])
def test_c_functions_run_in_second_order_problems(scheme):
    runs = [sn.solve(sn.SecondOrder(f, Y0, [0, 1], SPAN, (K,)), scheme, steps=20) for f in (c_pull(), py_pull)]
    assert [s.statistics.rung for s in runs] == ["address", "compiled"]
    assert np.allclose(runs[0].y, runs[1].y, rtol=0, atol=AGREE)


@pytest.mark.parametrize("scheme", ["verlet", "rk4"])
def test_the_rung_of_several_parts_is_the_slowest(scheme):
    def slow_pull(t, q, k):
        return -k * np.sin(q) * scipy.special.gamma(2.0)

    problems = [sn.Partitioned(py_drift, force, Y0, [0, 1], SPAN, (K,)) for force in (c_pull(), py_pull, slow_pull)]
    runs = [sn.solve(problem, scheme, steps=20) for problem in problems]
    assert [s.statistics.rung for s in runs] == ["compiled", "compiled", "python"]
    assert "gamma" in runs[2].statistics.rung_reason
    for other in runs[1:]:
        assert np.allclose(runs[0].y, other.y, rtol=0, atol=AGREE)


@pytest.mark.parametrize("scheme", ["strang", "rk4", "ab4"])
def test_split_parts_may_stand_on_different_rungs(scheme):
    def damp(t, y, k):
        return [0.0, -0.2 * y[1]]

    def swing(t, y, k):
        return [y[1], -k * np.sin(y[0])]

    @numba.cfunc(C_SIGNATURE)
    def c_damp(t, y, dy, p, n):
        dy[0] = 0.0
        dy[1] = -0.2 * y[1]
        return 0

    runs = [sn.solve(sn.Split((swing, f), Y0, SPAN, (K,)), scheme, steps=20) for f in (damp, c_damp)]
    assert [s.statistics.rung for s in runs] == ["compiled", "compiled"]
    assert np.allclose(runs[0].y, runs[1].y, rtol=0, atol=AGREE)


def test_numbers_and_null_pointers_are_refused_and_not_called():
    """In a process of its own, because jumping to such an address ends it."""
    program = """
        import ctypes
        import numpy as np
        import stepnet as sn

        null = ctypes.CFUNCTYPE(ctypes.c_int32)()
        span, decay = (0.0, 1.0), lambda t, y: -y
        for number in (0, 7, 10**6, np.int64(10**6), 2**70, null):
            cases = {
                "fun": lambda: sn.solve(sn.ODE(number, [1.0], span), "rk4", steps=4),
                "dq": lambda: sn.solve(sn.Partitioned(number, decay, [1.0], [1.0], span), "rk4", steps=4),
                "dp": lambda: sn.solve(sn.Partitioned(decay, number, [1.0], [1.0], span), "verlet", steps=4),
                "acceleration": lambda: sn.solve(sn.SecondOrder(number, [1.0], [1.0], span), "verlet", steps=4),
                "parts[1]": lambda: sn.solve(sn.Split((decay, number), [1.0], span), "strang", steps=4),
                "jvp": lambda: sn.ODE(decay, [1.0], span, jvp=number),
                "vjp": lambda: sn.ODE(decay, [1.0], span, vjp=number),
                "fun` of an event": lambda: sn.solve(sn.ODE(decay, [1.0], span), events=[number]),
                "events": lambda: sn.solve_ivp(decay, span, [1.0], events=number),
                "project": lambda: sn.solve(sn.ODE(decay, [1.0], span), project=number),
            }
            wanted = "null pointer" if number is null else "`stepnet.address(...)`"
            for name, call in cases.items():
                try:
                    call()
                except (TypeError, ValueError) as error:
                    print("refused" if f"`{name}" in str(error) and wanted in str(error) else f"{name}: {error}")
                else:
                    print(f"{name}: {number!r} was taken")
    """
    assert child.succeed(program).splitlines() == ["refused"] * 60


WRONG_ADDRESSES = {0: ValueError, 4095: ValueError, -1: ValueError, 2**64: ValueError, 10**400: ValueError,
                   True: TypeError, 5e4: TypeError, "50000": TypeError, None: TypeError}  # fmt: skip


@pytest.mark.parametrize("number", WRONG_ADDRESSES, ids=lambda number: f"{number!r:.12}")
def test_what_cannot_be_an_address_is_refused(number):
    with pytest.raises(WRONG_ADDRESSES[number], match="`number` of an address must be"):
        sn.address(number)


def test_addresses_belong_to_their_process():
    at = sn.address(0x5000)
    assert (at, copy.deepcopy(at), repr(at)) == (sn.Address(0x5000), at, "address(0x5000)")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(sn.ODE(at, [1.0], (0.0, 1.0)))


def test_events_and_projections_may_be_c_functions():
    @numba.cfunc(C_SIGNATURE)
    def height(t, y, g, p, n):
        g[0] = y[0] - 0.5
        return 0

    @numba.cfunc(C_SIGNATURE)
    def project(t, y, out, p, n):
        out[0] = min(y[0], 1.0)
        return 0

    functions = {"events": sn.address(height.address), "project": sn.address(project.address)}
    found = sn.solve(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "dopri5", rtol=1e-10, atol=1e-10, **functions)
    assert found.statistics.event_rungs == ("address",)
    assert found.statistics.project_rung == "address"
    assert abs(found.t_events[0][0] - np.log(2)) < 1e-8


# ---- arguments ------------------------------------------------------------------------------------------------------


def uses_everything(t, y, a, n, is_on, z, v, m, c, w):
    total = 0.0
    for i in range(n):
        total += a * (i + 1)
    if is_on:
        total += z.real * z.imag
    total += v[1] + m[1, 2] + c[1, 0, 2] + w[1].imag
    return [total * y[0] * 0.01]


EVERYTHING = (
    0.5,
    3,
    True,
    2.0 + 3.0j,
    np.array([1.0, 2.0]),
    np.arange(6.0).reshape(2, 3),
    np.arange(12.0).reshape(2, 2, 3),
    np.array([1.0j, 4.0j]),
)
RATE = 0.01 * (0.5 * 6 + 6.0 + 2.0 + 5.0 + 8.0 + 4.0)


@pytest.mark.parametrize("rung", ["compiled", "python"])
def test_arguments_keep_their_types(rung, monkeypatch):
    if rung == "python":
        monkeypatch.setenv("STEPNET_RUNG", "python")
    solution = solve(uses_everything, EVERYTHING, [1.0])
    assert solution.statistics.rung == rung, solution.statistics.rung_reason
    assert solution.y[-1, 0] == pytest.approx(np.exp(2.0 * RATE), rel=1e-6)  # 20 steps of order 4


@pytest.mark.parametrize(
    "change", [{0: 1.5}, {1: 4}, {2: False}, {3: 1j}, {4: np.array([1.0, 7.0])}, {5: np.ones((2, 3))}]
)
def test_other_values_of_arguments_need_no_new_code(change):
    """The compiled function reads them from its block; the answer must follow."""
    args = tuple(change.get(i, value) for i, value in enumerate(EVERYTHING))
    solution = solve(uses_everything, args, [1.0])
    assert solution.statistics.rung == "compiled"
    rate = uses_everything(0.0, [1.0], *args)[0]
    assert rate != pytest.approx(RATE)
    assert solution.y[-1, 0] == pytest.approx(np.exp(2.0 * rate), rel=1e-6)


def sums(t, y, a):
    return [np.sum(a) * y[0]]


@pytest.mark.parametrize(
    "array",
    [
        np.float32([0.25, 0.5]),
        np.asfortranarray([[0.1, 0.2], [0.3, 0.4]]),
        np.arange(4.0)[::3] / 10,
        np.zeros(0),
    ],
    ids=["float32", "fortran order", "strided", "empty"],
)
def test_arrays_of_any_layout_are_arguments(array):
    solution = solve(sums, (array,), [1.0])
    assert solution.statistics.rung == "compiled"
    assert solution.y[-1, 0] == pytest.approx(np.exp(2.0 * float(np.sum(array))), rel=1e-4)


def test_the_order_of_entries_is_that_of_the_array():
    def corner(t, y, a):
        return [a[0, 1] + 10.0 * a[1, 0]]

    for array in (np.array([[0.0, 1.0], [2.0, 3.0]]), np.asfortranarray([[0.0, 1.0], [2.0, 3.0]])):
        assert solve(corner, (array,), [0.0]).y[-1, 0] == pytest.approx(42.0, rel=AGREE)


def test_numpy_scalars_are_arguments():
    args = (np.float32(0.5), np.int32(3), np.bool_(True), np.complex128(2 + 3j), *EVERYTHING[4:])
    solution = solve(uses_everything, args, [1.0])
    assert solution.statistics.rung == "compiled"
    assert solution.y[-1, 0] == pytest.approx(np.exp(2.0 * RATE), rel=1e-6)


@pytest.mark.parametrize(
    "args",
    [({"k": 1.0},), ("text",), (None,), (2**60,), ([1.0, 2.0],), (np.array(["a"]),)],
    ids=["dict", "text", "None", "huge integer", "list", "array of text"],
)
def test_other_arguments_reach_python_with_a_reason(args):
    seen = []

    def keeps(t, y, extra):
        seen.append(extra)
        return -y

    solution = solve(keeps, args, [1.0])
    assert solution.statistics.rung == "python"
    assert len(solution.statistics.rung_reason) > SOMETHING
    assert all(item is args[0] for item in seen)


def test_integer_arrays_reach_the_right_hand_side_as_integers():
    def looks_up(t, y, index):
        return [y[index[0]], -y[index[1]]]

    solution = solve(looks_up, (np.array([1, 0]),), [1.0, 0.0])
    assert np.allclose(solution.y[-1], [np.cos(2.0), -np.sin(2.0)], atol=1e-4)  # 20 steps of order 4


def test_c_functions_refuse_arguments_they_cannot_read():
    with pytest.raises(TypeError, match=r"`args`.*'text'"):
        solve(c_pendulum(), ("text",))


# ---- falling back ---------------------------------------------------------------------------------------------------


PARAMETERS = {"frequency": 1.0}


def looks_up_names(t, y):
    return [y[1], -PARAMETERS["frequency"] * y[0]]


def formats_text(t, y):
    assert f"{t:.3f}" != ""
    return [y[1], -y[0]]


def calls_scipy(t, y):
    return [y[1], -y[0] * scipy.special.gamma(2.0)]


class Oscillator:
    frequency = 1.0

    def __call__(self, t, y):
        return [y[1], -self.frequency * y[0]]

    def method(self, t, y):
        return [y[1], -self.frequency * y[0]]


def three(k, t, y):
    return [y[1], -k * y[0]]


FALLING = {
    "dict of text": looks_up_names,
    "formatting": formats_text,
    "scipy": calls_scipy,
    "callable object": Oscillator(),
    "method": Oscillator().method,
    "partial": functools.partial(three, 1.0),
}


@pytest.mark.parametrize("kind", FALLING)
def test_what_numba_cannot_compile_runs_in_python_and_says_why(kind):
    solution = solve(FALLING[kind], (), [1.0, 0.0])
    assert solution.statistics.rung == "python"
    assert len(solution.statistics.rung_reason) > SOMETHING
    assert np.allclose(solution.y[-1], [np.cos(2.0), -np.sin(2.0)], atol=1e-4)  # 20 steps of order 4
    assert f"python ({solution.statistics.rung_reason})" in repr(solution)


def test_an_object_with_an_address_of_another_kind_is_called():
    """In a process of its own, because jumping to address 12 ends it."""
    program = """
        import stepnet as sn

        class House:
            address = 12

            def __call__(self, t, y):
                return -y

        print(sn.solve(sn.ODE(House(), [1.0], (0.0, 1.0)), "rk4", steps=4).statistics.rung)
    """
    assert child.succeed(program).strip() == "python"


@pytest.mark.parametrize("y0", [[1.0, 2.0], [0.0, 0.0]], ids=["seen at once", "not seen at the initial state"])
def test_random_numbers_run_in_python_with_the_seed_of_numpy(y0):
    def kicks(t, y):
        return y * np.random.standard_normal() + t * np.random.standard_normal()

    ends = []
    for _ in range(2):
        np.random.seed(7)
        solution = solve(kicks, (), y0)
        assert solution.statistics.rung == "python"
        ends.append(solution.y[-1])
    assert np.array_equal(ends[0], ends[1])


def test_side_effects_run_in_python():
    calls, log = np.zeros(1), []

    def counts(t, y):
        calls[0] += 1
        return -y

    def writes(t, y):
        log.append(t)
        return -y

    for function in (counts, writes):
        statistics = solve(function, (), [1.0]).statistics
        assert statistics.rung == "python"
        assert statistics.evaluations == 80
    assert calls[0] == len(log) == 80  # the first look is the first evaluation


counter = 0


def test_a_global_counter_counts():
    def counts(t, y):
        global counter
        counter += 1
        return -y

    before = counter
    assert solve(counts, (), [1.0]).statistics.rung == "python"
    assert counter - before == 80


def test_states_kept_by_a_right_hand_side_stay_what_they_were():
    """SciPy hands out fresh arrays; a view of the kernel's memory would change, and dangle after the run."""
    kept = []

    def keeps(t, y):
        kept.append((t, y, y.copy()))
        return -y

    solve(keeps, (), [1.0, 2.0])
    changed = [t for t, y, copy in kept if not np.array_equal(y, copy)]
    assert not changed


# ---- tracing refused ------------------------------------------------------------------------------------------------


def stepped_back(t, p):
    return p


def pulled_back(t, q):
    return -q


UNTRACED = {
    "ode": (lambda **how: sn.ODE(pulled_back, [1.0, 0.5], SPAN, **how), "rk4", ("",)),
    "second order": (lambda **how: sn.SecondOrder(pulled_back, [1.0], [0.0], SPAN, **how), "verlet", ("",)),
    "partitioned": (
        lambda **how: sn.Partitioned(stepped_back, pulled_back, [1.0], [0.0], SPAN, **how), "verlet", ("`dq` ", "`dp` ")
    ),
    "partitioned, joined": (
        lambda **how: sn.Partitioned(stepped_back, pulled_back, [1.0], [0.0], SPAN, **how), "rk4", ("`dq` ", "`dp` ")
    ),
    "split": (
        lambda **how: sn.Split((pulled_back, stepped_back), [1.0], SPAN, **how), "strang",
        ("`parts[0]` ", "`parts[1]` "),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "scheme", "labels"), UNTRACED.values(), ids=UNTRACED)
def test_tracing_can_be_refused(make, scheme, labels, monkeypatch):
    monkeypatch.delenv("STEPNET_RUNG", raising=False)
    traced, refused = (sn.solve(make(trace=trace), scheme, steps=20) for trace in (True, False))
    assert (traced.statistics.rung, traced.statistics.rung_reason) == ("traced", "")
    assert refused.statistics.rung == "compiled"
    assert refused.statistics.rung_reason == "; ".join(f"{label}not traced: refused" for label in labels)
    assert np.allclose(traced.y, refused.y, rtol=0, atol=AGREE)


def test_refusing_goes_for_events_and_projections_too(monkeypatch):
    monkeypatch.delenv("STEPNET_RUNG", raising=False)
    problem = sn.ODE(pulled_back, [1.0, 0.5], SPAN, trace=False)
    statistics = sn.solve(problem, "rk4", steps=20, events=lambda t, y: y[0] - 0.5, project=lambda t, y: y).statistics
    assert "not traced: refused" in statistics.rung_reason
    assert "not traced: refused" in statistics.event_reasons[0]
    assert "not traced: refused" in statistics.project_reason


# ---- single precision and complex -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "agree"), [(np.float32, SINGLE_AGREE), (np.complex128, AGREE)])
def test_rungs_agree_for_other_number_types(dtype, agree, monkeypatch):
    y0 = np.array(Y0, dtype)
    compiled = solve(returns_array, y0=y0)
    monkeypatch.setenv("STEPNET_RUNG", "python")
    python = solve(returns_array, y0=y0)
    assert (compiled.statistics.rung, python.statistics.rung) == ("compiled", "python")
    assert compiled.y.dtype == python.y.dtype == dtype
    assert np.allclose(compiled.y, python.y, rtol=0, atol=agree)


# ---- large states ---------------------------------------------------------------------------------------------------


def relax(t, y):
    return -y


def test_code_does_not_grow_with_the_state(monkeypatch):
    """One statement for each of 3000 entries would take Numba minutes; a loop takes what two entries take."""
    lengths, stores = [], numba_compilation._write_stores

    def spy(result, shape):
        lines = stores(result, shape)
        lengths.append(len(lines))
        if len(lines) > 20:
            raise RuntimeError("too long to compile in a test")
        return lines

    monkeypatch.setattr(numba_compilation, "_write_stores", spy)
    solution = sn.solve(sn.ODE(relax, np.ones(3000), (0.0, 1.0)), "euler", steps=1)
    assert solution.statistics.rung == "compiled"
    assert lengths
    assert max(lengths) < 20


def test_reasons_have_no_colours():
    error = TypeError("\x1b[1mFailed in nopython mode\x1b[0m\n\x1b[1m\x1b[31mNameError: no gamma\x1b[0m")
    assert summarise(error) == "NameError: no gamma"
