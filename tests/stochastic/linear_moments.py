"""Linear equations for each type of noise: means of quadratic functions in closed form, and control variates for them.

With z = (1, t, y) an equation is dz = A z dt + sum_k B_k z dW_k in Ito's calculus.  The mean of z' Q z at the end, as a
function of a state before it, is u(t, z) = z' P(t) z with -P' = A' P + P A + sum_k B_k' P B_k and P(T) = Q.  A linear
scheme takes z to M(xi) z, where xi are the random variables of the step.  The sum over the steps of all

    H_i(xi) z' E[H_i M' P(t + h) M] z    with the orthonormal polynomials H_i of xi but the constant one

has the mean zero whatever M and P are, and takes the martingale part out of u at the end.
"""

from __future__ import annotations

from itertools import product
from math import factorial, sqrt
from typing import NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermegauss, hermeval
from scipy.linalg import expm
from stochastic import reference

import stepnet as sn
from stepnet.noise.evaluation import evaluate
from stepnet.noise.grid import NoiseGrid
from stepnet.noise.reference import BrownianPaths

START, T_END = (1.0, 0.5), 1.0
Q = np.array([[0.0, 0.0, 0.3, 0.0], [0.0, 0.0, 0.0, 0.0], [0.3, 0.0, 1.0, 0.4], [0.0, 0.0, 0.4, 0.5]])
MOST = 4  # degree of the polynomials
POINTS = {"W": 5, "H": 3, "V": 3, "S": 2}  # of quadrature; V and S take three and two values


def drift(t, y, a):
    return np.array([-a * y[0] + 0.6 * y[1] + 0.5 * t, 0.4 * y[0] - 0.7 * y[1] + 0.3])


def scalar(t, y, a):
    return np.array([-0.5 * y[0] - 0.2 * y[1] - 0.2 * t, 0.3 * y[0] - 0.3 * y[1] - 0.1])


def diagonal(t, y, a):
    return np.array([-0.6 * y[0] - 0.2 * t, 0.2 - 0.5 * y[1]])


def additive(t, y, a):
    return np.array([[0.8 * a, 0.5 * t], [0.3 + 0.6 * t, 0.7]])


def commutative(t, y, a):
    return np.array([[0.4 * y[0] + 0.2 * y[1], 0.1 * y[0] - 0.3 * y[1]], [0.4 * y[1], 0.1 * y[1]]])


def general(t, y, a):
    return np.array([[0.5 * y[1] + 0.2 * t, 0.4 * y[0]], [0.4 * y[0] - 0.1, 0.3 * y[1] - 0.3 * y[0]]])


DIFFUSIONS = {
    "scalar": scalar, "diagonal": diagonal, "additive": additive, "commutative": commutative, "general": general,
}  # fmt: skip


STIFFNESS, FRICTION, TEMPERATURE = 2.0, 0.7, 1.5


def force(t, q, k):
    return 0.5 * t - k * q


def pull_and_brake(t, y, k):
    return np.array([y[1], 0.5 * t - k * y[0] - FRICTION * y[1]])


def push(t, y, k):
    return np.array([[0.0], [sqrt(2 * FRICTION * TEMPERATURE)]])


class Case(NamedTuple):
    """The problem that is solved, the same as an equation for y, and the scheme whose steps give the controls."""

    problem: sn.SDE | sn.Langevin
    sde: sn.SDE
    scheme: str


def build(name: str, noise: str, **options) -> Case:
    """The linear equation with this type of noise for a scheme; an oscillator for schemes of Langevin dynamics."""
    span = 0.0, T_END
    if name in sn.schemes.names("Langevin"):
        how = {"friction": FRICTION, "temperature": TEMPERATURE, **options}
        oscillator = sn.Langevin(force, START[:1], START[1:], span, (STIFFNESS,), **how)
        sde = sn.SDE(pull_and_brake, push, START, span, (STIFFNESS,), noise=noise, **options)
        return Case(oscillator, sde, "sra3")
    calculus = sn.schemes.get(name).calculus
    sde = sn.SDE(drift, DIFFUSIONS[noise], START, span, (0.9,), noise=noise, calculus=calculus, **options)
    return Case(sde, sde, "euler_maruyama" if name == "tamed_euler" else name)  # whose steps are linear


# ---- moments in closed form -----------------------------------------------------------------------------------------


def find_matrix(function, top=(0.0, 0.0)) -> np.ndarray:
    """The matrix on z = (1, t, y) of an affine function of t and y; `top` is the column of 1 in the first two rows."""
    zero = np.zeros(2)
    base = function(0.0, zero)
    columns = [base, function(1.0, zero) - base, *(function(0.0, e) - base for e in np.eye(2))]
    M = np.zeros((4, 4))
    M[2:] = np.column_stack(columns)
    M[:2, 0] = top
    return M


def list_columns(problem: sn.SDE):
    """The functions g_k of t and y."""

    def column(k):
        def g(t, y):
            values = np.asarray(problem.diffusion(t, y, *problem.args))
            if values.ndim == 2:
                return values[:, k]
            return values * np.eye(2)[k] if problem.noise == "diagonal" else values

        return g

    return [column(k) for k in range(problem.n_components)]


