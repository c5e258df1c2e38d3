"""What the dynamics promise: growth, invariants, symplecticity, reversibility, stability limits.

The numbers are those of Haber & Ruthotto (2017), Chang et al. (2018) and Ruthotto & Haber (2020), measured again.
"""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet import fields, nets
from stepnet.engines.numba_engine import layer_sweeps
from stepnet.nets import Block, Design, Net
from stepnet.nets.execution import tiled, untiled

UNSTABLE, STABLE, TURNING = [[2.0, -2.0], [0.0, 2.0]], [[-2.0, 0.0], [2.0, -2.0]], [[0.0, -1.0], [1.0, 0.0]]
THREE = np.array([[0.1, 0.1], [-0.1, -0.1], [0.0, 0.5]])


def planar(K, h, steps, scheme="euler", shift=0.0):
    chain = fields.affine(fields.dense(2), "tanh", shift=shift)
    net = Net(Design((Block(fields.chained(chain), scheme, steps, h * steps, fields.Depth(1)),)))
    net.weights["blocks.0.K"][...] = K
    return net


def test_twenty_layers_of_three_matrices():
    ends = {name: np.linalg.norm(planar(K, 0.1, 20)(THREE), axis=1)
            for name, K in (("+", UNSTABLE), ("-", STABLE), ("0", TURNING))}  # fmt: skip
    start = np.linalg.norm(THREE, axis=1)
    assert ends["+"][0] / start[0] > 10
    assert ends["-"][0] / start[0] < 0.06
    assert abs(ends["-"][0] - ends["-"][2]) < 2e-4  # 3.5 times as far away before: forgotten
    assert abs(ends["0"][0] / start[0] - 1.10) < 0.01  # linear theory: (1 + h^2)^(L/2) = 1.105
    np.testing.assert_allclose([ends["+"][0], ends["-"][0], ends["0"][0]], [1.932, 0.0071, 0.1561], rtol=0.01)


def test_euler_is_not_made_stable_by_antisymmetry_but_by_a_shift():
    ratio = [np.linalg.norm(planar(TURNING, 20 / n, n)(THREE)[0]) / np.linalg.norm(THREE[0]) for n in (20, 80, 320)]
    np.testing.assert_allclose(ratio, [29, 8.3, 1.85], rtol=0.02)
    fine = np.linalg.norm(planar(TURNING, 20 / 80, 80, "rk4")(THREE)[0]) / np.linalg.norm(THREE[0])
    assert abs(fine - 1) < 1e-3
    kept = np.linalg.norm(planar(TURNING, 0.1, 20, shift=-0.05)(THREE)[0])
    assert abs(kept / np.linalg.norm(THREE[0]) - 1) < 1e-3


def test_sum_of_log_cosh_is_an_invariant_of_antisymmetric_nets():
    """H = sum log cosh(K y + b) has the derivative tanh' K tanh = 0."""
    random, drifts = np.random.default_rng(0), {}
    A, b, y0 = random.normal(size=(6, 6)), random.normal(size=6), random.normal(size=(3, 6))

    def energy(y):
        return np.log(np.cosh(y @ (A - A.T).T + b)).sum(axis=1)

    for scheme in ("euler", "rk4"):
        for h in (0.05, 0.025, 0.0125):
            steps = round(5 / h)
            block = Block(fields.antisymmetric(fields.dense(6)), scheme, steps, 5.0, fields.Depth(1))
            net = Net(Design((block,)))
            net.weights["blocks.0.K"][...], net.weights["blocks.0.b"][...] = A, b
            drifts[scheme, h] = np.abs(energy(net(y0)) - energy(y0)).max()
    assert np.log2(drifts["rk4", 0.05] / drifts["rk4", 0.0125]) / 2 > 3.8  # order 4 at least
    assert drifts["rk4", 0.0125] < 1e-4 < drifts["euler", 0.0125]
    assert abs(np.log2(drifts["euler", 0.025] / drifts["euler", 0.0125]) - 1) < 0.4


def jacobian(net, x):
    """dy/dx at one sample."""
    n = net.design.n_in
    return np.stack([net.tangent(x[None], x_dot=e[None])[1][0] for e in np.eye(n)], axis=1)


