"""Step programs on NumPy arrays, one path at a time: an independent executor for tests."""

from __future__ import annotations

import numpy as np

import stepnet as sn
from stepnet.schemes.step_program import Noise, Product, Slope, Solve, Tamed, build_stochastic_program


def list_parts(problem: sn.SDE):
    """Drift, diffusion, and the derivative of the diffusion by complex steps."""

    def f(t, y):
        return np.asarray(problem.drift(t, y, *problem.args))

    def g(t, y):
        return np.asarray(problem.diffusion(t, y, *problem.args))

    def derivative(t, y):
        eps, n = 1e-30, len(y)
        J = np.stack([g(t, y + 1j * eps * e).imag / eps for e in np.eye(n)], axis=-1)  # (*g, n)
        if g(t, y).ndim == 2:
            return np.einsum("ijl,lk->ikj", J, g(t, y)).reshape(n, -1)
        return np.diag(J) * g(t, y) if problem.noise == "diagonal" else J @ g(t, y)

    return f, g, derivative


def take_step(problem: sn.SDE, scheme, t: float, h: float, rows: list, variables: dict) -> list:
    """The rows of state after one step, given its random variables by (name, is_paired)."""
    kind = "scalar" if problem.noise == "scalar" else "matrix" if len(problem.diffusion_shape) > 1 else "elementwise"
    program = build_stochastic_program(scheme, kind, problem.n_components).step
    return execute(program, list_parts(problem), t, h, rows, variables)


def execute(program, parts, t: float, h: float, rows: list, variables: dict) -> list:
    """The outputs of a step program."""
    made = list(rows)
    for each in program.operations:
        match each:
            case Slope():
                made.append(parts[each.part](t + each.c * h, made[each.row]))
            case Solve(A=((a,),), c=(c,)):
                made.append(solve_stage(parts[each.part], t + c * h, made[each.row], a * h))
            case Noise():
                made.append(variables[each.variable, each.is_paired])
            case Product(kind="column"):
                made.append(made[each.diffusion][:, each.column] * made[each.noise][each.entry])
            case Product():
                g, z = made[each.diffusion], made[each.noise]
                made.append(g @ z if each.kind == "matrix" else g * z)
            case Tamed():
                made.append(made[each.row] / (1 + h * np.linalg.norm(made[each.row])))
            case _:
                made.append(sum(term.weight * h**term.power * made[term.row] for term in each.terms))
    return [made[row] for row in program.outputs]


def solve_stage(f, t: float, base: np.ndarray, length: float) -> np.ndarray:
    """The slope k = f(t, base + length k), by Newton's method with the Jacobian by complex steps."""
    k, eps, eye = f(t, base), 1e-30, np.eye(len(base))
    for _ in range(20):
        y = base + length * k
        J = np.stack([f(t, y + 1j * eps * e).imag / eps for e in eye], axis=-1)
        change = np.linalg.solve(eye - length * J, f(t, y) - k)
        k = k + change
        if np.abs(change).max() < 1e-15 * (1 + np.abs(k).max()):
            break
    return k


def list_variables(W: np.ndarray, H: np.ndarray, V: np.ndarray, S: np.ndarray, h: float, sign: float = 1.0) -> dict:
    """All random variables of a step from their definitions, with the square root of h of this sign."""
    root, eye = sign * np.sqrt(h), np.eye(len(W))
    U = [[-h if i == j else -h * S[i] if i < j else h * S[j] for j in range(len(S))] for i in range(len(S))]
    return {
        ("W", False): W,
        ("I10/h", False): W / 2 + H,
        ("I11/sqrt(h)", False): (W**2 - h) / (2 * root),
        ("I111/h", False): (W**3 - 3 * h * W) / (6 * h),
        ("sqrt(h)", False): np.full(len(W), root),
        ("I11", False): (W**2 - h) / 2,
        ("J11", False): W**2 / 2,
        ("V", False): root * V,
        ("V2", False): (h * V**2 - h) / root,
        ("I11", True): ((np.outer(W, W) - h * eye) / 2).ravel(),
        ("J11", True): (np.outer(W, W) / 2).ravel(),
        ("V2", True): ((h * np.outer(V, V) + U) / root).ravel(),
    }


def solve(problem: sn.SDE, scheme, n_steps: int) -> np.ndarray:
    """The end state by the reference executor on the Brownian path of the problem."""
    t0, t1 = problem.t_span
    h, m = (t1 - t0) / n_steps, problem.n_components
    cells = n_steps if problem.cells is None else problem.cells
    path = sn.noise.BrownianPath(problem.seed, problem.path, problem.t_span, cells, m)
    times = np.linspace(t0, t1, n_steps + 1)
    W, H = path.increment_and_area(times[:-1], times[1:])
    V, S = (draw(problem.seed, problem.path, range(n_steps), m) for draw in (sn.noise.three_point, sn.noise.two_point))
    n_rows = 2 if scheme.name == "reversible_heun" else 1
    rows = [problem.initial] * n_rows
    for i in range(n_steps):
        rows = take_step(problem, scheme, times[i], h, rows, list_variables(W[i], H[i], V[i], S[i], h))
    return rows[0]
