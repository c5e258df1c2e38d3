"""The layers that papers print, in plain NumPy, beside ours: one K for each layer, in every half and stage of it.

Haber & Ruthotto (2017), Inverse Problems 34:014004; Chang et al. (2018), Reversible architectures, AAAI; Ruthotto &
Haber (2020), J. Math. Imaging Vision 62:352.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest

import stepnet as sn
from stepnet import fields, nets
from stepnet.engines.numba_engine.layers import stage_sweeps
from stepnet.estimators import NetRegressor
from stepnet.nets import MGRIT, Block, Design, Net, mgrit_forward, mgrit_gradient
from stepnet.nets.execution import tile, untile
from stepnet.nets.layer_decomposition import LayerDecomposition

PRINTED = 1e-14  # relative to the states
GRADIENT = 1e-12  # relative; sums over samples and layers in another order
UNDONE = 1e-11
N, STEPS, H = 5, 12, 0.3  # features of a half, layers and their length
ACTIVATIONS = {"tanh": np.tanh, "relu": lambda u: np.maximum(u, 0), "softplus": lambda u: np.logaddexp(u, 0)}


def distance(found, wanted) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


class Layers(NamedTuple):
    """The weights of a net, and its activation: what the formulas of the papers are made of."""

    K: np.ndarray
    b: np.ndarray
    s: object

    def affine(self, j, y):
        return self.s(self.K[j] @ y + self.b[j][:, None])

    def symmetric(self, j, y):
        return self.K[j].T @ self.affine(j, y)

    def transposed(self, j, y):
        return self.s(self.K[j].T @ y + self.b[j][:, None])

    def antisymmetric(self, j, y, damping=0.0):
        return self.s((self.K[j] - self.K[j].T - damping * np.eye(len(y))) @ y + self.b[j][:, None])


# ---- what is printed -------------------------------------------------------------------------------------------------


def hamiltonian(layers, y):
    """q_(j+1) = q_j + h K_j' s(K_j p_j + b_j), p_(j+1) = p_j - h K_j' s(K_j q_(j+1) + b_j); Chang et al. (2018)."""
    q, p = np.split(y, 2)
    for j in range(len(layers.K)):
        q = q + H * layers.symmetric(j, p)
        p = p - H * layers.symmetric(j, q)
    return np.concatenate((q, p))


def hamiltonian_verlet(layers, y):
    """Half a step of p, a step of q, half a step of p, all with K_j."""
    q, p = np.split(y, 2)
    for j in range(len(layers.K)):
        p = p - H / 2 * layers.symmetric(j, q)
        q = q + H * layers.symmetric(j, p)
        p = p - H / 2 * layers.symmetric(j, q)
    return np.concatenate((q, p))


def staggered(layers, y):
    """p_(j+1) = p_j - h s(K_j' q_j + b_j), q_(j+1) = q_j + h s(K_j p_(j+1) + b_j); Haber & Ruthotto (2017)."""
    q, p = np.split(y, 2)
    for j in range(len(layers.K)):
        p = p - H * layers.transposed(j, q)
        q = q + H * layers.affine(j, p)
    return np.concatenate((q, p))


def leapfrog(layers, y, first):
    """y_(j+1) = 2 y_j - y_(j-1) - h^2 K_j' s(K_j y_j + b_j) from y_1 = y_0 - first h^2 K_0' s(K_0 y_0 + b_0)."""
    old, y = y, y - first * H**2 * layers.symmetric(0, y)
    for j in range(1, len(layers.K)):
        old, y = y, 2 * y - old - H**2 * layers.symmetric(j, y)
    return y


def midpoint(layers, y):
    """y_(j+1) = y_(j-1) + 2 h s((K_j - K_j') y_j + b_j), begun by a step of the midpoint rule."""
    old, y = y, y + H * layers.antisymmetric(0, y + H / 2 * layers.antisymmetric(0, y))
    for j in range(1, len(layers.K)):
        old, y = y, old + 2 * H * layers.antisymmetric(j, y)
    return y


def one_step(slope):
    def euler(layers, y):
        for j in range(len(layers.K)):
            y = y + H * slope(layers, j, y)
        return y

    return euler


def adams(layers, y):
    """y_(j+1) = y_j + h (3 f_j - f_(j-1)) / 2 with f_j = s(K_j y_j + b_j), begun by a step of Heun's."""
    old, k = layers.affine(0, y), layers.affine(0, y)
    y = y + H / 2 * (k + layers.affine(0, y + H * k))
    for j in range(1, len(layers.K)):
        new = layers.affine(j, y)
        y, old = y + H * (1.5 * new - 0.5 * old), new
    return y


def runge_kutta(layers, y):
    """RK4 with the weights of its layer in all four stages."""
    for j in range(len(layers.K)):
        k1 = layers.antisymmetric(j, y)
        k2 = layers.antisymmetric(j, y + H / 2 * k1)
        k3 = layers.antisymmetric(j, y + H / 2 * k2)
        k4 = layers.antisymmetric(j, y + H * k3)
        y = y + H / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def bare(preset, **options):
    """A preset without an opening and a read-out."""
    width = 2 * N if preset is nets.hamiltonian else N
    return lambda **more: preset(None, None, width, STEPS, length=STEPS * H, **options, **more)


def from_rest(preset, **options):
    """A preset of second order that begins with zero velocities and reads out the positions."""
    return lambda **more: preset(N, None, N, STEPS, length=STEPS * H, opening="augment", **options, **more)


def block(dynamics, scheme):
    def make(activation="tanh", **options):
        field = fields.DYNAMICS[dynamics](fields.dense(N), activation)
        return Net(Design((Block(field, scheme, STEPS, STEPS * H),)), **options)

    return make


LITERATURE = {
    "Hamiltonian": (bare(nets.hamiltonian), hamiltonian),
    "Hamiltonian, Verlet": (bare(nets.hamiltonian, scheme="verlet"), hamiltonian_verlet),
    "staggered": (block("staggered", "symplectic_euler_kick"), staggered),
    "hyperbolic": (from_rest(nets.hyperbolic), lambda layers, y: leapfrog(layers, y, 1.0)),
    "leapfrog from y_-1 = y_0": (from_rest(nets.leapfrog_net, start="equal"), lambda *a: leapfrog(*a, 1.0)),
    "leapfrog from Taylor": (from_rest(nets.leapfrog_net), lambda layers, y: leapfrog(layers, y, 0.5)),
    "antisymmetric": (bare(nets.antisymmetric), one_step(Layers.antisymmetric)),
    "damped": (bare(nets.antisymmetric, damping=0.1), one_step(lambda layers, j, y: layers.antisymmetric(j, y, 0.1))),
    "parabolic": (bare(nets.parabolic), one_step(lambda layers, j, y: -layers.symmetric(j, y))),
    "midpoint": (bare(nets.midpoint_net), midpoint),
    "Adams": (bare(nets.resnet, scheme="ab2"), adams),
    "antisymmetric, RK4": (bare(nets.antisymmetric, scheme="rk4"), runge_kutta),
}
REVERSIBLE = ("Hamiltonian", "Hamiltonian, Verlet", "staggered", "hyperbolic", "leapfrog from y_-1 = y_0",
              "leapfrog from Taylor", "midpoint")  # fmt: skip


def net_of(name, number=0, **options):
    net = LITERATURE[name][0](**options)
    net.put(0.7 * np.random.default_rng(number).normal(size=net.theta.size))
    return net


def inputs(net, batch=7):
    return np.random.default_rng(5).normal(size=(batch, net.design.n_in)).astype(net.dtype)


def printed(name, net, x, activation="tanh"):
    layers = Layers(net.weights["blocks.0.K"], net.weights["blocks.0.b"], ACTIVATIONS[activation])
    return LITERATURE[name][1](layers, x.T).T


def by_torch(net, x):
    import torch

    import stepnet.torch as snt

    return snt.from_net(net, engine="torch")(torch.from_numpy(x)).detach().numpy()


ENGINES = {"numba": lambda net, x: net(x), "torch": by_torch}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", LITERATURE)
def test_default_layers_are_those_that_are_printed(name, engine, activation, within):
    net = net_of(name, activation=activation)
    x = inputs(net)
    error = distance(ENGINES[engine](net, x), printed(name, net, x, activation))
    within("layers of the literature, printed formulas", error, PRINTED)


@pytest.mark.parametrize("name", ["Hamiltonian", "Hamiltonian, Verlet", "antisymmetric, RK4"])
def test_splines_in_depth_are_the_other_choice(name):
    """A stage at the end of a layer reads the weights of the next one if they are a function of depth."""
    held, spline = net_of(name), net_of(name, degree=0)
    assert "held over each step" in repr(held)
    assert "piecewise constant" in repr(spline)
    x = inputs(held)
    assert distance(spline(x), held(x)) > 0.05


# ---- structure -------------------------------------------------------------------------------------------------------


def jacobian(net, x):
    n = net.design.n_in
    return net.tangent(np.tile(x, (n, 1)), x_dot=np.eye(n))[1].T


@pytest.mark.parametrize("steps", [1, 20])
@pytest.mark.parametrize("scheme", ["symplectic_euler_drift", "verlet", "yoshida4"])
def test_hamiltonian_layers_with_weights_of_their_own_are_symplectic(scheme, steps):
    Omega = np.block([[np.zeros((N, N)), np.eye(N)], [-np.eye(N), np.zeros((N, N))]])
    net = nets.hamiltonian(None, None, 2 * N, steps, length=0.1 * steps, scheme=scheme)
    net.put(np.random.default_rng(1).normal(size=net.theta.size))
    J = jacobian(net, np.random.default_rng(2).normal(size=2 * N))
    assert np.abs(J.T @ Omega @ J - Omega).max() / np.linalg.norm(J, 2) ** 2 < 1e-14
    assert abs(np.linalg.det(J) - 1) < 1e-12


def undone(name, steps, activation) -> float:
    """Distance of the input from where a reversible gradient ends that has undone all layers."""
    net = LITERATURE[name][0](activation=activation)
    old = net.design.blocks[0]
    net = Net(Design((Block(old.field, old.scheme, steps, 0.1 * steps),)))
    net.weights["blocks.0.K"][...] = np.random.default_rng(3).normal(size=(steps, N, N)) / np.sqrt(2 * N)
    x = inputs(net, 16)
    if old.field.kind == "second":
        x[:, N:] = 0.0  # from rest
    (stage,), x = net._execution.stages, tile(x)
    run = stage_sweeps.sweep(stage, net.theta, np.zeros_like(net.theta), x, "reversible")
    run.send(np.zeros_like(next(run)))
    stage = stage.fit_group_size(len(x))
    (workspace,) = (workspace for workspace in stage._free if workspace.period == stage_sweeps.RING)
    wanted = stage.run_opening(net.theta, stage.build_rows(x))
    found = stage.records(workspace)[stage.n_opening % workspace.period, :, : wanted.shape[1]]
    return distance(*(untile(stage.extract_state(carry, 1), 16) for carry in (found, wanted)))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("name", ["Hamiltonian", "Hamiltonian, Verlet", "hyperbolic", "leapfrog from y_-1 = y_0"])
def test_1202_layers_are_undone(name, activation, within):
    within("input recovered through 1202 layers of the literature", undone(name, 1202, activation), UNDONE)


def test_leapfrog_from_equal_states_is_hyperbolic_from_rest():
    """y_-1 = y_0 is a first kick over a whole step."""
    leapfrog, hyperbolic = net_of("leapfrog from y_-1 = y_0"), net_of("hyperbolic")
    x = inputs(leapfrog)
    assert distance(leapfrog(x), hyperbolic(x)) < PRINTED
    taylor = net_of("leapfrog from Taylor")
    assert distance(taylor(x), leapfrog(x)) > 1e-3
    with pytest.raises(sn.errors.UnknownName, match="taylor"):
        nets.leapfrog_net(2, 2, 4, 3, start="tailor")


# ---- derivatives -----------------------------------------------------------------------------------------------------


def torch_gradient(name, net, x):
    """Of the sum of squares / 2 of the printed layers, by the outputs of torch's own reverse mode."""
    import torch

    import stepnet.torch as snt

    module, given = snt.from_net(net, engine="torch", memory="all"), torch.from_numpy(x).requires_grad_()
    (0.5 * module(given).square().sum()).backward()
    weights = dict(module.named_parameters())
    return np.concatenate([weights[key].grad.numpy().ravel() for key in net.weights]), given.grad.numpy()


def half_square(y):
    return 0.5 * float(np.sum(y * y)), y


@pytest.mark.parametrize("memory", ["all", "segments", sn.Checkpoints(2), "reversible"], ids=str)
@pytest.mark.parametrize("name", LITERATURE)
def test_gradients_in_every_memory_are_those_of_the_printed_layers(name, memory):
    if memory == "reversible" and name not in REVERSIBLE:
        with pytest.raises(ValueError, match="invertible steps"):
            net_of(name).gradient(np.ones((1, N)), half_square, memory=memory)
        return
    net = net_of(name)
    x = inputs(net)
    found = net.gradient(x, half_square, memory=memory)
    direction, e = np.random.default_rng(6).normal(size=net.theta.size), 1e-6
    values = []
    for sign in (1, -1):
        moved = Net(net.design, net.theta + sign * e * direction)
        values.append(half_square(printed(name, moved, x))[0])
    slope = (values[0] - values[1]) / (2 * e)
    assert abs(slope - found.theta @ direction) < 1e-7 * np.linalg.norm(found.theta) * np.linalg.norm(direction)
    theta, x_bar = torch_gradient(name, net, x)
    assert distance(found.theta, theta) < GRADIENT
    assert distance(found.x, x_bar) < GRADIENT


@pytest.mark.parametrize("memory", ["segments", "reversible", "auto"])
@pytest.mark.parametrize("engine", ["numba", "torch"])
def test_modules_have_these_layers_by_default(engine, memory):
    import torch

    import stepnet.torch as snt

    for module, name in ((snt.HamiltonianBlock, "Hamiltonian"), (snt.HyperbolicBlock, None)):
        block = module(2 * N, STEPS, length=STEPS * H, engine=engine, memory=memory, dtype=torch.float64)
        assert isinstance(block.record.depth, fields.HeldWeights)
        assert tuple(block.K.shape) == (STEPS, N, N)
        x = torch.randn(4, 2 * N, dtype=torch.float64, requires_grad=True)
        block(x).square().sum().backward()
        if name is not None:
            layers = Layers(block.K.detach().numpy(), block.b.detach().numpy(), np.tanh)
            wanted = LITERATURE[name][1](layers, x.detach().numpy().T).T
            assert distance(block(x).detach().numpy(), wanted) < PRINTED
        bars = [block.K.grad.clone(), x.grad.clone()]
        other = snt.LayerBlock(block.record, engine="torch", memory="all", dtype=torch.float64)
        other.load_state_dict(block.state_dict())
        y = x.detach().clone().requires_grad_()
        other(y).square().sum().backward()
        for found, wanted in zip(bars, (other.K.grad, y.grad), strict=True):
            assert distance(found.numpy(), wanted.numpy()) < GRADIENT


# ---- what follows: single layers, levels, files ----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["symplectic_euler_drift", "verlet", "yoshida4"])
def test_layers_of_held_weights_can_be_taken_apart(scheme):
    net = nets.hamiltonian(2, 3, 4, 5, scheme=scheme, seed=1)
    x = np.random.default_rng(7).normal(size=(9, 2))
    parts = LayerDecomposition(net)
    states = parts.states(net.theta, x)
    np.testing.assert_allclose(states[-1], net(x), atol=1e-14)
    np.testing.assert_allclose(states[1:-1], net.features(x), atol=1e-14)
    costates = parts.costates(net.theta, states, states[-1])
    np.testing.assert_allclose(costates.theta, net.gradient(x, half_square).theta, atol=1e-13)


@pytest.mark.parametrize("name", ["Hamiltonian", "Hamiltonian, Verlet", "hyperbolic", "leapfrog from Taylor",
                                  "leapfrog from y_-1 = y_0", "antisymmetric", "midpoint"])  # fmt: skip
def test_multigrid_in_depth_finds_what_steps_find(name):
    net = net_of(name)
    net.theta *= 0.4
    x, mgrit = inputs(net), MGRIT(coarsening=2, iterations=STEPS, tolerance=1e-13)
    run = mgrit_forward(net, x, mgrit, is_compared=True)
    assert run.error < 1e-12
    assert run.convergence[0].is_converged
    assert mgrit_gradient(net, x, half_square, mgrit, is_compared=True).error < 1e-11


def test_smooth_held_weights_make_multigrid_faster_with_depth():
    """Long steps take the weights at their middles."""
    factors = []
    for steps in (64, 1024):
        net = nets.hamiltonian(None, None, 8, steps, length=5.0)
        s = (np.arange(steps) + 0.5) / steps
        random = np.random.default_rng(9)
        for weights in net.weights.values():
            one, other = random.normal(size=(2, *weights.shape[1:])) / 2
            weights[...] = np.multiply.outer(np.cos(3 * s), one) + np.multiply.outer(np.sin(3 * s), other)
        run = mgrit_forward(net, np.random.default_rng(10).normal(size=(20, 8)), MGRIT(tolerance=1e-13))
        factors.append(run.convergence[0].factor)
    assert factors[1] < 0.25 * factors[0] < 0.05


@pytest.mark.parametrize("factor", [2, 3])
def test_refined_held_weights_are_copies(factor):
    net = net_of("Hamiltonian")
    fine = net.refine(factor)
    assert fine.design.blocks[0].steps == STEPS * factor
    assert fine.design.blocks[0].depth == fields.HeldWeights(STEPS * factor)
    for name, old in net.weights.items():
        np.testing.assert_array_equal(fine.weights[name], np.repeat(old, factor, axis=0))


def test_refined_nets_converge_in_the_order_of_their_scheme():
    """The weights are the same function of depth on every level."""
    for scheme, order in (("symplectic_euler_drift", 1), ("verlet", 2)):
        net = nets.hamiltonian(3, 2, 8, 20, scheme=scheme)
        x, ends = np.random.default_rng(12).normal(size=(6, 3)), []
        for _ in range(4):
            ends.append(net(x))
            net = net.refine()
        first, second, third = (np.linalg.norm(b - a) for a, b in itertools.pairwise(ends))
        assert abs(np.log2(first / second) - order) < 0.15
        assert abs(np.log2(second / third) - order) < 0.15


def test_roughness_is_that_of_haber_and_ruthotto():
    """1/2 sum_j h |(theta_(j+1) - theta_j) / h|^2."""
    net = net_of("Hamiltonian")
    value, gradient = net.roughness()
    wanted = sum(0.5 * H * np.sum((np.diff(w, axis=0) / H) ** 2) for w in net.weights.values())
    assert value == pytest.approx(wanted, rel=1e-13)
    assert net.theta @ gradient == pytest.approx(2 * value, rel=1e-13)


@pytest.mark.parametrize("name", LITERATURE)
def test_files_keep_the_rule(name, tmp_path):
    net = net_of(name)
    net.save(tmp_path / "net.safetensors")
    found = nets.load(tmp_path / "net.safetensors")
    assert found.design.blocks[0].depth == fields.HeldWeights(STEPS)
    if name != "staggered":  # made without a preset
        assert found.identity != net_of(name, degree=0).identity
    np.testing.assert_array_equal(found(inputs(net)), net(inputs(net)))


def test_estimators_take_the_rule_and_its_other_choice():
    x = np.random.default_rng(13).normal(size=(30, 3))
    y = np.sin(x[:, 0])
    for options, depth in ((None, fields.HeldWeights(4)), ({"degree": 1}, fields.Depth(5, 1))):
        model = NetRegressor("hamiltonian", width=6, steps=4, epochs=2, options=options).fit(x, y)
        assert model.net_.design.blocks[0].depth == depth
    model = NetRegressor(fields.hyperbolic(fields.dense(5)), steps=4, epochs=2).fit(x, y)
    assert model.net_.design.blocks[0].scheme.name == "symplectic_euler_kick"


@pytest.mark.parametrize("controls", [1, 2, 4])
def test_several_steps_can_share_their_weights(controls):
    """A step takes the control value at its middle; shared by all steps, splines and held weights are the same."""
    few = nets.hamiltonian(None, None, 2 * N, 8, controls=controls, scheme="verlet")
    few.put(0.7 * np.random.default_rng(14).normal(size=few.theta.size))
    many = nets.hamiltonian(None, None, 2 * N, 8, scheme="verlet")
    for name, weights in few.weights.items():
        many.weights[name][...] = np.repeat(weights, 8 // controls, axis=0)
    x = inputs(few)
    np.testing.assert_allclose(few(x), many(x), atol=1e-14)
    if controls == 1:
        spline = nets.hamiltonian(None, None, 2 * N, 8, controls=1, degree=0, scheme="verlet")
        spline.put(few.theta)
        np.testing.assert_array_equal(spline(x), few(x))


def test_held_weights_refuse_what_is_no_number_of_controls():
    for wrong in (0, -1, 2.5, "3"):
        with pytest.raises(ValueError if isinstance(wrong, int) else TypeError, match="`controls`"):
            fields.HeldWeights(wrong)
    with pytest.raises(TypeError, match=r"`depth` must be a Depth such as .*, or HeldWeights"):
        Block(fields.residual(fields.dense(2)), "euler", 3, 1.0, 3)


def test_zero_weights_are_the_identity_where_the_activation_keeps_zero():
    """Or where K' stands outside of it; else every layer adds h s(0)."""
    x = np.random.default_rng(15).normal(size=(3, 2 * N))
    for dynamics, scheme in (("residual", "euler"), ("staggered", "symplectic_euler_kick"), ("parabolic", "euler")):
        for activation, is_identity in (("tanh", True), ("relu", True), ("sigmoid", dynamics == "parabolic")):
            field = fields.DYNAMICS[dynamics](fields.dense(N if dynamics == "staggered" else 2 * N), activation)
            net = Net(Design((Block(field, scheme, STEPS),)))
            net.put(np.zeros_like(net.theta))
            assert np.array_equal(net(x), x) == is_identity
