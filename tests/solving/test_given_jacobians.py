"""A user's Jacobian is checked: its shape and type, its values where a wrong one would give wrong results."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import stepnet as sn

EXACT = np.diag([-3.0, -1.0])


def slope(t, y):
    return np.array([-3.0 * y[0], -y[1]])


def solve(scheme: str, jac, **options) -> np.ndarray:
    return sn.solve(sn.ODE(slope, [1.0, 2.0], (0.0, 1.0), jac=jac, **options), scheme, steps=20).y[-1]


BAD = {
    "shape": (np.ones((3, 3)), ValueError, r"`jac` must have shape \(2, 2\), found \(3, 3\)"),
    "vector": (np.ones(2), ValueError, r"`jac` must have shape \(2, 2\), found \(2,\)"),
    "nothing": (None, TypeError, "`jac` must be a matrix of numbers or return one, found None"),
    "text": ("text", TypeError, "`jac` must be a matrix of numbers or return one, found 'text'"),
    "objects": (np.array([[None, 1], [1, 2]], object), TypeError, "`jac` must be a matrix of numbers"),
    "ragged rows": ([[1.0, 0.0], [0.0]], TypeError, "`jac` must be an array"),
    "complex numbers": (1j * np.eye(2), TypeError, "`jac` must be real as the state is"),
}


@pytest.mark.parametrize("scheme", ["radau5", "ros3p"])
@pytest.mark.parametrize("case", BAD)
def test_a_function_that_returns_no_matrix_is_refused(case, scheme):
    value, error, words = BAD[case]
    with pytest.raises(error, match=words):
        solve(scheme, lambda t, y: value)


WRONG = {
    "sign": -EXACT,
    "size": 2.0 * EXACT,
    "order of entries": EXACT[::-1],
    "zero": np.zeros((2, 2)),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_rosenbrock_scheme_refuses_a_wrong_jacobian(case):
    with pytest.raises(ValueError, match="`jac` differs from differences of the right-hand side"):
        solve("rodas5p", lambda t, y: WRONG[case])


def test_a_rosenbrock_scheme_refuses_a_wrong_sparsity():
    def opaque(t, y):
        return np.array([-3.0 * y[0] + getattr(y, "real")[1], -y[1]])  # noqa: B009

    def solve_with(sparsity):
        return sn.solve(sn.ODE(opaque, [1.0, 2.0], (0.0, 1.0), jac_sparsity=sparsity), "rodas4", steps=20)

    assert solve_with([[1, 1], [0, 1]]).statistics.rung == "python"
    with pytest.raises(ValueError, match="`jac_sparsity` differs from differences"):
        solve_with(np.eye(2))


EQUAL = 1e-12  # Newton's iteration ends at rounding whatever approximation of df/dy it uses


def test_newtons_iteration_takes_an_approximate_jacobian():
    np.testing.assert_allclose(solve("kvaerno5", 0.9 * EXACT), solve("kvaerno5", EXACT), rtol=EQUAL)


FORMS = {
    "a list": EXACT.tolist(),
    "integers": EXACT.astype(int),
    "other byte order": EXACT.astype(">f8"),
    "Fortran order": np.asfortranarray(EXACT),
    "float32": EXACT.astype(np.float32),
    "CSC": sparse.csc_array(EXACT),
    "COO": sparse.coo_array(EXACT),
}


@pytest.mark.parametrize("scheme", ["radau5", "rodas4"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_matrix_gives_the_same(form, scheme):
    expected = solve(scheme, lambda t, y: EXACT)
    np.testing.assert_array_equal(solve(scheme, lambda t, y: FORMS[form]), expected)
    np.testing.assert_array_equal(solve(scheme, FORMS[form]), expected)


def test_a_point_outside_the_domain_is_left_to_the_run():
    problem = sn.ODE(lambda t, y: -np.sqrt(y), [0.0], (0.0, 1.0), jac=lambda t, y: [[-0.5 / np.sqrt(y[0] + 1.0)]])
    with np.errstate(invalid="ignore"):
        assert sn.solve(problem, "ros3p", steps=2, check=False).y.shape[1] == 1


def test_a_matrix_that_memory_cannot_hold_is_an_error_that_says_so():
    n = 5 * 10**6  # its square is beyond the address space

    def opaque(t, y):
        return -getattr(y, "real")  # noqa: B009

    with pytest.raises(MemoryError, match="`problem` has 5000000 unknowns, and the matrices of an implicit step take"):
        sn.solve(sn.ODE(opaque, np.ones(n), (0.0, 1.0)), "radau5", steps=1)


CHANGES = {
    "jac": {"jac": lambda t, y: 1.000001 * EXACT},
    "jac_sparsity": {"jac_sparsity": np.ones((2, 2))},
    "jvp": {"jvp": lambda t, y, v: EXACT @ v},
    "trace": {"trace": False},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stored_run_belongs_to_a_problem_with_the_same_derivatives(change, tmp_path):
    def start(options, **how):
        return sn.start(sn.ODE(slope, [1.0, 2.0], (0.0, 1.0), **options), "kvaerno5", steps=4, **how)

    start({"jac": lambda t, y: EXACT}).step().save(tmp_path / "run.npz")
    start({"jac": lambda t, y: EXACT}, restore=tmp_path / "run.npz")
    with pytest.raises(ValueError, match=r"another problem|another version, machine or kind of right-hand side"):
        start({"jac": lambda t, y: EXACT, **CHANGES[change]}, restore=tmp_path / "run.npz")
