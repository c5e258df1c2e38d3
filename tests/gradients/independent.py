"""Independent derivatives: steps implemented again on torch tensors, in two ways, and differentiated by autograd.

`by_program` executes the program of a scheme operation by operation.  `by_textbook` knows nothing of programs: it has
one loop per family, from the coefficients of the scheme's own record.
"""

from __future__ import annotations

from math import factorial

import numpy as np
import torch
from gradients.cases import MATRIX, Kind

from stepnet.schemes import (
    AdditiveRK,
    ExponentialRK,
    FixedBDF,
    LowStorageRK,
    Multistep,
    PartitionedRK,
    SemiImplicitBDF,
    Splitting,
    StabilisedRK,
)
from stepnet.schemes.implicit import ImplicitRK
from stepnet.schemes.rosenbrock import Rosenbrock
from stepnet.schemes.step_program import LinearSolve, Phi, Slope, Solve, build_scheme_program, find_inner_scheme

torch.set_num_threads(1)

TAYLOR_TERMS = 30  # of functions of a matrix of norm below 1
OF_TWO_PARTS = (AdditiveRK, SemiImplicitBDF, ExponentialRK)
FIXED_POINT_ITERATIONS = 80  # each gains a factor h |f'| < 1/2, for the stages and for their derivatives


class Inputs:
    """What a run depends on, as leaves: the flat initial state, the arguments, the ends of the time span."""

    def __init__(self, initial, args, t_span):
        self.y0, self.t0, self.t1 = _leaf(initial), _leaf(t_span[0]), _leaf(t_span[1])
        self.args = tuple(_leaf(arg) for arg in args)

    def gradients(self, value) -> tuple:
        """With respect to the state, each argument, and both times."""
        leaves = (self.y0, *self.args, self.t0, self.t1)
        found = torch.autograd.grad(value, leaves, allow_unused=True)
        zeros = (np.zeros(leaf.shape) if g is None else g.numpy() for g, leaf in zip(found, leaves, strict=True))
        y0, *args, t0, t1 = zeros
        return y0, args, (float(t0), float(t1))


def _leaf(value) -> torch.Tensor:
    return torch.tensor(np.asarray(value, float), dtype=torch.float64, requires_grad=True)


def parts(kind: Kind, inputs: Inputs) -> list:
    """The functions of a kind as f(t, y) on tensors, separable halves as dq(t, p) and dp(t, q)."""
    functions = kind.in_module(torch)
    if kind.name == "second order":
        return [lambda t, v: v, _bound(functions[0], inputs)]
    return [_bound(function, inputs) for function in functions]


def _bound(function, inputs):
    return lambda t, *states: torch.stack([torch.as_tensor(x) for x in function(t, *states, *inputs.args)])


def whole(kind: Kind, inputs: Inputs):
    """f(t, y) of the flat state."""
    fs = parts(kind, inputs)
    if kind.name == "ode":
        return fs[0]
    if is_sum(kind):
        return lambda t, y: sum(f(t, y) for f in fs)
    if kind.name == "not separable":
        return lambda t, y: torch.cat([f(t, *torch.chunk(y, 2)) for f in fs])
    return lambda t, y: torch.cat((fs[0](t, torch.chunk(y, 2)[1]), fs[1](t, torch.chunk(y, 2)[0])))


def is_sum(kind: Kind) -> bool:
    """Whether a problem is a sum of parts."""
    return kind.name.startswith("split") or kind.name == "semilinear"


def is_in_parts(scheme, kind: Kind) -> bool:
    """Whether a scheme treats the parts of a problem differently."""
    if isinstance(scheme, OF_TWO_PARTS):
        return is_sum(kind)
    return isinstance(scheme, Splitting) or (isinstance(scheme, Multistep) and scheme.derivative == 2)


# ---- by programs ----------------------------------------------------------------------------------------------------


def by_program(kind: Kind, scheme, inputs: Inputs, steps: int) -> torch.Tensor:
    """The flat end state after even steps."""
    is_split = is_in_parts(scheme, kind)
    fs = parts(kind, inputs) if is_split else [whole(kind, inputs)]
    scheme_program = build_scheme_program(
        scheme, len(fs), is_sum(kind) and is_split, kind.name == "second order" and is_split
    )
    h = (inputs.t1 - inputs.t0) / steps
    own = torch.chunk(inputs.y0, len(scheme_program.state))
    rows = [torch.zeros_like(own[0]) for _ in range(scheme_program.step.n_rows)]
    for place, row in zip(scheme_program.state, own, strict=True):
        rows[place] = row
    rows = run(scheme_program.opening, fs, rows, inputs.t0, h)
    for i in range(scheme_program.opening.steps, steps):
        rows = run(scheme_program.step, fs, rows, inputs.t0 + i * h, h)
    return torch.cat([rows[place] for place in scheme_program.state])