def find_means(problem: sn.SDE, times: np.ndarray) -> list[np.ndarray]:
    """P at these times."""
    A = find_matrix(lambda t, y: problem.drift(t, y, *problem.args), (0.0, 1.0))
    B = [find_matrix(g) for g in list_columns(problem)]
    if problem.calculus == "stratonovich":
        A = A + sum(b @ b for b in B) / 2
    eye = np.eye(4)
    generator = np.kron(A.T, eye) + np.kron(eye, A.T) + sum(np.kron(b.T, b.T) for b in B)
    return [(expm((T_END - t) * generator) @ Q.ravel()).reshape(4, 4) for t in times]


# ---- controls -------------------------------------------------------------------------------------------------------


class Variables(NamedTuple):
    """The independent variables of a step, one letter of `POINTS` each, and their polynomials as lists of degrees."""

    kinds: tuple[str, ...]
    degrees: tuple[tuple[int, ...], ...]


def list_variables(name: str, m: int) -> Variables:
    used = getattr(sn.schemes.get(name), "variables", ("W",))
    letters = "VS" if "V" in used else "WH" if "I10/h" in used else "W"
    if letters == "VS" and m == 1:
        letters = "V"  # signs belong to pairs
    kinds = tuple(letter for letter in letters for _ in range(m))
    each = [range(min(POINTS[kind], 3 if kind == "H" else MOST + 1)) for kind in kinds]
    return Variables(kinds, tuple(degrees for degrees in product(*each) if 0 < sum(degrees) <= MOST))


def evaluate_polynomials(variables: Variables, xi: np.ndarray) -> np.ndarray:
    """All polynomials at points (..., variables), as (..., polynomials)."""
    powers = np.stack([hermeval(xi, np.eye(MOST + 1)[k]) / sqrt(factorial(k)) for k in range(MOST + 1)])
    return np.stack(
        [np.prod([powers[d][..., j] for j, d in enumerate(some)], axis=0) for some in variables.degrees], axis=-1
    )


def find_products(problem: sn.SDE, scheme, h: float, variables: Variables) -> np.ndarray:
    """E[H_i M' x M'] for the steps of a scheme, by quadrature: (polynomials, 16, 16)."""
    n_rows, total = 2 if scheme.name == "reversible_heun" else 1, 0.0
    rules = [hermegauss(POINTS[kind]) for kind in variables.kinds]
    for node in product(*(range(len(x)) for x, _ in rules)):
        xi = np.array([x[i] for (x, _), i in zip(rules, node, strict=True)])
        weight = np.prod([w[i] / w.sum() for (_, w), i in zip(rules, node, strict=True)])
        named = _name(variables, xi, h, problem.n_components)
        M = find_matrix(lambda t, y, named=named: reference.take_step(problem, scheme, t, h, [y] * n_rows, named)[0])
        M[0, 0], M[1, :2] = 1.0, (h, 1.0)
        total = total + weight * np.multiply.outer(evaluate_polynomials(variables, xi), np.kron(M.T, M.T))
    return total


def _name(variables: Variables, xi: np.ndarray, h: float, m: int) -> dict:
    values = dict.fromkeys("WHVS", np.zeros(m))
    for kind in set(variables.kinds):
        values[kind] = xi[[j for j, each in enumerate(variables.kinds) if each == kind]]
    return reference.list_variables(sqrt(h) * values["W"], sqrt(h / 12) * values["H"], values["V"], values["S"], h)


def draw(problem: sn.SDE, variables: Variables, paths: np.ndarray, steps: int) -> np.ndarray:
    """The variables of all steps that a scheme takes, (steps, paths, variables)."""
    m, h = problem.n_components, T_END / steps
    if "V" in variables.kinds:
        drawn = [sn.noise.three_point(problem.seed, paths, range(steps), m)]
        if "S" in variables.kinds:
            drawn.append(sn.noise.two_point(problem.seed, paths, range(steps), m))
        return np.concatenate(drawn, axis=-1)
    grid, times = NoiseGrid((0.0, T_END), problem.cells), np.linspace(0.0, T_END, steps + 1)
    W, H = evaluate(
        BrownianPaths(grid, problem.seed, paths, m), grid.locate(times[:-1], "t"), grid.locate(times[1:], "t")
    )
    return np.concatenate((W / sqrt(h), H / sqrt(h / 12))[: 1 + ("H" in variables.kinds)], axis=-1)


def collect_errors(name: str, noise: str, steps: tuple[int, ...], n_paths: int, seed: int = 12) -> np.ndarray:
    """Controlled errors of z' Q z at the end for each number of steps, (numbers of steps, paths)."""
    paths, errors = np.arange(n_paths), []
    problem, sde, linear = build(name, noise, seed=seed, cells=steps[0])
    scheme = sn.schemes.get(linear)
    variables = list_variables(name, sde.n_components)
    for n in steps:
        times = np.linspace(0.0, T_END, n + 1)
        y = sn.solve_ensemble(problem, name, paths=paths, steps=n, save_at=times).y
        z = np.concatenate((np.ones((n_paths, n + 1, 1)), np.broadcast_to(times[:, None], (n_paths, n + 1, 1)), y), -1)
        P, products = find_means(sde, times), find_products(sde, scheme, T_END / n, variables)
        noises = draw(sde, variables, paths, n)
        found = np.einsum("pi,ij,pj->p", z[:, -1], Q, z[:, -1]) - z[0, 0] @ P[0] @ z[0, 0]
        for i in range(n):
            squares = np.einsum("pi,pj->pij", z[:, i], z[:, i]).reshape(n_paths, 16)
            controls = squares @ (products @ P[i + 1].ravel()).T
            found -= np.einsum("pa,pa->p", controls, evaluate_polynomials(variables, noises[i]))
        errors.append(found)
    return np.array(errors)