def test_hamiltonian_nets_are_symplectic_and_the_older_verlet_nets_keep_volume_only():
    random, m = np.random.default_rng(1), 3
    Omega = np.block([[np.zeros((m, m)), np.eye(m)], [-np.eye(m), np.zeros((m, m))]])
    defects = {}
    for dynamics in ("hamiltonian", "staggered"):
        block = Block(fields.DYNAMICS[dynamics](fields.dense(m)), "verlet", 20, 2.0)
        net = Net(Design((block,)))
        net.put(random.normal(size=net.theta.size))
        J = jacobian(net, random.normal(size=2 * m))
        defects[dynamics] = np.abs(J.T @ Omega @ J - Omega).max() / np.abs(J).max() ** 2
        assert abs(np.linalg.det(J) - 1) < 1e-12
    assert defects["hamiltonian"] < 1e-14
    assert defects["staggered"] > 1e-3


def test_jacobians_of_1202_hamiltonian_layers_neither_explode_nor_vanish():
    sizes = {}
    for name, preset in (("hamiltonian", nets.hamiltonian), ("parabolic", nets.parabolic)):
        net = preset(None, None, 8, 1202, length=1202 * 0.02)
        net.put(np.random.default_rng(2).normal(size=net.theta.size) / 2)
        sizes[name] = np.linalg.svd(jacobian(net, np.ones(8)), compute_uv=False)
    assert sizes["hamiltonian"][0] < 100
    assert sizes["hamiltonian"][-1] > 0.01  # singular values of a symplectic matrix come in pairs s, 1 / s
    assert sizes["parabolic"][0] < 1e-3


# ---- reversibility --------------------------------------------------------------------------------------------------


def reconstruction_error(preset, steps, h, activation, dtype):
    """Distance of the first state from where a reversible gradient ends that has undone all steps, relative."""
    net = preset(None, None, 32, steps, length=steps * h, activation=activation, dtype=dtype)
    random = np.random.default_rng(3)
    net.put(random.normal(size=net.theta.size) / np.sqrt(32))
    execution, (number, _) = net._execution, net._block(0)
    x = tiled(execution.until(net.theta, random.normal(size=(64, net.design.n_in)).astype(dtype), number))
    stage, own = execution.stages[number], execution.own(net.theta)[number]
    run = layer_sweeps.sweep(stage, own, np.zeros_like(own), x, "reversible")
    run.send(np.zeros_like(next(run)))
    stage = stage.fitted(len(x))
    (room,) = (room for room in stage._free if room.period == layer_sweeps.RING)
    wanted = stage.opened(own, stage.carried(x))
    found = stage.records(room)[stage.n_opening % room.period, :, : wanted.shape[1]]
    found, wanted = (untiled(stage.own(carry, 1), 64) for carry in (found, wanted))
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("preset", [nets.hamiltonian, nets.leapfrog_net, nets.hyperbolic], ids=lambda f: f.__name__)
def test_1202_layers_are_undone_to_rounding(preset, activation):
    assert reconstruction_error(preset, 1202, 0.1, activation, np.float64) < 1e-11


def test_single_precision_is_enough_for_small_steps_of_hamiltonian_nets():
    assert reconstruction_error(nets.hamiltonian, 1202, 0.02, "tanh", np.float32) < 1e-5
    velocity, two_step = (
        reconstruction_error(preset, 1202, 0.1, "tanh", np.float32) for preset in (nets.hyperbolic, nets.leapfrog_net)
    )
    assert velocity < two_step  # 2 y - y_ loses digits


def test_reversibility_is_not_stability():
    """The midpoint net is reversible by its algebra, but with ReLU rounding errors grow without bound."""
    assert reconstruction_error(nets.midpoint_net, 1202, 0.1, "tanh", np.float64) < 1e-11
    with np.errstate(all="ignore"):
        assert not reconstruction_error(nets.midpoint_net, 1202, 0.1, "relu", np.float64) < 1.0


def test_gradients_from_reconstructed_states_agree_with_stored_ones_over_1202_layers():
    net = nets.hamiltonian(None, None, 32, 1202, length=120.2)
    net.put(np.random.default_rng(4).normal(size=net.theta.size) / np.sqrt(32))
    x = np.random.default_rng(5).normal(size=(8, 32))
    stored, found = (net.gradient(x, end_gradient=x, memory=memory).theta for memory in ("all", "reversible"))
    assert np.linalg.norm(found - stored) < 1e-9 * np.linalg.norm(stored)


# ---- stability limits -----------------------------------------------------------------------------------------------