def run(program, fs, rows, t, h) -> list:
    """The rows of the new state; works on tensors and on arrays."""
    rows = list(rows)
    for operation in program.operations:
        if isinstance(operation, Slope):
            rows.append(fs[operation.part](t + operation.c * h, rows[operation.row]))
        elif isinstance(operation, Solve):
            f, matrices = fs[operation.part], (operation.A, operation.A_hat)
            k = implicit_slopes(f, matrices[0], operation.c, t, h, rows[operation.row], matrices[1])
            rows.append(sum(b * slope for b, slope in zip(operation.b, k, strict=True)))
        elif isinstance(operation, Phi):
            rows.append(sum(w * phi(k, c * h, rows[operation.row]) for w, k, c in operation.terms))
        elif isinstance(operation, LinearSolve):
            J, f_t = derivatives(fs[operation.part], t, rows[operation.base])
            rows.append(solve_linear(J, operation.gamma * h, rows[operation.row] + operation.delta * h * f_t))
        else:
            rows.append(sum(term.weight * h**term.power * rows[term.row] for term in operation.terms))
    return [rows[row] for row in program.outputs]


def phi(k: int, h, y):
    """phi_k(h L) y by Taylor's series."""
    L = torch.tensor(MATRIX) if isinstance(y, torch.Tensor) else MATRIX
    total = term = y / factorial(k)
    for m in range(1, TAYLOR_TERMS):
        term = h * (L @ term) / (k + m)
        total = total + term
    return total


def implicit_slopes(f, A, c, t, h, y, A_hat=()) -> list:
    """K_i = f(t + c_i h, y + h sum_j A_ij K_j) by fixed-point iteration; with A_hat_ij in the second half of y."""
    half = len(y) // 2 if A_hat else len(y)
    is_second = [float(i >= half) for i in range(len(y))]
    second = torch.tensor(is_second, dtype=y.dtype) if isinstance(y, torch.Tensor) else np.array(is_second)
    k = [f(t + node * h, y) for node in c]
    for _ in range(FIXED_POINT_ITERATIONS):
        stages = [
            y + h * sum((a * (1 - second) + b * second) * slope for a, b, slope in zip(row, hat, k, strict=True))
            for row, hat in zip(A, A_hat or A, strict=True)
        ]
        k = [f(t + node * h, stage) for node, stage in zip(c, stages, strict=True)]
    return k


def derivatives(f, t, y) -> tuple:
    """df/dy and df/dt: by torch, differentiable once more, or by complex steps."""
    if isinstance(y, torch.Tensor):
        f_t, J = torch.autograd.functional.jacobian(f, (torch.as_tensor(t), y), create_graph=True)
        return J, f_t
    tiny = 1e-30
    J = np.array([f(t, y + 1j * tiny * unit).imag / tiny for unit in np.eye(len(y))]).T
    return J, f(t + 1j * tiny, y).imag / tiny


def solve_linear(J, factor, right):
    """(I - factor J)^-1 right."""
    if isinstance(right, torch.Tensor):
        return torch.linalg.solve(torch.eye(len(right), dtype=right.dtype) - factor * J, right)
    return np.linalg.solve(np.eye(len(right)) - factor * J, right)


# ---- by textbooks ---------------------------------------------------------------------------------------------------


def by_textbook(kind: Kind, scheme, inputs: Inputs, steps: int) -> torch.Tensor:
    """The flat end state after even steps."""
    t0, h = inputs.t0, (inputs.t1 - inputs.t0) / steps
    if isinstance(scheme, Multistep):
        return _multistep(kind, scheme, inputs, t0, h, steps)
    if isinstance(scheme, SemiImplicitBDF):
        return _semi_implicit(kind, scheme, inputs, t0, h, steps)
    if isinstance(scheme, FixedBDF):
        return _fixed_bdf(kind, scheme, inputs, t0, h, steps)
    step, y = _one_step(kind, scheme, inputs), inputs.y0
    for i in range(steps):
        y = step(t0 + i * h, h, y)
    return y


def _one_step(kind: Kind, scheme, inputs: Inputs):
    if isinstance(scheme, Splitting):
        make = _flows if kind.name.startswith("split") else _drifts_and_kicks
        return make(scheme, parts(kind, inputs))
    if isinstance(scheme, OF_TWO_PARTS) and is_sum(kind):
        make = _exponential if isinstance(scheme, ExponentialRK) else _additive
        return make(scheme, parts(kind, inputs))
    f = whole(kind, inputs)
    return lambda t, h, y: _runge_kutta(scheme)(f, t, h, y)


