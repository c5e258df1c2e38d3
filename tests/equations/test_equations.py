"""Every equation is compiled, differentiated exactly, accurate to its order and stable up to its limit."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
import torch
from equations.problems import LINE, PLANE, PROBLEMS, SPAN, smooth

import stepnet as sn
import stepnet.torch as snt
from stepnet import equations as se
from stepnet import operators as so

ORDER_TOLERANCE = 0.15
EIGENMODES = 1e-13
AGREEMENT = 1e-12
ADJOINT = 1e-11  # of implicit steps solved to rounding
STEPS = 20


def squares(y):
    return 0.5 * float(np.sum(y * y)), y


@pytest.mark.parametrize("grid", [LINE, PLANE], ids=["line", "plane"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_equations_are_compiled_with_exact_gradients(name, grid):
    """The Taylor remainder of a quadratic loss falls by 100 for a step of a tenth, for the state and all arguments."""
    build, scheme = PROBLEMS[name]
    problem = build(grid)
    assert sn.solve(problem, scheme, steps=STEPS, save_every=0).statistics.rung == "traced"
    found = sn.gradient(problem, scheme, squares, steps=STEPS)
    rng = np.random.default_rng(8)
    initial = np.array(problem.initial)
    direction = rng.normal(size=initial.shape)
    turned = tuple(rng.normal(size=np.shape(each)) * np.mean(np.abs(each)) for each in problem.args)
    slope = np.vdot(np.ravel(found.y0), direction) + sum(
        float(np.sum(g * d)) for g, d in zip(found.args, turned, strict=True)
    )

    def loss(size: float) -> float:
        state = initial + size * direction
        if isinstance(problem, sn.SecondOrder):
            q, v = (half.reshape(grid.shape) for half in np.split(state, 2))
            moved = replace(problem, q0=q, v0=v)
        else:
            moved = replace(problem, y0=state.reshape(problem.y0.shape))
        args = tuple(each + size * d for each, d in zip(problem.args, turned, strict=True))
        return squares(sn.solve(replace(moved, args=args), scheme, steps=STEPS, save_every=0).y[-1])[0]

    base = loss(0.0)
    remainders = [abs(loss(size) - base - size * slope) for size in (1e-3, 1e-4)]
    assert np.log10(remainders[0] / remainders[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


@pytest.mark.parametrize(("scheme", "growth"), [("euler", lambda z: 1 + z), ("rk4", None)])
def test_modes_of_the_heat_equation_are_exact(scheme, growth):
    """A discrete eigenmode is multiplied by the stability function of the scheme in every step."""
    grid = so.Grid(20, boundary="dirichlet")
    (x,) = grid.coordinates
    mode, h = np.sin(3 * np.pi * x), 0.01 / STEPS
    value = -4 / grid.spacing[0] ** 2 * np.sin(3 * np.pi * grid.spacing[0] / 2) ** 2
    growth = growth or (lambda z: 1 + z + z**2 / 2 + z**3 / 6 + z**4 / 24)
    found = sn.solve(se.heat(grid, mode, SPAN), scheme, steps=STEPS).y[-1]
    assert np.max(np.abs(found - growth(h * value) ** STEPS * mode)) <= EIGENMODES


def test_modes_of_leapfrog_are_exact():
    """q_n = cos(n phi) mode with cos phi = 1 - (h omega)^2 / 2."""
    grid = so.Grid((12, 12), boundary="neumann")
    x, y = grid.coordinates
    mode, h = np.cos(2 * np.pi * x) * np.cos(np.pi * y), 0.02
    omega2 = 4 / grid.spacing[0] ** 2 * sum(np.sin(k * np.pi * grid.spacing[0] / 2) ** 2 for k in (2, 1))
    solution = sn.solve(se.wave(grid, mode, 0 * mode, (0.0, 50 * h)), "verlet", steps=50)
    wanted = np.cos(50 * np.arccos(1 - h * h * omega2 / 2)) * mode
    assert np.max(np.abs(solution.q[-1].reshape(grid.shape) - wanted)) <= 20 * EIGENMODES  # 50 steps


@pytest.mark.parametrize("centring", ["cell", "node"])
@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("sides", ["dirichlet", "neumann", "robin", "mixed"])
def test_boundaries_have_their_order(sides, order, centring):
    """Steady manufactured solution u = exp(x) on (0, 1) with boundary values that are not zero."""
    e = np.e
    pairs = {
        "dirichlet": (so.dirichlet(1.0), so.dirichlet(e)),
        "neumann": (so.neumann(-1.0), so.dirichlet(e)),
        "robin": (so.robin(2.0, 1.0, 1.0), so.robin(1.0, 0.5, 1.5 * e)),
        "mixed": (so.dirichlet(1.0), so.robin(3.0, 1.0, 4 * e)),
    }
    errors = []
    for n in (24, 48):
        grid = so.Grid(n, 0.0, 1.0, boundary=[pairs[sides]], centring=centring)
        (x,) = grid.coordinates
        errors.append((grid.spacing[0], np.max(np.abs(se.poisson(grid, np.exp(x), order=order) - np.exp(x)))))
    (h0, e0), (h1, e1) = errors
    measured = np.log(e0 / e1) / np.log(h0 / h1)
    assert measured > order - ORDER_TOLERANCE  # closures of order 4 may gain up to one order
    assert measured < order + 1.2


def test_heat_with_data_that_depend_on_time_has_order_two_in_space():
    """u = exp(-t) cos(x) on (0, 1), Dirichlet on the left and a slope on the right."""
    errors = []
    for n in (16, 32):
        sides = (so.dirichlet(lambda t: np.exp(-t)), so.neumann(lambda t: -np.sin(1.0) * np.exp(-t)))
        grid = so.Grid(n, 0.0, 1.0, boundary=[sides])
        (x,) = grid.coordinates
        wanted = np.exp(-0.5) * np.cos(x)
        found = sn.solve(se.heat(grid, np.cos(x), (0.0, 0.5)), "rk4", steps=ceil(0.5 * n * n / 0.6), save_every=0)
        assert found.statistics.rung == "traced"
        errors.append(np.max(np.abs(found.y[-1] - wanted)))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


@pytest.mark.parametrize("side", ["dirichlet", "neumann"])
def test_variable_diffusion_has_order_two(side):
    """(k u')' = f with k = 1 + x/2 and u = sin(x + 1), values or slopes at the sides that are not zero."""
    errors = []
    for n in (32, 64):
        left = so.dirichlet(np.sin(1.0)) if side == "dirichlet" else so.neumann(-np.cos(1.0))
        grid = so.Grid(n, 0.0, 1.0, boundary=[(left, so.dirichlet(np.sin(2.0)))])
        (x,) = grid.coordinates
        k, source = 1 + x / 2, 0.5 * np.cos(x + 1) - (1 + x / 2) * np.sin(x + 1)
        operator = so.VariableDiffusion(grid)
        matrix, offset = operator.matrix(k).toarray(), operator(np.zeros(n), k)
        errors.append(np.max(np.abs(np.linalg.solve(matrix, source - offset) - np.sin(x + 1))))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=ORDER_TOLERANCE)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_transport_has_its_order(order):
    errors = []
    for n in (80, 160):
        grid = so.Grid(n, 0.0, 1.0)
        (x,) = grid.coordinates
        problem = se.transport(grid, np.sin(2 * np.pi * x), (0.0, 0.3), [-1.0], order=order)
        found = sn.solve(problem, "rk4", steps=n, save_every=0).y[-1]
        errors.append(np.mean(np.abs(found - np.sin(2 * np.pi * (x + 0.3)))))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=ORDER_TOLERANCE)


@pytest.mark.parametrize("reconstruction", ["constant", "muscl", "weno5"])
def test_a_burgers_shock_has_the_right_speed_and_no_new_extrema(reconstruction):
    grid = so.Grid(200, -1.0, 1.0, boundary="neumann")
    (x,) = grid.coordinates
    step = np.where(x < 0, 1.0, 0.0)
    problem = se.burgers(grid, step, (0.0, 0.8), reconstruction=reconstruction)
    found = sn.solve(problem, "ssprk3", steps=200, save_every=0).y[-1]
    assert found.min() > -1e-3
    assert found.max() < 1 + 1e-3
    inflow = 0.5 * 0.8  # u^2 / 2 enters on the left for the whole time
    assert found.sum() * grid.spacing[0] == pytest.approx(step.sum() * grid.spacing[0] + inflow, abs=1e-12)
    assert np.mean(np.abs(found - (x < 0.4))) < 0.02


LIMITS = {
    "heat, euler": (lambda: se.heat(so.Grid(40), smooth(so.Grid(40)), (0.0, 0.1)), "euler"),
    "heat, rk4, order 6": (lambda: se.heat(so.Grid(40), smooth(so.Grid(40)), (0.0, 0.1), order=6), "rk4"),
    "wave, leapfrog": (lambda: se.wave(so.Grid(64), smooth(so.Grid(64)), np.zeros(64), (0.0, 2.0)), "verlet"),
    "upwind, euler": (lambda: se.transport(so.Grid(64), smooth(so.Grid(64)), (0.0, 2.0), [1.0], order=1), "euler"),
    "density, euler": (
        lambda: se.fokker_planck(
            so.Grid(40, boundary="neumann"),
            smooth(so.Grid(40)),
            (0.0, 0.1),
            sn.SDE(lambda t, y: 0.0 * y, lambda t, y: 1.5 + 0.0 * y, [0.0], (0.0, 1.0)),
        ),
        "euler",
    ),
    "sound, rk4": (
        lambda: se.acoustics(
            so.Grid(128), smooth(so.Grid(128)), np.zeros(128), (0.0, 2.0), 1.0, reconstruction="constant"
        ),
        "rk4",
    ),
    "upwind 3, rk4": (lambda: se.transport(so.Grid(128), smooth(so.Grid(128)), (0.0, 2.0), [1.0]), "rk4"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_steps_beyond_the_stability_limit_are_refused(name):
    """Within one per cent of the limit at which the run itself begins to grow."""
    build, scheme = LIMITS[name]
    problem = build()
    limit = se.find_largest_step(problem, scheme)
    least = ceil((problem.t_span[1] - problem.t_span[0]) / limit)
    assert least > 99
    sn.solve(problem, scheme, steps=least, save_every=0)
    with pytest.raises(ValueError, match=f"`steps` must be at least {least}"):
        sn.solve(problem, scheme, steps=least - 1)
    assert _grows(problem, scheme, 1.01 * limit)
    assert not _grows(problem, scheme, 0.99 * limit)


def _grows(problem, scheme, h: float, steps: int = 3000) -> bool:
    """Whether random data grow in many steps of length h, without the check."""
    rng = np.random.default_rng(9)
    if isinstance(problem, sn.SecondOrder):
        free = replace(problem.acceleration, checks_steps=False)
        problem = sn.SecondOrder(free, rng.normal(size=problem.q0.shape), problem.v0, (0.0, steps * h), problem.args)
        least = 1e6
    else:
        free = replace(problem.fun, checks_steps=False)
        problem = sn.ODE(free, rng.normal(size=problem.y0.shape), (0.0, steps * h), problem.args)
        least = 100.0
    end = sn.solve(problem, scheme, steps=steps, save_every=0, check=False)
    return not end.success or bool(np.max(np.abs(end.y[-1])) > least)


def test_every_step_is_unstable_where_the_region_has_no_imaginary_axis():
    problem = se.wave(LINE, smooth(LINE), 0 * smooth(LINE), SPAN)
    assert se.find_largest_step(problem, "euler") == 0.0
    with pytest.raises(ValueError, match="as is every step"):
        sn.solve(problem, "euler", steps=100)


def test_unstable_steps_may_be_asked_for():
    problem = se.heat(LINE, smooth(LINE), SPAN, check_steps=False)
    assert np.isfinite(sn.solve(problem, "euler", steps=2).y).all()


def test_sums_are_conserved():
    closed = so.Grid((10, 12), boundary="neumann")
    u0 = smooth(closed)
    for problem, scheme in (
        (se.heat(closed, u0, SPAN), "rk4"),
        (se.diffusion(closed, u0, SPAN, u0**2), "rk4"),
        (se.burgers(so.Grid((10, 12)), u0, SPAN, 0.1), "ssprk3"),
    ):
        total = sn.solve(problem, scheme, steps=50).y.sum(axis=(1, 2))
        assert np.max(np.abs(total - total[0])) <= 1e-13 * total[0]


def test_monotone_upwind_and_heat_obey_the_maximum_principle():
    rng = np.random.default_rng(10)
    u0 = rng.uniform(size=LINE.shape)
    for problem in (se.transport(LINE, u0, (0.0, 1.0), [1.0], order=1), se.heat(LINE, u0, (0.0, 0.05))):
        y = sn.solve(problem, "euler", steps=60).y
        assert y.min() >= u0.min() - 1e-14
        assert y.max() <= u0.max() + 1e-14


def test_implicit_heat_obeys_the_maximum_principle_for_any_step():
    """Steps of implicit Euler are averages of the state; those of Crank and Nicolson are not."""
    u0 = np.where(np.abs(LINE.coordinates[0] - 0.5) < 0.1, 1.0, 0.0)
    for h in (1e-3, 1.0, 1e3):
        y = sn.solve(se.heat(LINE, u0, (0.0, 5 * h)), "implicit_euler", steps=5).y
        assert y.min() >= -1e-14
        assert y.max() <= 1.0 + 1e-14
    assert sn.solve(se.heat(LINE, u0, (0.0, 1.0)), "adi", steps=1).y.min() < -0.1


DIFFERENTIATED = "euler", "ab3", "rkc2(5)", "rkl2(5)", "implicit_euler", "trapezoid", "radau5", "rodas3", "sdirk2"


@pytest.mark.parametrize("scheme", DIFFERENTIATED)
def test_gradients_are_exact_by_every_kind_of_scheme(scheme):
    """<w, J v> by a difference of solves, which is exact for a linear equation, and by the adjoint."""
    grid = so.Grid((6, 5), 0.0, 1.0, boundary=["dirichlet", "periodic"])
    rng, problem = np.random.default_rng(12), se.heat(grid, np.zeros((6, 5)), SPAN, 0.3)
    w, v = rng.normal(size=(2, 6, 5))
    found = sn.gradient(problem, scheme, end_gradient=w, steps=STEPS).y0
    moved = sn.solve(replace(problem, y0=v), scheme, steps=STEPS, save_every=0).y[-1]
    assert np.vdot(found, v) == pytest.approx(np.vdot(w, moved), abs=ADJOINT * np.sum(np.abs(w * moved)))


def on_tensors(problem):
    """The right-hand side of an equation written with operators on tensors."""
    f, args = problem.fun, [torch.tensor(each) if isinstance(each, np.ndarray) else each for each in problem.args]
    twin = lambda name: snt.tensor_operator(getattr(f, name))
    match f.name:
        case "heat":
            return lambda t, u: args[0] * twin("laplacian")(u, t) + (args[1] if len(args) > 1 else 0.0)
        case "diffusion":
            return lambda t, u: twin("operator")(u, args[0], t)
        case "transport":
            return lambda t, u: -twin("upwind")(u, args[0], t)
        case "advection_diffusion":
            return lambda t, u: args[1] * twin("laplacian")(u, t) - twin("upwind")(u, args[0], t)
        case "burgers":
            return lambda t, u: twin("law")(u, t) + args[0] * twin("laplacian")(u, t)
        case "allen_cahn":
            return lambda t, u: args[0] ** 2 * twin("laplacian")(u, t) + u - u**3
        case "acoustics":
            return lambda t, u: snt.tensor_operator(replace(f.law, flux=sound_flux))(u, t, tuple(args))
        case "gray_scott":
            return lambda t, s: react(s, twin("laplacian")(s, t), *args)
        case "fitzhugh_nagumo":
            return lambda t, s: fire(s, args[0] * twin("laplacian")(s[0], t), *args[1:])
        case "euler":
            law = replace(f.law, flux=gas_flux, speeds=gas_speeds)
            return lambda t, u: snt.tensor_operator(law)(u, t, tuple(args))
        case "shallow_water":
            law = replace(f.law, flux=water_flux, speeds=water_speeds)
            return lambda t, u: snt.tensor_operator(law)(u, t, tuple(args))
        case "fokker_planck":
            return lambda t, p: (torch.tensor(assemble(problem, float(t))) @ p.ravel()).reshape(p.shape)
        case "backward_kolmogorov":
            return lambda t, u: expect(f, float(t), u, problem.args)


def assemble(problem, t):
    """The matrix of a linear right-hand side, applied by NumPy to all unit vectors at once."""
    shape = problem.y0.shape
    one = np.eye(problem.y0.size)
    return problem.fun(t, one.reshape(-1, *shape), *problem.args).reshape(one.shape).T


def expect(f, t, u, args):
    """-a . grad u - sum D / 2 u_ii with coefficients that NumPy samples."""
    drift, spread = (torch.tensor(find(t, args)) for find in (f.coefficients.find_drift, f.coefficients.find_diffusion))
    slopes = snt.tensor_operator(f.upwind)(u, -drift, t)
    parts = zip(spread, f.seconds, strict=True)
    return slopes - sum(0.5 * each * snt.tensor_operator(second)(u, t) for each, second in parts)


def fire(s, spread, rate, a, b, current):
    u, v = s
    return torch.stack((spread + u - u**3 / 3 - v + current, rate * (u + a - b * v)))


def find_gas_pressure(u, gamma):
    return (gamma - 1) * (u[-1] - 0.5 * sum(u[k] ** 2 for k in range(1, len(u) - 1)) / u[0])


def gas_flux(u, axis, gamma):
    pressure, velocity = find_gas_pressure(u, gamma), u[1 + axis] / u[0]
    parts = [velocity * each for each in u]
    parts[1 + axis] = parts[1 + axis] + pressure
    parts[-1] = parts[-1] + velocity * pressure
    return torch.stack(parts)


def gas_speeds(u, axis, gamma):
    velocity, sound = u[1 + axis] / u[0], torch.sqrt(gamma * find_gas_pressure(u, gamma) / u[0])
    return velocity - sound, velocity + sound


def water_flux(u, axis, gravity):
    parts = [u[1 + axis] / u[0] * each for each in u]
    parts[1 + axis] = parts[1 + axis] + 0.5 * gravity * u[0] ** 2
    return torch.stack(parts)


def water_speeds(u, axis, gravity):
    velocity, sound = u[1 + axis] / u[0], torch.sqrt(gravity * u[0])
    return velocity - sound, velocity + sound


def sound_flux(u, axis, speed):
    parts = [speed**2 * u[1 + axis], *(0.0 * u[k] for k in range(1, len(u)))]
    parts[1 + axis] = u[0]
    return torch.stack(parts)


def react(s, spread, a, b, feed, kill):
    u, v = s
    return torch.stack((a * spread[0] - u * v * v + feed * (1 - u), b * spread[1] + u * v * v - (feed + kill) * v))


AGREEING = [
    "heat", "heat with a source", "diffusion", "transport", "advection and diffusion", "burgers, constant",
    "burgers, muscl", "burgers, weno5", "allen_cahn", "gray_scott", "acoustics", "fitzhugh_nagumo", "euler",
    "shallow_water", "fokker_planck", "backward_kolmogorov",
]  # fmt: skip


@pytest.mark.parametrize("name", AGREEING)
def test_both_engines_agree(name):
    build, scheme = PROBLEMS[name]
    problem, scheme = build(PLANE), sn.schemes.get(scheme)
    times = torch.linspace(*problem.t_span, STEPS + 1, dtype=torch.float64)
    found = snt.odeint(on_tensors(problem), torch.tensor(problem.y0), times, method=scheme)
    wanted = sn.solve(problem, scheme, steps=STEPS).y
    assert np.max(np.abs(found.numpy() - wanted)) <= AGREEMENT * np.max(np.abs(wanted))


def test_both_engines_agree_on_waves():
    problem = PROBLEMS["wave"][0](PLANE)
    operator, n = snt.tensor_operator(problem.acceleration.laplacian), problem.q0.size
    times = torch.linspace(*SPAN, STEPS + 1, dtype=torch.float64)
    start = torch.tensor(problem.initial)

    def first_order(t, y):
        return torch.cat((y[n:], 1.3**2 * operator(y[:n].reshape(PLANE.shape), t).ravel()))

    found = snt.odeint(first_order, start, times, method=sn.schemes.get("rk4")).numpy()
    solution = sn.solve(problem, "rk4", steps=STEPS)
    assert np.max(np.abs(found - solution.y)) <= AGREEMENT * np.max(np.abs(found))


def test_own_equations_are_a_few_lines():
    """Fisher's equation u_t = D lap u + r u (1 - u), with save times, an event, an integrator and adaptive steps."""
    lap = so.laplacian(LINE)

    def fisher(t, u, diffusivity, rate):
        return diffusivity * lap(u, t) + rate * u * (1.0 - u)

    problem = sn.ODE(fisher, 0.1 * smooth(LINE), (0.0, 2.0), (1e-3, 4.0))
    solution = sn.solve(problem, "dopri5", save_at=[1.0, 2.0], events=lambda t, u, d, r: u[0] - 0.5)
    assert solution.statistics.rung == "traced"
    assert len(solution.t_events[0]) == 1
    by_hand = sn.start(problem, "dopri5").run_to(2.0)
    assert np.allclose(by_hand.y, solution.y[-1], rtol=1e-5)


def test_poisson_solves_its_equation():
    rng = np.random.default_rng(11)
    for grid in (LINE, PLANE, so.Grid((8, 9), boundary="neumann")):
        u = rng.normal(size=grid.shape)
        source = so.laplacian(grid)(u)
        found = se.poisson(grid, source)
        offset = u - found
        assert np.max(np.abs(offset - (0 if grid is PLANE else offset.mean()))) <= 1e-10
    with pytest.raises(ValueError, match="`source` must have the mean"):
        se.poisson(LINE, np.ones(LINE.shape))


FLUX = so.neumann(lambda t: 0.3), so.neumann(np.array([0.1, -0.2, 0.3, 0.5, -0.4, 0.2]))
TRANSFORMED = {
    "ring of order 8": so.Grid(17),
    "values on a line": so.Grid(9, boundary=so.dirichlet(2.0)),
    "values at nodes": so.Grid((7, 8), boundary="dirichlet", centring="node"),
    "slopes at cells": so.Grid((7, 6), 0.0, (1.0, 2.0), boundary=[FLUX, "periodic"]),
    "slopes at nodes": so.Grid((7, 8), boundary="neumann", centring="node"),
    "a box": so.Grid((5, 6, 7), boundary=["neumann", so.dirichlet(1.0), "periodic"]),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_solve_the_assembled_equations(name):
    grid, order = TRANSFORMED[name], 8 if "order 8" in name else 2
    operator = so.laplacian(grid, order)
    u = np.random.default_rng(13).normal(size=grid.shape)
    is_free = np.max(np.abs(operator.matrix() @ np.ones(u.size))) < 1e-9
    found = se.poisson(grid, operator(u), order=order)
    assert np.max(np.abs(found - u + (u.mean() if is_free else 0.0))) <= 1e-11
    if is_free:
        with pytest.raises(ValueError, match=r"`source` must have the mean .* off by 1$"):
            se.poisson(grid, operator(u) + 1.0, order=order)


REFUSALS = {
    "negative diffusivity": (lambda: se.heat(LINE, smooth(LINE), SPAN, -1.0), r"`diffusivity` must be a number in \[0"),
    "diffusivity that is not finite": (
        lambda: se.diffusion(LINE, smooth(LINE), SPAN, np.full(24, np.nan)), "`diffusivity` must be finite",
    ),
    "a source that is not finite": (
        lambda: se.heat(LINE, smooth(LINE), SPAN, source=np.full(24, np.inf)), "`source` must be finite, found inf",
    ),
    "a source function of another shape": (
        lambda: se.heat(LINE, smooth(LINE), SPAN, source=lambda t: np.ones(3)), r"`source\(t\)` must have the shape",
    ),
    "a source function that is not finite": (
        lambda: se.diffusion(LINE, smooth(LINE), SPAN, np.ones(24), source=lambda t: np.nan), r"`source\(t\)` must be",
    ),
    "a source of Poisson's equation that is not finite": (
        lambda: se.poisson(LINE, np.full(24, np.nan)), "`source` must be finite, found nan",
    ),
    "boundary values that are not finite": (
        lambda: se.poisson(so.Grid(8, boundary=so.dirichlet(lambda t: np.nan)), np.ones(8)), "finite boundary values",
    ),
    "another shape": (lambda: se.heat(LINE, np.ones(23), SPAN), r"`u0` must have the shape \(24,\) of the grid"),
    "one component": (lambda: se.gray_scott(LINE, np.ones(24), SPAN), r"`u0` must have the shape \(2, 24\)"),
    "velocity of one axis": (lambda: se.transport(PLANE, smooth(PLANE), SPAN, [1.0]), "`velocity` must have the shape"),
    "waves that grow": (
        lambda: se.wave(so.Grid(24, boundary="dirichlet"), np.ones(24), np.ones(24), SPAN, order=8), "lets waves grow",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_wrong_arguments_are_refused(name):
    build, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        build()


def test_step_limits_hold_in_any_unit_of_time():
    """Eigenvalues of 1e-14 and of 1e14, whose differences must not be rounded away."""
    limits = []
    for diffusivity in (1e-16, 1e16):
        problem = se.heat(so.Grid(8, 0.0, 8.0), np.ones(8), (0.0, 1.0), diffusivity)
        limits.append(diffusivity * se.find_largest_step(problem, "euler"))
    assert limits == pytest.approx([0.5, 0.5])
