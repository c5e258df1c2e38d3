"""The equation of a net on a grid, the net itself and averages over its noisy paths are one function."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

import stepnet as sn
from stepnet import fields, training
from stepnet.nets import losses

LARGEST_DIFFERENCE, HALF_WIDTH = 0.02, 0.01
PATHS = 12_000


def build_net(diffusion=None, steps: int = 20) -> sn.nets.Net:
    options = {"scheme": "rk4", "length": 1.0, "diffusion": diffusion}
    return sn.nets.neural_ode(2, 2, (8,), steps, **options)


def train_net() -> sn.nets.Net:
    """Two noisy arcs; the penalty keeps the boundary between them smooth enough for the grid."""
    rng, labels = np.random.default_rng(0), np.arange(300) % 2
    angle = rng.uniform(0, np.pi, 300)
    arc = np.stack((np.cos(angle), np.sin(angle)), axis=1)
    points = np.where(labels[:, None] == 1, [0.5, 0.25] - arc, arc - [0.5, 0.25]) + 0.1 * rng.normal(size=(300, 2))
    net = build_net()
    objective = training.Objective(net, "cross_entropy", sn.nets.penalties.l2(1e-2))
    training.minimise(objective, training.Data(points, labels), training.LBFGS(60))
    return net


def second_class(outputs: np.ndarray) -> np.ndarray:
    return losses.softmax(outputs)[:, 1:]


def average_paths(net: sn.nets.Net, sigma: float, points: np.ndarray) -> tuple[np.ndarray, float]:
    """Means over paths of the net with noise, and the largest half-width of their 95 % intervals."""
    noisy, means, widths = build_net(sigma, steps=80), [], []  # 20 steps have a weak error of 0.017 for sigma = 1
    noisy.put(net.theta)
    for key, point in enumerate(points):
        noise = sn.nets.SampleNoise(seed=1, keys=np.full(PATHS, key), path=np.arange(PATHS))
        values = second_class(noisy(np.tile(point, (PATHS, 1)), noise=noise))
        means.append(values.mean())
        widths.append(1.96 * values.std() / np.sqrt(PATHS))
    return np.array(means), max(widths)


@pytest.mark.slow
def test_the_equation_the_net_and_the_mean_over_paths_agree():
    """For no, medium and high noise, at points of the plane that the net was trained on."""
    net, axis = train_net(), np.linspace(-1.2, 1.2, 5)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    for sigma, half, n in ((0.0, 5.0, 241), (0.3, 5.0, 161), (1.0, 6.0, 121)):
        grid = sn.operators.Grid((n, n), -half, half, boundary="neumann")
        problem = sn.nets.network_pde(net, sigma, grid, transform=second_class)
        steps = int(1.2 / sn.equations.find_largest_step(problem, "rk4")) + 40
        solution = sn.solve(problem, "rk4", steps=steps, save_every=0)
        assert solution.statistics.rung == "traced"
        axes = [grid.find_axis(0), grid.find_axis(1)]
        found = RegularGridInterpolator(axes, solution.y[-1, 0], method="cubic")(points)
        if sigma == 0.0:
            wanted, width = second_class(net(points))[:, 0], 0.0
        else:
            wanted, width = average_paths(net, sigma, points)
        assert width <= HALF_WIDTH
        assert np.max(np.abs(found - wanted)) <= LARGEST_DIFFERENCE
        assert np.ptp(found) > 0.2  # there is something to compare


@pytest.mark.parametrize("build", [
    lambda: sn.nets.resnet(None, 1, width=2, steps=4, degree=1),
    lambda: sn.nets.hamiltonian(None, 1, width=2, steps=4, degree=1),
    lambda: sn.nets.Net(sn.nets.Design((sn.nets.Block(fields.hyperbolic(fields.dense(1)), "verlet", 4),))),
], ids=["first order", "partitioned", "second order"])  # fmt: skip
def test_the_velocity_is_the_slope_of_the_states(build):
    """A solve of the process without noise ends at the features of the net with many steps."""
    net = build()
    velocity, sde = sn.nets.NetworkVelocity(net), sn.nets.network_sde(net, 0.0)
    start = np.array([0.4, -0.3])
    assert np.allclose(velocity(0.3, np.stack((start, 2 * start), axis=1))[:, 0], velocity(0.3, start), rtol=1e-14)
    path = sn.solve(sn.ODE(velocity, start, sde.t_span, trace=False), "dopri5", rtol=1e-9, atol=1e-9).y[-1]
    fine = net.refine(256).features(start[None])[-1, 0]
    assert np.allclose(path, fine, atol=2e-3)  # steps of first order
    assert sde.diffusion(0.0, start).shape == start.shape


def test_weights_that_depend_on_depth_are_followed():
    """A linear field in one direction moves the readout without changing its shape."""
    net = sn.nets.resnet(None, 1, width=2, steps=6, scheme="rk4", degree=1)
    net.weights["blocks.0.K"][:] = 0.0
    net.weights["blocks.0.b"][:] = np.arctanh(np.linspace(0.1, 0.5, 7))[:, None]
    net.weights["readout.W"][:] = [[1.0, 0.5]]
    grid = sn.operators.Grid((16, 16), -2.0, 2.0, boundary="neumann")
    problem = sn.nets.network_pde(net, 0.0, grid)
    u = sn.solve(problem, "rk4", steps=24, save_every=0).y[-1, 0]
    x, y = grid.coordinates
    inside = np.maximum(np.abs(x), np.abs(y)) < 1.0
    wanted = net(np.stack((x.ravel(), y.ravel()), axis=1)).reshape(grid.shape)
    assert np.max(np.abs(u - wanted)[inside]) <= 1e-3  # a plane is exact in space; steps of the net and the grid differ
    assert sn.equations.transport(grid, u, (0.0, 0.1), sn.nets.NetworkVelocity(net).sample(grid)).args == ()


@pytest.mark.parametrize("sigma", [0.0, 0.4])
def test_the_equation_has_a_limit_of_its_steps_backward(sigma):
    """That of the flow and the diffusion, whatever the direction of time."""
    net, grid = build_net(), sn.operators.Grid((40, 40), -3.0, 3.0, boundary="neumann")
    backward = sn.nets.network_pde(net, sigma, grid)
    velocity, start = -backward.args[0], np.zeros((40, 40))  # of the same flow in time that runs forward
    forward = sn.equations.advection_diffusion(grid, start, (0.0, 1.0), velocity, sigma**2 / 2)
    limits = [sn.equations.find_largest_step(each, "rk4") for each in (backward, forward)]
    assert limits[0] == pytest.approx(limits[1], rel=1e-6)
    assert np.isfinite(limits[0])


def test_nets_without_a_velocity_are_refused():
    with pytest.raises(ValueError, match="no opening layer"):
        sn.nets.network_pde(sn.nets.resnet(2, 1, width=4, steps=3))
    with pytest.raises(ValueError, match="`grid` must have 2 axes"):
        sn.nets.network_pde(sn.nets.resnet(None, 1, width=2, steps=3), 0.0, sn.operators.Grid(8))