def _runge_kutta(scheme):
    if isinstance(scheme, LowStorageRK):
        return lambda f, t, h, y: _low_storage(scheme, f, t, h, y)
    if isinstance(scheme, StabilisedRK):
        return lambda f, t, h, y: _stabilised(scheme, f, t, h, y)
    if isinstance(scheme, AdditiveRK):
        return lambda f, t, h, y: _implicit(scheme.implicit_scheme, f, t, h, y)
    if isinstance(scheme, ImplicitRK):
        return lambda f, t, h, y: _implicit(scheme, f, t, h, y)
    if isinstance(scheme, PartitionedRK):
        return lambda f, t, h, y: _pair(scheme, f, t, h, y)
    if isinstance(scheme, Rosenbrock):
        return lambda f, t, h, y: _rosenbrock(scheme, f, t, h, y)
    return lambda f, t, h, y: _tableau(scheme, f, t, h, y)


def _tableau(scheme, f, t, h, y):
    k = []
    for row in scheme.a:
        stage = y + h * sum((a * slope for a, slope in zip(row, k, strict=True)), torch.zeros_like(y))
        k.append(f(t + sum(row) * h, stage))
    return y + h * sum(b * slope for b, slope in zip(scheme.b, k, strict=True))


def _implicit(scheme, f, t, h, y):
    k = implicit_slopes(f, scheme.A, [sum(row) for row in scheme.A], t, h, y)
    return y + h * sum(b * slope for b, slope in zip(scheme.b, k, strict=True))


def _pair(scheme, f, t, h, y):
    """Stages of q and of p are lists of their own."""
    q, p = torch.chunk(y, 2)
    nodes, k = [t + sum(row) * h for row in scheme.A], [f(t, y)] * len(scheme.b)
    for _ in range(FIXED_POINT_ITERATIONS):
        in_q, in_p = zip(*(torch.chunk(slope, 2) for slope in k), strict=True)
        stages = [
            torch.cat((q + h * _weigh(row, in_q, q), p + h * _weigh(hat, in_p, p)))
            for row, hat in zip(scheme.A, scheme.A_hat, strict=True)
        ]
        k = [f(node, stage) for node, stage in zip(nodes, stages, strict=True)]
    return y + h * _weigh(scheme.b, k, y)


def _rosenbrock(scheme, f, t, h, y):
    """(I - h gamma J) k_i = f(t + c_i h, y + h sum alpha_ij k_j) + h J sum gamma_ij k_j + h d_i f_t."""
    J, f_t = derivatives(f, t, y)
    k = []
    for alpha, gamma in zip(scheme.alpha, scheme.gamma_lower, strict=True):
        stage = y + h * sum((a * slope for a, slope in zip(alpha, k, strict=True)), torch.zeros_like(y))
        mixed = sum((g * slope for g, slope in zip(gamma, k, strict=True)), torch.zeros_like(y))
        right = f(t + sum(alpha) * h, stage) + h * (J @ mixed) + h * (scheme.gamma + sum(gamma)) * f_t
        k.append(solve_linear(J, h * scheme.gamma, right))
    return y + h * sum(b * slope for b, slope in zip(scheme.b, k, strict=True))


def _low_storage(scheme, f, t, h, y):
    """The clock goes through the same recursion as the state."""
    d, dt, clock = torch.zeros_like(y), 0.0, 0.0
    for a, b in zip(scheme.A, scheme.B, strict=True):
        d, dt = a * d + h * f(t + clock * h, y), a * dt + 1.0
        y, clock = y + b * d, clock + b * dt
    return y


def _stabilised(scheme, f, t, h, y):
    mu, nu, mu_tilde, gamma = scheme.mu, scheme.nu, scheme.mu_tilde, scheme.gamma_tilde
    slope = f(t, y)
    before, last = y, y + mu_tilde[0] * h * slope
    c_before, c = 0.0, mu_tilde[0]
    for j in range(1, len(mu)):
        moved = (1 - mu[j] - nu[j]) * y + mu[j] * last + nu[j] * before
        moved = moved + mu_tilde[j] * h * f(t + c * h, last) + gamma[j] * h * slope
        c_before, c = c, mu[j] * c + nu[j] * c_before + mu_tilde[j] + gamma[j]
        before, last = last, moved
    return last


def _drifts_and_kicks(scheme, fs):
    dq, dp = fs

    def step(t, h, y):
        q, p = torch.chunk(y, 2)
        at_q = at_p = t
        for a, b in zip(scheme.a, scheme.b, strict=True):
            q, at_q = q + a * h * dq(at_p, p), at_q + a * h
            p, at_p = p + b * h * dp(at_q, q), at_p + b * h
        return torch.cat((q, p))

    return step


