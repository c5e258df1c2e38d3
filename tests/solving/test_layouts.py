"""Results depend neither on the memory layout of arrays nor on earlier runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import stepnet as sn
from stepnet import training
from stepnet.engines.numba_engine.codegen.kernels import Kernel, as_argument, check_once
from stepnet.nets import losses
from stepnet.schemes.controllers import Controller


def read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def strided(array: np.ndarray) -> np.ndarray:
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), 7, array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def reversed_in_memory(array: np.ndarray) -> np.ndarray:
    return array[::-1].copy()[::-1]


def unaligned(array: np.ndarray) -> np.ndarray:
    found = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


LAYOUTS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": strided,
    "reversed": reversed_in_memory,
    "read-only": read_only,
    "unaligned": unaligned,
    "byteswapped": lambda array: array.astype(array.dtype.newbyteorder()),
}
ORDERS = [(first, second) for first in LAYOUTS for second in ("C", "Fortran") if first != second]
RANDOM = np.random.default_rng(0)


def oscillators(t, y, k):
    return np.stack([y[1], -k * y[0]])


PROBLEM = sn.ODE(lambda t, y, a, b: [a * y[1], -b * y[0] * y[1]], [1.0, 2.0], (0.0, 1.0), args=(1.0, 2.0))
NET = sn.nets.resnet(3, 4, width=4, steps=3, length=1.0)


def solve_with(**options):
    return lambda array, name: sn.solve(PROBLEM, "dopri5", **options, **{name: array}).y


def solve_members(array: np.ndarray, name: str) -> np.ndarray:
    rows = {"args": np.array([[1.0, 2.0], [1.5, 0.5], [0.3, 0.9]]), name: array}
    return sn.solve_ensemble(PROBLEM, "dopri5", **rows).y


def solve_from(array: np.ndarray) -> np.ndarray:
    return sn.solve(sn.ODE(oscillators, array, (0.0, 1.0), args=(2.0,)), "rk4", steps=8).y


def solve_with_array(array: np.ndarray) -> np.ndarray:
    problem = sn.ODE(lambda t, y, A: A @ y, np.ones(3), (0.0, 1.0), args=(array,))
    found = sn.gradient(problem, "rk4", lambda y: y @ y, steps=8)
    return np.concatenate([sn.solve(problem, "rk4", steps=8).y.ravel(), found.args[0].ravel()])


def descend(array: np.ndarray) -> np.ndarray:
    data = training.Data(RANDOM_INPUTS, array)
    objective = training.Objective(sn.nets.resnet(3, 4, width=4, steps=3, length=1.0), "cross_entropy")
    return training.minimise(objective, data, training.LBFGS(3)).theta


def decay(t, y):
    return -y


def solve_linear(scheme: str, **options) -> np.ndarray:
    return sn.solve(sn.ODE(lambda t, y: MATRIX @ y, np.ones(3), (0.0, 1.0), **options), scheme, steps=2).y


def solve_heat(field: np.ndarray, source: np.ndarray) -> np.ndarray:
    return sn.solve(sn.equations.heat(GRID, field, (0.0, 0.01), 0.1, source=source), "rkl2(3)", steps=2).y


GRID = sn.operators.Grid((4, 6), boundary="neumann")
FIELD = np.ones((4, 6))
NOISY = sn.SDE(decay, lambda t, y: 0.2 + 0.0 * y, [1.0, 2.0], (0.0, 1.0))
RANDOM_INPUTS = RANDOM.normal(size=(5, 3))
MATRIX = RANDOM.normal(size=(3, 3))
SHARES = RANDOM.dirichlet(np.ones(4), 5)
OUTPUTS = RANDOM.normal(size=(5, 4))
ENTRIES = {
    "solve y0": (solve_from, RANDOM.normal(size=(2, 3))),
    "solve args": (solve_with_array, MATRIX),
    "solve save_at": (lambda a: solve_with()(a, "save_at"), np.linspace(0.1, 0.9, 5)),
    "solve steps": (lambda a: sn.solve(PROBLEM, "rk4", steps=a).y, np.linspace(0.0, 1.0, 6)),
    "solve rtol": (lambda a: solve_with(atol=1e-9)(a, "rtol"), np.array([1e-6, 1e-4])),
    "solve atol": (lambda a: solve_with(rtol=1e-9)(a, "atol"), np.array([1e-6, 1e-4])),
    "solve_ivp t_eval": (
        lambda a: sn.solve_ivp(lambda t, y: -y, (0, 1), [1.0], t_eval=a).y,
        np.linspace(0.1, 0.9, 5),
    ),
    "ensemble y0": (lambda a: solve_members(a, "y0"), RANDOM.uniform(1, 2, size=(3, 2))),
    "ensemble args": (lambda a: sn.solve_ensemble(PROBLEM, "rk4", args=a, steps=5).y, RANDOM.uniform(1, 2, (3, 2))),
    "ensemble t_span": (lambda a: solve_members(a, "t_span"), np.array([[0.0, 1.0], [0.1, 0.7], [0.2, 2.0]])),
    "ensemble save_at": (
        lambda a: solve_members(a, "save_at"),
        np.sort(RANDOM.uniform(0, 1, size=(3, 4)), axis=1),
    ),
    "ensemble rtol": (lambda a: solve_members(a, "rtol"), RANDOM.uniform(1e-7, 1e-4, (3, 2))),
    "implicit y0": (lambda a: sn.solve(sn.ODE(decay, a, (0.0, 1.0)), "radau5", steps=2).y, RANDOM.normal(size=3)),
    "implicit jac": (lambda a: solve_linear("kvaerno5", jac=a), MATRIX),
    "Rosenbrock jac": (lambda a: solve_linear("rodas4", jac=lambda t, y: a), MATRIX),
    "initial field": (lambda a: solve_heat(a, FIELD), RANDOM.uniform(size=(4, 6))),
    "source": (lambda a: solve_heat(FIELD, a), RANDOM.uniform(size=(4, 6))),
    "diffusivity": (
        lambda a: sn.solve(sn.equations.diffusion(GRID, FIELD, (0.0, 0.01), a), "rk4", steps=2).y,
        RANDOM.uniform(size=(4, 6)),
    ),
    "operator": (sn.operators.laplacian(GRID), RANDOM.uniform(size=(4, 6))),
    "SDE y0": (
        lambda a: sn.solve(sn.SDE(decay, lambda t, y: 0.1 * y, a, (0.0, 1.0)), "euler_maruyama", steps=2).y,
        RANDOM.normal(size=(2, 3)),
    ),
    "SDE args": (
        lambda a: (
            sn.solve(
                sn.SDE(lambda t, y, A: -y, lambda t, y, A: A, [1.0, 2.0], (0.0, 1.0), (a,), noise="additive"),
                "euler_maruyama",
                steps=2,
            ).y
        ),
        RANDOM.normal(size=(2, 3)),
    ),
    "start points": (
        lambda a: sn.montecarlo.feynman_kac(NOISY, lambda y: y[0] * y[1], a, paths=32, steps=2).value,
        RANDOM.normal(size=(3, 2)),
    ),
    "increments": (
        lambda a: sn.solve_ensemble(NOISY, "euler_maruyama", increments=a, steps=4).y,
        RANDOM.normal(size=(5, 4, 2)),
    ),
    "softmax": (losses.softmax, OUTPUTS),
    "log_softmax": (losses.log_softmax, OUTPUTS),
    "net": (NET, RANDOM_INPUTS),
    "net gradient": (lambda a: NET.gradient(a, lambda y: (np.sum(y * y), 2 * y)).theta, RANDOM_INPUTS),
    "net end gradient": (lambda a: NET.gradient(RANDOM_INPUTS, end_gradient=a).theta, OUTPUTS),
    "L-BFGS targets": (descend, SHARES),
    **{
        f"{name} {which}": entry
        for name in ("cross_entropy", "kl", "focal", "distillation", "mse")
        for which, entry in {
            "outputs": (lambda a, name=name: losses.get(name).at(a, SHARES).gradient, OUTPUTS),
            "targets": (lambda a, name=name: losses.get(name).at(OUTPUTS, a).gradient, SHARES),
        }.items()
    },
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_public_entries_read_every_layout_alike_in_any_order_of_calls(entry, counted):
    """Each layout first, then others, in one process: machine code of one must never run on another."""
    call, array = ENTRIES[entry]
    expected = np.array(call(array.copy()))
    for first, second in ORDERS:
        for layout in (first, second):
            found = np.asarray(call(LAYOUTS[layout](array)))
            np.testing.assert_array_equal(found, expected, err_msg=f"{layout} in {first}, {second}")
    counted("public entries in every memory layout", entry, len(ENTRIES))


# ---- kernels ---------------------------------------------------------------------------------------------------------


@Kernel
def total(x, factor):
    s = 0.0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            s += (j + 1) * x[i, j]
    return s * factor


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "C"])
def test_kernels_refuse_arrays_that_they_would_misread(layout):
    array = RANDOM.normal(size=(2, 3))
    assert total(array, 1.0) == pytest.approx(array @ [1, 2, 3] @ [1, 1])
    with pytest.raises(TypeError, match="C-ordered"):
        total(LAYOUTS[layout](array), 1.0)
    assert total(as_argument(LAYOUTS[layout](array)), 1.0) == total(array, 1.0)


@check_once
class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray


@Kernel
def total_of_pair(pair, factor):
    s = 0.0
    for i in range(pair.first.shape[0]):
        for j in range(pair.first.shape[1]):
            s += (j + 1) * (pair.first[i, j] + 10 * pair.second[i, j])
    return s * factor


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "C"])
@pytest.mark.parametrize("place", [0, 1])
def test_kernels_refuse_tuples_that_they_would_misread_after_one_that_they_checked(layout, place):
    """A tuple that was checked is recognised by its identity; every other one is checked, also after a refusal."""
    arrays = [RANDOM.normal(size=(2, 3)) for _ in range(2)]
    wrong = [LAYOUTS[layout](array) if i == place else array for i, array in enumerate(arrays)]
    good, bad = Pair(*arrays), Pair(*wrong)
    expected = (arrays[0] + 10 * arrays[1]) @ [1, 2, 3] @ [1, 1]
    for _ in range(2):
        for _ in range(2):  # by the check, then by identity
            assert total_of_pair(good, 1.0) == pytest.approx(expected, rel=1e-13)
        for _ in range(2):  # a tuple that was refused is not remembered
            with pytest.raises(TypeError, match="C-ordered"):
                total_of_pair(bad, 1.0)
    assert total_of_pair(Pair(*map(as_argument, wrong)), 1.0) == total_of_pair(good, 1.0)


def test_other_arguments_are_checked_beside_a_tuple_that_was_checked_before():
    good = Pair(np.ones((1, 2)), np.ones((1, 2)))
    for factor in (1.0, 2, np.float32(0.5), 1.0):
        assert total_of_pair(good, factor) == 33.0 * factor


def test_kernels_take_numbers_of_other_types_for_what_they_are():
    array = np.ones((1, 1))
    for factor in (2, 2.5, np.float32(0.5), True, np.int32(-3), 2.5):
        assert total(array, factor) == factor


def test_kernels_are_compiled_for_each_number_type_of_arrays():
    for dtype in (np.float32, np.int64, np.float64, np.int8, np.float32):
        assert total(np.full((1, 2), 3, dtype), 1.0) == 9.0


@pytest.mark.parametrize("numbers", [{"grow": 5}, {"grow": np.float32(5)}, {"beta1": 1, "shrink": np.float32(0.25)}])
def test_a_controller_of_other_number_types_leaves_later_solves_alone(numbers):
    before = sn.solve(PROBLEM, "dopri5", rtol=1e-8, atol=1e-8)
    same = {name: float(value) for name, value in numbers.items()}
    odd, plain = (Controller("own", **{"beta1": 1.0, "beta2": 0.0, "beta3": 0.0, "reference": "", **each})
                  for each in (numbers, same))  # fmt: skip
    first, second = (sn.solve(PROBLEM, "dopri5", rtol=1e-8, atol=1e-8, controller=each) for each in (odd, plain))
    np.testing.assert_array_equal(first.t, second.t)
    np.testing.assert_array_equal(sn.solve(PROBLEM, "dopri5", rtol=1e-8, atol=1e-8).t, before.t)
    assert all(type(getattr(odd, name)) is float for name in ("beta1", "safety", "shrink", "grow"))