def grown(field, scheme, h, K, x, steps=400):
    net = Net(Design((Block(field, scheme, steps, h * steps, fields.Depth(1)),)))
    net.weights["blocks.0.K"][...] = K
    return np.abs(net.features(x)).max(axis=(1, 2))


def test_parabolic_euler_is_bounded_up_to_two_and_leapfrog_up_to_four():
    random, x = np.random.default_rng(6), 1e-8 * np.random.default_rng(7).normal(size=(2, 5))
    K = random.normal(size=(5, 5))
    norm = np.linalg.norm(K, 2)
    for limit, is_bounded in ((1.9, True), (2.0, True), (2.05, False), (2.2, False)):
        size = grown(fields.parabolic(fields.dense(5)), "euler", limit / norm**2, K, x)
        assert (size[-1] <= size[0] * 1.01) == is_bounded
    start = np.concatenate((x, np.zeros_like(x)), axis=1)
    for limit, is_bounded in ((3.9, True), (4.1, False)):
        for scheme in ("verlet", "leapfrog_two_step"):
            size = grown(fields.hyperbolic(fields.dense(5)), scheme, np.sqrt(limit) / norm, K, start)[:, ...]
            assert (size.max() < 100 * size[0]) == is_bounded


@pytest.mark.parametrize(
    ("dynamics", "scheme"),
    [
        ("parabolic", "euler"),
        ("parabolic", "rkc2"),
        ("hyperbolic", "verlet"),
        ("hamiltonian", "verlet"),
        ("antisymmetric", "rk4"),
    ],
)
@pytest.mark.parametrize("norm", [None, "rms"])
def test_stable_initialisation_lies_inside_the_stability_region(dynamics, scheme, norm):
    """Weights ten times too large are scaled down so that small states stay small over many steps."""
    field = fields.DYNAMICS[dynamics](fields.dense(6), norm=norm)
    from stepnet.nets.initialise import largest_norm, norm_of

    block = Block(field, scheme, 300, 300.0)
    net = Net(Design((block,)), initialisation="stable")
    layer, bound = field.parts[0].layers[0], largest_norm(block)
    assert max(norm_of(layer, W) for W in net.weights["blocks.0.K"]) <= bound * 1.01
    steady = Net(Design((Block(field, scheme, 300, 300.0, fields.Depth(1)),)))
    K = np.random.default_rng(8).normal(size=(6, 6))
    x = 1e-8 * np.random.default_rng(9).normal(size=(2, steady.design.n_in))
    sizes = []
    for factor in (1.0, 1.5):
        steady.weights["blocks.0.K"][...] = K * factor * bound / norm_of(layer, K)
        sizes.append(np.abs(steady(x)).max() / np.abs(x).max())
    assert sizes[0] < 500  # hyperbolic states grow linearly at most
    assert sizes[1] > 1e3


def test_stable_initialisation_says_where_there_is_no_stable_layer():
    with pytest.raises(ValueError, match="positive damping"):
        nets.antisymmetric(2, 2, 4, 5, scheme="euler", initialisation="stable")
    assert nets.antisymmetric(2, 2, 4, 5, scheme="euler", damping=0.5, initialisation="stable").theta.size


@pytest.mark.parametrize("name", ["lecun", "glorot", "he", "orthogonal"])
def test_initialisations_have_their_variance(name):
    net = nets.resnet(None, None, 200, 4, initialisation=name)
    K = net.weights["blocks.0.K"]
    variance = {"lecun": 1 / 200, "glorot": 1 / 200, "he": 2 / 200, "orthogonal": 1 / 200}[name]
    assert abs(K.var() / variance - 1) < 0.02
    assert not net.weights["blocks.0.b"].any()
    if name == "orthogonal":
        np.testing.assert_allclose(K[0] @ K[0].T, np.eye(200), atol=1e-12)


def test_net_solved_back_in_time_is_not_the_inverse_of_a_resnet():
    net = nets.resnet(None, None, 8, 100, length=10.0)
    net.put(np.random.default_rng(10).normal(size=net.theta.size) / 2)
    x = np.random.default_rng(11).normal(size=(3, 8))
    problem = net.problem(x)
    end = sn.solve(problem, "euler", steps=100, save_every=0).y[-1]
    back = sn.solve(sn.ODE(problem.fun, end, problem.t_span[::-1], trace=False), "euler", steps=100, save_every=0).y[-1]
    assert np.linalg.norm(back - problem.y0) > 1e-3 * np.linalg.norm(problem.y0)