def _flows(scheme, fs):
    inner = find_inner_scheme(scheme.order)

    def step(t, h, y):
        clocks = [t] * len(fs)
        for part, fraction in scheme.sequence(len(fs)):
            y = _tableau(inner, fs[part], clocks[part], fraction * h, y)
            clocks[part] = clocks[part] + fraction * h
        return y

    return step


def _additive(scheme, fs):
    f, g = fs

    def step(t, h, y):
        k, m = [], []
        for explicit, implicit in zip(scheme.explicit, scheme.implicit, strict=True):
            base, clock = y + h * _weigh(explicit, k, y) + h * _weigh(implicit, m, y), t + h * sum(implicit)
            m.append(implicit_slopes(g, ((implicit[-1],),), ((clock - t) / h,), t, h, base)[0])
            k.append(f(clock, base + h * implicit[-1] * m[-1]))
        return y + h * _weigh(scheme.b_explicit, k, y) + h * _weigh(scheme.b, m, y)

    return step


def _weigh(weights, slopes, y):
    return sum((w * k for w, k in zip(weights, slopes, strict=False)), torch.zeros_like(y))


def _exponential(scheme, fs):
    def step(t, h, y):
        k: list = []

        def advance(c, coefficients):
            moved = phi(0, c * h, y)
            for terms, slope in zip(coefficients, k, strict=True):
                moved = moved + h * sum((a.weight * phi(a.k, a.c * h, slope) for a in terms), torch.zeros_like(y))
            return moved

        for c, row in zip(scheme.c, scheme.A, strict=True):
            k.append(fs[0](t + c * h, advance(c, row)))
        return advance(1.0, scheme.b)

    return step


def _semi_implicit(kind: Kind, scheme, inputs: Inputs, t0, h, steps):
    starter, states, (f, g) = _one_step(kind, scheme.starter, inputs), [inputs.y0], parts(kind, inputs)
    for i in range(scheme.n_steps - 1):
        states.append(starter(t0 + i * h, h, states[-1]))
    slopes = [f(t0 + i * h, y) for i, y in enumerate(states)]
    for i in range(len(states), steps + 1):
        base = _newest(scheme.alpha, states) + h * _newest(scheme.beta, slopes)
        k = implicit_slopes(g, ((scheme.gamma,),), (1.0,), t0 + (i - 1) * h, h, base)[0]
        states.append(base + h * scheme.gamma * k)
        slopes.append(f(t0 + i * h, states[-1]))
    return states[-1]


def _fixed_bdf(kind: Kind, scheme, inputs: Inputs, t0, h, steps):
    starter, states, f = _one_step(kind, scheme.starter, inputs), [inputs.y0], whole(kind, inputs)
    for i in range(steps):
        if i < scheme.n_steps - 1:
            states.append(starter(t0 + i * h, h, states[-1]))
            continue
        base = _newest(scheme.alpha, states)
        k = implicit_slopes(f, ((scheme.gamma,),), (1.0,), t0 + i * h, h, base)[0]
        states.append(base + h * scheme.gamma * k)
    return states[-1]


def _multistep(kind: Kind, scheme, inputs: Inputs, t0, h, steps):
    starter, states = _one_step(kind, scheme.starter, inputs), [inputs.y0]
    for i in range(scheme.n_steps - 1):
        states.append(starter(t0 + i * h, h, states[-1]))
    if scheme.derivative == 1:
        f = whole(kind, inputs)
        slopes = [f(t0 + i * h, y) for i, y in enumerate(states)]
        for i in range(len(states), steps + 1):
            states.append(_newest(scheme.alpha, states) + h * _newest(scheme.beta, slopes))
            slopes.append(f(t0 + i * h, states[-1]))
        return states[-1]
    acceleration = parts(kind, inputs)[1]
    q, v = zip(*(torch.chunk(y, 2) for y in states), strict=True)
    q, v = list(q), v[-1]
    slopes = [acceleration(t0 + i * h, each) for i, each in enumerate(q)]
    for i in range(len(q), steps + 1):
        q.append(_newest(scheme.alpha, q) + h * h * _newest(scheme.beta, slopes))
        slopes.append(acceleration(t0 + i * h, q[-1]))
        v = (q[-1] - q[-2]) / h + h * slopes[-1] / 2
    return torch.cat((q[-1], v))


def _newest(coefficients, history):
    return sum(c * each for c, each in zip(coefficients, reversed(history), strict=False))
