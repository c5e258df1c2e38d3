"""Measurement of the reliability of the continuous adjoint for a problem."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from stepnet.errors import AdjointWarning, SolveFailed
from stepnet.gradients.adjoint import gradient
from stepnet.gradients.adjoint_equation import UNSAFE
from stepnet.gradients.derivatives import jacobian
from stepnet.nets.design import Design
from stepnet.nets.net import Net
from stepnet.problem import ODE, Problem
from stepnet.solving.integrate import solve
from stepnet.stability.jacobian_bounds import bound_block, bound_field

WRONG = 0.01  # relative error above which a gradient counts as unsafe
N_SAMPLES = 200  # number of Jacobians evaluated along the solution


@dataclass(frozen=True)
class AdjointSafety:
    """Whether the continuous adjoint is reliable for a problem.

    Parameters
    ----------
    return_error : float
        Relative distance of the initial state from the one obtained by solving backward; for reversible blocks, that
        of the gradients.
    growth : float
        Upper bound of the factor by which errors grow backward in time, exp of the integral of the logarithmic norm
        of -df/dy along the solution.
    relative_error, angle : float
        Relative distance and angle in degrees between the continuous and the exact gradient.
    is_safe : bool
    verdict : str
        A summary in one sentence.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.stability.adjoint_safety(sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0)), "rk4", steps=50).is_safe
    True
    """

    return_error: float
    growth: float
    relative_error: float
    angle: float
    is_safe: bool
    verdict: str


def adjoint_safety(
    problem: ODE | Net, scheme: Any = None, loss: Any = None, *, x: Any = None, end_gradient: Any = None,
    steps: Any = None, **choices: Any,
) -> AdjointSafety:  # fmt: skip
    """Solve a problem forward and backward, and compare the gradient of the adjoint equation with the exact one.

    The default loss is half the squared end state.  The blocks of a net are examined one by one, with their own schemes
    and steps, and the worst is reported; for blocks with reversible schemes, the gradient with reconstructed states is
    examined.

    Parameters
    ----------
    problem : ODE or Net
    scheme, loss, end_gradient, steps
        As in `gradient`; not for nets.
    x : array_like, optional
        Inputs of a net.
    **choices
        Further options of `gradient`.

    Returns
    -------
    AdjointSafety

    Examples
    --------
    >>> import stepnet as sn
    >>> stiff = sn.ODE(lambda t, y: -100.0 * y, [1.0], (0.0, 1.0))
    >>> sn.stability.adjoint_safety(stiff, "dopri5").is_safe
    False
    >>> sn.stability.adjoint_safety(sn.nets.hamiltonian(2, 2, 4, 10), x=[[0.5, 1.0]]).is_safe
    True
    """
    if isinstance(problem, Net):
        if x is None:
            raise TypeError("`x`, inputs at which the net is examined, is needed for a net")
        return _examine_net(problem, x)
    if not isinstance(problem, Problem):
        raise TypeError(f"`problem` must be an ODE, Partitioned, SecondOrder or Split, found {type(problem).__name__}")
    if problem.form.is_stochastic:
        kind = type(problem).__name__
        raise TypeError(f"`adjoint_safety` is for an `ODE`, found {kind}; gradients of stochastic equations are exact")
    if loss is None and end_gradient is None:

        def loss(y: np.ndarray) -> Any:
            return 0.5 * np.sum(y * y)

    how = {"end_gradient": end_gradient, "steps": steps, **choices}
    exact = gradient(problem, scheme, loss, **how)
    growth = _measure_growth(problem, scheme, steps, choices)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AdjointWarning)
            other = gradient(problem, scheme, loss, memory="continuous", **how)
    except SolveFailed as failure:
        verdict = f"the continuous adjoint is unsafe here: it could not be solved back ({failure.solution.message})"
        return AdjointSafety(float("inf"), growth, float("inf"), 180.0, False, verdict)
    return _compare_gradients(exact.flat, other.flat, other.cost.drift, growth, "the continuous adjoint")


def _examine_net(net: Net, x: Any) -> AdjointSafety:
    """The worst of the blocks."""
    found = []
    for number, block in enumerate(net.design.blocks):
        examine = _examine_block if block.field.kind == "first" else _examine_reversible_block
        each = examine(net, x, number)
        found.append(replace(each, verdict=f"block {number}: {each.verdict}"))
    return max(found, key=lambda each: (not each.is_safe, each.relative_error))


def _isolate_block(net: Net, number: int) -> Net:
    """A net of one block."""
    block = net.design.blocks[number]
    theta = np.concatenate([net.weights[f"blocks.{number}.{name}"].ravel() for name in block.parameters])
    return Net(Design((block,)), theta, workers=1)


def _examine_block(net: Net, x: Any, number: int) -> AdjointSafety:
    """The adjoint equation a' = -J' a with the states, solved backward by the scheme of the block."""
    block, problem, states = net.design.blocks[number], net.problem(x, number), net.features(x, number)
    exact = np.asarray(_isolate_block(net, number).gradient(states[0], end_gradient=states[-1]).x)
    evaluate, pull_back = cast(ODE, problem).fun, cast(Any, problem).vjp

    def fun(t: float, both: np.ndarray) -> np.ndarray:
        return np.stack((evaluate(t, both[0]), -pull_back(t, both[0], both[1])))

    end = np.stack((states[-1].T, states[-1].T))
    back = ODE(fun, end, problem.t_span[::-1], trace=False)
    found = solve(back, block.scheme, steps=block.steps, save_every=0, check=False)
    y, a = np.asarray(found.y[-1])
    weights = {name: net.weights[f"blocks.{number}.{name}"] for name in block.parameters}
    with np.errstate(over="ignore"):
        growth = float(np.exp(block.h * np.maximum(-bound_field(block, weights)[:, 0], 0).sum()))
    returned = float(np.linalg.norm(y.T - states[0]) / (np.linalg.norm(states[0]) or 1.0))
    return _compare_gradients(exact.ravel(), a.T.ravel(), returned, growth, "the continuous adjoint")


def _examine_reversible_block(net: Net, x: Any, number: int) -> AdjointSafety:
    """Gradients with stored states, and with states reconstructed by running the steps backward."""
    block, alone, states = net.design.blocks[number], _isolate_block(net, number), net.features(x, number)
    exact, other = (alone.gradient(states[0], end_gradient=states[-1], memory=how) for how in ("all", "reversible"))
    a, b = (np.concatenate((each.theta, np.asarray(each.x).ravel())) for each in (exact, other))
    lower = bound_block(block, {name: alone.weights[f"blocks.0.{name}"] for name in block.parameters}, block.h).lower
    growth = 1 / lower if lower > 0 else float("inf")
    returned = float(np.linalg.norm(a - b) / (np.linalg.norm(a) or 1.0))  # wrong states give wrong gradients
    return _compare_gradients(a, b, returned, growth, "the gradient with reconstructed states")


def _compare_gradients(a: np.ndarray, b: np.ndarray, returned: float, growth: float, what: str) -> AdjointSafety:
    """Judge a gradient b by the exact one."""
    size, other_size = np.linalg.norm(a), np.linalg.norm(b)
    error = float(np.linalg.norm(a - b) / size) if size > 0 else float(other_size > 0)
    cosine = float(a @ b / (size * other_size)) if size > 0 and other_size > 0 else 1.0
    angle = float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))) if np.isfinite(cosine) else 180.0
    is_safe = bool(returned < UNSAFE and error < WRONG)
    verdict = (
        f"{what} is {'safe' if is_safe else 'unsafe'} here: solving backward misses the initial state by "
        f"{returned:.1e}, errors may grow by {growth:.1e} in between, and its gradient is off by {error:.1e} "
        f"({angle:.2g} degrees)"
    )
    return AdjointSafety(returned, growth, error, angle, is_safe, verdict)


def _measure_growth(problem: ODE, scheme: Any, steps: Any, choices: dict[str, Any]) -> float:
    """exp of the integral of the largest eigenvalue of -(J + J')/2 along the solution, J that of its direction."""
    solution, J = solve(problem, scheme, steps=steps, **choices), jacobian(problem)
    some = np.linspace(0, len(solution.t) - 1, min(len(solution.t), N_SAMPLES)).astype(int)
    sign, norms = -1.0 if problem.t_span[1] >= problem.t_span[0] else 1.0, []
    for t, y in zip(solution.t[some], solution.y[some], strict=True):
        matrix = np.asarray(J.dense(float(t), y.ravel()))
        norms.append(np.linalg.eigvalsh(sign * (matrix + matrix.T) / 2)[-1])
    with np.errstate(over="ignore"):
        return float(np.exp(np.trapezoid(norms, np.abs(solution.t[some] - solution.t[0]))))
